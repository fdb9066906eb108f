"""Every rule once more, as slowly and plainly as it can be written: one row, Python floats.

`plain(name, **parameters)` gives a function of two lists p, q that returns the acceptance
probabilities b and a function n -> recovery distribution, straight from the definitions.
`plain_law` adds up Σ_n p_n b_n e_n + Σ_n p_n (1 − b_n) g⁽ⁿ⁾. Nothing of theory is used here.
"""

import math

HALVINGS = 200
SMALLEST = 5e-324


def plain_law(rule, p, q):
    """Acceptance and output of a rule from its (b, g) by enumeration of the candidates."""
    accept, recover = rule(p, q)
    output = [p_n * b_n for p_n, b_n in zip(p, accept)]
    acceptance = math.fsum(output)
    for n, (p_n, b_n) in enumerate(zip(p, accept)):
        rejected = p_n * (1.0 - b_n)
        if rejected > 0:
            output = [o + rejected * g for o, g in zip(output, recover(n))]
    return acceptance, output


def plain(name, **parameters):
    """The function p, q -> (b, g) of a rule."""
    return lambda p, q: PLAIN[name](p, q, **parameters)


def norm(residual, fallback):
    peak = max(residual)
    if peak <= 0:
        return list(fallback)
    scaled = [r / peak for r in residual]
    total = math.fsum(scaled)
    return [r / total for r in scaled]


def positive(a, b):
    return [max(x - y, 0.0) for x, y in zip(a, b)]


def ratio(target, p):
    """min(1, target/p); a token that the target lacks is never accepted."""
    return 0.0 if target == 0 else 1.0 if target >= p else target / p


def coupled(target):
    def rule(p, q, **parameters):
        h = target(p, q, **parameters)
        return [ratio(t, p_n) for t, p_n in zip(h, p)], lambda n: norm(positive(h, p), q)

    return rule


def tv(p, q):
    return math.fsum(positive(p, q))


# --- divergences -----------------------------------------------------------------------------


def summand(kind, h, q):
    """q·f̃(h/q) with f̃(t) = f(t) − f′(1)(t−1), by the textbook formula and its limits."""
    if h == 0 and q == 0:
        return 0.0
    if h == 0:
        return q * AT_ZERO[kind] if not kind.startswith("power:") else q * _power_at_zero(kind)
    if q == 0:
        return h * RECESSION[kind] if not kind.startswith("power:") else h * _power_recession(kind)
    log_t = math.log(h) - math.log(q)
    if kind == "kl":
        return h * log_t - (h - q)
    if kind == "reverse_kl":
        return -q * log_t + (h - q)
    if kind == "pearson_chi2":
        return (h - q) * ((h - q) / q)
    if kind == "total_variation":
        return abs(h - q) / 2
    if kind == "squared_hellinger":
        return (math.sqrt(h) - math.sqrt(q)) ** 2 / 2
    if kind == "jensen_shannon":
        middle = math.log(max(h, q)) + math.log1p(min(h, q) / max(h, q)) - LN2
        return (h * (math.log(h) - middle) + q * (math.log(q) - middle)) / 2
    order = float(kind.removeprefix("power:"))
    grown = math.exp(min(order * log_t + math.log(q), 700.0))
    return (grown - q - order * (h - q)) / (order * (order - 1))


LN2 = math.log(2)
AT_ZERO = {
    "kl": 1.0,
    "reverse_kl": math.inf,
    "pearson_chi2": 1.0,
    "total_variation": 0.5,
    "squared_hellinger": 0.5,
    "jensen_shannon": LN2 / 2,
}
RECESSION = {
    "kl": math.inf,
    "reverse_kl": 1.0,
    "pearson_chi2": math.inf,
    "total_variation": 0.5,
    "squared_hellinger": 0.5,
    "jensen_shannon": LN2 / 2,
}


def _power_at_zero(kind):
    order = float(kind.removeprefix("power:"))
    return 1 / order if order > 0 else math.inf


def _power_recession(kind):
    order = float(kind.removeprefix("power:"))
    return 1 / (1 - order) if order < 1 else math.inf


def plain_divergence(kind, h, q):
    kind = "jensen_shannon" if kind == "js" else kind
    return math.fsum(summand(kind, a, b) for a, b in zip(h, q))


def plain_recession(kind):
    kind = "jensen_shannon" if kind == "js" else kind
    return RECESSION[kind] if kind in RECESSION else _power_recession(kind)


def plain_slope(kind, log_t):
    """f̃′(t) of the generator with f̃(1) = f̃′(1) = 0."""
    t = math.exp(min(log_t, 700.0))
    if kind == "kl":
        return log_t
    if kind == "total_variation":
        return 0.5 * ((t > 1) - (t < 1))
    if kind in ("jensen_shannon", "js"):
        return 0.5 * (LN2 + log_t - math.log1p(t))
    # The others are powers t^(o−1), o = 0 of KL(q‖h), ½ of Hellinger's, 2 of χ².
    order = {"reverse_kl": 0.0, "squared_hellinger": 0.5, "pearson_chi2": 2.0}.get(kind)
    factor = {"squared_hellinger": 0.25, "pearson_chi2": 2.0}.get(kind, 1.0)
    order = float(kind.removeprefix("power:")) if order is None else order
    return factor * math.expm1(max(min((order - 1) * log_t, 700.0), -700.0)) / (order - 1)


# --- target rules ----------------------------------------------------------------------------


def recovered_as_sps(p, q, kept):
    rejected = math.fsum(positive(p, kept))
    return [k + rejected * g for k, g in zip(kept, norm(positive(q, p), q))]


def lenience(p, q, l):  # noqa: E741
    kept = [p_n if q_n >= l else min(p_n, q_n / l) for p_n, q_n in zip(p, q)]
    return recovered_as_sps(p, q, kept)


def ears(p, q, tau):
    slack = tau * (1 - max(q))
    return recovered_as_sps(p, q, [min(p_n, q_n + p_n * slack) for p_n, q_n in zip(p, q)])


def halved(low, high, goes_up):
    """Bisection: `goes_up(x)` says that the answer lies above x."""
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if not low < middle < high:
            break
        low, high = (middle, high) if goes_up(middle) else (low, middle)
    return low, high


def scaled(log_a, y):
    """e^log_a · y for y > 0, where e^log_a alone may overflow."""
    return math.exp(min(log_a + math.log(y), 700.0))


def factors(p, q, mass):
    """log a and b of clip(p, bq, aq) that rejects `mass`."""
    outside = math.fsum(p_n for p_n, q_n in zip(p, q) if q_n == 0)
    inside = max(mass - outside, 0.0)

    def too_high(log_a):
        return math.fsum(max(x - scaled(log_a, y), 0.0) for x, y in zip(p, q) if y > 0) > inside

    def too_low(b):
        return math.fsum(max(b * y - x, 0.0) for x, y in zip(p, q)) < mass

    return halved(0.0, 1500.0, too_high)[1], halved(0.0, 1.0, too_low)[1]


def clipped(p, q, mass):
    """clip(p, bq, aq) that rejects `mass`; beyond the support of q, leaked in proportion."""
    outside = math.fsum(p_n for p_n, q_n in zip(p, q) if q_n == 0)
    log_a, b = factors(p, q, mass)
    share = 1 - mass / outside if outside > mass else 0.0
    # b·q of the faintest tokens is kept off 0, which would cost everything where f(0) is inf.
    return [
        x * share if y == 0 else min(max(x, b * y, SMALLEST), scaled(log_a, y))
        for x, y in zip(p, q)
    ]


def best_target(p, q, level, kind, on_support=False):
    """The law of least rejected mass within `level`, by bisection over the rejected mass."""
    outside = math.fsum(p_n for p_n, q_n in zip(p, q) if q_n == 0)
    if level == 0:
        return list(q)
    if level == math.inf and not on_support:
        return list(p)
    low = outside if on_support else 0.0
    if plain_divergence(kind, clipped(p, q, low), q) <= level:
        return clipped(p, q, low)
    too_far = lambda mass: plain_divergence(kind, clipped(p, q, mass), q) > level  # noqa: E731
    return clipped(p, q, halved(low, tv(p, q), too_far)[1])


def priced_target(p, q, multiplier, divergence="kl"):
    """The law of least rejected mass behind which a unit of acceptance costs at least μ nats."""
    if multiplier in (0, math.inf):
        return list(p) if multiplier else list(q)
    outside = math.fsum(p_n for p_n, q_n in zip(p, q) if q_n == 0)
    low = outside if math.isinf(plain_recession(divergence)) else 0.0

    def steep(mass):
        log_a, b = factors(p, q, mass)
        above = plain_recession(divergence) if mass < outside else plain_slope(divergence, log_a)
        return above - plain_slope(divergence, math.log(b) if b > 0 else -math.inf) > multiplier

    if tv(p, q) <= low or not steep(low):
        return clipped(p, q, low)
    return clipped(p, q, halved(low, tv(p, q), steep)[1])


def switch(trusts):
    return coupled(lambda p, q, **parameters: list(p) if trusts(p, q, **parameters) else list(q))


def opt_trusts(p, q, alpha):
    distance = tv(p, q)
    allowance = alpha * distance if distance > 0 else 0.0
    return max(p) >= max(q) - allowance


def token_cascade(member):
    def target(p, q, alpha):
        trusted = [member(p_n, q_n, max(q), alpha) for p_n, q_n in zip(p, q)]
        deferred = math.fsum(p_n for p_n, t in zip(p, trusted) if not t)
        return [(p_n if t else 0.0) + q_n * deferred for p_n, q_n, t in zip(p, q, trusted)]

    return coupled(target)


# --- candidate rules -------------------------------------------------------------------------


def plain_gamma(q, delta, kind="kl"):
    """The largest γ with d_f(γ, q) ≤ δ, by bisection."""
    if q == 0 or q == 1 or delta == 0:
        return q

    def cheap(gamma):
        return summand(kind, gamma, q) + summand(kind, 1 - gamma, 1 - q) <= delta

    return 1.0 if cheap(1.0) else halved(q, 1.0, cheap)[0]


def closed_gamma(q, delta):
    if q == 0:
        return 0.0
    return min(q + math.sqrt(2 * delta * q * (1 - q)), 1.0) if q < 1 else 1.0


def candidate_target(q, n, gamma):
    rest = 1 - q[n]
    scale = (1 - gamma) / rest if rest > 0 else 0.0
    return [gamma if i == n else x * scale for i, x in enumerate(q)]


def cactus_with(gamma_of):
    def rule(p, q, **parameters):
        gammas = [gamma_of(q_n, **parameters) for q_n in q]

        def recover(n):
            return norm(positive(candidate_target(q, n, gammas[n]), p), q)

        return [ratio(g, p_n) for g, p_n in zip(gammas, p)], recover

    return rule


def without(q, n):
    return norm([0.0 if i == n else x for i, x in enumerate(q)], q)


def cactus_target_only(p, q, delta, exact=False):
    solve = plain_gamma if exact else closed_gamma
    return [solve(q_n, delta) for q_n in q], lambda n: without(q, n)


def target_only(p, q, threshold_single=1.0, threshold_acc=1.0):
    accept = [
        1.0 if q_n >= threshold_single or q_n >= threshold_acc else q_n / threshold_acc for q_n in q
    ]
    return accept, lambda n: without(q, n)


# --- accept-set rules ------------------------------------------------------------------------


def mode(q):
    best = q.index(max(q))
    return [1.0 if i == best else 0.0 for i in range(len(q))]


def in_set(member, recovery):
    return [1.0 if m else 0.0 for m in member], lambda n: recovery


def typical(p, q, epsilon=0.09, alpha=0.3, recovery="argmax"):
    entropy = -math.fsum(q_n * math.log(q_n) for q_n in q if q_n > 0)
    threshold = min(epsilon, alpha * math.exp(-entropy))
    return in_set([q_n > threshold for q_n in q], mode(q) if recovery == "argmax" else list(q))


def top_k(p, q, k, recovery="verifier"):
    least = sorted(q, reverse=True)[k - 1] if k <= len(q) else 0.0
    member = [q_n >= least and q_n > 0 for q_n in q]
    if recovery == "verifier":
        kept = [q_n if m else 0.0 for q_n, m in zip(q, member)]
    else:
        kept = [1.0 - p_n if m else 0.0 for p_n, m in zip(p, member)]
    return in_set(member, norm(kept, q))


def top_n_delta(p, q, n=10, delta=0.01):
    least = sorted(q, reverse=True)[n - 1] if n <= len(q) else 0.0
    member = [q_n >= least and q_n > 0 and q_n >= max(q) - delta for q_n in q]
    return in_set(member, mode(q))


# --- the rules of serving engines ------------------------------------------------------------


def threshold_rule(below):
    """Accept all of p where q/p ≥ θ, `below(p_n, q_n)` of it elsewhere; recover norm((q − p)₊)."""

    def rule(p, q, threshold):
        passes = [q_n > 0 and q_n >= threshold * p_n for p_n, q_n in zip(p, q)]
        accept = [1.0 if t else below(p_n, q_n) for t, p_n, q_n in zip(passes, p, q)]
        return accept, lambda n: norm(positive(q, p), q)

    return rule


def truncated(least):
    """Strict sampling of q without what is below `least(q, …)`; the likeliest always stays."""

    def target(p, q, **parameters):
        edge = min(least(q, **parameters), max(q))
        kept = [q_n if q_n >= edge else 0.0 for q_n in q]
        return [q_n * math.fsum(q) / math.fsum(kept) for q_n in kept]

    return coupled(target)


def typical_edge(q, epsilon=0.09, alpha=0.3):
    entropy = -math.fsum(q_n * math.log(q_n) for q_n in q if q_n > 0)
    return min(epsilon, alpha * math.exp(-entropy))


def nucleus_edge(q, top_p):
    """The last of the likeliest tokens that are needed for a mass of top_p."""
    if top_p == 1:
        return 0.0
    ordered = sorted(q, reverse=True)
    needed = [
        q_n
        for i, q_n in enumerate(ordered)
        if math.fsum(ordered[i:]) > (1 - top_p + 1e-14) * math.fsum(q)
    ]
    return min(needed, default=1.0)


def synthetic(p, q, rate, recover_by="residual"):
    recovery = {"residual": norm(positive(q, p), q), "verifier": q, "argmax": mode(q)}[recover_by]
    return [rate] * len(q), lambda n: recovery


PLAIN = {
    "sps": coupled(lambda p, q: list(q)),
    "lenience": coupled(lenience),
    "interpolation": coupled(
        lambda p, q, alpha: [alpha * a + (1 - alpha) * b for a, b in zip(p, q)]
    ),
    "ears": coupled(ears),
    "mentored": coupled(lambda p, q, level: best_target(p, q, level, "reverse_kl", True)),
    "frontier": coupled(lambda p, q, level, divergence="kl": best_target(p, q, level, divergence)),
    "frontier_corpus": coupled(priced_target),
    "cascade_chow": switch(lambda p, q, alpha: max(p) >= 1 - alpha),
    "cascade_diff": switch(lambda p, q, alpha: max(p) >= max(q) - alpha),
    "cascade_opt": switch(opt_trusts),
    "cascade_token_v1": token_cascade(lambda p_n, q_n, top, alpha: p_n >= top - alpha),
    "cascade_token_v2": token_cascade(lambda p_n, q_n, top, alpha: q_n >= top - alpha),
    "cascade_token_v3": token_cascade(lambda p_n, q_n, top, alpha: q_n >= (1 - alpha) * top),
    "fuzzy": switch(
        lambda p, q, threshold, divergence="js": plain_divergence(divergence, p, q) <= threshold
    ),
    "cactus": cactus_with(closed_gamma),
    "cactus_exact": cactus_with(
        lambda q_n, delta, divergence="kl": plain_gamma(q_n, delta, divergence)
    ),
    "cactus_target_only": cactus_target_only,
    "target_only": target_only,
    "typical": typical,
    "top_k": top_k,
    "top_n_delta": top_n_delta,
    "constant_threshold": threshold_rule(lambda p_n, q_n: 0.0),
    "ratio_threshold": threshold_rule(lambda p_n, q_n: ratio(q_n, p_n)),
    "truncated_typical": truncated(typical_edge),
    "truncated_top_k": truncated(
        lambda q, k: sorted(q, reverse=True)[k - 1] if k <= len(q) else 0.0
    ),
    "truncated_top_p": truncated(nucleus_edge),
    "synthetic": synthetic,
}
