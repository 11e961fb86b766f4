"""`anchor`: the right value and the right gradient, and no trace in the training."""

from __future__ import annotations

import weakref
from itertools import pairwise

import numpy as np
import pytest
import torch

import anchorlib
from anchorlib import All, EveryN, Final, ModeError, Sum, Summary
from tests.recording import recording
from tests.waiting import until_collected


def test_an_anchor_returns_its_tensor_itself_active_or_not():
    x = torch.ones(3)
    assert anchorlib.anchor(x, "x") is x
    with recording():
        assert anchorlib.anchor(x, "x") is x


def test_the_return_value_may_be_ignored():
    w = torch.randn(3, 4, requires_grad=True)
    with recording() as run:
        h = torch.tanh(w)
        anchorlib.anchor(h, "h")
        h.pow(2).sum().backward()
    assert np.array_equal(run.arrays("h")[0], h.detach().numpy())
    assert np.array_equal(run.arrays("h", "grad")[0], (2 * h).detach().numpy())


def test_values_are_as_at_the_call_whatever_happens_later():
    x = torch.arange(6.0).reshape(2, 3)
    with recording() as run:
        anchorlib.anchor(x, "x")
        anchorlib.anchor(x.t(), "view")
        x.mul_(100)
    assert run.arrays("x")[0].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert run.arrays("view")[0].tolist() == [[0, 3], [1, 4], [2, 5]]


def test_the_gradient_stays_with_the_value_at_the_call_under_inplace_operations():
    w = torch.tensor([-1.0, 2.0], requires_grad=True)
    with recording() as run:
        h = w * 3
        anchorlib.anchor(h, "h")
        torch.relu_(h)
        h.sum().backward()
    assert run.arrays("h")[0].tolist() == [-3.0, 6.0]
    assert run.arrays("h", "grad")[0].tolist() == [0.0, 1.0]


def test_large_tensors_are_copied_too():
    x = torch.randn(1 << 18)
    with recording() as run:
        for _ in range(4):
            anchorlib.anchor(x, "x")
            x += 1
    arrays = run.arrays("x")
    assert all(np.allclose(b - a, 1) for a, b in pairwise(arrays))
    assert np.allclose(arrays[3] + 1, x.numpy())


def test_grad_false_records_the_value_alone():
    w = torch.ones(2, requires_grad=True)
    with recording() as run:
        h = w * 2
        anchorlib.anchor(h, "h", grad=False)
        h.sum().backward()
    assert run.names() == ["h@value"]


def test_no_grad_and_inference_mode_record_values():
    with recording() as run:
        with torch.no_grad():
            anchorlib.anchor(torch.ones(2), "a")
        with torch.inference_mode():
            anchorlib.anchor(torch.ones(1 << 17), "b")
            anchorlib.anchor(torch.ones(2), "total", Sum("run"))
        anchorlib.anchor(torch.ones(1 << 17), "b")
        anchorlib.anchor(torch.ones(2), "total", Sum("run"))
    assert run.names() == ["a@value", "b@value", "total@value"]
    assert run.arrays("total")[0].tolist() == [2.0, 2.0]


def test_a_leaf_is_recorded_once_a_call_and_its_gradient_once_a_backward():
    w = torch.ones(2, requires_grad=True)
    with recording() as run:
        for _ in range(3):
            anchorlib.anchor(w, "w")
            (w * 2).sum().backward()
            run.session.step()
    assert run.at("w") == [(0, 0, 0), (1, 0, 0), (2, 0, 0)]
    assert run.at("w", "grad") == [(0, 0, 0), (1, 0, 0), (2, 0, 0)]
    assert not w._backward_hooks


def test_a_gradient_carries_the_coordinates_of_its_own_forward_call():
    w = torch.ones(1, requires_grad=True)
    with recording() as run:
        calls = []
        for n in range(3):
            h = w * (n + 1)
            anchorlib.anchor(h, "h")
            calls.append(h)
        for h in reversed(calls):
            (h * h).sum().backward()
    assert run.at("h", "grad") == [(0, 0, 2), (0, 0, 1), (0, 0, 0)]
    assert [a.item() for a in run.arrays("h", "grad")] == [6.0, 4.0, 2.0]


def test_the_gradient_is_taken_between_earlier_and_later_hooks():
    w = torch.ones(1, requires_grad=True)
    with recording() as run:
        h = w * 1
        h.register_hook(lambda g: g * 10)
        anchorlib.anchor(h, "h")
        h.register_hook(lambda g: g * 100)
        h.sum().backward()
    assert run.arrays("h", "grad")[0].item() == 10.0
    assert w.grad.item() == 1000.0


DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2,
    torch.float8_e5m2fnuz,
    torch.complex64,
    torch.complex128,
    torch.bool,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint8,
    torch.uint16,
    torch.uint32,
    torch.uint64,
]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 3), (2, 3)], ids=str)
def test_every_dtype_and_shape_comes_through_bit_for_bit(dtype, shape):
    x = torch.randint(0, 2, shape).to(dtype)
    with recording() as run:
        anchorlib.anchor(x, "x")
    (record,) = run.records("x")
    assert record.dtype == str(dtype).removeprefix("torch.")
    assert record.shape == shape
    assert record.raw.tobytes() == bytes(x.contiguous().view(-1).view(torch.uint8).tolist())


@pytest.mark.filterwarnings("ignore:ComplexHalf support")
def test_complex_half_comes_through():
    x = torch.tensor([1 + 2j, -0.5j]).to(torch.complex32)
    with recording() as run:
        anchorlib.anchor(x, "x")
    assert run.arrays("x")[0].tolist() == [1 + 2j, -0.5j]


def test_views_of_every_kind_come_through():
    base = torch.arange(24.0).reshape(2, 3, 4)
    views = {
        "transposed": base.transpose(0, 2),
        "expanded": base[:1].expand(5, 3, 4),
        "strided": base[:, ::2],
        "channels_last": base[None].contiguous(memory_format=torch.channels_last),
        "conjugated": torch.complex(base, base).conj(),
        "negative": torch.complex(base, base).conj().imag,
    }
    with recording() as run:
        for name, x in views.items():
            anchorlib.anchor(x, name)
    for name, x in views.items():
        assert np.array_equal(run.arrays(name)[0], x.resolve_conj().resolve_neg().numpy())


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_quantized_tensors_are_recorded_as_what_they_stand_for():
    x = torch.quantize_per_tensor(torch.tensor([0.5, 1.0]), 0.5, 0, torch.qint8)
    with recording() as run:
        anchorlib.anchor(x, "x")
    assert run.arrays("x")[0].tolist() == [0.5, 1.0]


def test_what_cannot_be_recorded_is_skipped_and_counted():
    with recording() as run:
        anchorlib.anchor(torch.ones(2, device="meta"), "x")
    assert run.session.counters.skipped == {"meta": 1}
    assert [(g.name, g.reason, g.count) for g in run.sink.gaps] == [("x", "meta", 1)]


@pytest.mark.parametrize("offset", [0, 50])
def test_a_tensor_whose_memory_was_given_back_is_skipped_and_counted(offset):
    """Sharded training empties storages under their tensors; to read one ends the process."""
    whole = torch.ones(100_000)
    parts = {"small": whole[offset : offset + 50], "large": whole[offset:]}
    whole.untyped_storage().resize_(0)
    with recording() as run:
        for name, part in parts.items():
            anchorlib.anchor(part, name)
    assert run.session.counters.skipped == {"memory given back": 2}
    assert [gap.reason for gap in run.sink.gaps] == ["memory given back"] * 2


def test_anything_but_a_tensor_is_a_type_error():
    with recording(), pytest.raises(TypeError, match="takes a tensor, not float") as caught:
        anchorlib.anchor(3.0, "x")
    assert isinstance(caught.value, anchorlib.AnchorError)


@pytest.mark.parametrize("name", ["", 3, "x" * 1025, "\ud800"])
def test_a_name_that_cannot_be_one_is_refused(name):
    with recording(), pytest.raises(anchorlib.InvalidNameError):
        anchorlib.anchor(torch.ones(1), name)


def test_a_wrong_mode_is_refused_at_the_anchor_and_the_session_goes_on():
    with recording() as run:
        with pytest.raises(ModeError, match="needs a number"):
            anchorlib.anchor(torch.ones(1), "x", EveryN)
        anchorlib.anchor(torch.ones(1), "x", EveryN(1))
    assert len(run.records("x")) == 1


def test_four_modes_at_once_on_one_tensor():
    with recording() as run:
        for value in range(1, 9):
            x = torch.tensor(float(value))
            anchorlib.anchor(x, "x", All)
            anchorlib.anchor(x, "x", Sum("run"))
            anchorlib.anchor(x, "x", Final("run"))
            anchorlib.anchor(x, "x", EveryN(3))
            anchorlib.anchor(x, "x", Summary)
            run.session.step()
    assert [a.item() for a in run.arrays("x", mode="all")] == list(range(1, 9))
    assert [a.item() for a in run.arrays("x", mode="sum:window=run")] == [36.0]
    assert [a.item() for a in run.arrays("x", mode="final:window=run")] == [8.0]
    assert [a.item() for a in run.arrays("x", mode="every_n:3")] == [3.0, 6.0]
    summaries = run.records("x", mode="summary")
    assert [r.summary.sum for r in summaries] == list(range(1, 9))
    assert all(r.raw is None for r in summaries)
    assert [r.count for r in run.records("x", mode="sum:window=run")] == [8]
    assert [r.coordinates.call for r in run.records("x", mode="all")] == [0] * 8


def test_several_modes_may_be_given_as_a_list():
    with recording() as run:
        for value in (1.0, 2.0):
            anchorlib.anchor(torch.tensor(value), "x", [All, Sum("run")])
    assert [a.item() for a in run.arrays("x", mode="all")] == [1.0, 2.0]
    assert [a.item() for a in run.arrays("x", mode="sum:window=run")] == [3.0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "value", "times", "total", "wide"),
    [
        (torch.float16, 1.0, 3000, 3000.0, "float32"),
        (torch.bfloat16, 1.0, 3000, 3000.0, "float32"),
        (torch.float16, 40000.0, 2, 80000.0, "float32"),
        (torch.float8_e4m3fn, 448.0, 3, 1344.0, "float32"),
        (torch.uint8, 100, 3, 300, "int64"),
        (torch.bool, True, 5, 5, "int64"),
        (torch.float32, 1.0, 2**24 + 2, None, "float64"),
        (torch.float64, 0.5, 3, 1.5, "float64"),
        (torch.complex64, 1j, 3, 3j, "complex128"),
    ],
    ids=str,
)
def test_sums_are_taken_in_a_wide_dtype(dtype, value, times, total, wide):
    x = torch.tensor([value]).to(dtype)
    if total is None:  # 2**24 + 1 has no float32: shown with three summands instead of millions
        x, times, total = torch.tensor([2.0**24, 1.0]), 1, None
    with recording() as run:
        for _ in range(times):
            anchorlib.anchor(x, "x", Sum("run"))
        if total is None:
            anchorlib.anchor(torch.ones(2), "x", Sum("run"))
    (record,) = run.records("x")
    assert record.dtype == wide
    assert record.count == times + (total is None)
    assert record.array.tolist() == ([2.0**24 + 1, 2.0] if total is None else [total])


def test_a_sum_of_differing_shapes_is_told_at_the_next_step_and_never_inside_the_model():
    with recording() as run:
        anchorlib.anchor(torch.ones(2, 3), "x", Sum)
        anchorlib.anchor(torch.ones(4, 3), "x", Sum)
        with pytest.raises(ModeError, match=r"x@value: shapes \[2, 3\] and \[4, 3\]"):
            run.session.step()
        anchorlib.anchor(torch.ones(2, 3), "x", Sum)
        run.session.step()
    assert len(run.records("x")) == 1
    assert run.session.counters.skipped == {"shapes differ in a Sum window": 2}


def test_every_n_by_step_costs_nothing_in_the_other_steps():
    w = torch.ones(1, requires_grad=True)
    with recording(mode=EveryN(3, unit="step")) as run:
        for _ in range(7):
            for _ in range(2):
                h = w * 2
                anchorlib.anchor(w.detach() + 0, "first", grad=False)
                anchorlib.anchor(h, "h")
                h.sum().backward()
            run.session.step()
    assert run.at("h") == [(2, 0, 0), (2, 1, 0), (5, 0, 0), (5, 1, 0)]
    assert run.at("h", "grad") == run.at("h")


def test_train_and_eval_are_folded_apart():
    with recording(mode=Sum(2)) as run:
        for step in range(2):
            anchorlib.anchor(torch.tensor(1.0), "x")
            with run.session.phase("eval"):
                anchorlib.anchor(torch.tensor(10.0 + step), "x")
            run.session.step()
    found = {r.coordinates.phase: (r.array.item(), r.count) for r in run.records("x")}
    assert found == {"train": (2.0, 2), "eval": (21.0, 2)}


def test_selectors_limit_what_anchors_record():
    w = torch.ones(1, requires_grad=True)
    with recording(tensors=["a@grad", "b*"]) as run:
        for name in ("a", "b1", "c"):
            h = w * 2
            anchorlib.anchor(h, name)
            h.sum().backward()
    assert run.names() == ["a@grad", "b1@value", "b1@grad"]


def test_passes_are_counted_though_no_gradient_is_recorded():
    w = torch.ones(1, requires_grad=True)
    with recording(tensors=["h@value"]) as run:
        for _ in range(3):
            h = w * 2
            anchorlib.anchor(h, "h")
            anchorlib.anchor(h, "unwanted")
            h.sum().backward()
    assert run.at("h") == [(0, 0, 0), (0, 1, 0), (0, 2, 0)]


@pytest.mark.slow
def test_nothing_is_kept_alive():
    w = torch.ones(3, requires_grad=True)
    with recording():
        h = w * 2
        anchorlib.anchor(h, "h")
        gone = weakref.ref(h)
        h.sum().backward()
        del h
        until_collected([gone])


def test_after_the_session_anchors_do_nothing():
    w = torch.ones(1, requires_grad=True)
    with recording() as run:
        h = w * 2
        anchorlib.anchor(h, "h")
    h.sum().backward()
    anchorlib.anchor(h, "h")
    assert run.names() == ["h@value"]


def test_order_is_the_order_of_execution():
    w = torch.ones(1, requires_grad=True)
    with recording() as run:
        a = w * 2
        anchorlib.anchor(a, "a")
        b = a * 3
        anchorlib.anchor(b, "b")
        b.sum().backward()
    seen = sorted(run.sink.records, key=lambda r: r.order)
    assert [f"{r.name}@{r.kind}" for r in seen] == ["a@value", "b@value", "b@grad", "a@grad"]
    assert [r.order for r in seen] == [0, 1, 2, 3]
