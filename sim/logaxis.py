"""A logarithmic axis with room at its ends for what it cannot hold: zero and infinity."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes

__all__ = ["LogAxis"]

_DECADES = 6  # an axis shows no more than this below its largest value
_MARGIN = 0.15  # decades of air beside the data
_STRIP = (
    0.045,
    0.09,
)  # where a mark beyond the end stands, and where its strip ends, in axis lengths


@dataclass(frozen=True)
class LogAxis:
    """From `low` to `high`; a strip beyond each end holds what is smaller, and what is infinite."""

    low: float
    high: float
    smaller: bool
    infinite: bool

    @classmethod
    def of(cls, values: Iterable[float]) -> "LogAxis":
        """The axis that holds all `values` ≥ 0, zero and inf included."""
        values = np.asarray(list(values), dtype=np.float64)
        finite = values[np.isfinite(values) & (values > 0)]
        largest = float(finite.max(initial=1e-12))
        shown = finite[finite >= max(largest * 10.0**-_DECADES, 1e-12)]
        low, high = float(shown.min(initial=largest)), largest
        return cls(
            low=low * 10**-_MARGIN,
            high=max(high, low * 10) * 10**_MARGIN,
            smaller=bool(np.any(values < low)),
            infinite=bool(np.any(np.isinf(values))),
        )

    def place(self, values: Iterable[float]) -> tuple[np.ndarray, np.ndarray]:
        """Where each value is drawn, and whether that is on the axis proper."""
        values = np.asarray(values, dtype=np.float64)
        inside = (values >= self.low) & np.isfinite(values)
        ends = np.where(np.isinf(values), self._at(1 + _STRIP[0]), self._at(-_STRIP[0]))
        return np.where(inside, values, ends), inside

    def apply(self, ax: Axes, axis: str = "x") -> None:
        """Set scale, limits and ticks of the x or y axis of `ax`, and mark off the strips."""
        ticks = self._decades()
        separate = ax.axvline if axis == "x" else ax.axhline
        line = {"color": "#999999", "linewidth": 0.7, "linestyle": (0, (2, 2))}
        low, high = self.low, self.high
        if self.smaller:
            ticks[self._at(-_STRIP[0])], low = "0", self._at(-_STRIP[1])
            separate(self.low, **line)
        if self.infinite:
            ticks[self._at(1 + _STRIP[0])], high = "∞", self._at(1 + _STRIP[1])
            separate(self.high, **line)
        getattr(ax, f"set_{axis}scale")("log")
        getattr(ax, f"set_{axis}lim")(low, high)
        getattr(ax, f"set_{axis}ticks")(list(ticks), list(ticks.values()))
        getattr(ax, f"{axis}axis").minorticks_off()

    def _decades(self) -> dict[float, str]:
        """Labelled ticks inside the axis, clear of its strips."""
        first, last = np.ceil(np.log10(self.low)), np.floor(np.log10(self.high))
        step = 2 if last - first > 5 else 1
        exponents = np.arange(last, first - 1, -step).astype(int)
        ticks = {float(10.0**k): f"$10^{{{k}}}$" for k in exponents}
        edges = (self._at(0.03) if self.smaller else 0, self._at(0.97) if self.infinite else np.inf)
        return {place: text for place, text in ticks.items() if edges[0] < place < edges[1]}

    def _at(self, share: float) -> float:
        """The place at a share of the axis length, which may lie outside [0, 1]."""
        return float(self.low * (self.high / self.low) ** share)
