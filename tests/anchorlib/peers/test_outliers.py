"""Ranks among their peers: what leaves is named with its first step, nothing else is."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import anchorlib
from anchorlib.errors import UnknownTensorError
from tests.anchorlib.peers.jobs import as_drawn, drawn, flipped, job, of_rank, only, shards
from tests.cli.made import make_run, record
from tests.seeds import examples

REPLICATED = ["w@value", "b@value", "w@grad"]


def found(store):
    return anchorlib.outliers("run1", store=store)


@pytest.mark.slow
def test_one_flipped_bit_among_64_ranks_is_named_with_its_rank_and_first_step(tmp_path):
    job(tmp_path, range(64), change=only(17, 1, "w@value", 0))
    (one,) = found(tmp_path).outliers
    assert (one.ranks, one.evidence) == ((17,), "digest")
    assert (one.step, one.name, one.kind, one.records) == (1, "w", "value", 2)
    assert one.peers == tuple(rank for rank in range(64) if rank != 17)


@pytest.fixture(scope="module")
def nine(tmp_path_factory):
    """Nine ranks of four steps; tests record a rank of it anew."""
    store = tmp_path_factory.mktemp("nine")
    job(store, range(9), 4)
    return store


def again(store, rank, change, drawn_as=None):
    """Records one rank of nine anew, with what rank `drawn_as` draws."""
    shutil.rmtree(store / "run1.zarr" / f"rank{rank}")
    old = rank if drawn_as is None else drawn_as
    make_run(store, [replace(r, rank=rank) for r in of_rank(old, 4, change)], rank=rank)


@pytest.mark.slow
@settings(max_examples=examples(12), suppress_health_check=list(HealthCheck))
@given(st.data())
def test_any_flipped_bit_of_any_replicated_record_is_named(nine, data):
    rank, step = data.draw(st.integers(0, 8)), data.draw(st.integers(0, 3))
    name, bit = data.draw(st.sampled_from(REPLICATED)), data.draw(st.integers(0, 400))
    until = data.draw(st.sampled_from([step + 1, 1 << 30]))
    again(nine, rank, only(rank, step, name, bit, until))
    try:
        named = [one for one in found(nine).outliers if one.evidence == "digest"]
    finally:
        again(nine, rank, as_drawn)
    assert [(one.ranks, f"{one.name}@{one.kind}", one.step) for one in named] == [
        ((rank,), name, step)
    ]


@pytest.mark.slow
@settings(max_examples=examples(4), suppress_health_check=list(HealthCheck))
@given(st.permutations(range(9)), st.integers(0, 8))
def test_permuting_ranks_permutes_the_answer(nine, order, rank):
    bad = only(rank, 2, "w@value", 5)
    again(nine, rank, bad)
    (plain,) = found(nine).outliers
    moved_runs = nine / "run1.zarr"
    for old in range(9):
        (moved_runs / f"rank{old}").rename(moved_runs / f"was{old}")
    for old, new in enumerate(order):
        (moved_runs / f"was{old}").rename(moved_runs / f"rank{new}")
    (moved,) = found(nine).outliers
    for old, new in enumerate(order):
        (moved_runs / f"rank{new}").rename(moved_runs / f"was{old}")
    for old in range(9):
        (moved_runs / f"was{old}").rename(moved_runs / f"rank{old}")
    again(nine, rank, as_drawn)
    assert moved.ranks == tuple(order[one] for one in plain.ranks)
    assert set(moved.peers) == {order[one] for one in plain.peers}
    assert (moved.step, moved.name, moved.records) == (plain.step, plain.name, plain.records)


@pytest.mark.slow
def test_ranks_that_see_other_data_are_no_outliers(tmp_path):
    job(tmp_path, range(12), 20, local=1.0)
    answer = found(tmp_path)
    assert answer.outliers == ()
    assert (answer.series, answer.replicated, answer.complete) == (5, 3, True)


@pytest.mark.slow
def test_shards_are_no_outliers_whatever_they_hold(tmp_path):
    for rank in range(8):
        records = []
        for step in range(6):
            grown = {
                "weight": drawn(1, step, shape=(16, 3)),
                "bias": np.zeros(16, np.float32) if step == 0 else drawn(2, step, shape=(16,)),
                "small": drawn(3, step, shape=(3,)),  # the last ranks hold none of it
                "gate": np.repeat(np.float32([0, 0, 1, 0]), 4)[: 16 if step == 0 else 0],
                "large": drawn(4, step, shape=(8,)) * np.float32([1000, *[1] * 7]),
            }
            for name, values in grown.items():
                for kind in ("value", "grad"):
                    part = shards(values, 8)[rank]
                    records.append(record(name, kind, part, step=step, rank=rank))
        make_run(tmp_path, records, rank=rank)
    answer = found(tmp_path)
    assert answer.outliers == ()
    assert answer.replicated == 0


@pytest.mark.slow
def test_a_bit_in_one_replica_of_a_shard_is_named(tmp_path):
    """Hybrid sharding: rank r holds shard r % 4, as do two others."""
    for rank in range(12):
        records = []
        for step in range(4):
            values = drawn(1, step, rank % 4)
            values = flipped(values, 9) if rank == 6 and step >= 2 else values
            records.append(record("w", "value", values, step=step, rank=rank))
        make_run(tmp_path, records, rank=rank)
    (one,) = found(tmp_path).outliers
    assert (one.ranks, one.step, one.peers) == ((6,), 2, (2, 10))


@pytest.mark.parametrize("ranks", [2, 8])
def test_ranks_that_stop_agreeing_without_a_majority_are_said_to_part(tmp_path, ranks):
    def change(rank, step, name, values):
        return values + rank if name == "w@value" and step >= 2 else values

    job(tmp_path, range(ranks), 5, change=change)
    (one,) = found(tmp_path).outliers
    assert (one.evidence, one.ranks, one.peers) == ("parting", tuple(range(ranks)), ())
    assert (one.step, one.name) == (2, "w")


def test_ranks_that_part_and_meet_again_are_in_local_steps(tmp_path):
    def change(rank, step, name, values):
        return values + rank if name == "w@value" and step % 3 else values

    job(tmp_path, range(8), 8, change=change)
    assert found(tmp_path).outliers == ()


def test_a_tensor_that_is_mostly_alike_by_its_data_is_not_taken_as_replicated(tmp_path):
    def change(rank, step, name, values):
        return values + 1 if name == "w@value" and (rank + step) % 5 == 0 else values

    job(tmp_path, range(8), 10, change=change)
    assert found(tmp_path).outliers == ()


def test_a_bias_of_zeros_is_judged_where_its_kind_is_replicated(tmp_path):
    for rank in range(8):
        zeros = np.zeros(4, np.float32)
        values = flipped(zeros, 3) if rank == 5 else zeros
        records = [record("bias", "value", values, rank=rank)]
        records += [record(f"w{n}", "value", drawn(n), rank=rank) for n in range(3)]
        make_run(tmp_path, records, rank=rank)
    (one,) = found(tmp_path).outliers
    assert (one.ranks, one.name, one.step) == ((5,), "bias", 0)


def test_a_loss_of_each_ranks_own_is_not_counted_among_replicated_parameters(tmp_path):
    for rank in range(4):
        records = []
        for step in range(3):
            records += [record(f"w{n}", "value", drawn(n, step), step=step) for n in range(3)]
            loss = np.exp(drawn(9, rank, step, shape=(), scale=0.1))
            records.append(record("loss", "value", loss, step=step))
        make_run(tmp_path, records, rank=rank)
    answer = found(tmp_path)
    assert (answer.series, answer.replicated, answer.outliers) == (4, 3, ())


@pytest.mark.slow
def test_nan_on_one_rank_is_named(tmp_path):
    def change(rank, step, name, values):
        return values * np.nan if (rank, name) == (3, "x@grad") and step >= 4 else values

    job(tmp_path, range(8), 6, change=change)
    (one,) = found(tmp_path).outliers
    assert (one.ranks, one.evidence, one.step, one.name, one.kind) == ((3,), "nan", 4, "x", "grad")


@pytest.mark.slow
def test_nan_on_every_rank_is_no_outlier(tmp_path):
    def change(_rank, step, name, values):
        return values * np.nan if name == "x@grad" and step >= 4 else values

    job(tmp_path, range(8), 6, change=change)
    assert found(tmp_path).outliers == ()


@pytest.mark.slow
def test_a_norm_that_leaves_its_peers_is_named_with_its_factor(tmp_path):
    def change(rank, step, name, values):
        return values * 1000 if (rank, name) == (11, "x@grad") and step == 7 else values

    job(tmp_path, range(12), 10, change=change)
    (one,) = found(tmp_path).outliers
    assert (one.ranks, one.evidence, one.step, one.records) == ((11,), "norm", 7, 1)
    assert 200 < one.ratio < 5000


@pytest.mark.slow
def test_a_rank_that_counts_its_gradients_twice_from_the_start_is_named(tmp_path):
    for rank in range(10):
        records = [
            record(f"w{n}", "pass_grad", drawn(n, rank, step, shape=(400,)), step=step, rank=rank)
            for step in range(4)
            for n in range(4)
        ]
        if rank == 9:
            records = [
                record(r.name, r.kind, r.raw * 2, step=r.coordinates.step, rank=9) for r in records
            ]
        make_run(tmp_path, records, rank=rank)
    (one,) = found(tmp_path).outliers
    assert (one.ranks, one.evidence, one.step, one.tensors) == ((9,), "norm", 0, 1)
    assert 1.8 < one.ratio < 2.2


@pytest.mark.slow
def test_ranks_that_leave_alike_are_one_outlier(tmp_path):
    def change(rank, step, name, values):
        return values + rank if rank in (2, 3, 9) and name == "w@value" and step else values

    job(tmp_path, range(10), change=change)
    (one,) = found(tmp_path).outliers
    assert (one.ranks, one.step, len(one.peers)) == ((2, 3, 9), 1, 7)


def test_missing_ranks_and_those_that_ended_early_are_said(tmp_path):
    job(tmp_path, [0, 1, 2, 5, 6, 7], 5, ends={6: 3})
    answer = found(tmp_path)
    assert answer.outliers == ()
    assert answer.missing == (3, 4)
    assert [(one.rank, one.last_step, one.run_last_step) for one in answer.ended_early] == [
        (6, 2, 4)
    ]
    assert not answer.complete


def test_one_rank_has_no_peers(tmp_path):
    job(tmp_path, [0])
    answer = found(tmp_path)
    assert (answer.ranks, answer.outliers, answer.complete) == ((0,), (), True)


@pytest.mark.slow
def test_tensors_narrows_what_is_looked_at(tmp_path):
    job(tmp_path, range(8), change=only(2, 1, "w@value", 0))
    assert anchorlib.outliers("run1", store=tmp_path, tensors="b@value").outliers == ()
    with pytest.raises(UnknownTensorError, match="did you mean"):
        anchorlib.outliers("run1", store=tmp_path, tensors="ww")
