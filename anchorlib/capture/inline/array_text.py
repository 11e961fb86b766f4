"""Arrays as text, in the format of PopTorch's `ipu_print_tensor`.

    (
     (1.496, 1.768)
     (1.088, 1.132)
    )

Each row has a line of its own, indented by its depth, without a separator to the next row. A
one-dimensional array is a single row. A row that is too long goes on in lines indented by two more;
the line before ends with the separator.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from anchorlib.errors import OptionError
from anchorlib.names import suggest

__all__ = ["FLOAT_FORMATS", "PrintFormat", "format_edges"]

FLOAT_FORMATS = ("auto", "fixed", "scientific", "none")

_ELLIPSIS = "..."
_SMALLEST_FIXED = 1e-4  # below it %g, too, writes an exponent
_TEXTS = ("separator", "open_bracket", "close_bracket")
_COUNTS = ("summarise_threshold", "edge_items", "max_line_width", "digits")
_Write = Callable[[float], str]


@dataclass(frozen=True, slots=True)
class PrintFormat:
    """How an array is shown; names, meaning and defaults are those of `ipu_print_tensor`.

    summarise_threshold: of an array with more elements only the edges are shown; 0: never.
    edge_items: elements shown at each end of a dimension that is cut.
    max_line_width: a row is split, between elements, where its line would be longer than so many
        characters with indentation, brackets and separators; 0: never.
    digits: how many significant digits the largest magnitude has; all elements have as many
        decimals as that one, and are aligned. Integers always show all their digits. 0: each
        element in full (the shortest text that reads back as the same number), not aligned.
    float_format: "fixed" (12.35), "scientific" (1.235e+01), "none" (each element by itself, as %g
        writes it), or "auto". "auto" is "fixed" if each finite element other than 0 is at least
        1e-4 and below 10^digits, and shows a digit other than 0; else it is "scientific".

    Raises OptionError for any other float_format, for counts that are not ints from 0 up, and for a
    separator or bracket that is not text.
    """

    summarise_threshold: int = 1000
    edge_items: int = 3
    max_line_width: int = 80
    digits: int = 4
    float_format: str = "auto"
    separator: str = ", "
    open_bracket: str = "("
    close_bracket: str = ")"

    def __post_init__(self) -> None:
        if self.float_format not in FLOAT_FORMATS:
            raise OptionError(
                f"float_format is one of {', '.join(map(repr, FLOAT_FORMATS))}, not "
                f"{self.float_format!r}{suggest(str(self.float_format), FLOAT_FORMATS)}"
            )
        for name in _TEXTS:
            if not isinstance(getattr(self, name), str):
                raise OptionError(f"{name} is text, not {getattr(self, name)!r}")
        for name in _COUNTS:
            count = getattr(self, name)
            if not isinstance(count, int) or count < 0:
                raise OptionError(f"{name} is an int of 0 or more, not {count!r}")

    def cut(self, shape: tuple[int, ...]) -> tuple[bool, ...]:
        """Return, for each dimension of an array, whether only the ends of the dimension are shown.

        shape: the array's shape.
        """
        summarise = 0 < self.summarise_threshold < math.prod(shape)
        return tuple(summarise and size > 2 * self.edge_items for size in shape)


def format_edges(array: np.ndarray[Any, Any], cut: tuple[bool, ...], form: PrintFormat) -> str:
    """Return the text of an array whose long dimensions were cut to their first and last elements.

    array: the elements that are left. cut: for each dimension, whether the caller has cut it; the
        text shows an ellipsis in the middle of such a dimension. form: how to show the elements.
    """
    if array.size == 0 and not any(cut):
        return form.open_bracket + form.close_bracket
    elements = iter(_elements(array.reshape(-1), form))
    return "\n".join(_lines(elements, array.shape, cut, form))


def _lines(
    elements: Iterator[str],
    shape: tuple[int, ...],
    cut: tuple[bool, ...],
    form: PrintFormat,
    depth: int = 0,
) -> list[str]:
    if not shape:
        return [next(elements)]
    if len(shape) == 1:
        row = [next(elements) for _ in range(shape[0])]
        if cut[0]:
            row.insert(len(row) // 2, _ELLIPSIS)
        return _row(row, form, depth)
    parts = [_lines(elements, shape[1:], cut[1:], form, depth + 1) for _ in range(shape[0])]
    if cut[0]:
        parts.insert(len(parts) // 2, [f"{' ' * depth} {_ELLIPSIS}"])
    lines = [line for part in parts for line in part]
    return [" " * depth + form.open_bracket, *lines, " " * depth + form.close_bracket]


def _row(elements: list[str], form: PrintFormat, depth: int) -> list[str]:
    ends = [form.separator] * (len(elements) - 1) + [form.close_bracket]
    lines: list[str] = []
    line = " " * depth + form.open_bracket
    empty = True
    for element, end in zip(elements, ends, strict=True):
        length = len(line) + len(element) + len(end)
        if not empty and 0 < form.max_line_width < length:
            lines.append(line)
            line = " " * (depth + 2)
        line += element + end
        empty = False
    return [*lines, line]


def _elements(values: np.ndarray[Any, Any], form: PrintFormat) -> list[str]:
    """Return the values, shape (n), as texts, which are padded to equal width unless `digits` is 0.

    form: how to show the values; its `digits` is meant here.
    """
    if values.dtype.kind == "c":
        write = _float_writer(np.concatenate((values.real, values.imag)), form)
        texts = [_complex(value.real, value.imag, write) for value in values]
    elif values.dtype.kind == "f":
        texts = list(map(_float_writer(values, form), values))
    else:
        texts = list(map(str, values.tolist()))
    width = max(map(len, texts), default=0) if form.digits else 0
    return [text.rjust(width) for text in texts]


def _complex(real: float, imaginary: float, write: _Write) -> str:
    after = write(imaginary)
    return f"{write(real)}{'' if after.startswith('-') else '+'}{after}j"


def _float_writer(values: np.ndarray[Any, Any], form: PrintFormat) -> _Write:
    """Return a function that writes a number as text, in one format that suits all of `values`.

    values: the real numbers to be shown, shape (n).
    """
    digits = form.digits
    if digits == 0:
        return str
    if form.float_format == "none":
        return lambda value: f"{float(value):.{digits}g}"
    magnitudes = [abs(float(value)) for value in values if np.isfinite(value) and value]
    decimals = _decimals(max(magnitudes, default=0.0), digits)
    fixed = form.float_format == "fixed" or (
        form.float_format == "auto" and _is_fixed(magnitudes, decimals, digits)
    )
    if fixed:
        return lambda value: f"{float(value):.{decimals}f}"
    return lambda value: f"{float(value):.{digits - 1}e}"


def _decimals(largest: float, digits: int) -> int:
    """Return the number of decimals with which `largest` shows `digits` significant digits.

    0 is returned where `largest` has as many digits, or more, before the point.
    """
    exponent = int(f"{largest:.{digits - 1}e}".partition("e")[2])
    return max(0, digits - 1 - exponent)


def _is_fixed(magnitudes: list[float], decimals: int, digits: int) -> bool:
    if not magnitudes:
        return True
    smallest = min(magnitudes)
    is_shown = float(f"{smallest:.{decimals}f}") > 0
    return is_shown and smallest >= _SMALLEST_FIXED and max(magnitudes) < 10**digits
