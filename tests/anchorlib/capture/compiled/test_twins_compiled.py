"""Observed eagerly, by compiled code at a new place, and at a known one: the same records."""

from __future__ import annotations

import zlib
from functools import partial

import pytest
import torch

from anchorlib import anchor
from anchorlib.capture.compiled import CompiledObserver
from anchorlib.capture.tensors.snapshot import dtype_name
from anchorlib.dtypes import DTYPES
from tests.anchorlib.capture.compiled.observing import QUIET, record

pytestmark = [*QUIET, pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")]

DTYPES_OF_TORCH = {one for one in vars(torch).values() if isinstance(one, torch.dtype)}
STORED = sorted((one for one in DTYPES_OF_TORCH if dtype_name(one) in DTYPES), key=dtype_name)
SHAPES = [(), (0,), (13,), (2, 0, 3), (3, 4)]
CALLS = 2  # the first call finds new places, the second finds places that are known


def tensors(dtype, salt):
    """One tensor of each shape, of any bits (NaN, subnormals), and two whose memory has strides."""
    drawn = torch.Generator().manual_seed(zlib.crc32(f"{dtype} {salt}".encode()))
    most = 2 if dtype is torch.bool else 256

    def of(shape):
        size = torch.empty((), dtype=dtype).element_size() * torch.Size(shape).numel()
        raw = torch.randint(most, (size,), generator=drawn, dtype=torch.uint8)
        return raw.view(dtype).reshape(shape)

    return [*map(of, SHAPES), of((4, 3)).t(), of((5, 6))[:, ::2]]


def anchored(xs, on):
    """Every tensor under a name of its own."""
    ys = []
    for number, x in enumerate(xs):
        y = torch.clone(x)
        anchor(y, f"x{number}", grad=on)
        ys.append(y)
    return ys


def two_steps(dtype, function, session):
    """Each step has two forwards, and their backwards where there are gradients."""
    for step in range(2):
        for call in range(CALLS):
            xs = tensors(dtype, f"{step} {call}")
            on = xs[0].is_floating_point() or xs[0].is_complex()
            for x in xs:
                x.requires_grad_(on)
            ys = function(xs, on)
            if on:
                gs = [g.reshape(y.shape) for g, y in zip(tensors(dtype, "g"), ys, strict=True)]
                torch.autograd.backward(ys, gs)
        session.step()


def records(run):
    """All that was recorded, in order: what it is of, where, and its bits."""
    return sorted(
        (
            (r.name, r.kind, r.dtype, r.shape, c.step, c.pass_index, c.call, r.raw.tobytes())
            for r in run.sink.records
            for c in [r.coordinates]
        ),
        key=repr,
    )


@pytest.mark.parametrize("dtype", STORED, ids=dtype_name)
def test_eager_new_and_known_places_give_the_same_records_of_every_dtype_and_shape(
    monkeypatch, dtype
):
    act = partial(two_steps, dtype)
    eager = records(record(anchored, act))
    assert len(eager) >= 2 * CALLS * (len(SHAPES) + 2)
    compiled = torch.compile(anchored, backend="aot_eager")
    assert records(record(compiled, act)) == eager
    # What is known of a place is known to one session: to the next all places are new.
    monkeypatch.setattr(CompiledObserver, "_know", lambda *place: None)
    assert records(record(compiled, act)) == eager
