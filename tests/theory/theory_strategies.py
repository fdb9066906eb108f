"""Random and degenerate inputs for the tests of theory: pairs of rows and rules with parameters."""

import math

import numpy as np
from hypothesis import strategies as st

from theory import RULES, make_rule

KINDS = (
    "kl",
    "reverse_kl",
    "pearson_chi2",
    "total_variation",
    "squared_hellinger",
    "jensen_shannon",
)
ALL_KINDS = (*KINDS, "power:1.5", "power:-0.5")
FAINT = (5e-324, 1e-310, 1e-308)


def normalised(weights):
    """Rows of non-negative weights over their sums."""
    weights = np.asarray(weights, dtype=np.float64)
    return weights / weights.sum(axis=-1, keepdims=True)


@st.composite
def rows(draw, width):
    """One distribution over `width` tokens: spread, sparse, one-hot, uniform or with faint ones."""
    shape = draw(st.sampled_from(("spread", "sparse", "one-hot", "uniform", "faint")))
    peak = draw(st.integers(0, width - 1))
    if shape == "one-hot":
        return np.eye(width)[peak]
    if shape == "uniform":
        return np.full(width, 1.0 / width)
    if shape == "faint":
        row = np.array(draw(st.lists(st.sampled_from(FAINT), min_size=width, max_size=width)))
        row[peak] = 1.0
        return row
    exponents = draw(st.lists(st.floats(-20, 0), min_size=width, max_size=width))
    weights = np.exp(exponents)
    if shape == "sparse":
        kept = np.array(draw(st.lists(st.booleans(), min_size=width, max_size=width)))
        kept[peak] = True
        weights = np.where(kept, weights, 0.0)
    return normalised(weights)


@st.composite
def row_pairs(draw, width):
    """One draft and one verifier row: independent, equal, disjoint, near or nearly tied."""
    q = draw(rows(width))
    relation = draw(st.sampled_from(("free", "free", "free", "equal", "disjoint", "near", "tied")))
    if relation == "equal":
        return q, q
    if relation == "near":
        noise = np.array(draw(st.lists(st.floats(-1, 1), min_size=width, max_size=width)))
        return normalised(q * (1.0 + 1e-12 * noise)), q
    if relation == "tied":
        step = np.array(draw(st.lists(st.integers(-2, 2), min_size=width, max_size=width)))
        return 1.0 / width + step * 2.0**-54, np.full(width, 1.0 / width)
    p = draw(rows(width))
    if relation == "disjoint" and width > 1:
        split = draw(st.integers(1, width - 1))
        below = np.arange(width) < split
        return normalised(np.where(below, p + 1e-9, 0.0)), normalised(
            np.where(below, 0.0, q + 1e-9)
        )
    return p, q


@st.composite
def pairs(draw, min_rows=1, max_rows=3, max_width=7):
    """A batch p, q [R, V] of rows that need not be alike; V = 1 included."""
    width = draw(st.integers(1, max_width))
    count = draw(st.integers(min_rows, max_rows))
    batch = [draw(row_pairs(width)) for _ in range(count)]
    p = np.array([p for p, _ in batch]).reshape(count, width)
    q = np.array([q for _, q in batch]).reshape(count, width)
    return p, q


def _number(low, high, *extremes):
    return st.one_of(st.sampled_from((low, high, *extremes)), st.floats(low, high))


def _level():
    free = st.floats(-21, 1).map(math.exp)
    return st.one_of(st.sampled_from((0.0, math.inf, 1e-9, 1e-3, 0.1, 1.0)), free)


_BOUNDARY = {"divergence": st.sampled_from(ALL_KINDS)}
PARAMETERS = {
    "sps": {},
    "lenience": {"l": st.one_of(st.sampled_from((1.0, 0.5, 1e-3, 5e-324)), st.floats(0.01, 1))},
    "interpolation": {"alpha": _number(0.0, 1.0)},
    "ears": {"tau": _number(0.0, 1.0)},
    "mentored": {"level": _level()},
    "frontier": {"level": _level(), **_BOUNDARY},
    "frontier_corpus": {"multiplier": _number(0.01, 8.0, 0.0, math.inf), **_BOUNDARY},
    "cascade_chow": {"alpha": _number(0.0, 1.0)},
    "cascade_diff": {"alpha": _number(-1.0, 1.0, 0.0)},
    # No round values: α·TV would tie with the maxima of uniform rows, up to the order of a sum.
    "cascade_opt": {
        "alpha": st.one_of(
            st.sampled_from((-math.inf, math.inf)), st.floats(-3, 3).map(lambda x: 0.9137 * x)
        )
    },
    "cascade_token_v1": {"alpha": _number(-1.0, 1.0, 0.0)},
    "cascade_token_v2": {"alpha": _number(-1.0, 1.0, 0.0)},
    "cascade_token_v3": {"alpha": _number(0.0, 1.0)},
    "fuzzy": {"threshold": st.one_of(st.sampled_from((-1.0, math.inf)), st.floats(-0.1, 0.8))},
    "cactus": {"delta": _level()},
    "cactus_exact": {"delta": _level(), **_BOUNDARY},
    "cactus_target_only": {"delta": _level(), "exact": st.booleans()},
    "target_only": {
        "threshold_single": _number(0.01, 1.0),
        "threshold_acc": _number(0.01, 1.0, 5e-324),
    },
    "typical": {
        "epsilon": _number(0.0, 1.0, 0.09),
        "alpha": st.one_of(st.sampled_from((0.0, 0.3, math.inf)), st.floats(0.01, 0.9)),
        "recovery": st.sampled_from(("argmax", "verifier")),
    },
    "top_k": {"k": st.integers(1, 9), "recovery": st.sampled_from(("verifier", "indicator"))},
    "top_n_delta": {"n": st.integers(1, 9), "delta": _number(0.0, 1.0)},
    # No powers of two: θ·p would tie with q on rows of few tokens, up to its rounding.
    "constant_threshold": {"threshold": _number(0.01, 1.0, 0.4137, 5e-324)},
    "ratio_threshold": {"threshold": _number(0.01, 1.0, 0.4137, 5e-324)},
    "truncated_typical": {
        "epsilon": _number(0.0, 1.0, 0.09),
        "alpha": st.one_of(st.sampled_from((0.0, 0.3, math.inf)), st.floats(0.01, 0.9)),
    },
    "truncated_top_k": {"k": st.integers(1, 9)},
    "truncated_top_p": {"top_p": _number(0.01, 1.0, 5e-324)},
    "synthetic": {
        "rate": _number(0.0, 1.0),
        "recover_by": st.sampled_from(("residual", "verifier", "argmax")),
    },
}
assert PARAMETERS.keys() == RULES.keys()


def settings_of(name):
    """(name, parameters) of one rule, strict and extreme values included."""
    return st.fixed_dictionaries(PARAMETERS[name]).map(lambda values: (name, values))


def rules(*names):
    """Rules with parameters in their ranges; of the given names, or of every name."""
    setting = st.sampled_from(names or tuple(RULES)).flatmap(settings_of)
    return setting.map(lambda pair: make_rule(pair[0], **pair[1]))


# One small instance of every rule, for the tests that need no search.
EXAMPLES = [
    ("sps", {}),
    ("lenience", {"l": 0.4}),
    ("interpolation", {"alpha": 0.3}),
    ("ears", {"tau": 0.4}),
    ("mentored", {"level": 0.05}),
    ("frontier", {"level": 0.05}),
    ("frontier", {"level": 0.1, "divergence": "jensen_shannon"}),
    ("frontier_corpus", {"multiplier": 0.7}),
    ("frontier_corpus", {"multiplier": 0.4, "divergence": "jensen_shannon"}),
    ("cascade_chow", {"alpha": 0.5}),
    ("cascade_diff", {"alpha": 0.1}),
    ("cascade_opt", {"alpha": 0.3}),
    ("cascade_token_v1", {"alpha": 0.1}),
    ("cascade_token_v2", {"alpha": 0.1}),
    ("cascade_token_v3", {"alpha": 0.5}),
    ("fuzzy", {"threshold": 0.1}),
    ("cactus", {"delta": 0.05}),
    *(("cactus_exact", {"delta": 0.05, "divergence": kind}) for kind in ALL_KINDS),
    ("cactus_target_only", {"delta": 0.1}),
    ("cactus_target_only", {"delta": 0.1, "exact": True}),
    ("target_only", {"threshold_single": 0.6, "threshold_acc": 0.4}),
    ("typical", {}),
    ("typical", {"epsilon": 0.2, "alpha": 0.8, "recovery": "verifier"}),
    ("top_k", {"k": 2}),
    ("top_k", {"k": 2, "recovery": "indicator"}),
    ("top_n_delta", {"n": 3, "delta": 0.2}),
    ("constant_threshold", {"threshold": 0.3}),
    ("ratio_threshold", {"threshold": 0.3}),
    ("truncated_typical", {}),
    ("truncated_typical", {"epsilon": 0.3, "alpha": 0.8}),
    ("truncated_top_k", {"k": 2}),
    ("truncated_top_p", {"top_p": 0.7}),
    ("synthetic", {"rate": 0.6}),
    ("synthetic", {"rate": 0.6, "recover_by": "verifier"}),
    ("synthetic", {"rate": 0.6, "recover_by": "argmax"}),
]
assert {name for name, _ in EXAMPLES} == set(RULES)


def label(setting):
    """A readable test id of a (name, parameters) pair."""
    name, parameters = setting
    return "-".join([name, *(f"{key}={value}" for key, value in parameters.items())])
