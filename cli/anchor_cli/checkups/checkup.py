"""The checks of `anchor doctor RUN`: the run's state, gaps, non-finite values and precision."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from anchor_cli.checkups.check_result import CheckResult
from anchor_cli.checkups.installation import EMULATE, TESTED_TORCH
from anchor_cli.records import Gaps, clauses_of
from anchor_cli.terminal import counted, steps_of
from anchorlib.names import escape, join
from anchorlib.record import Flag

if TYPE_CHECKING:
    from anchorlib import Run
    from anchorlib.record import Gap

__all__ = ["checkup"]

LOW = ("float16", "bfloat16", "float8")
OUTLIERS = 3  # outliers that are shown; the command in the finding shows all
TODO = {
    "queue full": "raise queue_bytes=, record less, or wait with on_full='block'",
    "queue full: values dropped": "raise queue_bytes=, record less, or wait with on_full='block'",
    "max_bytes": "raise max_bytes=, or record less",
    "disk": "make room on the disk of the store",
}


def checkup(run: Run) -> Iterator[CheckResult]:
    """Runs all checks of a run, and yields their results."""
    yield _state(run)
    yield from _gaps(run)
    yield from _silent(run)
    yield from _nonfinite(run)
    yield from _among_ranks(run)
    yield from _precision(run)


def _state(run: Run) -> CheckResult:
    infos = run.tensors()
    records = counted(sum(info.records for info in infos), "record")
    held = f"{records} of {counted(len(infos), 'tensor')}, {counted(len(run.ranks), 'rank')}"
    if run.state == "closed" and not any(info.records for info in infos):
        return CheckResult(
            "beware", run.name, f"closed, {held}",
            "see what tensors= and ranks= choose, and whether the training came to its first step",
        )  # fmt: skip
    if run.state == "closed":
        return CheckResult("ok", run.name, f"closed, {held}")
    if run.live is False:
        return CheckResult(
            "beware", run.name, f"left open by a process that died, {held}; these are whole",
            "go on with resume=True, or begin anew with overwrite=True",
        )  # fmt: skip
    return CheckResult("ok", run.name, f"{'being written' if run.live else 'open'}, {held}")


def _gaps(run: Run) -> Iterator[CheckResult]:
    reasons: dict[str, list[Gap]] = {}
    for gap in run.gaps():
        reasons.setdefault(gap.reason, []).append(gap)
    for reason, those in reasons.items():
        count = sum(gap.count for gap in those)
        tensors = {(gap.name, gap.kind) for gap in those}
        first, last = min(g.first_step for g in those), max(g.last_step for g in those)
        some = ", ".join(escape(join(*pair)) for pair in list(tensors)[:3])
        more = f" and {len(tensors) - 3} more" if len(tensors) > 3 else ""
        yield CheckResult(
            "beware",
            "gaps",
            f"{counted(count, 'record')} of {some}{more} missing or without values, "
            f"{steps_of(first, last)} ({escape(reason)})",
            TODO.get(reason, ""),
        )
    if not reasons:
        yield CheckResult("ok", "gaps", "none")


def _silent(run: Run) -> Iterator[CheckResult]:
    """Yields one warning about the tensors of which the run has no record.

    Either their records could not be stored (at most five of these tensors are named, the others
    counted), or none was ever made (all of these tensors are named). Nothing is yielded where every
    tensor has a record.
    """
    clauses = list(clauses_of(Gaps(run).unrecorded()))
    clauses += [f"{name} has no record" for name in _empty(run)]
    if clauses:
        yield CheckResult(
            "beware", "tensors", "; ".join(clauses), "see whether the code that makes them ran"
        )


def _empty(run: Run) -> Iterator[str]:
    recorded = {(info.name, info.kind) for info in run.tensors()}
    lost = {(gap.name, gap.kind) for gap in run.gaps()}
    for reader, _ in run.all_rows():
        entries = reader.catalogue.series
        silent = {(entry.name, entry.kind): None for entry in entries}
        yield from (escape(join(*pair)) for pair in silent if pair not in recorded | lost)


def _nonfinite(run: Run) -> Iterator[CheckResult]:
    count = skipped = 0
    first: tuple[int, int, str] | None = None
    for reader, rows in run.all_rows():
        odd = rows[(reader.column("nan")[rows] + reader.column("inf")[rows]) > 0]
        if not len(odd):
            continue
        count += len(odd)
        flags = reader.column("flags")[odd]
        skipped += int(np.count_nonzero(flags & int(Flag.STEP_SKIPPED)))
        entry = reader.catalogue.series[int(reader.series_ids[odd[0]])]
        place = (
            int(reader.column("step")[odd[0]]),
            reader.rank,
            escape(join(entry.name, entry.kind)),
        )
        first = place if first is None else min(first, place)
    if first is None:
        yield CheckResult("ok", "values", "all finite")
        return
    at = f"{first[2]} at step {first[0]}" + (f", rank {first[1]}" if len(run.ranks) > 1 else "")
    passed = f"; {skipped:,} of them in steps that GradScaler skipped" if skipped else ""
    text = f"{counted(count, 'record')} with NaN or infinities, first {at}{passed}"
    yield CheckResult("beware", "values", text, f"see `anchor report {run.name} -o report.html`")


def _among_ranks(run: Run) -> Iterator[CheckResult]:
    """Yields a warning for each group of ranks that differ from the other ranks in the same way.

    At most three warnings are yielded, in the order of the first records that differ. The groups
    are found by digests and summaries, without reading values. Nothing is yielded for a run of one
    rank.
    """
    if len(run.ranks) < 2:
        return
    from anchorlib.peers import outlier_text, outliers

    for one in outliers(run).outliers[:OUTLIERS]:
        yield CheckResult("beware", "ranks", outlier_text(one), f"see `anchor ranks {run.name}`")


def _precision(run: Run) -> Iterator[CheckResult]:
    """Yields results on what may have made this run compute other bits than an unobserved run.

    A warning is yielded where the run was recorded with an untested version of torch. Another
    result is about code that was compiled in fp16, bf16 or fp8: it is "ok" where torch's compiler
    was set to emulate the precision casts of eager code, else a warning, because such code rounds
    the tensors that are observed. Where neither applies, nothing is yielded.
    """
    header = run.header()
    torch = str(header.get("torch", ""))
    if torch and not torch.startswith(f"{TESTED_TORCH}."):
        yield CheckResult(
            "beware", "torch", f"recorded with {escape(torch)}, tested is {TESTED_TORCH}",
            "compare an observed run with an unobserved one before relying on it",
        )  # fmt: skip
    if _low(run) and _compiled(run):
        if header.get("torch.compile.emulate_precision_casts"):
            yield CheckResult(
                "ok", "precision", "compiled in low precision, precision casts emulated"
            )
        else:
            yield CheckResult(
                "beware",
                "precision",
                "compiled in low precision without emulated casts: what is observed is rounded, "
                "so an observed run computes other bits than an unobserved one",
                f"set {EMULATE}=1, or torch._inductor.config.emulate_precision_casts = True",
            )


def _low(run: Run) -> bool:
    header = run.header()
    dtypes = [part for info in run.tensors() for part in info.dtype.split("|")]
    casts = [header.get(f"torch.autocast.{device}") for device in ("cpu", "cuda")]
    return any(str(one).startswith(LOW) for one in [*dtypes, *casts])


def _compiled(run: Run) -> bool:
    return any(
        op.startswith("CompiledFunction")
        for rank in run.ranks
        for edges in run.edges(rank)
        for op in edges.ops
    )
