"""Makes the histograms that `Run` returns: one for each tensor of a selector, over all ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from anchorlib.errors import AmbiguousTensorError
from anchorlib.names import join, quoted, select
from anchorlib.reading.series import Series
from anchorlib.store import RunFigures
from anchorlib.summary import Log2Histogram

__all__ = [
    "TensorHistogram",
    "gradients_first",
    "histogram_of_figures",
    "histogram_of_series",
    "pairs_meant",
]

GRADIENTS = ("grad", "pass_grad")


@dataclass(frozen=True, slots=True)
class TensorHistogram:
    """The log2 histogram of one tensor and kind over some steps and ranks together.

    first_step, last_step: the first and the last step that has a counted record.
    records: how many records were counted.
    """

    name: str
    kind: str
    first_step: int
    last_step: int
    records: int
    histogram: Log2Histogram


def gradients_first(pairs: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the (name, kind) pairs that a selector without a kind means: gradients, if any.

    If any name has a gradient (`grad` or `pass_grad`), each name has its `grad`, or its `pass_grad`
    where it has no `grad`; names without either are left out. If no name has a gradient, each name
    has its first kind. So a gradient and a value never share a histogram.

    pairs: all (name, kind) pairs that the selector matches.
    """
    for kinds in (GRADIENTS, tuple(dict.fromkeys(kind for _, kind in pairs))):
        gradients = [_first_kind(name, kinds, pairs) for name in dict.fromkeys(n for n, _ in pairs)]
        if chosen := [pair for pair in gradients if pair is not None]:
            return chosen
    return []


def _first_kind(
    name: str, kinds: Iterable[str], pairs: Sequence[tuple[str, str]]
) -> tuple[str, str] | None:
    return next(((name, kind) for kind in kinds if (name, kind) in pairs), None)


def pairs_meant(selector: str, known: Sequence[tuple[str, str]], run: str) -> list[tuple[str, str]]:
    """Return those of a run's (name, kind) pairs that a selector means.

    If the selector gives no kind, `gradients_first` chooses the kind of each name. Raises
    UnknownTensorError where the selector matches no pair.

    known: all (name, kind) pairs of the run.
    run: the run's name, for error messages.
    """
    pairs = select([selector], known, where=f" in {run}")
    names = {name for name, _ in pairs}
    if len(pairs) == sum(name in names for name, _ in known):
        return gradients_first(pairs)  # it named all kinds of its names: it chose no kind
    return pairs


def histogram_of_figures(run: str, pair: tuple[str, str], figures: RunFigures) -> TensorHistogram:
    """Return the histogram of all records of one tensor, from the index of an archived run.

    Raises AmbiguousTensorError where the tensor was recorded in several modes.

    run: the run's name, for error messages.
    pair: the tensor's name and kind, which must be in the run.
    figures: the index: the totals of all ranks.
    """
    parts = [one for one in figures.series if (one.name, one.kind) == pair]
    _check_modes(run, pair, [one.mode for one in parts])
    one = parts[0]
    return TensorHistogram(*pair, one.first_step, one.last_step, one.records, one.histogram)


def histogram_of_series(
    run: str, pair: tuple[str, str], series: Sequence[Series], where: Mapping[str, Any]
) -> TensorHistogram | None:
    """Return the histogram of the records of some series of one tensor; None for no records.

    Raises AmbiguousTensorError where the chosen records are of several modes.

    run: the run's name, for error messages.
    pair: the tensor's name and kind.
    where: arguments of `Series.where`, by name, which choose the records.
    """
    parts = [part for one in series if len(part := one.where(**where))]
    if not parts:
        return None
    _check_modes(run, pair, [*{one.mode for one in parts}])
    steps = np.concatenate([one.columns["step"] for one in parts])
    return TensorHistogram(
        *pair,
        first_step=int(steps.min()),
        last_step=int(steps.max()),
        records=len(steps),
        histogram=Log2Histogram.pooled(one.histogram() for one in parts),
    )


def _check_modes(run: str, pair: tuple[str, str], modes: list[str]) -> None:
    """Raise AmbiguousTensorError where a tensor was recorded in several modes.

    One histogram over the records of several modes would count elements twice.

    run: the run's name, for the error's text.
    pair: the tensor's name and kind.
    modes: the modes of the tensor's records, each once.
    """
    if len(modes) > 1:
        raise AmbiguousTensorError(
            f"{quoted(join(*pair))} in {run} was recorded in {len(modes)} modes; choose "
            f"one with mode=: {', '.join(map(quoted, sorted(modes)))}"
        )
