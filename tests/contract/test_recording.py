"""Contract, section 1: `start`, sessions, steps and coordinates, full lines, the environment."""

from __future__ import annotations

import dataclasses
import os
import pty
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import zarr
from torch import nn

import anchorlib
from anchor_server import Collector
from anchorlib import All, EveryN, Final, Sum
from tests.contract.runs import Net, batches, listed, places, process, recorded
from tests.waiting import until
from tests.warm import warm_python


def ones(session: anchorlib.Session, steps: int = 1) -> None:
    for _ in range(steps):
        anchorlib.anchor(torch.ones(3), "x")
        session.step()


def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def collector(tmp_path: Path) -> Iterator[Collector]:
    with Collector(tmp_path / "collected", bind="127.0.0.1:0") as running:
        yield running


# -- the page's own example


@pytest.mark.slow
def test_the_pages_own_example_records_into_anchors_run1_without_a_server(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ANCHOR_RECORDER")

    class Model(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = torch.relu(self.fc1(x))
            anchorlib.anchor(h, "hidden", mode=Sum)
            return self.fc2(h)

    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
    loss_fn = nn.MSELoss()
    with anchorlib.start("run1") as session:
        session.watch(model, tensors=["fc2.bias@grad", "fc1", "*@delta"], optimizer=optimizer)
        for x in batches(3):
            loss = loss_fn(model(x), torch.zeros(4, 1))
            anchorlib.anchor(loss, "loss")
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert (tmp_path / "anchors" / "run1.zarr").is_dir()
    run = anchorlib.open_run("run1")
    deltas = {f"{name}@delta" for name, _ in model.named_parameters()}
    expected = {"fc1@value", "fc1@grad", "hidden@value", "hidden@grad", "loss@value", "loss@grad"}
    assert set(listed(run)) == {"fc2.bias@grad", *expected, *deltas}
    assert run["loss@value"].columns["step"].tolist() == [0, 1, 2]
    assert run["fc2.bias@grad"].values()[-1].tolist() == model.fc2.bias.grad.tolist()


# -- start


def test_tensors_limits_what_anchors_and_watched_models_record(store):
    net = Net()

    def body(session: anchorlib.Session) -> None:
        session.watch(net, tensors="*")
        anchorlib.anchor(net(torch.ones(1, 2)).sum(), "loss").backward()

    run = recorded(store, body, tensors=["fc?", "re:.*bias@pass_grad", "nothing@grad"])
    assert sorted(listed(run)) == [
        *("fc1.bias@pass_grad", "fc1@grad", "fc1@value"),
        *("fc2.bias@pass_grad", "fc2@grad", "fc2@value"),
    ]


def test_a_gradient_in_poptorchs_spelling_limits_a_parameter_to_its_pass_grad(store):
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)

    def body(session: anchorlib.Session) -> None:
        session.watch(net, tensors="*", optimizer=optimizer)
        net(torch.ones(1, 2)).sum().backward()
        optimizer.step()

    run = recorded(store, body, tensors=["Gradient___fc1.weight"])
    assert listed(run) == ["fc1.weight@pass_grad"]


HOLDER = """
import sys, torch, anchorlib
session = anchorlib.start("run1", store=sys.argv[1])
anchorlib.anchor(torch.ones(1), "held")
session.flush()
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
def test_a_rank_that_another_live_process_writes_is_refused_naming_it(store):
    with process(HOLDER, store) as holder:
        assert holder.stdout.readline() == "held\n"
        for options in ({}, {"resume": True}, {"overwrite": True}):
            with pytest.raises(anchorlib.RunBusyError) as caught:
                anchorlib.start("run1", store=store, **options)
            assert str(holder.pid) in str(caught.value)
            assert isinstance(caught.value, BlockingIOError)
        recorded(store, ones, rank=1)  # another rank joins at any time
        holder.stdin.close()
        assert holder.wait(60) == 0
    recorded(store, ones, resume=True)
    run = anchorlib.open_run("run1", store)
    assert len(run.series("held", rank=0)) == len(run.series("x", rank=0)) == 1


BOUND = 2_000_000


def thousands(session: anchorlib.Session) -> None:
    for n in range(1, 41):
        anchorlib.anchor(torch.full((25_000,), float(n)), "x")
        session.step()


def used(directory: Path) -> int:
    """Bytes that files take on disk."""
    return sum(path.stat().st_blocks * 512 for path in directory.rglob("*") if path.is_file())


@pytest.mark.parametrize("where", ["directory", "collector"])
def test_beyond_max_bytes_values_are_no_longer_kept_summaries_are_and_a_gap_is_stored(
    store, collector, where
):
    remote = where == "collector"
    place = f"grpc://{collector.address}" if remote else store
    run = recorded(place, thousands, max_bytes=BOUND, on_full="block")
    series = run["x"]
    assert series.columns["sum"].tolist() == [25_000.0 * n for n in range(1, 41)]
    kept = series.kept.tolist()
    count = sum(kept)
    assert kept == [True] * count + [False] * (40 - count)
    assert BOUND - 200_000 < count * 100_000 == run.bytes <= BOUND
    (gap,) = run.gaps()
    assert (gap.name, gap.kind, gap.count) == ("x", "value", 40 - count)
    assert (gap.first_step, gap.last_step) == (count, 39)
    assert used(collector.store if remote else store) < BOUND + 2**20


# -- full lines


def crowd(session: anchorlib.Session) -> None:
    """One record that keeps the writer busy, and five more that find the line full."""
    anchorlib.anchor(torch.zeros(8 << 20), "large")
    for n in range(5):
        anchorlib.anchor(torch.full((1000,), float(n)), "x")


def test_a_full_line_blocks_by_default_and_loses_nothing(store, caplog):
    run = recorded(store, crowd, queue_bytes=1)
    assert run["x"].values()[:, 0].tolist() == [0, 1, 2, 3, 4]
    assert run.gaps() == []
    assert "training waits" in caplog.text


def test_with_drop_every_record_left_out_is_counted_and_stored_as_a_gap(store):
    session = anchorlib.start("run1", store=store, on_full="drop", queue_bytes=1)
    crowd(session)
    session.close()
    run = anchorlib.open_run("run1", store)
    (gap,) = run.gaps()
    assert (gap.name, gap.kind) == ("x", "value")
    assert gap.count == session.counters.dropped > 0
    assert session.counters.gaps == 1
    assert session.counters.records == sum(info.records for info in run.tensors())


def test_with_drop_summaries_are_kept_while_that_is_possible(store):
    session = anchorlib.start("run1", store=store, on_full="drop", queue_bytes=1 << 20)
    crowd(session)
    session.close()
    assert anchorlib.open_run("run1", store)["x"].columns["sum"].tolist() == [
        1000.0 * n for n in range(5)
    ]


@pytest.mark.parametrize("tell", ["step", "flush", "close"])
def test_with_raise_a_full_line_is_told_by_step_flush_or_close(store, tell):
    session = anchorlib.start("run1", store=store, on_full="raise", queue_bytes=1)
    crowd(session)
    with pytest.raises(anchorlib.QueueFullError, match="x@value"):
        getattr(session, tell)()
    session.close()
    assert anchorlib.open_run("run1", store).gaps()[0].count == session.counters.dropped > 0


@pytest.fixture
def crowded_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[anchorlib.Session, anchorlib.Run]:
    """A session of twenty records whose collector came when its spool was full."""
    monkeypatch.setenv("ANCHOR_SPOOL_LIMIT", "40kB")
    port = unused_port()
    session = anchorlib.start("run1", store=f"grpc://127.0.0.1:{port}")
    for n in range(20):
        anchorlib.anchor(torch.full((1000,), float(n)), "x")
        session.step()
        # So that it is the line that fills, not the queue.
        until(lambda n=n: session._queue.handed_over > n)
    with Collector(tmp_path / "late", bind=f"127.0.0.1:{port}"):
        session.close()
    return session, anchorlib.open_run("run1", tmp_path / "late")


@pytest.mark.slow
def test_by_default_a_full_line_to_a_collector_drops_values_and_keeps_summaries(crowded_line):
    session, run = crowded_line
    series = run["x"]
    assert series.columns["sum"].tolist() == [1000.0 * n for n in range(20)]
    left_out = series.kept.tolist().count(False)
    assert 0 < left_out < 20
    assert [(gap.name, gap.count) for gap in run.gaps()] == [("x", left_out)]
    assert session.counters.dropped == left_out


@pytest.mark.slow
def test_gaps_that_a_remote_sink_stores_are_in_the_counters(crowded_line):
    session, run = crowded_line
    assert session.counters.gaps == len(run.gaps()) == 1


# -- counters


def test_counters_are_a_frozen_value_that_can_be_read_after_close(store):
    with anchorlib.start("run1", store=store) as session:
        ones(session, 2)
        anchorlib.anchor(torch.ones(2, device="meta"), "nowhere")
    counters = session.counters
    assert (counters.records, counters.bytes) == (2, 24)
    assert (counters.dropped, counters.gaps, counters.retries) == (0, 1, 0)
    assert list(counters.skipped.values()) == [1]
    with pytest.raises(dataclasses.FrozenInstanceError):
        counters.records = 3


def test_whatever_was_not_recorded_is_counted_here_and_in_the_store(store):
    with anchorlib.start("run1", store=store) as session:
        for _ in range(3):
            anchorlib.anchor(torch.ones(2, device="meta"), "nowhere")
    (gap,) = anchorlib.open_run("run1", store).gaps()
    assert (gap.name, gap.count) == ("nowhere", 3)
    assert sum(session.counters.skipped.values()) == 3


def test_values_that_max_bytes_left_out_are_counted_here_too(store):
    with anchorlib.start("run1", store=store, max_bytes=BOUND) as session:
        thousands(session)
    run = anchorlib.open_run("run1", store)
    assert session.counters.dropped == run.gaps()[0].count
    assert session.counters.gaps == 1
    assert session.counters.bytes == run.bytes


# -- flush and close


def test_a_flush_shows_all_that_was_captured_before_it_to_any_zarr_reader(store):
    with anchorlib.start("run1", store=store) as session:
        for n in range(1, 4):
            anchorlib.anchor(torch.full((2,), float(n)), "x")
            session.flush()
            group = zarr.open_group(store / "run1.zarr/rank0/forms/float32_2", mode="r")
            assert group["value"][:].tolist() == [[float(k)] * 2 for k in range(1, n + 1)]
            assert group["call"][:].tolist() == list(range(n))


def test_a_flush_to_a_collector_shows_it_on_the_collectors_disk(collector):
    with anchorlib.start("run1", store=f"grpc://{collector.address}") as session:
        anchorlib.anchor(torch.full((2,), 7.0), "x")
        session.flush()
        array = zarr.open_array(collector.store / "run1.zarr/rank0/forms/float32_2/value", mode="r")
        assert array[:].tolist() == [[7.0, 7.0]]


def test_a_flush_past_its_timeout_is_a_timeout_error(caplog):
    session = anchorlib.start("run1", store=f"grpc://127.0.0.1:{unused_port()}")
    ones(session)
    with pytest.raises(anchorlib.FlushTimeoutError) as caught:
        session.flush(timeout=0.05)
    assert isinstance(caught.value, TimeoutError)
    session.close(timeout=0.05)
    assert session.counters.dropped == 0  # it is kept in the spool


WAITING = """
import sys, torch, anchorlib

def close_with_two_records(**options):
    session = anchorlib.start("run1", store=sys.argv[1], **options)
    for _ in range(2):
        anchorlib.anchor(torch.zeros(10_000), "x")
    session.step()
    if not options:
        while session._queue.handed_over < 2:
            pass
    session.close(timeout=4)

close_with_two_records(on_full="block", queue_bytes=1)
print("== and now the line ==", file=sys.stderr, flush=True)
close_with_two_records()
"""


@pytest.fixture(scope="module")
def terminal() -> list[str]:
    """What closing shows on a terminal, no collector there: a queue that waits, then a line."""
    master, slave = pty.openpty()
    with subprocess.Popen(
        [warm_python(), "-c", WAITING, f"grpc://127.0.0.1:{unused_port()}"],
        stderr=slave,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "TERM": "xterm"},
    ):
        os.close(slave)
        shown = b""
        while part := _read(master):
            shown += part
        os.close(master)
    return shown.decode().split("== and now the line ==")


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4096)
    except OSError:  # how Linux says that the other end is closed
        return b""


@pytest.mark.slow
def test_close_drains_with_a_progress_bar_on_a_terminal(terminal):
    assert "writing what waits" in terminal[0]
    assert "did not reach" in terminal[1]


@pytest.mark.slow
def test_close_shows_its_progress_while_a_line_to_a_collector_drains(terminal):
    assert "writing what waits" in terminal[1]


# -- steps


def use(w: torch.Tensor) -> None:
    h = w * 2
    anchorlib.anchor(h, "h")
    h.sum().backward()


def sgd() -> tuple[torch.Tensor, torch.optim.Optimizer]:
    w = torch.ones(2, requires_grad=True)
    return w, torch.optim.SGD([w], lr=0.1)


def test_the_clock_is_the_first_optimizer_whose_step_completes(store):
    (w, first), (_, second) = sgd(), sgd()

    def body(_: object) -> None:
        for _ in range(2):
            for optimizer in (first, second):
                use(w)
                optimizer.step()

    assert recorded(store, body)["h@value"].columns["step"].tolist() == [0, 1, 1, 2]


def test_the_clock_is_watchs_optimizer_whichever_completes_first(store):
    (_, other), net = sgd(), Net()
    watched = torch.optim.SGD(net.parameters(), lr=0.1)

    def body(session: anchorlib.Session) -> None:
        session.watch(net, tensors=["output@value"], optimizer=watched)
        for _ in range(2):
            for optimizer in (other, watched):
                net(torch.ones(1, 2)).sum().backward()
                optimizer.step()

    run = recorded(store, body)
    assert places(run["output"]) == [(0, 0, 0), (0, 1, 0), (1, 0, 0), (1, 1, 0)]


def test_the_first_explicit_step_ends_the_step_that_the_optimizer_has_just_ended(store):
    w, optimizer = sgd()

    def body(session: anchorlib.Session) -> None:
        for _ in range(3):
            use(w)
            optimizer.step()
            session.step()

    assert recorded(store, body)["h@value"].columns["step"].tolist() == [0, 1, 2]


def test_an_explicit_step_takes_the_clock_over(store):
    w, optimizer = sgd()

    def body(session: anchorlib.Session) -> None:
        for _ in range(3):
            for _ in range(2):
                use(w)
                optimizer.step()
            session.step()

    # Until the first explicit step each of the optimizer's counts; from then on none does.
    assert recorded(store, body)["h@value"].columns["step"].tolist() == [0, 1, 2, 2, 3, 3]


def test_a_step_ends_and_opens_the_step_of_that_number_or_the_next(store):
    def body(session: anchorlib.Session) -> None:
        for number in (None, 10, None, 20):
            anchorlib.anchor(torch.ones(1), "x")
            session.step(number)
        anchorlib.anchor(torch.ones(1), "x")

    run = recorded(store, body, first_step=3)
    assert run["x"].columns["step"].tolist() == [3, 4, 10, 11, 20]


def test_a_step_with_a_closure_is_one_step_whose_calls_are_passes(store):
    w = torch.ones(2, requires_grad=True)
    optimizer = torch.optim.LBFGS([w], lr=0.1, max_iter=2)
    calls = []

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = ((w - 3) ** 2).sum()
        anchorlib.anchor(loss, "loss")
        loss.backward()
        calls.append(1)
        return loss.detach()

    def body(_: object) -> None:
        for _ in range(2):
            optimizer.step(closure)
            calls.append(0)

    found = places(recorded(store, body)["loss@value"])
    first = calls.index(0)
    assert found[:first] == [(0, n, 0) for n in range(first)]
    assert found[first:] == [(1, n, 0) for n in range(len(found) - first)]


# -- coordinates


def test_micro_batches_are_passes(store):
    w, optimizer = sgd()

    def body(_: object) -> None:
        for _ in range(2):
            for _ in range(3):
                use(w)
            optimizer.step()

    run = recorded(store, body)
    expected = [(step, n, 0) for step in range(2) for n in range(3)]
    assert places(run["h@value"]) == places(run["h@grad"]) == expected


@pytest.mark.parametrize("training", [True, False])
def test_without_gradients_each_forward_of_a_watched_root_is_a_pass(store, training):
    net = Net().train(training)

    def body(session: anchorlib.Session) -> None:
        session.watch(net, tensors=["output"])
        with torch.no_grad():
            for _ in range(3):
                net(torch.ones(1, 2))

    series = recorded(store, body)["output"]
    assert places(series) == [(0, 0, 0), (0, 1, 0), (0, 2, 0)]
    assert set(series.columns["phase"]) == {"train" if training else "eval"}


def test_call_is_the_nth_use_of_the_name_inside_the_pass(store):
    w, optimizer = sgd()

    def body(_: object) -> None:
        for _ in range(2):
            for _ in range(2):
                total = w
                for _ in range(3):
                    total = anchorlib.anchor(total * 2, "h")
                anchorlib.anchor(total.sum(), "loss").backward()
            optimizer.step()

    run = recorded(store, body)
    expected = [(s, p, c) for s in range(2) for p in range(2) for c in range(3)]
    assert places(run["h@value"]) == expected
    # Backward reaches the uses in reverse.
    assert places(run["h@grad"]) == [(s, p, 2 - c) for s, p, c in expected]
    assert places(run["loss@value"]) == [(s, p, 0) for s in range(2) for p in range(2)]


def test_uses_of_a_name_in_lists_of_modes_that_share_one_are_calls_of_its_series(store):
    def body(_: object) -> None:
        anchorlib.anchor(torch.tensor(1.0), "x", All)
        anchorlib.anchor(torch.tensor(2.0), "x", [All, Sum("run")])

    series = recorded(store, body).series("x", mode=All)
    assert series.values().tolist() == [1.0, 2.0]
    assert places(series) == [(0, 0, 0), (0, 0, 1)]


def test_an_anchor_under_the_name_of_a_watched_module_is_another_call_of_it(store):
    net = Net()

    def body(session: anchorlib.Session) -> None:
        session.watch(net, tensors=["fc1@value"])
        net(torch.ones(1, 2))
        anchorlib.anchor(torch.ones(1, 3), "fc1")

    assert places(recorded(store, body)["fc1"]) == [(0, 0, 0), (0, 0, 1)]


@pytest.mark.parametrize("watched", ["output@value", "fc1.weight@updated", "input@value"])
def test_passes_are_counted_whether_or_not_any_gradient_is_recorded(store, watched):
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)

    def body(session: anchorlib.Session) -> None:
        session.watch(net, tensors=[watched], optimizer=optimizer)
        for _ in range(2):
            for x in batches(3):
                h = net(x)
                anchorlib.anchor(h.detach(), "h")
                h.sum().backward()
            optimizer.step()

    assert places(recorded(store, body)["h"]) == [(s, n, 0) for s in range(2) for n in range(3)]


def test_a_gradient_carries_the_coordinates_of_its_own_forward_call_also_in_a_later_step(store):
    w = torch.ones(1, requires_grad=True)

    def body(session: anchorlib.Session) -> None:
        late = anchorlib.anchor(w * 3, "h")
        session.step()
        anchorlib.anchor(w * 5, "h").sum().backward()
        late.sum().backward(torch.tensor(2.0))

    gradients = recorded(store, body)["h@grad"]
    assert places(gradients) == [(1, 0, 0), (0, 0, 0)]
    assert gradients.values().tolist() == [[1.0], [2.0]]


def test_parameter_kinds_made_at_the_optimizers_step_carry_pass_0_and_call_0(store):
    net = Net()
    optimizer = torch.optim.Adam(net.parameters())

    def body(session: anchorlib.Session) -> None:
        session.watch(net, tensors=["fc1.weight"], optimizer=optimizer)
        for _ in range(2):
            for x in batches(3):
                net(x).sum().backward()
            optimizer.step()

    run = recorded(store, body)
    at_the_step = [kind for _, kind in (one.split("@") for one in listed(run))]
    assert {"grad", "updated", "delta", "opt.exp_avg", "opt.step"} <= set(at_the_step)
    for kind in set(at_the_step) - {"value", "pass_grad"}:
        assert places(run.series("fc1.weight", kind)) == [(0, 0, 0), (1, 0, 0)]
    assert places(run["fc1.weight@pass_grad"]) == [(s, n, 0) for s in (0, 1) for n in range(3)]


def test_records_inside_a_phase_carry_it_and_the_default_is_train(store):
    def body(session: anchorlib.Session) -> None:
        anchorlib.anchor(torch.ones(1), "x")
        with session.phase("warmup"):
            anchorlib.anchor(torch.ones(1), "x")
            with session.phase("probe"):
                anchorlib.anchor(torch.ones(1), "x")
            anchorlib.anchor(torch.ones(1), "x")
        anchorlib.anchor(torch.ones(1), "x")

    series = recorded(store, body)["x"]
    assert series.columns["phase"].tolist() == ["train", "warmup", "probe", "warmup", "train"]
    assert series.columns["call"].tolist() == [0, 0, 0, 1, 1]


def test_attempt_is_0_then_one_more_for_each_resume_and_order_goes_on(store):
    for attempt in range(3):
        recorded(store, lambda s: ones(s, 2), resume=attempt > 0, first_step=2 * attempt)
    columns = anchorlib.open_run("run1", store)["x"].columns
    assert columns["step"].tolist() == list(range(6))
    assert columns["attempt"].tolist() == [0, 0, 1, 1, 2, 2]
    assert columns["order"].tolist() == list(range(6))


def test_order_counts_the_ranks_whole_run_in_order_of_execution(store):
    w, optimizer = sgd()

    def body(_: object) -> None:
        for _ in range(2):
            a = anchorlib.anchor(w * 2, "a")
            anchorlib.anchor(a.sum(), "b").backward()
            optimizer.step()

    run = recorded(store, body)
    orders = {name: run[name].columns["order"].tolist() for name in listed(run)}
    assert orders == {"a@value": [0, 4], "b@value": [1, 5], "b@grad": [2, 6], "a@grad": [3, 7]}


def test_a_run_on_a_collector_is_resumed_as_the_next_attempt(collector):
    place = f"grpc://{collector.address}"
    for attempt in range(2):
        with anchorlib.start("run1", store=place, resume=attempt > 0) as session:
            ones(session, 2)
            session.flush()
    series = anchorlib.open_run("run1", place).series("x", attempts=True)
    assert series.columns["attempt"].tolist() == [0, 0, 1, 1]
    assert series.columns["order"].tolist() == [0, 1, 2, 3]


# -- reading back while recording


def test_latest_is_the_last_array_that_the_mode_emitted_and_not_the_open_window(store):
    with anchorlib.start("run1", store=store) as session:
        for n in range(1, 6):
            anchorlib.anchor(torch.full((2,), float(n)), "sum", Sum(2))
            anchorlib.anchor(torch.full((2,), float(n)), "every", EveryN(2))
            session.step()
        assert session.latest("sum").tolist() == [7.0, 7.0]
        assert session.latest("every").tolist() == [4.0, 4.0]
        mine = session.latest("sum")
        mine[:] = 0
        assert session.latest("sum").tolist() == [7.0, 7.0]


def test_tensors_are_those_seen_so_far_in_execution_order(store):
    with anchorlib.start("run1", store=store, rank=3) as session:
        assert session.tensors() == []
        for name in ("b", "a"):
            anchorlib.anchor(torch.ones(2, 3, dtype=torch.float16), name)
        session.step()
        anchorlib.anchor(torch.ones(2, 3, dtype=torch.float16), "b")
        b, a = session.tensors()
    assert (b.name, b.kind, b.mode, b.dtype, b.shape) == ("b", "value", "all", "float16", (2, 3))
    assert (b.ranks, b.records, b.first_step, b.last_step, b.bytes) == ((3,), 2, 0, 1, 24)
    assert (a.name, a.records, a.last_step) == ("a", 1, 0)


# -- mixed precision


def test_a_step_that_grad_scaler_skips_is_seen_and_its_row_says_skipped(store):
    model = nn.Linear(2, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

    def body(session: anchorlib.Session) -> None:
        session.watch(model, tensors=["weight"], optimizer=optimizer)
        for factor in (1.0, float("inf"), 1.0):
            optimizer.zero_grad()
            scaler.scale(model(torch.full((1, 2), factor)).sum()).backward()
            scaler.step(optimizer)
            scaler.update()

    run = recorded(store, body)
    gradients = list(run["weight@grad"].records())
    assert [record.array.ravel().tolist() for record in gradients] == [
        [1.0, 1.0],
        [float("inf")] * 2,
        [1.0, 1.0],
    ]
    assert [record.flags.name for record in gradients] == ["NONE", "STEP_SKIPPED", "NONE"]
    assert [record.coordinates.step for record in gradients] == [0, 1, 2]
    assert run["weight@updated"].columns["step"].tolist() == [0, 2]
    passes = list(run["weight@pass_grad"].records())
    assert [record.scale for record in passes] == [1024.0, 1024.0, 512.0]
    assert passes[2].array.ravel().tolist() == [512.0, 512.0]


# -- durability


def test_power_durability_records_what_process_durability_does(store):
    runs = [
        recorded(store, lambda s: ones(s, 3), run, durability=run) for run in ("process", "power")
    ]
    digests = [run["x"].columns["digest"].tolist() for run in runs]
    assert digests[0] == digests[1]
    assert len(digests[0]) == 3


# -- the environment


def record_abc(session: anchorlib.Session) -> None:
    for name in "abc":
        anchorlib.anchor(torch.ones(1), name)


def test_anchor_store_and_anchor_run_say_where_and_under_which_name(store, monkeypatch):
    monkeypatch.setenv("ANCHOR_STORE", str(store))
    monkeypatch.setenv("ANCHOR_RUN", "named")
    with anchorlib.start() as session:
        record_abc(session)
    assert (store / "named.zarr").is_dir()
    assert listed(anchorlib.open_run("named")) == ["a@value", "b@value", "c@value"]


def test_anchor_tensors_is_a_comma_separated_list_of_selectors(store, monkeypatch):
    monkeypatch.setenv("ANCHOR_TENSORS", "a, re:[c]@value,d*")
    assert listed(recorded(store, record_abc)) == ["a@value", "c@value"]


def test_anchor_ranks_is_a_comma_separated_list_of_ranks(store, monkeypatch):
    monkeypatch.setenv("ANCHOR_RANKS", "0, 2")
    for rank in range(4):
        with anchorlib.start("run1", store=store, rank=rank) as session:
            record_abc(session)
    assert anchorlib.open_run("run1", store).ranks == [0, 2]


@pytest.mark.parametrize("variable", ["ANCHOR_TENSORS", "ANCHOR_RANKS", "ANCHOR_PHASES"])
def test_a_list_of_nothing_is_no_setting_and_is_refused(store, monkeypatch, variable):
    monkeypatch.setenv(variable, " , ")
    with pytest.raises(anchorlib.OptionError, match=variable):
        anchorlib.start("run1", store=store)


def test_anchor_disabled_records_nothing(store, monkeypatch):
    monkeypatch.setenv("ANCHOR_DISABLED", "1")
    with anchorlib.start("run1", store=store) as session:
        record_abc(session)
    assert not store.exists()
    assert session.counters.records == 0


def test_anchor_on_full_is_the_policy(store, monkeypatch):
    monkeypatch.setenv("ANCHOR_ON_FULL", "raise")
    session = anchorlib.start("run1", store=store, queue_bytes=1)
    crowd(session)
    with pytest.raises(anchorlib.QueueFullError):
        session.close()


@pytest.mark.parametrize(
    ("variables", "rank"),
    [
        ({}, 0),
        ({"SLURM_PROCID": "4"}, 4),
        ({"RANK": "2"}, 2),
        ({"RANK": "2", "SLURM_PROCID": "4"}, 2),
    ],
)
def test_the_rank_comes_from_rank_slurm_procid_or_is_0(store, monkeypatch, variables, rank):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert recorded(store, record_abc).ranks == [rank]


def test_an_argument_beats_the_environment(store, tmp_path, monkeypatch):
    for name, value in {
        "ANCHOR_STORE": str(tmp_path / "elsewhere"),
        "ANCHOR_RUN": "other",
        "ANCHOR_TENSORS": "c",
        "ANCHOR_RANKS": "0",
        "ANCHOR_ON_FULL": "raise",
        "RANK": "5",
        "SLURM_JOB_ID": "17",
        "SLURM_PROCID": "6",
    }.items():
        monkeypatch.setenv(name, value)
    run = recorded(
        store,
        lambda s: (crowd(s), record_abc(s)),
        rank=1,
        ranks=[1],
        tensors=["a", "large"],
        on_full="block",
        queue_bytes=1,
    )
    assert (run.name, run.ranks) == ("run1", [1])
    assert listed(run) == ["large@value", "a@value"]
    assert not (tmp_path / "elsewhere").exists()
    monkeypatch.delenv("ANCHOR_RUN")
    assert anchorlib.open_run("run1", store).name == "run1"


@pytest.mark.parametrize(
    ("variables", "name"),
    [
        ({"ANCHOR_RUN": "mine", "TORCHELASTIC_RUN_ID": "elastic", "SLURM_JOB_ID": "7"}, "mine"),
        ({"TORCHELASTIC_RUN_ID": "elastic", "SLURM_JOB_ID": "7"}, "elastic"),
        ({"SLURM_JOB_ID": "7"}, "7"),
    ],
)
def test_the_runs_name_is_the_environments_else_the_jobs(store, monkeypatch, variables, name):
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    with anchorlib.start(store=store) as session:
        record_abc(session)
    assert session.run == name
    assert (store / f"{name}.zarr").is_dir()


def test_without_any_name_a_run_is_named_by_the_time(store):
    with anchorlib.start(store=store) as session:
        record_abc(session)
    assert session.run.startswith(time.strftime("%Y%m"))


def test_a_second_session_is_refused_while_one_is_active(store):
    with anchorlib.start("run1", store=store):
        with pytest.raises(anchorlib.SessionError, match="run1"):
            anchorlib.start("run2", store=store)
        anchorlib.anchor(torch.ones(1), "x")
    assert listed(anchorlib.open_run("run1", store)) == ["x@value"]
    assert not (store / "run2.zarr").exists()


def test_modes_of_start_are_those_of_anchors_that_name_none(store):
    def body(session: anchorlib.Session) -> None:
        for n in range(4):
            anchorlib.anchor(torch.tensor(float(n)), "mine", Final("run"))
            anchorlib.anchor(torch.tensor(float(n)), "theirs")

    run = recorded(store, body, mode=[All, EveryN(2)])
    assert {(t.name, t.mode) for t in run.tensors()} == {
        ("mine", "final:window=run"),
        ("theirs", "all"),
        ("theirs", "every_n:2"),
    }
