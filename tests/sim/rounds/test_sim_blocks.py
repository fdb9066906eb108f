"""What a round emits, position by position."""

import numpy as np
import pytest

from sim.rounds.sampling import verify_block, verify_greedy


def test_first_rejection_is_replaced_wherever_it_is():
    block = verify_block([7, 8, 9], [True, False, True], [3, 1, 2], 4)
    np.testing.assert_array_equal(block.tokens, [7, 1, -1, -1])
    assert block.accepted == 1


def test_batched_rounds_of_every_length():
    drafts = np.array([[7, 8, 9]] * 4)
    flags = np.array([[0, 1, 1], [1, 0, 1], [1, 1, 0], [1, 1, 1]], dtype=bool)
    block = verify_block(drafts, flags, [[3, 1, 2]] * 4, [4, 5, 6, 0])
    expected = [[3, -1, -1, -1], [7, 1, -1, -1], [7, 8, 2, -1], [7, 8, 9, 0]]
    np.testing.assert_array_equal(block.tokens, expected)
    np.testing.assert_array_equal(block.accepted, [0, 1, 2, 3])


def test_a_round_without_drafts_emits_the_bonus_token():
    empty = np.zeros(0, dtype=np.int64)
    block = verify_block(empty, empty.astype(bool), empty, 5)
    np.testing.assert_array_equal(block.tokens, [5])
    assert block.accepted == 0


def test_padding_is_refused_unless_the_lengths_are_said():
    drafts, flags = [1, 0, 1, -1, -1], [True] * 5
    with pytest.raises(ValueError, match=r"draft_tokens must hold .* got -1 at \[3\]"):
        verify_block(drafts, flags, [2] * 5, 3)
    block = verify_block(drafts, flags, [2] * 5, 3, draft_lengths=3)
    assert block.accepted == 3
    np.testing.assert_array_equal(block.tokens, [1, 0, 1, 3, -1, -1])


def test_a_token_that_is_read_must_exist():
    with pytest.raises(ValueError, match=r"recovery_tokens must hold .* got -1 at \[1\]"):
        verify_block([7, 8], [True, False], [3, -1], 4)
    with pytest.raises(ValueError, match=r"bonus_token must hold .* got -1"):
        verify_block([7, 8], [True, True], [3, 3], -1)
    # Neither is read here: the recovery after the rejection, and the bonus of a rejected round.
    block = verify_block([7, 8], [False, True], [3, -1], -1)
    np.testing.assert_array_equal(block.tokens, [3, -1, -1])


def test_shapes_must_match():
    with pytest.raises(ValueError, match=r"one bonus token: got draft_tokens \(2,\)"):
        verify_block([7, 8], [True], [3, 3], 4)
    with pytest.raises(ValueError, match=r"bonus_token \(1,\)"):
        verify_block([7, 8], [True, True], [3, 3], [4])


def test_the_first_draft_is_checked():
    block = verify_greedy([2, 0], [1, 0, 2])
    assert block.accepted == 0
    np.testing.assert_array_equal(block.tokens, [1, -1, -1])
    # Rows one place late would have kept the unchecked first draft; then both drafts match.
    late = verify_greedy([2, 0], [2, 0, 2])
    assert late.accepted == 2


@pytest.mark.parametrize("rows", [1, 2, 4])
def test_k_drafts_need_one_more_verifier_row(rows):
    with pytest.raises(ValueError, match="2 drafts need 3 verifier tokens"):
        verify_greedy([2, 0], list(range(rows)))
