"""`anchor names`: the tensors of a run, in execution order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from anchor_cli import complete
from anchor_cli.exits import ExitCode
from anchor_cli.options import JsonOption, RunArgument, StoreOption, examples
from anchor_cli.table import Column, written
from anchor_cli.terminal import Screen, document, emit, size, this_screen

if TYPE_CHECKING:
    from anchorlib import TensorInfo

__all__ = ["EXAMPLES", "show_names"]

EXAMPLES = examples("anchor names run1", "anchor names run1 'fc*@grad' 're:.*[.]bias' --json")

_FIELDS = ("name", "kind", "mode", "dtype", "shape", "ranks", "records")
_COLUMNS = [
    Column("name", cut=True),
    Column("kind", cut=True),
    Column("mode", cut=True, spare=True),
    Column("dtype", cut=True),
    Column("shape", cut=True),
    Column("ranks", cut=True, spare=True),
    Column("records", right=True),
    Column("steps", cut=True),
    Column("size", right=True),
]


def show_names(
    run: RunArgument,
    selector: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SELECTOR]...",
            help="Only the tensors these name, as 'fc*@grad'.",
            autocompletion=complete.selectors,
        ),
    ] = None,
    *,
    store: StoreOption = "anchors",
    as_json: JsonOption = False,
) -> int:
    """List the tensors of a run in execution order."""
    from anchorlib.reading import open_run

    tensors = open_run(run, store=store).tensors(*(selector or ()))
    if as_json:
        document([_entry(info) for info in tensors])
    else:
        screen = this_screen()
        emit(written(_COLUMNS, [_row(info, screen) for info in tensors], screen))
    return ExitCode.DONE


def _entry(info: TensorInfo) -> dict[str, object]:
    return {
        **{field: getattr(info, field) for field in _FIELDS},
        "first_step": info.first_step,
        "last_step": info.last_step,
        "bytes": info.bytes,
    }


def _row(info: TensorInfo, screen: Screen) -> list[str]:
    from anchorlib.names import escape

    return [
        escape(info.name),
        escape(info.kind),
        info.mode,
        info.dtype,
        shown_shape(info.shape),
        spans(info.ranks),
        str(info.records),
        spans_of(info.first_step, info.last_step),
        size(info.bytes, screen),
    ]


def shown_shape(shape: tuple[int | None, ...] | None) -> str:
    """A shape as 32x10; () for a single number, ? where records differ."""
    if shape is None:
        return "?"
    return "x".join("?" if extent is None else str(extent) for extent in shape) or "()"


def spans_of(first: int, last: int) -> str:
    """The steps first … last, as 0-99."""
    return str(first) if first == last else f"{first}-{last}"


def spans(numbers: tuple[int, ...]) -> str:
    """Sorted numbers as 0-3,8."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(spans_of(first, last) for first, last in parts)
