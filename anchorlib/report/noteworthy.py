"""What deserves attention in one run, worst first: the sentences on top of its page.

A column of the page is a step, or some adjacent steps whose figures are added up. These findings
follow rules of thumb, which the sentence of each finding names:

    dead        every element is zero in the last half of a tensor's columns (of at least four)
    exploding   a tensor's norm in one column is more than a thousand times its median
    range       at least a hundredth of the gradients' elements lie outside a format's range

Further findings are facts: the first NaN or infinity, gaps, a run that was left open, ranks that
differ from the others or were not compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from anchorlib.report.run_view import Bins, Finding, RunView
from anchorlib.summary import FORMATS, Log2Histogram, shares_as

__all__ = ["attention", "line_histogram"]

FEWEST_RECORDS = 4
EXPLODED = 1000.0
SHARE_SHOWN = 0.01
NAMES_SHOWN = 3


def attention(view: RunView) -> list[Finding]:
    """Return the findings of a run, worst first; if nothing stands out, the first one says so."""
    findings = [
        *(Finding("bad", f"{text[:1].upper()}{text[1:]}.") for text in view.apart),
        *_nonfinite(view),
        *_exploding(view),
        *_missing(view),
        *_dead(view),
        *_ranges(view),
        *_left_open(view),
        *_unjudged(view),
    ]
    findings.sort(key=lambda finding: ("bad", "warn", "info").index(finding.level))
    if not any(finding.level != "info" for finding in findings):
        findings.insert(0, Finding("info", _calm(view)))
    return findings


def gradient_lines(view: RunView) -> list[int]:
    """Return the indices of the page's lines that hold gradients.

    A line is the records of one name, kind, mode and phase. Lines of kind `grad` are taken, and
    lines of kind `pass_grad` for names that have no line of kind `grad`.
    """
    with_grad = {line.name for line in view.lines if line.kind == "grad"}
    return [
        row
        for row, line in enumerate(view.lines)
        if line.kind == "grad" or (line.kind == "pass_grad" and line.name not in with_grad)
    ]


def line_histogram(bins: Bins, row: int) -> Log2Histogram:
    """Return the histogram of one line of the page over all steps, with its number of infinities.

    row: the index of the line (the records of one name, kind, mode and phase).
    """
    cells = slice(row * bins.windows, (row + 1) * bins.windows)
    first, last = bins.starts[cells.start], bins.starts[cells.stop]
    exponents, places = np.unique(bins.exponents[first:last], return_inverse=True)
    totals = np.zeros(len(exponents), np.int64)
    np.add.at(totals, places, bins.counts[first:last])
    infinite = int(bins.infinite[cells].sum())
    return Log2Histogram.from_pairs(exponents, totals, inf=infinite)


def _calm(view: RunView) -> str:
    records = sum(line.records for line in view.lines)
    if not records:
        return "Nothing has been recorded yet."
    return (
        f"Nothing stands out: {_count(records, 'record')} of {_count(len(view.lines), 'tensor')} "
        "without a NaN or an infinity, nothing dead, nothing exploding, nothing missing."
    )


def _nonfinite(view: RunView) -> Iterator[Finding]:
    first = view.nonfinite
    if first is None:
        return
    counts = [_count(n, word) for n, word in ((first.nan, "NaN"), (first.inf, "infinity")) if n]
    more = view.nonfinite_lines - 1
    text = (
        f"Not finite first at step {first.step}, pass {first.pass_index}, in "
        f"{view.lines[first.line].title}: {' and '.join(counts)} among "
        f"{_count(first.numel, 'element')}; the {_count(first.before, 'record')} before are finite."
    )
    if more:
        text += f" {_count(more, 'more tensor')} became so."
    if first.skipped:
        text += " GradScaler skipped that step."
    column = int(np.searchsorted(view.columns, first.step, side="right")) - 1
    yield Finding("warn" if first.skipped else "bad", text, first.line, column)


def _exploding(view: RunView) -> Iterator[Finding]:
    norms = view.figures["l2"]
    exploded: list[tuple[float, int, int]] = []
    for row, line in enumerate(view.lines):
        own = np.where(np.isfinite(norms[row]), norms[row], np.nan)
        if line.section == "update" or np.count_nonzero(own > 0) < FEWEST_RECORDS:
            continue
        median = float(np.median(own[own > 0]))
        column = int(np.nanargmax(own))
        if own[column] > EXPLODED * median:
            exploded.append((float(own[column]) / median, row, column))
    if exploded:
        ratio, row, column = max(exploded)
        names = _names(view, [row, *(r for _, r, _ in sorted(exploded, reverse=True) if r != row)])
        text = (
            f"Exploding: the norm of {view.lines[row].title} is {ratio:,.0f} times its median at "
            f"step {view.columns[column]}"
        )
        text += f"; in all {names}." if len(exploded) > 1 else "."
        yield Finding("bad", text, row, column)


def _dead(view: RunView) -> Iterator[Finding]:
    zero, numel = view.figures["zero"], view.figures["numel"]
    dead: list[int] = []
    for row, line in enumerate(view.lines):
        seen = np.flatnonzero(numel[row] > 0)
        last = seen[len(seen) // 2 :]
        if line.kind.startswith("opt.") or len(seen) < FEWEST_RECORDS:
            continue
        if (zero[row][last] == numel[row][last]).all():
            dead.append(row)
    if dead:
        verb = "is" if len(dead) == 1 else "are"
        text = f"Dead: {_names(view, dead)} {verb} all zero through the last half of the records."
        yield Finding("warn", text, dead[0])


def _missing(view: RunView) -> Iterator[Finding]:
    total = sum(count for _, count in view.gaps)
    if total:
        reasons = ", ".join(f"{reason}: {count:,}" for reason, count in view.gaps[:NAMES_SHOWN])
        text = (
            f"Gaps: {_count(total, 'observation')} {'was' if total == 1 else 'were'} not recorded, "
            f"or not with values ({reasons})."
        )
        yield Finding("warn", text)


def _ranges(view: RunView) -> Iterator[Finding]:
    rows = gradient_lines(view)
    own = [line_histogram(view.bins, row) for row in rows]
    pooled = Log2Histogram.pooled(own)
    if not pooled.count + pooled.inf:
        return
    for short in FORMATS:
        shares = shares_as(pooled, short)
        for what, share in (("become zero", shares.underflow), ("overflow", shares.overflow)):
            if share < SHARE_SHOWN:
                continue
            name = "underflow" if what == "become zero" else "overflow"
            worst = max(range(len(rows)), key=lambda i: getattr(shares_as(own[i], short), name))
            worst_share = getattr(shares_as(own[worst], short), name)
            text = (
                f"Stored as {short}, {_percent(share)} of the gradients' elements would {what}, "
                f"most in {view.lines[rows[worst]].title} ({_percent(worst_share)})."
            )
            # fp8 is narrow by design and few trainings use it: its range alone is no warning.
            yield Finding("warn" if short in ("fp16", "bf16") else "info", text, rows[worst])


def _left_open(view: RunView) -> Iterator[Finding]:
    if view.state == "open" and view.live is False:
        yield Finding("warn", "The run was left open: the process that wrote it has died.")


def _unjudged(view: RunView) -> Iterator[Finding]:
    if view.is_pooled:
        yield Finding(
            "info",
            f"The {len(view.ranks):,} ranks were added up, and not compared with one another: "
            "anchor ranks does that.",
        )


def _names(view: RunView, rows: Sequence[int]) -> str:
    shown = ", ".join(view.lines[row].title for row in rows[:NAMES_SHOWN])
    more = len(rows) - NAMES_SHOWN
    return f"{shown} and {more} more" if more > 0 else shown


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def _count(number: int, word: str) -> str:
    plural = "infinities" if word == "infinity" else f"{word}s"
    return f"{number:,} {word if number == 1 else plural}"
