"""The picture of an audit: evidence against samples, and what was seen against what was claimed."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from sim.audit.evidence.claim import PARTS
from sim.audit.report import BudgetReport, ClaimReport, Report
from sim.drawing.style import BLACK, BLUE, GREEN, GREY, ORANGE, PINK, RED, Drawing, drawing

__all__ = ["audit_picture"]

_COLOURS = dict(zip(PARTS, (PINK, BLUE, RED, GREEN, ORANGE))) | {"emitted tokens": BLUE}
_LIMIT = 2.5  # log10 e below −this is drawn there
_LEAST_ROUNDS, _OFTEN = 30, 200  # of a cell, of a place, to be drawn


def audit_picture(report: Report) -> Drawing:
    """Left, log10 of the e-values against samples; right, the cells: seen against claimed.

    Raises ValueError for an audit that ended before anything was answered.
    """
    if report.history.broken and len(report.history.samples) == 1:
        raise ValueError("the sampler never answered: there is nothing to draw")
    figure, (left, right) = drawing(_finding(report), 11.5, 4.9, 2)
    _evidence(left, report)
    if isinstance(report, ClaimReport):
        _cells(right, report)
    elif isinstance(report, BudgetReport):
        _places(right, report)
    return figure


def _finding(report: Report) -> str:
    claim = f"Claim: {report.question.claim}."
    if not report.rejected:
        return f"{claim}\n{report.samples:,} rounds hold nothing against it"
    at = 0 if isinstance(report, BudgetReport) else -1
    why = report.diagnosis[at] if report.diagnosis else ""
    return f"{claim}\nRejected after {report.alarm_at:,} rounds: {why}"


def _evidence(ax: Axes, report: Report) -> None:
    """A part that repeats itself because its law is another is not drawn as dependent."""
    samples = np.array(report.history.samples)
    total = np.array(report.history.log_e) / np.log(10)
    parts = pd.DataFrame(report.history.parts) / np.log(10)
    if "independence" in parts and 2 * parts["independence"].iloc[-1] < parts.iloc[-1].max():
        parts = parts.drop(columns="independence")
    every = np.concatenate([total, parts.to_numpy().ravel()])
    top = max(3.5, every[np.isfinite(every)].max(initial=0)) * 1.1
    ax.plot(samples, np.clip(total, -_LIMIT, top), color=BLACK, linewidth=4, label="the audit")
    for part in parts:
        ax.plot(samples, np.clip(parts[part], -_LIMIT, top), color=_COLOURS[part], linewidth=1.4,
                label=part)  # fmt: skip
    threshold = -np.log10(report.level)
    ax.axhline(threshold, color=GREY, linestyle="--", linewidth=1)
    ax.text(samples[-1], threshold, f"rejected above 1/{report.level:g} ", va="bottom",
            ha="right", color=GREY)  # fmt: skip
    never = np.flatnonzero(np.isinf(total))
    if never.size:
        ax.plot(samples[never[0]], top, "^", color=BLACK, clip_on=False, markersize=10,
                linestyle="none", label="impossible: e = ∞")  # fmt: skip
    ax.set_xscale("log")
    if top > 10:
        ax.set_yscale("symlog", linthresh=10, linscale=2)
        marks = [0, 2, 4, 6, 8, *10 ** np.arange(1, int(np.log10(top)) + 1)]
        ax.set_yticks(marks, [f"{mark:,}" for mark in marks])
    ax.set_ylim(-_LIMIT, top)
    ax.set_xlabel("rounds")
    ax.set_ylabel(f"log₁₀ of the e-value (below −{_LIMIT:g}: drawn there)")
    ax.legend(frameon=False, fontsize=8, loc="upper left")


def _cells(ax: Axes, report: ClaimReport) -> None:
    """Every cell with enough rounds; within the grey band lie 99.7 of 100 of a right sampler's."""
    cells = report.cells[report.cells["rounds"] >= _LEAST_ROUNDS]
    ax.plot([0, 1], [0, 1], color=GREY, linewidth=1, zorder=1)
    for part in PARTS[:4]:
        some = cells[cells["part"] == part]
        error = 3 * np.sqrt(some["law"] * (1 - some["law"]).clip(lower=0) / some["rounds"])
        ax.errorbar(some["law"], some["seen"], error, fmt="none", ecolor=_COLOURS[part],
                    elinewidth=0.6, alpha=0.35, zorder=2)  # fmt: skip
        ax.plot(some["law"], some["seen"], "o", color=_COLOURS[part], markersize=3.5, alpha=0.8,
                markeredgewidth=0, label=part, zorder=3)  # fmt: skip
    ax.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
    ax.set_xlabel("probability by the exact law")
    ax.set_ylabel("share of the rounds in which it was seen")
    ax.legend(frameon=False, fontsize=8, loc="upper left", title="± 3 standard errors of the law",
              title_fontsize=8)  # fmt: skip


def _places(ax: Axes, report: BudgetReport) -> None:
    """What was emitted at the places that were often reached, the farthest first."""
    cells = report.cells
    often = cells[cells["rounds"] >= min(_OFTEN, cells["rounds"].max())]
    cells = often.sort_values("divergence", ascending=False).head(20)
    names = [f"{row['block']}, place {row['place']}" for _, row in cells.iterrows()]
    budget, at = report.evidence.level, np.arange(len(cells))[::-1]
    beyond = cells["log_e"] >= -np.log(report.level)
    ax.barh(at, cells["divergence"], color=np.where(beyond, RED, BLUE), height=0.7)
    ax.axvline(budget, color=BLACK, linewidth=1.5)
    ax.text(budget, len(cells) - 0.3, f" budget {budget:g}", va="bottom", ha="left")
    ax.set_yticks(at, names, fontsize=8)
    ax.grid(axis="y", visible=False)
    ax.set_xlabel("estimated nats; red: beyond by its own e-value")
