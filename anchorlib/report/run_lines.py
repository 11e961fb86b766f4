"""The lines of a page, and the parameters, header and gaps of a run.

A line is what was recorded under a name, kind, mode and phase. All of these are made in the same
way whether the page's figures are read from ranks or from an archive's counts.
"""

from __future__ import annotations

from typing import Any

from anchorlib.diagnosis.causes import HISTORY, MODULE, STARTS
from anchorlib.names import escape, is_operand_kind
from anchorlib.reading import Run
from anchorlib.record import TensorInfo
from anchorlib.report.run_view import Line

__all__ = ["gaps_of", "header_of", "line_of", "parameters_of"]


def line_of(key: tuple[str, str, str, str], info: TensorInfo, **figures: Any) -> Line:
    """Return one line of the page: what was recorded under a name, kind, mode and phase.

    key: (name, kind, mode, phase). info: what is known of the name, kind and mode in all phases:
        dtype, shape, bytes and gaps are taken from it. figures: the other fields of the Line, which
        are about its phase alone.
    """
    return Line(
        *key,
        dtype=info.dtype,
        shape=_shape_text(info.shape),
        bytes=info.bytes,
        gaps=info.gaps,
        **figures,
    )


def parameters_of(run: Run) -> set[str]:
    """Return the names of a run's parameters.

    A name is a parameter's if it has a record of a kind that only parameters have. It is also one
    if lineage (what each value was computed from) names it as a parent without a call number: all
    other parents have one.
    """
    own = {info.name for info in run.tensors() if _is_of_a_parameter(info.kind)}
    return own | {
        parent.name for one in run.edges() for parent in one.parents if parent.call is None
    }


def _is_of_a_parameter(kind: str) -> bool:
    return kind not in ("value", "grad") and not is_operand_kind(kind)


def header_of(run: Run) -> dict[str, str]:
    return {
        escape(str(name)): escape(_text(value))
        for name, value in sorted(run.header().items())
        if not name.startswith((MODULE, HISTORY))
        and name != STARTS  # a comparison shows how these differ
    }


def _text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return " ".join(str(one) for one in value)
    return str(value)


def gaps_of(run: Run) -> list[tuple[str, int]]:
    """Return (reason, number of observations that were not recorded for this reason) pairs.

    The largest number comes first. Reasons are escaped.
    """
    totals: dict[str, int] = {}
    for gap in run.gaps():
        totals[gap.reason] = totals.get(gap.reason, 0) + gap.count
    return sorted(((escape(r), n) for r, n in totals.items()), key=lambda one: -one[1])


def _shape_text(shape: tuple[int | None, ...] | None) -> str:
    if shape is None:
        return "mixed"
    return "×".join("?" if size is None else str(size) for size in shape) or "scalar"
