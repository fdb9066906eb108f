"""A logarithmic axis with room at its ends for what it cannot hold: zero and infinity."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes

__all__ = ["LogAxis"]

_MARGIN = 0.15  # decades of air beside the data
_STRIP = 0.045, 0.09  # where a mark beyond the end stands, and where its strip ends, in lengths
_ZERO = 1e-12  # a divergence below it is rounding


@dataclass(frozen=True)
class LogAxis:
    """From `low` to `high`; strips beyond the ends hold smaller and larger values, 0 and ∞ too.

    `smaller` and `larger` are the labels of the strips, "" where there is none.
    """

    low: float
    high: float
    smaller: str
    larger: str

    @classmethod
    def of(cls, values: Iterable[float], *, decades: int = 6, limit: float = np.inf) -> "LogAxis":
        """The axis that holds `values` ≥ 0, as far as `limit` and so many decades below it."""
        values = np.asarray(list(values), dtype=np.float64)
        finite = values[(values > _ZERO) & (values <= limit) & np.isfinite(values)]
        largest = float(finite.max(initial=_ZERO))
        smallest = float(finite[finite >= largest * 10.0**-decades].min(initial=largest))
        low, high = smallest * 10**-_MARGIN, max(largest, smallest * 10) * 10**_MARGIN
        below, above = values[values < low], values[values > high]
        return cls(
            low,
            high,
            smaller="" if not below.size else "0" if below.max() <= _ZERO else "less",
            larger="" if not above.size else "∞" if np.isinf(above.min()) else "more",
        )

    def place(self, values: Iterable[float]) -> tuple[np.ndarray, np.ndarray]:
        """Where each value is drawn, and whether that is on the axis proper."""
        values = np.asarray(values, dtype=np.float64)
        inside = (values >= self.low) & (values <= self.high)
        ends = np.where(values > self.high, self._at(1 + _STRIP[0]), self._at(-_STRIP[0]))
        return np.where(inside, values, ends), inside

    def apply(self, ax: Axes, axis: str = "x") -> None:
        """Set scale, limits and ticks of the x or y axis of `ax`, and mark off the strips."""
        ticks = self._decades()
        separate = ax.axvline if axis == "x" else ax.axhline
        line = {"color": "#999999", "linewidth": 0.7, "linestyle": (0, (2, 2))}
        low, high = self.low, self.high
        if self.smaller:
            ticks[self._at(-_STRIP[0])], low = self.smaller, self._at(-_STRIP[1])
            separate(self.low, **line)
        if self.larger:
            ticks[self._at(1 + _STRIP[0])], high = self.larger, self._at(1 + _STRIP[1])
            separate(self.high, **line)
        getattr(ax, f"set_{axis}scale")("log")
        getattr(ax, f"set_{axis}lim")(low, high)
        getattr(ax, f"set_{axis}ticks")(list(ticks), list(ticks.values()))
        getattr(ax, f"{axis}axis").minorticks_off()

    def _decades(self) -> dict[float, str]:
        """Labelled ticks inside the axis, clear of the labels of its strips."""
        first, last = np.floor(np.log10(self.low)), np.ceil(np.log10(self.high))
        step = 2 if last - first > 8 else 1
        exponents = np.arange(last, first - 1, -step).astype(int).tolist()
        ticks = {10.0**k: f"$10^{{{k}}}$" for k in exponents}
        if last - first <= 2:
            ticks = {m * 10.0**k: f"{m * 10.0**k:g}" for k in exponents for m in (1, 2, 5)}
        low, high = self._at(0.05 if self.smaller else 0), self._at(0.95 if self.larger else 1)
        return {place: text for place, text in ticks.items() if low <= place <= high}

    def _at(self, share: float) -> float:
        """The place at a share of the axis length, which may lie outside [0, 1]."""
        return float(self.low * (self.high / self.low) ** share)
