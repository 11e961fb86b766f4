"""Convolutions and their gradients as products of matrices, one product for each group of channels.

    output                patches of the input times the weights of each channel
    gradient of the input     patches of the output's gradient times the weights of each channel
    gradient of the weight    the output's gradient times the patches of the input
    gradient of the bias      the sum of the output's gradient over all places

A place is a position in an image of the batch, a tap is a position in the kernel window. The order
in which a library adds the terms depends on its blocks and on the machine. The orders of addition
in `anchorlib.formulas.products` are tried. The terms run over channels and taps (for the gradient
of the weight over images and places), with either as the outer loop, or with the sums over one of
the two made first. If no order fits, the order of a run stays unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product as every
from typing import Any, Final, NamedTuple

import numpy as np

from anchorlib.formulas.formula import Formula, Function, Kernel
from anchorlib.formulas.kernels import kernel, kernel_outputs
from anchorlib.formulas.products import PRODUCTS, Product, fused, in_two, sequential
from anchorlib.formulas.rounded import Rounded

__all__ = [
    "Elements",
    "Strides",
    "arriving",
    "by_channels",
    "convolution",
    "convolution_backward",
    "in_groups",
    "patches",
]

Array = np.ndarray[Any, Any]
PARTS: Final = ("input", "weight", "bias")
"""The tensors of a convolution that have gradients, in the order of torch's kernel."""


class Strides(NamedTuple):
    """How a convolution moves over its input, by torch's settings.

    stride, padding, dilation: a number for each spatial axis.
    groups: how many groups the channels are in; each group has weights of its own.
    transposed: whether the convolution is a transposed one, whose output is computed as an ordinary
    convolution computes the gradient of its input.
    extra: torch's `output_padding`: for a transposed convolution, by how much the output exceeds
    the least possible size on each spatial axis. Empty stands for 0 on each.
    """

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int = 1
    transposed: bool = False
    extra: tuple[int, ...] = ()

    @property
    def axes(self) -> tuple[tuple[int, int, int], ...]:
        """A tuple (stride, padding, dilation) for each spatial axis."""
        return tuple(zip(self.stride, self.padding, self.dilation, strict=True))

    def out(self, space: Sequence[int], size: Sequence[int]) -> tuple[int, ...]:
        """Return the spatial size of the output of an ordinary (not transposed) convolution.

        space: the input's spatial size.
        size: the weight's spatial size.
        """
        return tuple(
            (n + 2 * pad - step * (k - 1) - 1) // stride + 1
            for n, k, (stride, pad, step) in zip(space, size, self.axes, strict=True)
        )


class Elements(NamedTuple):
    """The elements of an array (groups, rows, columns) that are computed and compared.

    groups, rows, columns: indices on each axis. All their combinations are chosen.
    """

    groups: Array
    rows: Array
    columns: Array

    def of(self, output: Array) -> Array:
        """Return the chosen elements of an output of shape (groups, rows, columns)."""
        chosen: Array = output[np.ix_(self.groups, self.rows, self.columns)]
        return chosen


def patches(x: Array, size: tuple[int, ...], how: Strides, places: Array) -> Array:
    """Return the input values that some places of the output depend on, 0 in the padding.

    A place is a position in an image of the batch; a tap is a position in the kernel window.
    x: the input, (batch, channels, *space). size: the weight's spatial size.
    places: flat indices into (batch, *space of the output).
    Result: (groups, places, channels of a group · taps); the taps of a channel are consecutive.
    """
    edges = [(0, 0), (0, 0), *((pad, pad) for pad in how.padding)]
    padded = np.pad(x, edges)
    batch, *where = np.unravel_index(places, (x.shape[0], *how.out(x.shape[2:], size)))
    taken = []
    for tap in every(*map(range, size)):
        at = [
            p * stride + t * step
            for p, t, (stride, _, step) in zip(where, tap, how.axes, strict=True)
        ]
        taken.append(np.moveaxis(padded, 1, -1)[(batch, *at)])
    return _grouped(taken, how.groups)


def arriving(
    g: Array, size: tuple[int, ...], how: Strides, space: Sequence[int], places: Array
) -> Array:
    """Return the gradients of the outputs that some places of the input affect, one for each tap.

    A place is a position in an image of the batch; a tap is a position in the kernel window. Where
    a place affects no output by a tap, the entry is 0.
    g: the output's gradient, (batch, channels of the output, *space of the output).
    size: the weight's spatial size. space: the input's spatial size.
    places: flat indices into (batch, *space).
    Result: (groups, places, output channels of a group · taps); a channel's taps are consecutive.
    """
    batch, *where = np.unravel_index(places, (g.shape[0], *space))
    taken = []
    for tap in every(*map(range, size)):
        reached, at = np.ones(len(places), bool), []
        for p, t, n, (stride, pad, step) in zip(where, tap, g.shape[2:], how.axes, strict=True):
            place, rest = np.divmod(p + pad - t * step, stride)
            reached &= (rest == 0) & (place >= 0) & (place < n)
            at.append(np.clip(place, 0, n - 1))
        values = np.moveaxis(g, 1, -1)[(batch, *at)]
        taken.append(np.where(reached[:, None], values, np.zeros((), g.dtype)))
    return _grouped(taken, how.groups)


def _grouped(taken: Sequence[Array], groups: int) -> Array:
    """Rearrange the values of each tap (position in the kernel window) into one array.

    taken: for each tap an array (places, channels). A place is a position in an image.
    Result: (groups, places, channels of a group · taps); the taps of a channel are consecutive.
    """
    whole = np.stack(taken, -1)
    places, channels, taps = whole.shape
    parts = whole.reshape(places, groups, channels // groups * taps)
    return np.ascontiguousarray(np.moveaxis(parts, 1, 0))


def convolution(chosen: Elements, taps: int, how: Strides) -> Function:
    """Return the `Function` of some elements of a convolution of x with weight w and bias b.

    The output: (groups, places, channels), where a place is a position in an image of the batch.
    The inputs: first, for the chosen elements alone, patches (groups, places, k), weights (groups,
    k, channels) and, if there is a bias, b (groups, 1, channels); then, for torch's kernel, x, w
    and b as they were recorded. Without a bias, this last b is an empty array.

    chosen: the elements of the output that are computed.
    taps: the number of positions in the kernel window.
    """

    def library(inputs: Sequence[Any], precision: str) -> Array:
        x, w, *rest = inputs[-_RECORDED:]
        bias = rest[0] if rest[0].size else None
        output = kernel("convolution", [x, w, bias, *_settings(how)], precision)
        return chosen.of(by_channels(output, how.groups))

    forms = _forms("channels", taps)
    return Function("convolution", tuple(forms), (Kernel("torch's kernel", library),))


_RECORDED: Final = 3
"""How many of the last inputs of each function are for torch's kernel alone."""


def convolution_backward(part: str, chosen: Elements, inner: int, how: Strides) -> Function:
    """Return the `Function` that gives some elements of a gradient of a convolution.

    The inputs of the `Function`: two matrices, (groups, rows, k) and (groups, k, columns), whose
    product has the chosen elements; then, for torch's kernel, the output's gradient g, the input x
    and the weight w as they were recorded. Where the gradient does not depend on the values of x or
    w, any array of the right shape will do.

    part: whose gradient, "input", "weight" or "bias".
    chosen: the elements of the gradient, as `in_groups` shapes it, that are computed.
    inner: the k terms of a sum come from two nested loops. This is the length of the inner loop:
    the positions in the kernel window for "input", else the positions in one image.
    """

    def library(inputs: Sequence[Array], precision: str) -> Array:
        g, x, w = inputs[-_RECORDED:]
        channels = (w.shape[1] * how.groups if how.transposed else w.shape[0],)
        shapes = dict(zip(PARTS, (x.shape, w.shape, channels), strict=True))
        wanted = [one == part for one in PARTS]
        given = [g, x, w, list(channels), *_settings(how), wanted]
        outputs = kernel_outputs("convolution_backward", given, precision)
        output = next(one for one in outputs if one.shape == shapes[part])  # may be more than one
        return chosen.of(in_groups(part, output, how.groups))

    forms = _forms("channels" if part == "input" else "images", inner)
    name = f"convolution_backward, {part}"
    return Function(name, tuple(forms), (Kernel("torch's kernel", library),))


def in_groups(part: str, gradient: Array, groups: int) -> Array:
    """Return a gradient of a convolution rearranged to (groups, rows, columns).

    part: whose gradient. For "input" rows are all positions of all images, and columns the channels
    of a group. For "weight" rows are the channels of a group on the weight's first axis, and
    columns everything else. For "bias" there is one group with one row.
    """
    if part == "input":
        return by_channels(gradient, groups)
    if part == "bias":
        return gradient.reshape(1, 1, -1)
    return gradient.reshape(groups, gradient.shape[0] // groups, -1)


def by_channels(x: Array, groups: int) -> Array:
    """Return (batch, channels, *space) rearranged to (groups, places, channels of a group).

    The places are all positions of all images of the batch.
    """
    flat = np.moveaxis(x, 1, -1).reshape(-1, groups, x.shape[1] // groups)
    return np.moveaxis(flat, 1, 0)


def _settings(how: Strides) -> list[Any]:
    """Return a convolution's settings as positional arguments of torch's convolution kernels."""
    extra = list(how.extra) or [0] * len(how.stride)
    moves = [list(how.stride), list(how.padding), list(how.dilation)]
    return [*moves, how.transposed, extra, how.groups]


def _forms(outer: str, inner: int) -> list[Formula]:
    """Return a formula of a matrix product for each order in which its terms may be added.

    The terms come from two nested loops: over channels and taps, or over images and places.

    outer: what the outer loop runs over, "channels" or "images".
    inner: how many terms each inner loop has.
    """
    other = "places" if outer == "images" else "taps"
    forms = []
    for last in (False, True):
        within, around = (outer, other) if last else (other, outer)
        for name, order in PRODUCTS:
            text = f"{name}, {outer} {'last' if last else 'first'}"
            forms.append(Formula(text, _turned(order, inner, last=last)))
        for name, order in (("fma", fused), ("sequential", sequential)):
            text = f"{name} over {within}, then over {around}"
            forms.append(Formula(text, _turned(order, inner, last=last, nested=True)))
    return forms


def _turned(
    order: Product, inner: int, *, last: bool, nested: bool = False
) -> Callable[..., Rounded]:
    """Return a function that computes a product with its terms in one of two orders.

    The terms come from two nested loops.

    order: computes a product and adds up its terms.
    inner: how many terms each inner loop has.
    last: whether the two loops are exchanged.
    nested: whether first the terms of each inner loop (after the exchange) are added up by `order`,
    and then these sums one after another. If not, `order` adds up all terms.
    """

    def compute(_: Any, left: Rounded, right: Rounded, *rest: Rounded) -> Rounded:
        count = left.values.shape[-1]
        groups = count // inner
        if last:
            places = np.arange(count).reshape(-1, inner).T.reshape(-1)
            left, right = left.of(left.values[..., places]), right.of(right.values[:, places])
            groups = inner
        total = (in_two(order, groups) if nested else order)(left, right)
        return total + rest[0] if len(rest) > _RECORDED else total

    return compute
