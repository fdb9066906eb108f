"""Independent solvers of the two programmes behind acceptance rules, on all V tokens at once.

They know nothing of multipliers, tilts, closed forms or clipped families: each programme is handed
as it stands to a conic solver (cvxpy with Clarabel, where it is installed), to a linear programme
(total variation) or to sequential quadratic programming (scipy's SLSQP). On rows of a few tokens
they reach about 1e−8, on the power divergences 1e−6.

Both programmes have the form: maximise Σ_i min(cap_i, h_i) over distributions h with
D_f(h‖q) ≤ level. With cap = p this is the acceptance of the best scheme that emits h; with cap the
one-hot at n it is h_n.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import warnings
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np
from scipy.optimize import linprog, minimize
from scipy.special import rel_entr

Vector = np.ndarray[Any, np.dtype[np.float64]]
Solver = Literal["auto", "conic", "sequential"]

KINDS = (
    "kl",
    "reverse_kl",
    "pearson_chi2",
    "total_variation",
    "squared_hellinger",
    "jensen_shannon",
)
TOLERANCES = (1e-10, 1e-8, 1e-7)  # of the conic solver, each where those before are out of reach
STARTS = (0.0, 0.02, 0.2, 0.6, -0.9, -0.97, -0.99, -0.997)  # of the sequential solver
FEASIBLE = 1e-9  # how far a solution may overspend
SMALLEST = 1e-12  # keeps the logarithms of the sequential solver finite


class Optimum(NamedTuple):
    """The optimal value, the method that found it, and the distribution that attains it."""

    value: float
    method: str
    target: Vector


def has_conic_solver() -> bool:
    """Say whether cvxpy is installed."""
    return importlib.util.find_spec("cvxpy") is not None


def maximal_acceptance(
    p: Any, q: Any, kind: str, level: float, *, solver: Solver = "auto"
) -> Optimum:
    """Return max Σ min(p, h) over the distributions h with D_f(h‖q) ≤ level.

    Parameters
    ----------
    p, q : sequence of V floats
        Draft and verifier; one row each.
    kind : str
        One of ``KINDS``, or ``"power:A"`` for f(t) = (t^A − 1 − A(t − 1))/(A(A − 1)).
    level : float
        The budget in nats, > 0.
    solver : {"auto", "conic", "sequential"}
        The conic solver where it is installed, or a fixed choice.

    Raises
    ------
    ValueError
        For an unknown kind.
    RuntimeError
        If the linear programme fails.
    """
    if kind not in KINDS and _order(kind) is None:
        raise ValueError(f"unknown kind {kind!r}; known are {', '.join(KINDS)}")
    caps, row = np.asarray(p, dtype=np.float64), np.asarray(q, dtype=np.float64)
    if solver == "conic" or (solver == "auto" and has_conic_solver()):
        found = _conic(caps, row, kind, level)
        if found is not None:
            return found
    if kind == "total_variation":
        return _linear(caps, row, level)
    return _sequential(caps, row, kind, level)


def _order(kind: str) -> float | None:
    """Return A of ``"power:A"``, None for the other kinds."""
    return float(kind.removeprefix("power:")) if kind.startswith("power:") else None


def _is_severe(kind: str) -> bool:
    """Say whether the divergence is infinite where h leaves the support of q."""
    order = _order(kind)
    return kind in ("kl", "pearson_chi2") or (order is not None and order > 1)


def best_candidate(q: Any, n: int, kind: str, budget: float, *, solver: Solver = "auto") -> Optimum:
    """Return max h_n over the distributions h with D_f(h‖q) ≤ budget.

    Parameters and errors are those of :func:`maximal_acceptance`.
    """
    one_hot = np.zeros(len(q))
    one_hot[n] = 1.0
    return maximal_acceptance(one_hot, q, kind, budget, solver=solver)


def _spent(lib: Any, kind: str, h: Any, q: Vector) -> Any:
    """Return D_f(h‖q) as a convex expression of the conic modelling language."""
    inside = np.where(q > 0, q, 1.0)
    middle = 0.5 * (h + q)
    forms: dict[str, Callable[[], Any]] = {
        "kl": lambda: lib.sum(lib.kl_div(h, inside)) - float(np.sum(inside - q)),
        "reverse_kl": lambda: lib.sum(lib.kl_div(q, h)),
        "pearson_chi2": lambda: lib.sum_squares(lib.multiply(h - q, inside**-0.5)),
        "total_variation": lambda: 0.5 * lib.norm1(h - q),
        "squared_hellinger": lambda: 1.0 - lib.sum(lib.multiply(np.sqrt(q), lib.sqrt(h))),
        "jensen_shannon": lambda: (
            0.5 * lib.sum(lib.kl_div(h, middle)) + 0.5 * lib.sum(lib.kl_div(q, middle))
        ),
    }
    order = _order(kind)
    if order is not None:  # D_f = (Σ q^(1−A) h^A − 1)/(A(A−1)) between distributions
        weight = np.where(q > 0, inside ** (1.0 - order), 0.0)
        moment = lib.sum(lib.multiply(weight, lib.power(h, order)))
        return (moment - 1.0) / (order * (order - 1.0))
    return forms[kind]()


def _conic(caps: Vector, q: Vector, kind: str, level: float) -> Optimum | None:
    """Solve by an interior-point method on cones; None where it does not report an optimum."""
    lib: Any = importlib.import_module("cvxpy")
    h = lib.Variable(q.size, nonneg=True)
    limits = [lib.sum(h) == 1.0, _spent(lib, kind, h, q) <= level]
    if _is_severe(kind) and bool(np.any(q == 0)):
        limits.append(h[np.flatnonzero(q == 0)] == 0.0)
    problem = lib.Problem(lib.Maximize(lib.sum(lib.minimum(h, caps))), limits)
    if not solved(problem):
        return None
    found: Any = (problem.value, h.value)
    return Optimum(float(found[0]), "cvxpy, Clarabel", np.asarray(found[1]))


def solved(problem: Any) -> bool:
    """Solve a conic problem as exactly as it can be; say whether an optimum was reported."""
    lib: Any = importlib.import_module("cvxpy")
    for tolerance in TOLERANCES:
        with warnings.catch_warnings(), contextlib.suppress(lib.error.SolverError):
            warnings.simplefilter("ignore")  # the status says as much
            problem.solve(
                solver=lib.CLARABEL,
                tol_gap_abs=tolerance,
                tol_gap_rel=tolerance,
                tol_feas=tolerance,
            )
            if problem.status == lib.OPTIMAL:
                return True
    return False


def _linear(caps: Vector, q: Vector, level: float) -> Optimum:
    """Solve the total variation programme as a linear one in (h, min(cap, h), |h − q|)."""
    size = q.size
    one, none = np.eye(size), np.zeros((size, size))
    rows = [
        np.hstack([-one, one, none]),  # min(cap, h) ≤ h
        np.hstack([one, none, -one]),  # h − q ≤ |h − q|
        np.hstack([-one, none, -one]),  # q − h ≤ |h − q|
        np.concatenate([np.zeros(2 * size), np.full(size, 0.5)])[None],
    ]
    bounds = [(0, 1)] * size + [(0, c) for c in caps] + [(0, 1)] * size
    found: Any = linprog(
        np.concatenate([np.zeros(size), -np.ones(size), np.zeros(size)]),
        A_ub=np.vstack(rows),
        b_ub=np.concatenate([np.zeros(size), q, -q, [level]]),
        A_eq=np.concatenate([np.ones(size), np.zeros(2 * size)])[None],
        b_eq=[1.0],
        bounds=bounds,
    )
    if not found.success:
        raise RuntimeError(f"the linear programme failed: {found.message}")
    return Optimum(-float(found.fun), "scipy, HiGHS", np.asarray(found.x[:size]))


def _measure(kind: str, h: Vector, q: Vector) -> tuple[float, Vector]:
    """Return D_f(h‖q) and its gradient in h, for h > 0."""
    h = np.maximum(h, SMALLEST)
    middle, order = 0.5 * (h + q), _order(kind)
    if order is not None:
        moment = float(np.sum(q * (h / q) ** order))
        return (moment - 1.0) / (order * (order - 1.0)), (h / q) ** (order - 1.0) / (order - 1.0)
    if kind == "kl":
        return float(np.sum(rel_entr(h, q))), np.log(h / q) + 1.0
    if kind == "reverse_kl":
        return float(np.sum(rel_entr(q, h))), -q / h
    if kind == "pearson_chi2":
        return float(np.sum((h - q) ** 2 / q)), 2.0 * (h - q) / q
    if kind == "squared_hellinger":
        return 1.0 - float(np.sum(np.sqrt(h * q))), -0.5 * np.sqrt(q / h)
    spent = 0.5 * float(np.sum(rel_entr(h, middle)) + np.sum(rel_entr(q, middle)))
    return spent, 0.5 * np.log(h / middle)


def _sequential(caps: Vector, q: Vector, kind: str, level: float) -> Optimum:
    """Solve by sequential quadratic programming in (h, min(cap, h)), from several starts.

    The programme is concave, so that the best feasible end point is the best bound from below.
    """
    allowed = q > 0 if _is_severe(kind) else np.ones(q.size, dtype=bool)
    row, top = q[allowed], caps[allowed]
    raised = row + np.minimum(top, 1.0)
    raised /= raised.sum()
    best = np.append(row, np.minimum(row, top))
    for weight in STARTS:
        # From q toward the raised tokens first, then from the best point so far back toward q.
        far = raised if weight >= 0 else best[: row.size]
        end = _descent(row + abs(weight) * (far - row), top, row, kind, level)
        feasible = _measure(kind, end[: row.size], row)[0] <= level + FEASIBLE
        if feasible and end[row.size :].sum() > best[row.size :].sum():
            best = end
    target = np.zeros(q.size)
    target[allowed] = best[: row.size]
    return Optimum(float(best[row.size :].sum()), "scipy, SLSQP", target)


def _descent(start: Vector, caps: Vector, q: Vector, kind: str, level: float) -> Vector:
    """Run SLSQP once on (h, min(cap, h)) and return its end point."""
    run: Any = minimize  # its stubs do not cover constraints given as dictionaries
    size = q.size
    zeros, ones = np.zeros(size), np.ones(size)
    links = np.hstack([np.eye(size), -np.eye(size)])
    limits = [
        {"type": "eq", "fun": lambda x: x[:size].sum() - 1.0, "jac": lambda x: np.r_[ones, zeros]},
        {"type": "ineq", "fun": lambda x: links @ x, "jac": lambda x: links},
        {
            "type": "ineq",
            "fun": lambda x: level - _measure(kind, x[:size], q)[0],
            "jac": lambda x: np.r_[-_measure(kind, x[:size], q)[1], zeros],
        },
    ]
    found = run(
        lambda x: -float(np.sum(x[size:])),
        np.r_[start, np.minimum(start, caps)],
        jac=lambda x: np.r_[zeros, -ones],
        bounds=[(SMALLEST, 1.0)] * size + [(0.0, c) for c in caps],
        constraints=limits,
        method="SLSQP",
        options={"maxiter": 500, "ftol": 1e-15},
    )
    return np.asarray(found.x)
