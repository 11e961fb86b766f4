"""Which formula reproduces recorded bits, and how far they are from the truth.

    fit([tanh_backward], [g, y], recorded, "float32")

Nothing but arithmetic is needed: each run's own inputs, its output, and the formulas. What agrees
in every element is named; where several agree they all are, since the data do not tell them apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from anchorlib.formulas.elementary import LIBRARIES, Library
from anchorlib.formulas.formula import Formula, Function
from anchorlib.formulas.rounded import EXACT, Rounded, nearest

__all__ = ["ENOUGH", "Fit", "fit"]

Array = np.ndarray[Any, Any]
ENOUGH: Final = 256
"""Elements from which agreement of all of them is taken for more than chance."""
_EPS: Final = {"float32": 2.0**-23, "float64": 2.0**-52, "bfloat16": 2.0**-7, "float16": 2.0**-10}


@dataclass(frozen=True, slots=True)
class Fit:
    """What one run's recorded output says of how it was made.

    function: the mathematical function that it is nearest to.
    formulas: those that reproduce every element.
    nearest, share: the formula that reproduces most, and of how many elements (0 to 1).
    error: ‖output − truth‖₂ / (‖truth‖₂ · eps), the truth being that of `function` in the widest
        arithmetic there is; nan where the truth is all zero or not finite.
    elements: how many were looked at.
    """

    function: str
    formulas: tuple[str, ...]
    nearest: str
    share: float
    error: float
    elements: int


def fit(
    functions: Sequence[Function],
    inputs: Sequence[Array],
    output: Array,
    precision: str,
    *,
    part: Callable[[Array], Array] | None = None,
) -> Fit:
    """The formulas of the nearest of some functions, held against an output.

    inputs, output: values of `precision` (float32, float64, bfloat16 or float16), decoded.
    part: takes the elements that functions give out of an output; None: all of it.
    """
    told = nearest(output if part is None else part(output), precision)
    with np.errstate(all="ignore"):
        errors = [_error(told, _truth(one, inputs), precision) for one in functions]
        best = min(range(len(functions)), key=lambda at: (np.isnan(errors[at]), errors[at]))
        shares = dict(_shares(functions[best], inputs, told, precision))
    top = max(shares, key=lambda name: shares[name])
    return Fit(
        function=functions[best].name,
        formulas=tuple(name for name, share in shares.items() if share == 1),
        nearest=top,
        share=shares[top],
        error=errors[best],
        elements=told.size,
    )


def _truth(function: Function, inputs: Sequence[Array]) -> Array:
    wide = [Rounded(one, EXACT) for one in inputs]
    return function.formulas[0].compute(LIBRARIES[0], *wide).values


def _error(output: Array, truth: Array, precision: str) -> float:
    scale = float(np.linalg.norm(truth.astype(np.float64).reshape(-1))) * _EPS[precision]
    apart = (output.astype(truth.dtype) - truth).astype(np.float64)
    return float(np.linalg.norm(apart.reshape(-1))) / scale if scale else float("nan")


def _shares(
    function: Function, inputs: Sequence[Array], output: Array, precision: str
) -> Iterator[tuple[str, float]]:
    """The share of elements whose bits each way of computing gives, by its name."""
    for formula in function.formulas:
        for computed_in, told in _roundings(precision):
            arguments = [Rounded(one, computed_in) for one in inputs]
            for library, suffix in _libraries(formula):
                found = nearest(formula.compute(library, *arguments).values, precision)
                yield f"{formula.name}{told}{suffix}", _equal(found, output)
    for kernel in function.kernels:
        found = nearest(kernel.compute(inputs, precision), precision)
        yield kernel.name, _equal(found, output)


def _roundings(precision: str) -> list[tuple[str, str]]:
    """In what a formula is computed, and what is said of it.

    Kernels for 16-bit types compute in float32 and round once; code written by hand rounds after
    each operation.
    """
    if precision in ("bfloat16", "float16"):
        return [("float32", ", in float32"), (precision, f", each step in {precision}")]
    return [(precision, "")]


def _libraries(formula: Formula) -> list[tuple[Library, str]]:
    if not formula.elementary:
        return [(LIBRARIES[0], "")]
    return [(one, f" ({one.name} functions)") for one in LIBRARIES]


def _equal(found: Array, output: Array) -> float:
    """The share of elements that have the same bits; a NaN equals any NaN."""
    kind = f"u{found.dtype.itemsize}"
    same = np.ascontiguousarray(found).view(kind) == np.ascontiguousarray(output).view(kind)
    same |= np.isnan(found) & np.isnan(output)
    return float(same.mean()) if same.size else 0.0
