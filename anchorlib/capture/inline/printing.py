"""`print_tensor`: a tensor's values on stderr now, and its gradient when backward reaches it."""

from __future__ import annotations

import contextlib
import sys
from typing import Any

import numpy as np
import torch

from anchorlib.capture.compiled import (
    connect_printer,
    not_a_tensor,
    print_compiled,
)
from anchorlib.capture.counting import recomputing
from anchorlib.capture.dynamo_marks import never_traced, skip_frames
from anchorlib.capture.inline.array_text import PrintFormat, format_edges
from anchorlib.capture.tensors import (
    is_plain,
    plain,
    skip_reason,
    stands_for_a_tensor,
    undisturbed,
)
from anchorlib.dtypes import decode
from anchorlib.errors import NotATensorError, UnsupportedError
from anchorlib.names import escape
from anchorlib.summary import as_storage
from anchorlib.torch_private import hooks_of

__all__ = ["print_tensor"]

_UNTITLED = "Tensor"


@skip_frames
def print_tensor(  # noqa: PLR0913  # the arguments of PopTorch's ipu_print_tensor, in its order
    x: torch.Tensor,
    title: str = "",
    print_gradient: bool = True,  # noqa: FBT001, FBT002
    summarise_threshold: int = 1000,
    edge_items: int = 3,
    max_line_width: int = 80,
    digits: int = 4,
    float_format: str = "auto",
    separator: str = ", ",
    open_bracket: str = "(",
    close_bracket: str = ")",
) -> torch.Tensor:
    """Print `title: …` to stderr now, and `title_gradient: …` in backward; returns `x` itself.

    x: any tensor; its values, graph and gradient are not changed, and the return value may be
        ignored. A tensor without dense values (sparse, nested, transformed by `torch.func`) is
        shown by its `repr`. Fake and meta tensors, and the proxies of torch.fx, are not shown.

    title: "" prints `Tensor: …` and `Tensor_gradient: …`; control characters are escaped.
    print_gradient: False prints only the value.
    The other arguments set the format of the values: see `PrintFormat`.

    The gradient is printed in every backward that reaches `x`, with the changes by hooks that were
    registered on `x` before this call. A leaf outlives the step: its gradient is printed once in
    each backward, however often `print_tensor` was called with the leaf. A later call with the
    leaf, the same title and `print_gradient=False` ends this. Values are not printed again when
    activation checkpointing recomputes them.

    Raises NotATensorError (a TypeError) for an `x` that is no tensor, and OptionError (a
    ValueError) for a wrong format, before anything is printed. Errors of writing to stderr are
    ignored.
    """
    form = (
        summarise_threshold,
        edge_items,
        max_line_width,
        digits,
        float_format,
        separator,
        open_bracket,
        close_bracket,
    )
    if torch.compiler.is_compiling():
        print_compiled(x, title or _UNTITLED, print_gradient, form)
    else:
        _print(x, title or _UNTITLED, print_gradient, form)
    return x


def _print(x: Any, title: str, print_gradient: bool, form: tuple[Any, ...]) -> None:  # noqa: FBT001
    if not isinstance(x, torch.Tensor):
        if stands_for_a_tensor(x):
            return
        raise NotATensorError(not_a_tensor("print_tensor", type(x).__name__))
    printer = _GradientPrinter(title, PrintFormat(*form))
    with contextlib.suppress(Exception):  # training goes on, whatever a strange tensor does
        if _has_no_values(x):
            return
        if not recomputing():
            _write(title, x, printer.form)
        if x.requires_grad:
            _follow(x, printer, wanted=print_gradient)


class _GradientPrinter:
    """A tensor hook that prints the gradient as "TITLE_gradient: …" and does not change it."""

    __slots__ = ("form", "title")

    # Lets torch save a printed leaf, or send it to other processes, without a warning.
    __torch_unserializable__ = True

    def __init__(self, title: str, form: PrintFormat) -> None:
        self.title = title
        self.form = form

    @never_traced
    def __call__(self, gradient: torch.Tensor) -> torch.Tensor:
        _write(f"{self.title}_gradient", gradient, self.form)
        # Compiled autograd would take None to mean that there is no gradient.
        return gradient


def _follow(x: torch.Tensor, printer: _GradientPrinter, *, wanted: bool) -> None:
    """Hook `x` so that `printer` prints its gradient, if that is `wanted`.

    A leaf may have a hook of an earlier call with the same title. That hook is kept, with the new
    format, or removed if no gradient is wanted now.
    """
    if not x.is_leaf:
        if wanted:
            x.register_hook(printer)
        return
    # The leaf's hooks are searched, since a table of printed leaves would need weak references to
    # them, with which torch.utils.swap_tensors fails.
    hooks = hooks_of(x)
    followed = False
    for key, hook in list(hooks.items()):
        if isinstance(hook, _GradientPrinter) and hook.title == printer.title:
            if wanted:
                hook.form = printer.form
                followed = True
            else:
                del hooks[key]
    if wanted and not followed:
        x.register_hook(printer)


def _write(title: str, x: torch.Tensor, form: PrintFormat) -> None:
    """Write `x` to stderr under `title` in a single call, so that threads do not mix lines."""
    try:
        with undisturbed():
            text = _text(x, form)
    except Exception as fault:  # noqa: BLE001  # inside a user's forward or backward
        text = f"<not shown: {type(fault).__name__}: {escape(str(fault).partition(chr(10))[0])}>"
    with contextlib.suppress(Exception):  # stderr is None, closed, or cannot encode the title
        sys.stderr.write(f"{escape(title)}: {text}\n")


def _text(x: torch.Tensor, form: PrintFormat) -> str:
    if x.is_cuda and torch.cuda.is_current_stream_capturing():
        return "<not shown: a CUDA graph is being captured>"
    if not _is_dense(x):
        return repr(x.detach())
    cut = form.cut(tuple(x.shape))
    return format_edges(_edges(plain(x), cut, form.edge_items), cut, form)


def _edges(
    x: torch.Tensor, cut: tuple[bool, ...], items: int, dimension: int = 0
) -> np.ndarray[Any, Any]:
    """Return the values of `x` that are shown, as an array; only these are copied from the device.

    cut: for each dimension, whether only its first and last `items` elements are shown. dimension:
        the first dimension that is still to be cut.
    """
    if not any(cut[dimension:]):
        return decode(*as_storage(x))
    if not cut[dimension]:
        return _edges(x, cut, items, dimension + 1)
    first = x.narrow(dimension, 0, items)
    last = x.narrow(dimension, x.shape[dimension] - items, items)
    ends = [_edges(end, cut, items, dimension + 1) for end in (first, last)]
    return np.concatenate(ends, dimension)


def _is_dense(x: torch.Tensor) -> bool:
    return is_plain(x) or (x.is_quantized and x.layout is torch.strided)


def _has_no_values(x: torch.Tensor) -> bool:
    try:
        return skip_reason(x) in {"fake", "meta"}
    except UnsupportedError:
        return False


def _write_compiled(title: str, x: torch.Tensor, form: tuple[Any, ...]) -> None:
    _write(title, x, PrintFormat(*form))


connect_printer(lambda form: PrintFormat(*form), _write_compiled)
