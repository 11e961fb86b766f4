"""Finds which formula reproduces recorded bits, and how far these are from the true values.

    fit([tanh_backward], [g, y], recorded, "float32")

Only a run's own inputs, its output and the formulas are needed. Every formula that agrees in all
elements is named, since the data do not tell them apart.
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
"""From this many elements on, agreement in all of them is taken for more than chance."""
_EPS: Final = {"float32": 2.0**-23, "float64": 2.0**-52, "bfloat16": 2.0**-7, "float16": 2.0**-10}


@dataclass(frozen=True, slots=True)
class Fit:
    """How well a run's recorded output agrees with formulas.

    function: the name of the mathematical function that the output is nearest to.
    formulas: the names of the formulas that reproduce every element.
    nearest: the name of the formula that reproduces the most elements.
    share: the share of elements (0 to 1) that `nearest` reproduces.
    error: ‖output − truth‖₂ / (‖truth‖₂ · eps), where the truth is `function` in the widest
        arithmetic of this machine, and eps that of the output's type; nan where the truth is all
        zero or not finite, or where the output has a NaN.
    elements: how many elements were compared.
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
    """Return which of `functions` `output` is nearest to, and which of its formulas fit the bits.

    Only the formulas of the nearest function are tried.

    inputs: the inputs of each of `functions`, in the order that they take them.
    output: the recorded output.
    precision: the element type of the recorded tensors: float32, float64, bfloat16 or float16.
        Values of 16-bit types are given as float32.
    part: returns those elements of the output that the functions compute; None means all of them.
    """
    recorded = nearest(output if part is None else part(output), precision)
    with np.errstate(all="ignore"):
        errors = [_error(recorded, _truth(one, inputs), precision) for one in functions]
        best = min(range(len(functions)), key=lambda at: (np.isnan(errors[at]), errors[at]))
        shares = dict(_shares(functions[best], inputs, recorded, precision))
    top = max(shares, key=lambda name: shares[name])
    return Fit(
        function=functions[best].name,
        formulas=tuple(name for name, share in shares.items() if share == 1),
        nearest=top,
        share=shares[top],
        error=errors[best],
        elements=recorded.size,
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
    """Yield (name, share) for each formula: the share (0 to 1) of elements with the recorded bits.

    A formula is tried, under a name of its own, in each precision of `_roundings` and, if it calls
    elementary functions, with each library. The names and shares of torch's kernels follow.
    """
    for formula in function.formulas:
        for computed_in, rounding in _roundings(precision):
            arguments = [Rounded(one, computed_in) for one in inputs]
            for library, suffix in _libraries(formula):
                values = nearest(formula.compute(library, *arguments).values, precision)
                yield f"{formula.name}{rounding}{suffix}", _equal(values, output)
    for kernel in function.kernels:
        values = nearest(kernel.compute(inputs, precision), precision)
        yield kernel.name, _equal(values, output)


def _roundings(precision: str) -> list[tuple[str, str]]:
    """Return (precision, suffix) for each precision that a formula is to be computed in.

    The suffix is put after the formula's name. Kernels for 16-bit types compute in float32 and
    round once; code written by hand rounds after each operation: both are tried. Other types are
    computed in themselves, with the suffix "".

    precision: the element type of the recorded tensors.
    """
    if precision in ("bfloat16", "float16"):
        return [("float32", ", in float32"), (precision, f", each step in {precision}")]
    return [(precision, "")]


def _libraries(formula: Formula) -> list[tuple[Library, str]]:
    if not formula.elementary:
        return [(LIBRARIES[0], "")]
    return [(one, f" ({one.name} functions)") for one in LIBRARIES]


def _equal(values: Array, output: Array) -> float:
    """Return the share (0 to 1) of elements with the same bits in both arrays; 0 if there are none.

    A NaN equals any NaN.
    """
    kind = f"u{values.dtype.itemsize}"
    same = np.ascontiguousarray(values).view(kind) == np.ascontiguousarray(output).view(kind)
    same |= np.isnan(values) & np.isnan(output)
    return float(same.mean()) if same.size else 0.0
