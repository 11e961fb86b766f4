"""Contract, section 1, "Modes": each row of the table and each sentence below it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import zarr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import anchorlib
from anchorlib import All, EveryN, Final, ModeError, Sum, Summary
from tests.contract.runs import Net, listed, places, recorded
from tests.seeds import examples

Observation = tuple[int, float]
Told = list[tuple[int, float, int]]

STREAM: list[Observation] = [(step, 10.0 * step + n) for step in range(6) for n in (1, 2)]
"""Two observations in each of six steps: 1 2, 11 12, 21 22, …"""


def observe(session: anchorlib.Session, stream: list[Observation], mode: Any = None) -> None:
    now = stream[0][0]
    for step, value in stream:
        if step != now:
            session.step(now := step)
        anchorlib.anchor(torch.tensor(value), "x", mode)


def told(run: anchorlib.Run, mode: Any = None) -> Told:
    """(step, value, count) of each record."""
    if not run.tensors():
        return []
    series = run.series("x", mode=mode)
    columns = series.columns
    values = [float(value) for value in series.values()]
    return list(zip(columns["step"].tolist(), values, columns["count"].tolist(), strict=True))


def emitted(store: Path, mode: Any, stream: list[Observation] = STREAM) -> Told:
    first = stream[0][0]
    return told(recorded(store, lambda s: observe(s, stream, mode), first_step=first))


# -- the table


def test_all_emits_every_observation(store):
    assert emitted(store, All) == [(step, value, 1) for step, value in STREAM]


def test_sum_emits_one_record_a_window_the_sum_with_its_count(store):
    assert emitted(store, Sum(3)) == [(2, 1 + 2 + 11 + 12 + 21 + 22, 6), (5, 249.0, 6)]


def test_a_sum_without_a_window_sums_each_step(store):
    assert emitted(store, Sum) == [(step, 20.0 * step + 3, 2) for step in range(6)]


def test_a_sum_may_take_the_whole_run(store):
    assert emitted(store, Sum("run")) == [(5, sum(value for _, value in STREAM), 12)]


HALF = [torch.float16, torch.bfloat16]
FP8 = [
    torch.float8_e4m3fn,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2,
    torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
]
INTEGERS = [
    *(torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.bool),
]
WIDE = {
    **dict.fromkeys([*HALF, *FP8], "float32"),
    **dict.fromkeys([torch.float32, torch.float64], "float64"),
    **dict.fromkeys(INTEGERS, "int64"),
    **dict.fromkeys([torch.complex32, torch.complex64, torch.complex128], "complex128"),
}


@pytest.mark.filterwarnings("ignore:ComplexHalf support")
@pytest.mark.parametrize("dtype", WIDE, ids=str)
def test_sums_are_taken_in_a_wide_dtype(store, dtype):
    times = 300  # more than fp8, int8, float16 and bfloat16 could add one by one
    values = [1, 64] if dtype != torch.bool else [True, False]
    x = torch.tensor(values).to(torch.float32).to(dtype)

    def body(_: object) -> None:
        for _ in range(times):
            anchorlib.anchor(x, "x", Sum("run"))

    series = recorded(store, body)["x@value"]
    assert series.dtypes == [WIDE[dtype]]
    assert series.columns["count"].tolist() == [times]
    assert series.values()[0].tolist() == [times * value for value in values]


def test_final_emits_the_last_observation_of_each_window(store):
    assert emitted(store, Final(4)) == [(3, 32.0, 1), (5, 52.0, 1)]
    assert emitted(store.with_name("run"), Final("run")) == [(5, 52.0, 1)]
    assert emitted(store.with_name("step"), Final) == [(n, 10.0 * n + 2, 1) for n in range(6)]


def test_every_n_emits_the_nth_and_2nth_observation(store):
    assert emitted(store, EveryN(5)) == [(2, 21.0, 1), (4, 42.0, 1)]


def test_every_n_by_step_emits_all_observations_of_the_steps_whose_number_plus_one_n_divides(store):
    expected = [(step, value, 1) for step, value in STREAM if (step + 1) % 3 == 0]
    assert emitted(store, EveryN(3, unit="step")) == expected


def test_every_n_counts_anew_in_each_window(store):
    # Windows of two steps hold four observations: the third of each is emitted.
    assert emitted(store, EveryN(3, window=2)) == [(1, 11.0, 1), (3, 31.0, 1), (5, 51.0, 1)]
    by_step = emitted(store.with_name("step"), EveryN(2, unit="step", window=3))
    assert by_step == [(step, value, 1) for step, value in STREAM if step in (1, 4)]


def test_summary_emits_every_observation_its_row_alone_and_no_values(store):
    run = recorded(store, lambda s: observe(s, STREAM, Summary))
    series = run["x"]
    assert series.columns["step"].tolist() == [step for step, _ in STREAM]
    assert series.columns["sum"].tolist() == [value for _, value in STREAM]
    with pytest.raises(anchorlib.ValuesNotKeptError):
        series.values()
    assert run.bytes == run.tensors()[0].bytes == 0


# -- the sentences


def test_modes_are_frozen_values():
    assert EveryN(10) == EveryN(10) != EveryN(11)
    assert len({Sum(2), Sum(2), Final(2), All(), Summary()}) == 4
    for mode in (All(), Sum(), Final(), EveryN(2), Summary()):
        assert dataclasses.is_dataclass(mode)
        with pytest.raises((dataclasses.FrozenInstanceError, TypeError, AttributeError)):
            mode.window = 5


@pytest.mark.parametrize(
    ("spelt", "meant"),
    [
        (All, All()), (Sum, Sum(1)), (Final, Final(1)), (Summary, Summary()),
        ("all", All()), ("sum", Sum()), ("final", Final()), ("summary", Summary()),
        ("every_n:10", EveryN(10)),
    ],
)  # fmt: skip
def test_the_class_itself_means_its_defaults_and_the_strings_are_accepted(store, spelt, meant):
    def body(session: anchorlib.Session) -> None:
        net = Net()
        session.watch(net, tensors=["fc1@value"], mode=spelt)
        for _ in range(10):
            anchorlib.anchor(torch.ones(1), "x", spelt)
            anchorlib.anchor(torch.ones(1), "y")
            net(torch.ones(1, 2))

    run = recorded(store, body, mode=spelt)
    for name in ("x", "y", "fc1"):
        assert len(run.series(name, mode=meant)) > 0


def test_a_mode_acts_on_the_records_of_one_tensor_kind_phase_and_rank_each_for_itself(store):
    w = torch.ones(1, requires_grad=True)

    def body(session: anchorlib.Session) -> None:
        for n in range(1, 5):
            for name in ("a", "b"):
                h = w * n
                anchorlib.anchor(h, name)
                h.sum().backward()
            with session.phase("eval"):
                anchorlib.anchor(torch.tensor([n * 100.0]), "a")

    for rank in (0, 1):
        with anchorlib.start("run1", store=store, rank=rank, mode=EveryN(2)) as session:
            body(session)
    run = anchorlib.open_run("run1", store)
    for rank in (0, 1):
        a = run.series("a", rank=rank)
        assert a.where(phase="train").values().tolist() == [[2.0], [4.0]]
        assert a.where(phase="eval").values().tolist() == [[200.0], [400.0]]
        assert run.series("b", rank=rank).values().tolist() == [[2.0], [4.0]]
        assert len(run.series("a", "grad", rank=rank)) == 2


def test_what_a_mode_does_not_select_is_not_copied(store):
    # Nobody can copy this: it would take four terabytes.
    endless = torch.zeros(1).expand(10**12)

    def body(session: anchorlib.Session) -> None:
        anchorlib.anchor(endless, "x", EveryN(2))
        anchorlib.anchor(torch.ones(2), "x", EveryN(2))
        anchorlib.anchor(endless, "y", EveryN(2, unit="step"))
        session.step()
        anchorlib.anchor(torch.ones(2), "y", EveryN(2, unit="step"))

    run = recorded(store, body)
    assert [(t.name, t.records) for t in run.tensors()] == [("x", 1), ("y", 1)]
    assert run.gaps() == []


def test_what_a_mode_does_not_select_leaves_no_row(store):
    with anchorlib.start("run1", store=store, mode=EveryN(7)) as session:
        observe(session, STREAM)
    run = anchorlib.open_run("run1", store)
    assert run.series("x", attempts=True).columns["sum"].tolist() == [31.0]
    assert session.counters.records == 1
    table = zarr.open_group(store / "run1.zarr/rank0/records", mode="r")
    assert {table[name].shape for name in ("step", "order", "count")} == {(1,)}


FOLDED: dict[Any, dict[str, list[int]]] = {
    # What is observed once a step, and what is observed in each of its two passes.
    Sum(2): {"once": [1, 3, 4], "passes": [1, 3, 4]},
    Final(3): {"once": [2, 4], "passes": [2, 4]},
    EveryN(2, unit="step"): {"once": [1, 3], "passes": [1, 1, 3, 3]},
    EveryN(3): {"once": [2], "passes": [1, 2, 4]},
    Summary(): {"once": [0, 1, 2, 3, 4], "passes": [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]},
}


@pytest.mark.parametrize("mode", FOLDED, ids=str)
def test_a_mode_acts_on_every_kind_alike(store, mode):
    net = Net()
    optimizer = torch.optim.Adam(net.parameters())

    def body(session: anchorlib.Session) -> None:
        session.watch(net, tensors="*", optimizer=optimizer)
        for _ in range(5):
            optimizer.zero_grad()
            for _ in range(2):
                net(torch.ones(1, 2)).sum().backward()
            optimizer.step()

    run = recorded(store, body, mode=mode)
    parameters = {name for name, _ in net.named_parameters()}
    assert {"value", "grad", "pass_grad", "updated", "delta", "opt.exp_avg"} <= {
        info.kind for info in run.tensors()
    }
    for info in run.tensors():
        often = info.name not in parameters or info.kind == "pass_grad"
        steps = run.series(info.name, info.kind).columns["step"].tolist()
        assert steps == FOLDED[mode]["passes" if often else "once"], info


def reference(mode: Any, stream: list[Observation]) -> Told:
    """The table, written down once more: slowly, on a list."""

    def window(step: int, size: int | str) -> int:
        return 0 if size == "run" else step // int(size)

    if isinstance(mode, Sum | Final):
        found = []
        for _, group in groupby(stream, lambda one: window(one[0], mode.window)):
            inside = list(group)
            step, last = inside[-1]
            total = sum(value for _, value in inside)
            found.append((step, total, len(inside)) if isinstance(mode, Sum) else (step, last, 1))
        return found
    if isinstance(mode, EveryN) and mode.unit == "step":
        return [
            (step, value, 1)
            for step, value in stream
            if ((step % mode.window if mode.window else step) + 1) % mode.n == 0
        ]
    if isinstance(mode, EveryN):
        windows = groupby(stream, lambda one: window(one[0], mode.window or "run"))
        counted = [(n, one) for _, group in windows for n, one in enumerate(group, 1)]
        return [(*one, 1) for n, one in counted if n % mode.n == 0]
    return [(step, value, 1) for step, value in stream]


WINDOWS = st.one_of(st.integers(1, 6), st.just("run"))
MODES = st.lists(
    st.one_of(
        st.just(All()),
        st.builds(Sum, WINDOWS),
        st.builds(Final, WINDOWS),
        st.builds(EveryN, st.integers(1, 5)),
        st.builds(EveryN, st.integers(1, 5), window=st.integers(1, 6)),
        st.builds(EveryN, st.integers(1, 5), unit=st.just("step")),
        st.builds(EveryN, st.integers(1, 3), unit=st.just("step"), window=st.integers(3, 6)),
    ),
    min_size=1,
    unique=True,
)
STREAMS = st.lists(st.tuples(st.integers(0, 40), st.integers(-99, 99)), min_size=1, max_size=20)


@pytest.mark.slow
@settings(max_examples=examples(25), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(modes=MODES, observations=STREAMS)
def test_window_k_is_the_steps_from_kw_to_k_plus_one_w_minus_one(tmp_path, modes, observations):
    stream = sorted(((step, float(value)) for step, value in observations), key=lambda one: one[0])
    run = recorded(
        tmp_path, lambda s: observe(s, stream, modes), first_step=stream[0][0], overwrite=True
    )
    recorded_modes = {info.mode for info in run.tensors()}
    for mode in modes:
        found = told(run, mode) if str(mode) in recorded_modes else []
        assert found == reference(mode, stream)


def test_the_last_unfinished_window_is_emitted_at_close_and_not_before(store):
    session = anchorlib.start("run1", store=store)
    observe(session, STREAM[:6], [Sum(4), Final("run")])
    session.flush()
    assert anchorlib.open_run("run1", store).tensors() == []
    session.close()
    run = anchorlib.open_run("run1", store)
    assert told(run, Sum(4)) == [(2, 69.0, 6)]
    assert told(run, Final("run")) == [(2, 22.0, 1)]


def test_each_record_carries_the_coordinates_of_its_last_observation_and_its_count(store):
    w = torch.ones(1, requires_grad=True)

    def body(session: anchorlib.Session) -> None:
        for _ in range(3):
            for _ in range(2):
                first, second = w * 2, w * 3
                anchorlib.anchor(first, "x")
                anchorlib.anchor(second, "x")
                (first + second).sum().backward()
            session.step()

    run = recorded(store, body, mode=[Sum(2), Final(2), EveryN(4)])
    assert places(run.series("x", mode=Sum(2))) == [(1, 1, 1), (2, 1, 1)]
    assert run.series("x", mode=Sum(2)).columns["count"].tolist() == [8, 4]
    assert places(run.series("x", mode=Final(2))) == [(1, 1, 1), (2, 1, 1)]
    assert run.series("x", mode=Final(2)).columns["count"].tolist() == [1, 1]
    assert places(run.series("x", mode=EveryN(4))) == [(0, 1, 1), (1, 1, 1), (2, 1, 1)]
    assert run.series("x", mode=EveryN(4)).columns["count"].tolist() == [1, 1, 1]


def test_a_windows_record_has_the_order_of_its_last_observation(store):
    def body(session: anchorlib.Session) -> None:
        for _ in range(2):
            anchorlib.anchor(torch.ones(1), "a", Sum)
            anchorlib.anchor(torch.ones(1), "b", All)
            session.step()

    run = recorded(store, body)
    assert listed(run) == ["a@value", "b@value"]
    assert all(run["a"].columns["order"] < run["b"].columns["order"])


def test_two_modes_on_one_tensor_and_kind_are_two_series(store):
    run = recorded(store, lambda s: observe(s, STREAM, [All, Sum(3)]))
    assert [(t.name, t.kind, t.mode) for t in run.tensors()] == [
        ("x", "value", "all"),
        ("x", "value", "sum:window=3"),
    ]
    with pytest.raises(anchorlib.AmbiguousTensorError):
        run["x"]
    assert len(run.series("x", mode=All)) == 12
    assert len(run.series("x", mode=Sum(3))) == 2


# -- errors

WRONG: dict[str, Any] = {
    "EveryN without n": EveryN,
    "n = 0": EveryN(0),
    "n < 0": EveryN(-3),
    "n larger than its window": EveryN(6, unit="step", window=5),
    "a window of no step": Sum(0),
    "a window of text": Final("epoch"),  # type: ignore[arg-type]
    "an unknown string": "often",
    "a string without its n": "every_n",
    "a string with no number": "every_n:ten",
    "no mode at all": 3,
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_a_mode_error_comes_where_the_mode_meets_start_watch_or_anchor(store, wrong):
    with pytest.raises(ModeError):
        anchorlib.start("run1", store=store, mode=wrong)
    net = Net()
    with anchorlib.start("run1", store=store) as session:
        with pytest.raises(ModeError):
            session.watch(net, mode=wrong)
        with pytest.raises(ModeError):
            anchorlib.anchor(torch.ones(1), "x", wrong)
        net(torch.ones(1, 2))
    assert listed(anchorlib.open_run("run1", store)) == []


def test_each_fault_of_a_mode_has_a_message_of_its_own(store):
    said = []
    with anchorlib.start("run1", store=store):
        for wrong in WRONG.values():
            with pytest.raises(ModeError) as caught:
                anchorlib.anchor(torch.ones(1), "x", wrong)
            said.append(str(caught.value))
    faults = len(WRONG) - 1  # the class and the string without n are one fault
    assert len(set(said)) == faults
    assert all("\n" not in message for message in said)


def test_no_mode_error_comes_from_a_constructor():
    for make in (lambda: EveryN(0), lambda: EveryN(-1, "day"), lambda: Sum(-2), lambda: Final(0)):
        make()


def test_n_may_exceed_a_window_where_both_count_different_things(store):
    # Seven observations a step: the tenth comes in the second step of each window of two.
    stream = [(step, float(7 * step + n)) for step in range(4) for n in range(7)]
    assert emitted(store, EveryN(10, window=2), stream) == [(1, 9.0, 1), (3, 23.0, 1)]


@pytest.mark.parametrize("text", ["every_n:2:3", "sum:window=2:window=3"])
def test_a_string_that_says_one_thing_twice_is_unknown(store, text):
    with pytest.raises(ModeError), anchorlib.start("run1", store=store, mode=text):
        pass


def differing(session: anchorlib.Session) -> None:
    anchorlib.anchor(torch.ones(2, 3), "x", Sum(2))
    anchorlib.anchor(torch.ones(4, 3), "x", Sum(2))
    anchorlib.anchor(torch.ones(2), "y")


def ended_by_step(session: anchorlib.Session) -> None:
    session.step(2)


def ended_by_flush(session: anchorlib.Session) -> None:
    w = torch.ones(1, requires_grad=True)
    optimizer = torch.optim.SGD([w], lr=0.1)
    for _ in range(2):
        optimizer.step()  # ends the window, and says nothing
    session.flush()


def ended_by_close(session: anchorlib.Session) -> None:
    session.close()


@pytest.mark.parametrize("end", [ended_by_step, ended_by_flush, ended_by_close])
def test_shapes_that_differ_in_a_sum_window_are_told_by_step_flush_or_close(
    store, end: Callable[[anchorlib.Session], None]
):
    session = anchorlib.start("run1", store=store)
    differing(session)
    with pytest.raises(ModeError) as caught:
        end(session)
    session.close()
    for part in ("x@value", "[2, 3]", "[4, 3]"):
        assert part in str(caught.value)
    run = anchorlib.open_run("run1", store)
    assert listed(run) == ["y@value"]
    assert sum(session.counters.skipped.values()) == 2
    assert [(g.name, g.kind, g.count) for g in run.gaps()] == [("x", "value", 2)]


class Refusing(torch.nn.Module):
    """Its forward anchors what no window of `Sum` can hold."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3))

    def forward(self, rows: int) -> torch.Tensor:
        return anchorlib.anchor(self.weight.expand(rows, 3) * 1, "h").sum()


def test_nothing_is_raised_from_inside_a_forward_a_backward_or_an_optimizer_step(store):
    model = Refusing()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    session = anchorlib.start("run1", store=store, mode=Sum)
    session.watch(model, tensors="*", optimizer=optimizer)
    for _ in range(3):
        optimizer.zero_grad()
        for rows in (1, 2):
            model(rows).backward()
        optimizer.step()
    with pytest.raises(ModeError, match="h@"):
        session.close()
    assert model.weight.tolist() == [1.0 - 3 * 3.0] * 3
    updated = anchorlib.open_run("run1", store)["weight@updated"].values()
    assert np.array_equal(updated[:, 0], [-2.0, -5.0, -8.0])
