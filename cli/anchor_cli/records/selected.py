"""Finds the records that a command's options select, or says why there are none."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from anchor_cli.arguments import Selection
from anchor_cli.records.missing import lost
from anchor_cli.records.tensor_records import SelectedRecords
from anchor_cli.terminal import steps_of
from anchorlib.errors import AmbiguousTensorError, OptionError, UnknownTensorError
from anchorlib.names import escape, join
from anchorlib.reading import gradients_first

if TYPE_CHECKING:
    from anchorlib import Run, Series, TensorInfo

__all__ = ["named", "narrowed", "selected", "settled"]

Pair = tuple[str, str]
Key = tuple[str, str, str]

_SHOWN: Final = 8  # phases, passes or calls that a message names


def selected(
    run: Run, selectors: Sequence[str], selection: Selection, *, gradients: bool = False
) -> list[SelectedRecords]:
    """Returns the selected records of the tensors that the selectors name, in execution order.

    Never returns an empty list: raises UnknownTensorError where no tensor or no record is selected.
    Raises AmbiguousTensorError for a tensor of several modes without --mode, OptionError for a rank
    that recorded nothing and for a mode in which no selected tensor was recorded.

    gradients: a selector without a kind means `grad`, else `pass_grad`, instead of all kinds.
    """
    try:
        infos = _infos(run, selectors, gradients=gradients)
    except UnknownTensorError:
        if reason := lost(run, selectors, (), selection):
            raise UnknownTensorError(reason) from None
        raise
    if selection.rank is not None and selection.rank not in run.ranks:
        have = ", ".join(map(str, run.ranks))
        raise OptionError(
            f"rank {selection.rank} recorded nothing in {run.name}; there are: {have}"
        )
    candidates = narrowed(run, _of_mode(infos, selection.mode), selection)
    if kept := [one for one in candidates if one.series]:
        return kept
    raise UnknownTensorError(
        f"{escape(', '.join(selectors))} has no record at {selection} in {run.name}; "
        f"its records are of {_recorded(candidates, selection)}"
    )


def _recorded(candidates: Sequence[SelectedRecords], selection: Selection) -> str:
    """Returns which records the tensors have, as text for the error that no record is selected.

    The text names the steps of these records, and their phases, passes or calls where the options
    ask for one.

    candidates: the tensors that the selectors name, with all their records.
    """
    infos = [one.info for one in candidates]
    parts = [steps_of(min(i.first_step for i in infos), max(i.last_step for i in infos))]
    columns = {"phase": selection.phase, "pass_index": selection.pass_index, "call": selection.call}
    for column, wanted in columns.items():
        if wanted is not None:
            there = {
                own for one in candidates for all_of in one.whole for own in all_of.columns[column]
            }
            shown = [escape(str(one)) for one in sorted(there)]
            more = "" if len(shown) <= _SHOWN else f" and {len(shown) - _SHOWN} more"
            parts.append(f"{column.removesuffix('_index')} {', '.join(shown[:_SHOWN])}{more}")
    return ", ".join(parts)


def named(
    run: Run, selectors: Sequence[str], selection: Selection, *, gradients: bool = False
) -> list[TensorInfo]:
    """Returns the tensors that the selectors name, each in one mode.

    Of the selection only the mode counts. Raises UnknownTensorError for a selector that names
    nothing, AmbiguousTensorError for a tensor of several modes without --mode, OptionError for a
    mode in which none of the tensors was recorded.

    gradients: a selector without a kind means `grad`, else `pass_grad`, instead of all kinds.
    """
    return _of_mode(_infos(run, selectors, gradients=gradients), selection.mode)


def settled(run: Run, selectors: Sequence[str], selection: Selection) -> Selection:
    """Returns the selection with negative steps replaced by the steps that they mean.

    -1 means the last step of the tensors that the selectors name. Where the selectors name no
    tensor, all steps are selected instead. Raises OptionError where the steps select nothing.
    """
    if not selection.from_the_end:
        return selection
    try:
        return selection.within(max(info.last_step for info in run.tensors(*selectors)))
    except UnknownTensorError:  # `selected` raises the same error, with the reason
        return replace(selection, first=0, stop=None)


def _infos(run: Run, selectors: Sequence[str], *, gradients: bool) -> list[TensorInfo]:
    if not gradients:
        return run.tensors(*selectors)
    every = run.tensors()
    kinds = list(dict.fromkeys((info.name, info.kind) for info in every))
    chosen: set[Pair] = set()
    for selector in selectors:
        pairs = list(dict.fromkeys((i.name, i.kind) for i in run.tensors(selector)))
        names = {name for name, _ in pairs}
        asked_for_all = len(pairs) == sum(name in names for name, _ in kinds)
        chosen.update(gradients_first(pairs) if asked_for_all else pairs)
    return [info for info in every if (info.name, info.kind) in chosen]


def _of_mode(infos: Sequence[TensorInfo], mode: str | None) -> list[TensorInfo]:
    """Returns those of the tensors that were recorded in the given mode.

    Raises OptionError where no tensor was recorded in the given mode. With None as the mode all
    tensors are returned; then raises AmbiguousTensorError where a tensor was recorded in several
    modes, because records of two modes would repeat observations.
    """
    modes: dict[Pair, list[str]] = {}
    for info in infos:
        modes.setdefault((info.name, info.kind), []).append(info.mode)
    if mode is None:
        for pair, several in modes.items():
            if len(several) > 1:
                raise AmbiguousTensorError(
                    f"{escape(join(*pair))} was recorded in {len(several)} modes; choose with "
                    f"--mode {' or --mode '.join(map(escape, several))}"
                )
        return list(infos)
    if of_mode := [info for info in infos if info.mode == mode]:
        return of_mode
    have = ", ".join(sorted({escape(info.mode) for info in infos}))
    raise OptionError(f"nothing selected was recorded in mode {mode}; modes there: {have}")


def narrowed(run: Run, infos: Sequence[TensorInfo], selection: Selection) -> list[SelectedRecords]:
    """Returns the selected records of each of these tensors, in their order.

    A tensor of which no record is selected has an empty result. All tensors are looked for
    together, because looking for one tensor after the other would read every rank for each tensor.
    """
    steps = range(selection.first, sys.maxsize if selection.stop is None else selection.stop)
    kept: dict[Key, list[Series]] = {_key(info): [] for info in infos}
    whole: dict[Key, list[Series]] = {_key(info): [] for info in infos}
    for rank in sorted({rank for info in infos for rank in info.ranks}):
        if selection.rank not in (None, rank):
            continue
        for one in run.each_series(rank):
            if _key(one) in kept:
                some = one.where(
                    steps=steps,
                    pass_index=selection.pass_index,
                    call=selection.call,
                    phase=selection.phase,
                )
                kept[_key(one)] += [some] if len(some) else []
        for one in run.each_series(rank, attempts=True):
            if _key(one) in whole:
                whole[_key(one)].append(one)
    return [
        SelectedRecords(info, tuple(kept[_key(info)]), tuple(whole[_key(info)])) for info in infos
    ]


def _key(one: TensorInfo | Series) -> Key:
    return (one.name, one.kind, one.mode)
