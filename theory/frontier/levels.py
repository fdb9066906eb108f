r"""The frontier: the best acceptance any rule can have at a given divergence.

Per position it is the clipped family of :mod:`theory.frontier.clipped` at a level. For a corpus of
positions with a *mean* budget the optimum shares one multiplier μ = f′(a_t) − f′(b_t) over all
positions t (claim 17), and Lagrangian duality turns each multiplier into a bound that holds for
every rule:

    mean acceptance ≤ mean_t [A_t(μ) + (D_t − D_t(μ))/μ],

where A_t(μ), D_t(μ) is the point of position t's family with that multiplier and D_t the divergence
that the rule realises there.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Self

import array_api_compat
import numpy as np
from scipy.interpolate import PchipInterpolator

from theory.arrays import (
    Array,
    check_elementwise,
    coerce,
    one_per_row,
    plain_number,
    refuse_unfit,
    to_numpy,
)
from theory.divergences.kinds import Divergence, resolve_divergence
from theory.frontier.clipped import ClippedFamily, clipped_law
from theory.law import OneStep, as_probability
from theory.pair import Pair


def _levels(pair: Pair, level: Array, validate: bool) -> Array:
    """Bring a level of shape [...] or () to ``[R]``."""
    _, level = coerce(pair.q, level, names=("q", "level"))
    if validate:
        check_elementwise("level", level, 0.0, math.inf)
    return one_per_row("level", pair.xp.astype(level, pair.xp.float64), pair.batch)


def frontier_step(
    p: Array, q: Array, level: Array, divergence: str | Divergence = "kl", *, validate: bool = True
) -> OneStep:
    r"""Return the best one-step law at a given divergence: clip(p, b·q, a·q).

    Among all laws h with D_f(h‖q) ≤ level it has the largest acceptance 1 − TV(p, h) (claim 15).

    Parameters
    ----------
    p, q : array [..., V]
        Draft and verifier distributions (float32 or float64).
    level : array [...] or float
        The wanted divergence in nats, ≥ 0; inf accepts everything.
    divergence : str or Divergence
        As in :func:`theory.divergence`.

    Returns
    -------
    OneStep
        acceptance [...] and output [..., V]. The level is met to about 10⁻¹⁵ in the rejected
        mass, except where everything can be accepted for less; a divergence that is steep there,
        as χ² is on faint tokens, can be off by that times its slope.

    Raises
    ------
    ValueError
        For invalid distributions, a negative or NaN level, or an unknown divergence.
    """
    kind = resolve_divergence(divergence)
    pair = Pair.prepare(p, q, validate=validate)
    law = clipped_law(pair, _levels(pair, level, validate), kind)
    return OneStep(pair.restore(law.acceptance), pair.expand(law.output))


def frontier_acceptance(
    p: Array, q: Array, level: Array, divergence: str | Divergence = "kl", *, validate: bool = True
) -> Array:
    """Return the best acceptance [...] that any rule can have at this divergence.

    Parameters and errors are those of :func:`frontier_step`.
    """
    kind = resolve_divergence(divergence)
    pair = Pair.prepare(p, q, validate=validate)
    family = ClippedFamily.of(pair, kind)
    mass = family.solve(_levels(pair, level, validate))
    return pair.restore(as_probability(pair.xp, 1.0 - mass))


# Multipliers of the corpus frontier. A factor 1.09 apart, so the tangents at two neighbours lie
# within 10⁻³ of the gain over strict sampling everywhere between them; 1 is the slope of TV.
MULTIPLIERS = np.sort(np.append(np.geomspace(1e-6, 1e4, 270), 1.0))


class CorpusArrays(NamedTuple):
    """What a corpus frontier knows of T positions: numpy float64, one row each."""

    accepted: Any  # [T, M] acceptance at each of the MULTIPLIERS
    spent: Any  # [T, M] divergence there
    ends: Any  # [T, 2] acceptance of strict sampling, and the largest one of finite divergence


class CorpusFrontier:
    """The best mean acceptance over many positions at a mean divergence (claim 17), streamed.

    Add prepared batches with :meth:`add`; memory is 16 bytes × 271 multipliers per position.
    ``acceptance`` and ``curve`` are exact at the multipliers and interpolated between a chord below
    and the tangents above (to about 10⁻⁶); ``bound`` distributes the same value over the positions.
    """

    def __init__(self, divergence: str | Divergence = "kl") -> None:
        self.kind = resolve_divergence(divergence)
        self._parts: list[CorpusArrays] = []
        self._interpolated: tuple[int, list[PchipInterpolator]] | None = None

    @classmethod
    def from_arrays(cls, arrays: CorpusArrays, divergence: str | Divergence = "kl") -> Self:
        """Return the frontier of positions whose :meth:`arrays` were kept.

        Raises
        ------
        ValueError
            Where the three are not of the same positions, or not of these multipliers.
        """
        for name, values in arrays._asdict().items():
            refuse_unfit(name, values)
        positions = len(arrays.ends)
        wanted = [(positions, len(MULTIPLIERS))] * 2 + [(positions, 2)]
        shapes = [tuple(np.shape(values)) for values in arrays]
        if shapes != wanted:
            raise ValueError(f"arrays of a corpus have shapes {wanted}, got {shapes}")
        corpus = cls(divergence)
        # One memory layout, whatever the given one: sums then round alike.
        kept = (np.ascontiguousarray(values, dtype=np.float64) for values in arrays)
        corpus._parts.append(CorpusArrays(*kept))
        return corpus

    def add(self, pair: Pair) -> None:
        """Add the positions of a pair prepared with ``sort=True``."""
        family = ClippedFamily.of(pair, self.kind)
        mass = family.mass_at(coerce(family.total, MULTIPLIERS.tolist())[1])
        unreachable = family.outside if math.isinf(self.kind.recession) else 0.0 * family.outside
        ends = pair.xp.stack([1.0 - family.total, 1.0 - unreachable], axis=-1)
        accepted, ends = (as_probability(pair.xp, values) for values in (1.0 - mass, ends))
        results = (accepted, family.at(mass).spent, ends)
        self._parts.append(CorpusArrays(*map(to_numpy, results)))

    @property
    def positions(self) -> int:
        """How many positions were added."""
        return sum(len(part.ends) for part in self._parts)

    def merge(self, other: CorpusFrontier) -> None:
        """Add the positions of another corpus of the same divergence."""
        if other.kind != self.kind:
            raise ValueError(
                f"cannot merge a frontier of {other.kind.name} into one of {self.kind.name}"
            )
        self._parts += other._parts

    def arrays(self) -> CorpusArrays:
        """Return what is known of all positions, in the order of :meth:`add`.

        :meth:`from_arrays` is the way back.
        """
        if not self._parts:
            raise ValueError("the corpus is empty; add a pair first")
        if len(self._parts) > 1:
            self._parts = [CorpusArrays(*map(np.concatenate, zip(*self._parts)))]
        return self._parts[0]

    def curve(self) -> tuple[Any, Any]:
        """Return (levels, acceptances): the mean divergence and mean acceptance of the optimum.

        Starts at (0, strict acceptance) and ends where the divergence is exhausted.
        """
        accepted, spent = self._means()
        start = self.arrays().ends.mean(axis=0)[0]
        return np.append(0.0, spent), np.append(start, accepted)

    def acceptance(self, level: float) -> float:
        """Return the best mean acceptance at a mean divergence ``level`` ≥ 0 in nats."""
        level = plain_number(level)
        if type(level) not in (int, float) or not level >= 0:
            raise ValueError(f"level must be at least 0, got {level!r}")
        if math.isinf(level):
            return 1.0
        accepted, spent = self._means()
        ends = self.arrays().ends.mean(axis=0)
        tangent = float(np.min(accepted + (level - spent) / MULTIPLIERS))
        chord = float(np.interp(level, np.append(0.0, spent), np.append(ends[0], accepted)))
        guess = _hermite(level, spent, accepted, MULTIPLIERS, ends[0])
        return float(min(max(chord, min(guess, tangent)), ends[1]))

    def at(self, multiplier: float) -> tuple[float, float]:
        """Return mean acceptance and mean divergence of the law of one multiplier μ > 0.

        Exact at MULTIPLIERS, and between them monotone cubics in log μ; beyond their ends the
        values there.
        """
        multiplier = plain_number(multiplier)
        if type(multiplier) not in (int, float) or not multiplier > 0:
            raise ValueError(f"multiplier must be positive, got {multiplier!r}")
        where = min(max(math.log(multiplier), math.log(MULTIPLIERS[0])), math.log(MULTIPLIERS[-1]))
        accepted, spent = (float(curve(where)) for curve in self._curves())
        return accepted, spent

    def _curves(self) -> list[PchipInterpolator]:
        """Both means over log μ; made anew when positions were added."""
        if self._interpolated is None or self._interpolated[0] != self.positions:
            logs = np.log(MULTIPLIERS)
            curves = [PchipInterpolator(logs, values) for values in self._means()]
            self._interpolated = self.positions, curves
        return self._interpolated[1]

    def bound(self, realised: Array) -> Any:
        """Return a per-position array ``[T]`` whose mean is the bound at ``mean(realised)``.

        ``realised [T]`` is the divergence of a rule at every position, in the order of ``add``. The
        value at t is A_t(μ) + (realised_t − D_t(μ))/μ at the best multiplier, shifted by the
        interpolation of :meth:`acceptance`; its spread gives the standard error of the bound.
        """
        refuse_unfit("realised", realised)
        if array_api_compat.is_array_api_obj(realised):
            realised = to_numpy(realised)
        realised = np.asarray(realised, dtype=np.float64)
        if realised.shape != (self.positions,):
            raise ValueError(
                f"realised has shape {realised.shape}, the corpus has {self.positions} positions"
            )
        level = float(np.mean(realised))
        if math.isinf(level):
            return np.ones_like(realised)
        accepted, spent, _ = self.arrays()
        means, costs = self._means()
        best = int(np.argmin(means + (level - costs) / MULTIPLIERS))
        terms = accepted[:, best] + (realised - spent[:, best]) / MULTIPLIERS[best]
        return terms + (self.acceptance(level) - float(np.mean(terms)))

    def _means(self) -> tuple[Any, Any]:
        accepted, spent, _ = self.arrays()
        return accepted.mean(axis=0), spent.mean(axis=0)


def _hermite(level: float, spent: Any, accepted: Any, slopes: Any, start: float) -> float:
    """Interpolate the acceptance in √level, with the known slopes 1/μ: 2√level/μ in √level."""
    x, y = np.append(0.0, np.sqrt(spent)), np.append(start, accepted)
    # At the origin the family rises like c·√level; the first point's own slope serves.
    d = np.append(2.0 * x[1] / slopes[0], 2.0 * x[1:] / slopes)
    k = int(np.searchsorted(spent, level))
    if k >= len(spent) or x[k + 1] == x[k]:
        return float(y[min(k, len(spent))])
    h, t = x[k + 1] - x[k], (math.sqrt(level) - x[k]) / (x[k + 1] - x[k])
    return float(
        y[k] * (1 + 2 * t) * (1 - t) ** 2
        + y[k + 1] * t * t * (3 - 2 * t)
        + h * t * (1 - t) * (d[k] * (1 - t) - d[k + 1] * t)
    )
