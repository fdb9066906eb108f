"""Lists of the likeliest tokens, joined: what is known of each token, and what is refused."""

import numpy as np
import pytest

from theory import PartialRows

DRAFT = np.array([[3, 1, 0]]), np.array([[0.5, 0.2, 0.1]])
VERIFIER = np.array([[1, 3, 7]]), np.array([[0.4, 0.3, 0.2]])


def test_lists_are_joined_by_token():
    rows = PartialRows.of(DRAFT, VERIFIER, 10)
    assert rows.token.tolist() == [[0, 1, 3, 7]]
    np.testing.assert_allclose(rows.p, [[0.1, 0.2, 0.5, 0.0]])
    np.testing.assert_allclose(rows.q, [[0.0, 0.4, 0.3, 0.2]])
    assert rows.known.tolist() == [[False, True, True, False]]
    np.testing.assert_allclose([rows.p_rest[0], rows.q_rest[0]], [0.2, 0.1])
    np.testing.assert_allclose([rows.p_outside[0], rows.q_outside[0]], [0.3, 0.3])
    np.testing.assert_allclose([rows.p_cap[0], rows.q_cap[0]], [0.1, 0.1])
    assert rows.unlisted.tolist() == [6]


def test_merged_and_split_rows_are_distributions_with_the_mass_outside_together_or_apart():
    rows = PartialRows.of(DRAFT, VERIFIER, 10)
    for pair, tokens in ((rows.merged, 1), (rows.split, 2)):
        np.testing.assert_allclose([pair.p.sum(), pair.q.sum()], 1.0)
        assert pair.p.shape[-1] == rows.token.shape[-1] + tokens
    np.testing.assert_allclose(rows.merged.total_variation, [0.2])
    np.testing.assert_allclose(rows.split.total_variation, [0.5])


def test_a_list_of_everything_leaves_no_rest():
    whole = np.arange(4)[None, :], np.array([[0.4, 0.3, 0.2, 0.1]])
    short = np.array([[2, 0]]), np.array([[0.6, 0.4]])
    rows = PartialRows.of(short, whole, 4)
    assert rows.known.all()
    assert rows.p_outside.tolist() == [0.0]


def test_rows_may_list_different_numbers_of_tokens():
    tokens = np.array([[3, -1], [0, 2]]), np.array([[0.9, 0.0], [0.5, 0.3]])
    rows = PartialRows.of(tokens, tokens, 5)
    assert rows.token.tolist() == [[3, -1], [0, 2]]
    assert rows.unlisted.tolist() == [4, 3]
    assert rows.known.all()


def test_a_token_below_the_likeliest_does_not_lower_the_cap():
    draft = np.array([[3, 1, 9]]), np.array([[0.5, 0.2, 1e-6]])
    caps = np.array([0.2]), np.array([0.2])
    rows = PartialRows.of(draft, VERIFIER, 10, caps=caps)
    np.testing.assert_allclose(rows.p_cap, [0.2])


@pytest.mark.parametrize(
    ("tokens", "values", "told"),
    [
        ([[3, 1]], [[0.9, 0.2]], r"draft row 0 lists probabilities that sum to 1\.1"),
        ([[3, 10]], [[0.5, 0.2]], "draft row 0 lists the token 10 of 10"),
        ([[3, -2]], [[0.5, 0.2]], "draft row 0 lists the token -2 of 10"),
        ([[3, 3]], [[0.5, 0.2]], "draft row 0 lists the token 3 twice"),
        ([[3, 1]], [[0.5, -0.2]], r"draft row 0 lists the probability -0\.2 which is none"),
        ([[3, 1]], [[0.5, np.nan]], "draft row 0 lists the probability nan which is none"),
        ([[3.0, 1.0]], [[0.5, 0.2]], "draft must be integer tokens"),
        ([3, 1], [0.5, 0.2], "draft must be integer tokens"),
        ([[3, 1], [0, 1]], [[0.5, 0.2]] * 2, "draft has 2 rows and verifier has 1"),
    ],
)
def test_lists_that_are_none_are_refused_by_model_row_and_value(tokens, values, told):
    with pytest.raises(ValueError, match=told):
        PartialRows.of((np.array(tokens), np.array(values)), VERIFIER, 10)
