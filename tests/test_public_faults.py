"""Faults that others met in public code, each as the smallest numbers that show it.

`data/public_faults.json` holds input, right values, symptom and cause. Every case has one function
here, named after its id, which runs the part of the toolkit that the fault would be in. Where it is
cheap the faulty procedure is run as well: if it gave the right values, the case would test nothing.
"""

import json
import math
from pathlib import Path

import array_api_strict
import numpy as np
import pytest

from sim.pairs.filters import filter_probabilities, softmax
from sim.rounds.metrics import (
    acceptance_metrics,
    accepted_from_emitted,
    expected_accepted,
    tokens_per_round,
)
from sim.rounds.sampling import sample_block, sample_step, verify_block, verify_greedy
from theory import (
    Pair,
    divergence,
    frontier_acceptance,
    make_rule,
    one_step,
    optimal_gamma,
    second_order_gamma,
)

FILE = Path(__file__).resolve().parent / "data" / "public_faults.json"
CASES = {case["id"]: case for case in json.loads(FILE.read_text())}
SPS = make_rule("sps")


def close(found, expected, rtol=1e-12, atol=1e-15):
    np.testing.assert_allclose(found, expected, rtol=rtol, atol=atol)


def rng():
    return np.random.default_rng(0)


def emitted(rule, p, q, proposal):
    """What comes out if candidates follow `proposal` while the rule is told p."""
    p, q, proposal = map(np.asarray, (p, q, proposal))
    accepted = proposal * rule.accept_prob(p, q)
    rejected = proposal - accepted
    return accepted + sum(r * rule.recovery(p, q, n) for n, r in enumerate(rejected) if r > 0)


def torch_and_distributions():
    torch = pytest.importorskip("torch")
    from real_models.laws.distributions import distributions

    return torch, distributions


def cactus_taylor_over_budget(given, expected):
    q, delta = (np.array([c[key] for c in given["cases"]]) for key in ("q", "delta"))
    for method in ("fast", "scipy"):
        found = optimal_gamma(q, delta, method=method)
        close(found.value, expected["gamma"])
        cost = two_point_kl(found.value, q)
        close(cost, expected["kl_at_gamma"])
        assert np.all(cost <= delta * (1 + 1e-12))
    closed = second_order_gamma(q, delta)
    close(closed.value, expected["taylor_clipped_gamma"])
    close(two_point_kl(closed.value, q), expected["taylor_true_kl"])
    assert "approximation" in second_order_gamma.__doc__.lower()
    assert "approximation" in type(make_rule("cactus", delta=1)).__doc__.lower()


def two_point_kl(gamma, q):
    return divergence("kl", *(np.stack([x, 1 - x], axis=-1) for x in (gamma, q)))


def cactus_marginal_kl_exceeds_delta(given, expected):
    p, q = np.array(given["p_draft"]), np.array(given["q_verifier"])
    rule = make_rule("cactus_exact", delta=given["delta"])
    close(optimal_gamma(q, given["delta"]).value, expected["gamma"])
    close(rule.accept_prob(p, q), expected["accept_prob"])
    output = one_step(rule, p, q).output
    close(output, expected["emitted_distribution"])
    realised = divergence("kl", output, q)
    close(realised, expected["kl_emitted_vs_q"])
    close(realised / given["delta"], expected["kl_over_delta"])


def residual_zero_mass(given, expected):
    just_below = np.nextafter(np.float32(0.5), np.float32(0))
    rows = [
        (np.full(4, 0.25), np.full(4, 0.25)),
        (np.array([0.5, 0.5, 0], np.float32), np.array([just_below, 0.5, 0], np.float32)),
    ]
    assert len(rows) == len(given["cases"])
    for rule in (SPS, make_rule("cactus", delta=0), make_rule("lenience", l=1)):
        for (p, q), right in zip(rows, expected["accept_prob"]):
            numbers = [x if isinstance(x, int | float) else 0.0 for x in right]
            close(rule.accept_prob(p, q), numbers, rtol=1e-7)
            for n in range(p.size):
                recovery = rule.recovery(p, q, n)
                close(recovery.sum(), 1, rtol=1e-6)
                assert not np.any(recovery[q == 0])
                # Lenience adds the rejected 3e-8 to its target first, so its residual is not empty.
                if rule.name != "lenience":
                    np.testing.assert_array_equal(recovery, q)
            assert not np.any(rule.output(p, q)[q == 0])
        assert not np.any(rule.rejectable(*rows[0]))


def nan_slips_past_guard(given, expected):
    torch, distributions = torch_and_distributions()
    logits = torch.tensor([[0.0, 1.0, 2.0], [float(x) for x in given["q_logits"]]])
    with pytest.raises(ValueError, match=r"logits: row 1 has no finite logit"):
        distributions(logits)
    p, nan = np.array([given["p"]] * 2), np.array([given["p"], [math.nan] * 3])
    with pytest.raises(ValueError, match=r"q row 1 has the not finite entry nan at token 0"):
        one_step(SPS, p, nan)


def top_k_draft_scored_raw(given, expected):
    raw, q = np.array(given["p_raw"]), np.array(given["q"])
    drawn = filter_probabilities(raw, top_k=2)
    close(drawn, [4 / 7, 3 / 7, 0, 0])
    law = one_step(SPS, drawn, q)
    close(law.output, expected["correct_emitted"])
    close(law.acceptance, expected["correct_accept_rate"])
    faulty = emitted(SPS, raw, q, proposal=drawn)
    close(faulty, expected["faulty_emitted"])
    close(np.abs(faulty - q).sum() / 2, expected["faulty_tv"])
    close((drawn * SPS.accept_prob(raw, q)).sum(), expected["faulty_accept_rate"])
    with pytest.raises(ValueError, match="p gives no mass to token 2"):
        sample_block(SPS, drawn[None], np.array([q, q]), [2], rng())


def greedy_draft_scored_soft(given, expected):
    soft, q = np.array(given["p_softmax"]), np.array(given["q"])
    proposal = np.array(expected["correct_proposal"], dtype=float)
    close(SPS.accept_prob(proposal, q)[0], expected["correct_accept_prob"])
    close(SPS.recovery(proposal, q, 0), expected["correct_residual"])
    close(SPS.output(proposal, q), expected["correct_emitted"])
    close(emitted(SPS, soft, q, proposal), expected["faulty_emitted"])
    close(SPS.accept_prob(soft, q)[0], expected["faulty_accept_prob"])
    torch, distributions = torch_and_distributions()
    greedy = distributions(torch.log(torch.tensor([given["p_softmax"]])), temperature=0)
    np.testing.assert_array_equal(greedy.numpy(), [proposal])


def typical_entropy_epsilon(given, expected):
    size = given["V"]
    rare = np.full(size, (1 - 0.2 - 2e-5) / (size - 2))
    rare[:2] = 0.2, 2e-5
    q = np.stack([np.full(size, 1 / size), rare, np.eye(1, size)[0]])
    rule = make_rule("typical", epsilon=given["epsilon"], alpha=given["alpha"])
    pair = Pair.prepare(q, q, sort=False)
    close(pair.verifier_entropy, expected["entropy"], rtol=1e-10)
    close(rule.threshold(pair), expected["threshold"], rtol=1e-10)
    drafted = rule.accept_prob(q, q)[[0, 1, 2], [0, 1, 0]]
    np.testing.assert_array_equal(drafted == 1, expected["accept"])


def root_bracket_and_nan_endpoint(given, expected):
    for method in ("fast", "scipy"):
        for case, right in zip(given["cases"], expected["gamma"], strict=True):
            q, delta = case["q"], float(case["delta"])
            if right == "ValueError":
                with pytest.raises(ValueError, match="budget must lie in"):
                    optimal_gamma(q, delta, method=method)
                continue
            found = optimal_gamma(q, delta, method=method).value
            close(found, right)
            if delta == 1e-20:
                close(found - q, expected["gamma_minus_q_case3"], rtol=1e-5)


def kl_zero_support(given, expected):
    for case, right in zip(given["cases"], expected["kl"], strict=True):
        close(divergence("kl", case["p"], case["q"]), float(right))


def masked_target_vs_draft(given, expected):
    q = filter_probabilities(np.array(given["q_raw"]), top_p=given["top_p"])
    close(q, expected["q_used"])
    for i, case in enumerate(given["cases"]):
        law = one_step(SPS, np.array(case["p"]), q)
        close(law.acceptance, expected["accept_rate"][i])
        close(law.output, expected["emitted"])
        close(divergence("kl", case["p"], q.tolist()), float(expected["KL(p||q_used)"][i]))
        close(divergence("kl", q.tolist(), case["p"]), float(expected["KL(q_used||p)"][i]))


def entropy_normalises_silently(given, expected):
    with pytest.raises(ValueError, match=r"q row 0 sums to 0\.6, not to 1"):
        divergence("kl", given["p"], given["q"])
    for call in (one_step, lambda rule, p, q: frontier_acceptance(p, q, 0.1)):
        with pytest.raises(ValueError, match=r"q row 0 sums to 0\.6, not to 1"):
            call(SPS, given["p"], given["q"])


def kl_div_order_and_mean(given, expected):
    first, second = np.array([given["P"]]), np.array([given["Q"]])
    close(divergence("kl", first, second), [expected["KL(P||Q)"]])
    close(divergence("kl", second, first), [expected["KL(Q||P)"]])
    close(divergence("reverse_kl", first, second), [expected["KL(Q||P)"]])
    # Over (batch, position, V) the sum is over V alone and nothing is averaged.
    stacked = (np.broadcast_to(row, (2, 3, 2)) for row in (first, second))
    close(divergence("kl", *stacked), np.full((2, 3), expected["KL(P||Q)"]))


def residual_softmax(given, expected):
    p, q = np.array(given["p"]), np.array(given["q"])
    close(SPS.recovery(p, q, 0), expected["residual"])
    close(1 - one_step(SPS, p, q).acceptance, expected["reject_mass"])
    close(SPS.output(p, q), expected["emitted"])
    faulty = softmax(np.maximum(q - p, 0))
    close(faulty, expected["faulty_residual"])
    close(np.minimum(p, q) + expected["reject_mass"] * faulty, expected["faulty_emitted"])


def draft_id_negative(given, expected):
    drafts, flags = np.array(given["draft_ids"]), [True] * 5
    with pytest.raises(ValueError, match="draft_tokens must hold token ids"):
        verify_block(drafts, flags, [0] * 5, 2)
    block = verify_block(drafts, flags, [0] * 5, 2, draft_lengths=3)
    assert block.accepted == expected["max_accepted"]
    assert np.count_nonzero(block.tokens >= 0) == expected["max_emitted"]
    p = np.vstack([np.full((3, 4), 0.25), np.zeros((2, 4))])
    with pytest.raises(ValueError, match="draft_tokens must hold token ids"):
        sample_block(SPS, p, np.full((6, 4), 0.25), drafts, rng())
    with pytest.raises(ValueError, match=r"n row 1 is -1, not a token index in \[0, 3\]"):
        SPS.recovery(p[:3], p[:3], [0, -1, 2])


def metric_bonus_off_by_one(given, expected):
    found = acceptance_metrics(given["accepted_per_round"], given["k"])
    assert (found.accepted, found.drafted) == (expected["accepted"], expected["drafted"])
    close(found.acceptance_rate, expected["acceptance_rate"])
    close(found.accepted_length, expected["mean_accepted_without_bonus"])
    close(found.tokens_per_round, expected["mean_acceptance_length_with_bonus"])
    close(found.unconditional, expected["per_position_unconditional"])
    close(found.conditional, expected["per_position_conditional"])


def metric_empty_and_negative(given, expected):
    found = acceptance_metrics([], [])
    assert found.rounds == found.accepted == found.drafted == 0
    for undefined in (found.acceptance_rate, found.accepted_length, found.tokens_per_round):
        assert math.isnan(undefined)
    assert "nan" in type(found).__doc__
    for check in (lambda: accepted_from_emitted([0]), lambda: acceptance_metrics([-1], 3)):
        with pytest.raises(ValueError, match="a verified round emits at least one token"):
            check()


def nan_row_becomes_token(given, expected):
    case = given["cases"][1]
    p, q = np.array(case["p"], float), np.array(case["q"])
    sample = sample_step(SPS, p, q, 2000, rng())
    assert set(sample.tokens[~sample.accepted]) == {1}
    assert np.all(sample.tokens < q.size)
    np.testing.assert_array_equal(SPS.recovery(p, q, 0), [0, 1, 0, 0, 0])
    torch, distributions = torch_and_distributions()
    logits = torch.tensor([[0.0] * 5, [float(x) for x in given["cases"][0]["q_logits"]]])
    with pytest.raises(ValueError, match=r"q_logits: row 1 has the value nan"):
        distributions(logits, name="q_logits")


def log_residual_cancellation(given, expected):
    """Residuals are kept as probabilities, q − p in float64: two tokens at the two ratios."""
    ratios = (1e-9, 1 - 1e-8)
    assert [case["p_over_q"] for case in given["cases"]] == [1e-09, "1-1e-8"]
    q = np.array([0.4, 0.4, 0.2])
    p = np.array([q[0] * ratios[0], q[1] * ratios[1], 0.0])
    p[2] = 1 - p.sum()
    residual = SPS.recovery(p, q, 2) * (1 - one_step(SPS, p, q).acceptance)
    close(np.log(residual[:2] / q[:2]), expected["log_residual"], rtol=2e-7)


def logits_passed_as_probs(given, expected):
    good, logits = np.array([0.5, 0.25, 0.25]), np.array(given["q"])
    with pytest.raises(ValueError, match=r"q row 0 has the negative entry -1\.0.*softmax first"):
        one_step(SPS, good, logits)
    with pytest.raises(ValueError, match=r"q row 0 sums to 3, not to 1"):
        one_step(SPS, good, np.abs(np.array([2.0, 1.0, 0.0])))
    torch, distributions = torch_and_distributions()
    trap = expected["double_softmax_trap"]
    q = torch.tensor(trap["q"], dtype=torch.float64)
    close(distributions(torch.log(q)).numpy(), trap["q"])
    close(distributions(q).numpy(), trap["softmax_again"])


def sampled_draft_one_hot_residual(given, expected):
    p, q = np.array(given["p"]), np.array(given["q"])
    close(SPS.output(p, q), expected["correct_emitted"])
    accept = SPS.accept_prob(p, q)
    residuals = [np.where(np.arange(3) == n, np.maximum(q - p, 0), q) for n in range(3)]
    faulty = p * accept + sum(p[n] * (1 - accept[n]) * r / r.sum() for n, r in enumerate(residuals))
    close(faulty, expected["faulty_emitted"])
    close(np.abs(faulty - q).sum() / 2, expected["faulty_tv"])
    for n in range(3):
        close(SPS.output(np.eye(3)[n], q), q)


def three_valid_rules_three_rates(given, expected):
    p, q = np.array(given["p"]), np.array(given["q"])
    laws = {
        "sum_min(p,q)": one_step(SPS, p, q),
        "argmax_draft_one_hot": one_step(SPS, np.eye(4)[np.argmax(p)], q),
        "sampled_draft_exact_match_sum_pq": one_step(make_rule("target_only"), p, q),
    }
    for name, law in laws.items():
        close(law.acceptance, expected[name])
        close(law.output, expected["emitted_all_three"])


def low_precision_draft_sampling(given, expected):
    torch, distributions = torch_and_distributions()
    logits = torch.tensor(given["logits"], dtype=torch.float64)
    scored = distributions(logits, given["temperature"])
    close(scored.numpy(), expected["p_scored"])
    # Rounded logits give the distribution of the rounded logits, computed in float64.
    rounded = distributions(logits.to(torch.bfloat16), given["temperature"])
    assert rounded.dtype == torch.float64
    close(rounded.numpy(), expected["p_sampled_bf16"])
    faulty = emitted(SPS, scored.numpy(), scored.numpy(), proposal=rounded.numpy())
    close(faulty, expected["emitted_faulty"])
    with pytest.raises(TypeError, match=r"dtype must be torch\.float64 or torch\.float32"):
        distributions(logits, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="p has dtype bfloat16"):
        one_step(SPS, rounded.to(torch.bfloat16), scored)


def candidates_topk_and_duplicates(given, expected):
    pytest.skip("a round has one candidate per position: there is no multi-candidate drafting")


def typical_recovered_position(given, expected):
    verifier = given["verifier_argmax_per_position"]
    block = verify_block(given["draft"], given["accepted"], verifier, given["bonus"])
    np.testing.assert_array_equal(block.tokens, expected["output"])
    assert block.accepted == expected["accepted_count"]


def entropy_minus_inf(given, expected):
    masked = [float(x) for x in given["cases"][0]["logits"]]
    q = softmax(np.array([masked]))
    close(Pair.prepare(q, q).verifier_entropy, expected["entropy"][:1])
    torch, distributions = torch_and_distributions()
    half = torch.tensor([given["cases"][1]["logits"]], dtype=torch.float16)
    for logits, right in ((torch.tensor([masked]), expected["entropy"][0]), (half, 0.0)):
        row = distributions(logits)
        close(Pair.prepare(row, row).verifier_entropy.numpy(), [right])


def top_k_truncated_kl(given, expected):
    p, q, k = np.array(given["p"]), np.array(given["q"]), given["k"]
    with pytest.raises(ValueError, match=r"h row 0 sums to 0\.8, not to 1"):
        divergence("kl", p[:k], q[:k])
    bucketed = (np.append(row[:k], row[k:].sum()) for row in (p, q))
    close(divergence("kl", *bucketed), expected["with_tail_bucket"])
    close(divergence("kl", p, q), expected["full_kl"])
    whole = np.array([expected["K_equals_V"]["p"]])
    close(Pair.prepare(whole, whole).verifier_entropy, [expected["K_equals_V"]["entropy"]])


def pac_bayes_nan_and_small_budget(given, expected):
    """KL(q‖·) ≤ δ inverted in its second argument is the optimum for `reverse_kl`.

    At q = 0 the support is kept, so the formula is met in its limit, the smallest float above 0.
    """
    smallest = 5e-324
    for case, right in zip(given["cases"], expected["upper"], strict=True):
        budget = float(case["d"])
        if right == "ValueError":
            with pytest.raises(ValueError, match=r"budget must lie in \[0, inf\], got (nan|-1\.0)"):
                optimal_gamma(case["x"], budget, "reverse_kl")
        else:
            close(optimal_gamma(smallest, budget, "reverse_kl").value, right, atol=0)
            assert optimal_gamma(0.0, budget, "reverse_kl").value == 0


def conditional_vs_cumulative_rate(given, expected):
    alpha, drafts = given["alpha_conditional"], given["gamma"]
    close(expected_accepted(alpha, drafts), expected["expected_accepted"])
    close(expected_accepted(alpha, drafts) / drafts, expected["mean_rate"])
    close(tokens_per_round(alpha, drafts), expected["expected_tokens_with_bonus"])
    survival = np.diff(expected_accepted(alpha, np.arange(drafts + 1)))
    close(survival, expected["position_survival"])
    # Counts with exactly these rates give the same three numbers back.
    rounds = 3125
    lengths = np.repeat(
        np.arange(6),
        (rounds * np.append(-np.diff([1, *survival]), survival[-1])).round().astype(int),
    )
    found = acceptance_metrics(lengths, drafts)
    close(found.conditional, np.full(drafts, alpha))
    close(found.unconditional, expected["position_survival"])
    close(found.acceptance_rate, expected["mean_rate"])
    assert found.acceptance_rate <= 1


def logits_shifted_by_one(given, expected):
    block = verify_greedy(given["draft"], given["verifier_argmax_rows"])
    assert block.accepted == expected["accepted"]
    np.testing.assert_array_equal(block.tokens[:1], expected["emitted"])
    assert np.all(block.tokens[1:] == -1)
    with pytest.raises(ValueError, match="2 drafts need 3 verifier tokens"):
        verify_greedy(given["draft"], given["verifier_argmax_rows"][:2])
    with pytest.raises(ValueError, match="2 drafts need 2 draft rows and 3 verifier rows"):
        sample_block(SPS, np.full((2, 3), 1 / 3), np.full((2, 3), 1 / 3), [0, 1], rng())


def devices_differ(given, expected):
    row = [0.5, 0.5]
    here = array_api_strict.asarray(row)
    there = array_api_strict.asarray(row, device=array_api_strict.Device("device1"))
    for call in (lambda p, q: one_step(SPS, p, q), lambda p, q: frontier_acceptance(p, q, 0.1)):
        with pytest.raises(ValueError, match=r"p is on .*CPU_DEVICE.*, q is on .*device1"):
            call(here, there)
    torch = pytest.importorskip("torch")
    p = torch.tensor(row, dtype=torch.float64)
    with pytest.raises(ValueError, match="p is on cpu, q is on meta"):
        one_step(SPS, p, p.to("meta"))


@pytest.mark.parametrize("name", CASES)
def test_a_public_fault_is_not_ours(name):
    case = CASES[name]
    globals()[name.replace("-", "_")](case["input"], case["expected"])


def test_every_case_is_here():
    assert len(CASES) == 30
