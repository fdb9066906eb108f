"""Logits → probabilities: the one function behind p, behind q and behind every sampler.

A rule of speculative sampling is only exact when the draft distribution p it is given is the
one the candidate was drawn from, and when p and q went through the same temperature and
filters. Both follow if there is a single way from logits to probabilities, and this is it.

    x ← logits cast once to float64 (float32 on request)
    x ← x / T          temperature; T = 0 is the one-hot at the argmax, lowest index on ties
    x ← −∞ where x is below the k-th largest value (ties at that value are kept)
    x ← −∞ outside the smallest set of likeliest tokens with mass ≥ top_p (of equal tokens at its
        edge those of higher index are kept)
    probabilities = softmax(x)

The three steps are those of transformers' warpers in the order of its sampler, so that a
distribution computed here is the one `generate` draws from. Top-p is the project's own
`sim.pairs.filters.nucleus`: the warper's sort is not stable, and its sums are of single precision
for logits of single precision.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from transformers import TemperatureLogitsWarper, TopKLogitsWarper

from sim.checks import read_number, shortest
from sim.pairs.filters import nucleus
from theory.arrays import plain_number, refuse_unfit

__all__ = ["SamplingSettings", "distributions", "native", "sample_tokens"]

# Rows are worked in chunks: the top-p warper sorts, and values, indices, cumulative sums and
# masks are alive at once. 2^22 entries are 32 MiB per float64 array, under 300 MiB in all.
_CHUNK_ENTRIES = 1 << 22
_GREEDY = "greedy-draft"
_SPELLED = {
    **dict.fromkeys(("t", "temp", "temperature"), "temperature"),
    **dict.fromkeys(("top-k", "topk"), "top_k"),
    **dict.fromkeys(("top-p", "topp"), "top_p"),
}


@dataclass(frozen=True)
class SamplingSettings:
    """Temperature and filters, applied alike to draft and verifier, and how the draft proposes.

    temperature  : T ≥ 0, finite; 1 leaves the logits alone, 0 is greedy.
    top_k        : keep the k likeliest tokens (ties kept); None keeps all.
    top_p        : keep the nucleus of mass top_p ∈ (0, 1]; None and 1 keep all.
    greedy_draft : the draft proposes its likeliest token, as most serving engines do. Then p is
                   the one-hot at that token, for the test, the recovery and every measure.

    Raises ValueError naming the parameter when one is outside its range.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    greedy_draft: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "temperature", _real("temperature", self.temperature))
        if not (math.isfinite(self.temperature) and self.temperature >= 0.0):
            raise ValueError(f"temperature must be finite and ≥ 0, got {self.temperature}")
        if self.top_k is not None:
            object.__setattr__(self, "top_k", _positive_integer("top_k", self.top_k))
        if self.top_p is not None:
            object.__setattr__(self, "top_p", _real("top_p", self.top_p))
            if not 0.0 < self.top_p <= 1.0:
                raise ValueError(f"top_p must lie in (0, 1], got {self.top_p}")

    @property
    def label(self) -> str:
        """The settings as people write them: `T=0.6 top-p 0.95 top-k 20`, `T=1 greedy-draft`."""
        parts = [f"T={shortest(self.temperature)}"]
        if self.top_p is not None:
            parts.append(f"top-p {shortest(self.top_p)}")
        if self.top_k is not None:
            parts.append(f"top-k {self.top_k}")
        if self.greedy_draft:
            parts.append(_GREEDY)
        return " ".join(parts)

    @property
    def filters(self) -> dict[str, float | int | None]:
        """Temperature, top_k and top_p by name: what decides a distribution from its logits."""
        return {name: getattr(self, name) for name in ("temperature", "top_k", "top_p")}

    @classmethod
    def parse(cls, label: str) -> Self:
        """The settings named by a label; the inverse of `label`.

        Commas, colons and signs of equality count as spaces, and temperature, top_k and top_p have
        the names that people give them. Raises ValueError naming the text when it is not of the
        form `T=… [top-p …] [top-k …] [greedy-draft]`.
        """
        words = re.sub(r"[\s,;:=]+", " ", label.lower()).replace("_", "-").split()
        greedy = words[-1:] == [_GREEDY]
        words = words[: len(words) - greedy]
        try:
            named = [_SPELLED[name] for name in words[::2]]
            if len(words) % 2 or "temperature" not in named or len(set(named)) < len(named):
                raise KeyError(label)
            values = {
                name: int(text) if name == "top_k" else read_number(name, text)
                for name, text in zip(named, words[1::2])
            }
        except (KeyError, ValueError):
            example = "T=0.6 top-p 0.95 top-k 20"
            raise ValueError(f"sampling settings {label!r} are not like {example!r}") from None
        return cls(**values, greedy_draft=greedy)

    def probabilities(
        self, logits: torch.Tensor, *, dtype: torch.dtype = torch.float64, name: str = "logits"
    ) -> torch.Tensor:
        """`distributions(logits)` under these settings, shape [..., V]."""
        return distributions(
            logits, self.temperature, self.top_k, self.top_p, dtype=dtype, name=name
        )

    def draft_probabilities(
        self, logits: torch.Tensor, *, dtype: torch.dtype = torch.float64, name: str = "logits"
    ) -> torch.Tensor:
        """What the draft proposes from, [..., V]: `probabilities`, or the one-hot at its argmax.

        The argmax of the logits (lowest index on ties) is that of every temperature and filter.
        """
        temperature = 0.0 if self.greedy_draft else self.temperature
        return replace(self, temperature=temperature).probabilities(logits, dtype=dtype, name=name)


def distributions(
    logits: torch.Tensor,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    *,
    dtype: torch.dtype = torch.float64,
    name: str = "logits",
) -> torch.Tensor:
    """Probabilities [..., V] of logits [..., V] under temperature, top-k and top-p.

    The result is on the device of the logits and every row sums to 1 (within 1e−12 in float64).
    Entries −∞ are masks and get probability 0. `name` is what errors call the argument.

    Raises
    ------
    TypeError   logits are no real tensor, or dtype is neither float64 nor float32
    ValueError  a parameter is outside its range; logits have no last axis or V = 0
    ValueError  a row holds NaN or +∞, or has no finite logit (argument, row and value are named)
    """
    settings = SamplingSettings(temperature, top_k, top_p)
    if dtype not in (torch.float64, torch.float32):
        raise TypeError(f"dtype must be torch.float64 or torch.float32, got {dtype}")
    logits = _real_tensor(logits, name).detach()
    rows = logits.reshape(-1, logits.shape[-1])
    result = torch.empty(rows.shape, dtype=dtype, device=logits.device)
    step = max(1, _CHUNK_ENTRIES // rows.shape[-1])
    for start in range(0, rows.shape[0], step):
        chunk = rows[start : start + step].to(dtype)
        highest = _highest(chunk, logits.shape[:-1], start, name)
        result[start : start + step] = _row_probabilities(chunk, highest, settings)
    return result.reshape(logits.shape)


def sample_tokens(laws: torch.Tensor, uniforms: Sequence[float]) -> list[int]:
    """The tokens at quantiles u ∈ [0, 1) of distributions [N, V]: the first with cdf > u.

    A token of probability zero is never returned, for u = 0 neither. The cdf is scaled by its
    last value, so that u close to 1 cannot fall behind the end.

    Raises ValueError naming the row whose mass is zero or not a number, for a quantile outside
    [0, 1), and where there is not one for each row.
    """
    uniforms = [float(uniform) for uniform in uniforms]
    if laws.ndim != 2 or laws.shape[0] != len(uniforms):
        raise ValueError(f"{len(laws)} rows need as many uniforms, got {len(uniforms)}")
    for uniform in uniforms:
        if not 0.0 <= uniform < 1.0:
            raise ValueError(f"uniforms must lie in [0, 1), got {uniform}")
    cdf = laws.double().cumsum(-1)
    unusable = ~((cdf[:, -1] > 0) & cdf[:, -1].isfinite())
    if bool(unusable.any()):
        row = int(unusable.nonzero()[0, 0])
        raise ValueError(f"laws row {row} sums to {float(cdf[row, -1])}: no token can be drawn")
    if cdf.device.type != "cpu":
        # Sums in parallel round differently: without this a token without mass could gain some.
        cdf = torch.where(laws > 0, cdf, 0.0).cummax(-1).values
    quantiles = torch.tensor(uniforms, dtype=torch.float64, device=cdf.device)[:, None]
    return torch.searchsorted(cdf, quantiles * cdf[:, -1:], right=True)[:, 0].tolist()


def native(rows: torch.Tensor) -> Any:
    """The same memory as a numpy array on a CPU; the rows themselves on other devices.

    A thread that works on rows in its own cache takes half the time in numpy that it takes in
    torch, whose strength is long arrays and other devices.
    """
    return rows.numpy() if rows.device.type == "cpu" else rows


def _row_probabilities(
    rows: torch.Tensor, highest: torch.Tensor, settings: SamplingSettings
) -> torch.Tensor:
    """Probabilities [rows, V] of checked logits; `highest` [rows, 1] is each row's maximum."""
    if settings.temperature == 0.0:
        best = rows.argmax(dim=-1, keepdim=True)
        return torch.zeros_like(rows).scatter_(-1, best, 1.0)
    scores = rows
    # A row whose maximum overflows at this temperature would become NaN. Softmax does not see a
    # shift, and with the maximum at 0 the others can only reach −∞. Other rows are not shifted:
    # rounding could make ties of logits that differ, and top-k keeps ties.
    overflows = ~torch.isfinite(highest / settings.temperature)
    if bool(overflows.any()):
        scores = torch.where(overflows, rows - highest, rows)
    if settings.temperature != 1.0:
        scores = TemperatureLogitsWarper(settings.temperature)(None, scores)
    columns = _top_columns(scores, settings.top_k)
    if columns is None:
        return _filtered(scores, settings).softmax(dim=-1)
    kept = _filtered(scores.gather(-1, columns), settings).softmax(dim=-1)
    return torch.zeros_like(rows).scatter_(-1, columns, kept)


def _filtered(scores: torch.Tensor, settings: SamplingSettings) -> torch.Tensor:
    """The scores with −∞ where top-k, then top-p, cut; a neutral filter is left out."""
    if settings.top_k is not None:
        scores = TopKLogitsWarper(settings.top_k)(None, scores)
    # At 1 transformers leaves the filter out too: it would cut tokens whose mass underflows.
    if settings.top_p is not None and settings.top_p < 1.0:
        kept = nucleus(scores.softmax(dim=-1), settings.top_p)
        scores = scores.masked_fill(~kept, -math.inf)
    return scores


def _top_columns(scores: torch.Tensor, top_k: int | None) -> torch.Tensor | None:
    """Columns [rows, W], ascending, that hold every token top-k keeps; None to take them all.

    The filters look at nothing else, and top-p sorts: 20 tokens instead of a vocabulary.
    """
    width = scores.shape[-1]
    if top_k is None or top_k >= width or scores.shape[0] == 0:
        return None
    lowest = scores.topk(top_k, dim=-1).values[:, -1:]
    most = int((scores >= lowest).sum(dim=-1).max())  # more than top_k where logits tie
    if 2 * most > width:
        return None
    return scores.topk(most, dim=-1).indices.sort(dim=-1).values


def _highest(rows: torch.Tensor, batch: torch.Size, start: int, name: str) -> torch.Tensor:
    """The maximum [rows, 1] of each row, or a ValueError naming the first unusable row.

    One reduction finds every fault: NaN and +∞ reach the maximum, and a row without a finite
    logit has the maximum −∞.
    """
    highest = rows.amax(dim=-1, keepdim=True)
    bad = ~torch.isfinite(highest[:, 0])
    if bool(bad.any()):
        row = int(bad.nonzero()[0, 0])
        value = float(highest[row, 0])
        flat = start + row
        where = [int(i) for i in np.unravel_index(flat, batch)] if len(batch) > 1 else flat
        reason = "no finite logit (all −inf)" if value == -math.inf else f"the value {value}"
        raise ValueError(f"{name}: row {where} has {reason}")
    return highest


def _real_tensor(logits: torch.Tensor, name: str) -> torch.Tensor:
    """The logits as a real tensor with a non-empty last axis; numpy arrays are copied in."""
    if isinstance(logits, np.ndarray):
        refuse_unfit(name, logits)
        logits = torch.tensor(logits)
    if not isinstance(logits, torch.Tensor) or logits.is_complex() or logits.dtype == torch.bool:
        raise TypeError(f"{name} must be a real torch tensor [..., V], got {type(logits).__name__}")
    if logits.ndim == 0 or logits.shape[-1] == 0:
        raise ValueError(f"{name} must have shape [..., V] with V ≥ 1, got {list(logits.shape)}")
    return logits


def _real(name: str, value: float) -> float:
    """The value as a float, or a ValueError naming the parameter."""
    number = plain_number(value)
    if type(number) not in (int, float):
        raise ValueError(f"{name} must be a real number, got {value!r}")
    try:
        return float(number)
    except OverflowError:
        raise ValueError(f"{name} must be a real number, got one beyond float64") from None


def _positive_integer(name: str, value: int) -> int:
    """The value as an integer ≥ 1, or a ValueError naming the parameter."""
    number = plain_number(value)
    if type(number) is not int or number < 1:
        raise ValueError(f"{name} must be an integer ≥ 1, got {value!r}")
    return number
