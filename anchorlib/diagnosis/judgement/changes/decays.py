"""An update that takes another share of the parameter off: the parameter decays in one run alone.

    updated = parameter − lr · (step + weight_decay · parameter)

A bias that is in the wrong group of an optimizer decays though it should not. The settings of both
optimizers are equal then, and the header does not say which group holds which parameter. But the
two updates differ by a multiple of the parameter, which is `lr` times the difference of the decays.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from anchorlib.amounts import figure
from anchorlib.diagnosis.causes import Frontier, setting_at
from anchorlib.diagnosis.judgement.series import parameter_before, values
from anchorlib.errors import StoreError
from anchorlib.names import escape

__all__ = ["decays_otherwise"]

Array = np.ndarray[Any, Any]
EPS32 = 2.0**-23
ROUNDINGS = 4.0
"""By how many eps of the parameter two updates may differ, once the multiple is taken off."""
LEAST = 16.0
"""How many times as large as these roundings the multiple has to be."""
NEAR = 0.01
"""By how much, relatively, a multiple may be off `lr` times a difference of weight decays."""
FEW = 2  # elements: one number is a multiple of any other


def decays_otherwise(frontier: Frontier, row: int) -> list[str]:
    """Return a clause that B's update shrinks the parameter by another share; [] if it does not.

    row: a row of A; any other kind than `updated` and `delta` gives [].
    """
    alignment = frontier.alignment
    a, b = alignment.a, alignment.b
    tensor = a.tensors[a.tensor[row]]
    if tensor.kind not in ("updated", "delta"):
        return []
    row_b = int(alignment.b_row[np.searchsorted(alignment.a_row, row)])
    try:
        before, own, other = parameter_before(a, row), values(a, row), values(b, row_b)
    except StoreError:
        return []
    share = None if before is None or own is None or other is None else _share(before, own, other)
    if share is None:
        return []
    headers = a.header.get(tensor.rank, {}), b.header.get(tensor.rank, {})
    step = int(a.step[row])
    for optimizer, decays in _possible(headers[0], step):
        rates = _numbers(setting_at(headers[0], f"{optimizer}.lr", step))
        for one in decays:
            for two in decays:
                if any(abs(share + rate * (two - one)) <= NEAR * abs(share) for rate in rates):
                    name = escape(str(headers[0].get(optimizer, optimizer)))
                    return [f"{name} weight_decay {one:g} | {two:g} for this parameter"]
    run = "B" if share < 0 else "A"
    return [f"{run} takes {figure(abs(share))} times the parameter more off: weight_decay?"]


def _share(before: Array, own: Array, other: Array) -> float | None:
    """Return c where B's update is A's plus c times the parameter; None where it is not.

    None also where c is no larger than rounding, or where the parameter has few elements.
    before: the parameter before the update. own, other: A's and B's update.
    """
    size = float(np.linalg.norm(before))
    if not len(before) == len(own) == len(other) > FEW or not size:
        return None
    apart = other - own
    share = float(apart @ before) / size**2
    rounding = ROUNDINGS * EPS32 * size
    if abs(share) * size < LEAST * rounding:
        return None
    return share if np.linalg.norm(apart - share * before) <= rounding else None


def _possible(header: Any, step: int) -> Iterator[tuple[str, list[float]]]:
    """Yield (name of an optimizer in the header, weight decays that a parameter may have).

    These are 0 and the weight decay of each of the optimizer's groups at the step.
    """
    for key in header:
        optimizer, _, what = str(key).rpartition(".")
        if what == "weight_decay" and "." not in optimizer:
            yield optimizer, [0.0, *_numbers(setting_at(header, key, step))]


def _numbers(setting: object) -> list[float]:
    """Return the numbers of a setting: one for each group, or one for all groups."""
    listed = setting if isinstance(setting, list | tuple) else [setting]
    return [float(one) for one in listed if isinstance(one, int | float)]
