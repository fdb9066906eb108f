"""The picture of an audit: evidence against samples, and what was seen against what was claimed."""

import numpy as np
from matplotlib.axes import Axes

from sim.audit.evidence.claim import PARTS
from sim.audit.report import BudgetReport, ClaimReport, Report
from sim.drawing.style import BLACK, BLUE, GREEN, GREY, ORANGE, PINK, RED, Drawing, drawing

__all__ = ["audit_picture"]

_COLOURS = dict(zip(PARTS, (PINK, BLUE, RED, GREEN, ORANGE))) | {"emitted tokens": BLUE}
_LIMIT = 6.0  # log10 e below −this is drawn there
_LEAST_ROUNDS = 30  # of a cell, to be drawn


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
    why = report.diagnosis[-1] if report.diagnosis else ""
    return f"{claim}\nRejected after {report.alarm_at:,} rounds: {why}"


def _evidence(ax: Axes, report: Report) -> None:
    history = report.history
    samples, total = np.array(history.samples), np.array(history.log_e) / np.log(10)
    finite = [log for parts in history.parts for log in parts.values() if np.isfinite(log)]
    top = max([5.0, *total[np.isfinite(total)], *(np.array(finite) / np.log(10))]) * 1.05
    for part, colour in _COLOURS.items():
        if part in history.parts[0]:
            log_e = np.array([parts.get(part, np.nan) for parts in history.parts]) / np.log(10)
            ax.plot(samples, np.clip(log_e, -_LIMIT, top), color=colour, linewidth=1.2, label=part)
    ax.plot(samples, np.clip(total, -_LIMIT, top), color=BLACK, linewidth=2.2, label="the audit")
    threshold = -np.log10(report.level)
    ax.axhline(threshold, color=GREY, linestyle="--", linewidth=1)
    ax.text(samples[0], threshold, f" rejected above 1/{report.level:g}", va="bottom", color=GREY)
    never = np.flatnonzero(np.isinf(total))
    if never.size:
        ax.plot(samples[never[0]], top, "^", color=BLACK, clip_on=False, markersize=9,
                label="impossible: e = ∞")  # fmt: skip
    ax.set_xscale("log")
    ax.set_yscale("symlog", linthresh=10, linscale=2)
    ax.set_ylim(-_LIMIT, top)
    ax.set_xlabel("rounds")
    ax.set_ylabel(f"log₁₀ of the e-value (below −{_LIMIT:g}: drawn there)")
    ax.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(0, 0.98))


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
    """The divergence of what was emitted at each place, largest first, and the budget."""
    cells = report.cells.sort_values("divergence", ascending=False).head(20)
    names = [f"{row['block']}, place {row['place']}" for _, row in cells.iterrows()]
    budget, at = report.evidence.level, np.arange(len(cells))[::-1]
    beyond = cells["log_e"] >= -np.log(report.level)
    ax.barh(at, cells["divergence"], color=np.where(beyond, RED, BLUE), height=0.7)
    ax.axvline(budget, color=BLACK, linewidth=1.5)
    ax.text(budget, len(cells) - 0.3, f" budget {budget:g}", va="bottom", ha="left")
    ax.set_yticks(at, names, fontsize=8)
    ax.grid(axis="y", visible=False)
    ax.set_xlabel("divergence of what was emitted, nats (red: beyond by its own e-value)")
