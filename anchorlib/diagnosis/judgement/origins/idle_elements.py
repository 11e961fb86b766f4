"""Values that differ only in elements that no loss reads: a model's output at padded places.

    loss = cross_entropy(model(tokens), targets, ignore_index=0)

Code that packs sequences leaves zeros at padded places, where other code leaves what a layer made
of padding. The gradient of such an element is zero in both runs.
"""

from __future__ import annotations

import numpy as np

from anchorlib.diagnosis.judgement.origins.first_step import FirstStep
from anchorlib.diagnosis.judgement.series import site_of, values
from anchorlib.errors import StoreError
from anchorlib.names import join
from anchorlib.scope import TRAIN

__all__ = ["differ_where_idle"]

MOST = 64
"""The number of records up to which values and gradients are read."""
MOST_ELEMENTS = 1 << 22


def differ_where_idle(first: FirstStep, limit: float) -> set[str]:
    """Return the values (`name@value`) that differ by more than `limit` only where no loss reads.

    `limit` is in eps. No loss reads an element whose gradient is zero in both runs. The other
    elements, of which there has to be one at least, must agree within `limit` eps of their own
    norm. A tensor counts only where this holds for all its records in training that differ so much.
    Evaluations show for themselves whether they are equal.
    """
    alignment, a = first.alignment, first.alignment.a
    places = [
        place
        for place in first.here.tolist()
        if a.tensors[a.tensor[first.rows[place]]].kind == "value"
        and a.phases[a.phase[first.rows[place]]] == TRAIN
        and not first.measures["error_eps"][place] <= limit
    ]
    if len(places) > MOST:
        return set()
    gradients = {
        site_of(a, row): (row, row_b)
        for row, row_b in zip(alignment.a_row.tolist(), alignment.b_row.tolist(), strict=True)
        if a.step[row] == first.steps[0] and a.tensors[a.tensor[row]].kind == "grad"
    }
    idle: set[str] = set()
    barred: set[str] = set()
    for place in places:
        row = int(first.rows[place])
        row_b = int(alignment.b_row[first.measures.pair[place]])
        own = gradients.get(site_of(a, row))
        most = limit * float(first.measures["eps"][place])
        alike = own is not None and _agree(first, (row, row_b), own, most)
        (idle if alike else barred).add(join(a.tensors[a.tensor[row]].name, "value"))
    return idle - barred


def _agree(
    first: FirstStep, pair: tuple[int, int], gradients: tuple[int, int], most: float
) -> bool:
    """Return whether two values agree in all elements with a nonzero gradient in A or in B.

    pair, gradients: the rows in A and in B of the value, and of its gradient. most: the relative
    error up to which they agree. False where no element has a gradient, or values are not known.
    """
    a, b = first.alignment.a, first.alignment.b
    if a.figures["numel"][pair[0]] > MOST_ELEMENTS:
        return False
    try:
        value_a, slope_a = (values(a, row) for row in (pair[0], gradients[0]))
        value_b, slope_b = (values(b, row) for row in (pair[1], gradients[1]))
    except StoreError:
        return False
    if value_a is None or value_b is None or slope_a is None or slope_b is None:
        return False
    if not len(value_a) == len(value_b) == len(slope_a) == len(slope_b):
        return False
    read = (slope_a != 0) | (slope_b != 0)
    apart = np.linalg.norm((value_b - value_a)[read])
    return bool(read.any() and apart <= most * np.linalg.norm(value_a[read]))
