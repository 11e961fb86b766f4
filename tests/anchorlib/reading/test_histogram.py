"""Histograms of stored records: the bins of the values, pooled or each tensor by itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anchorlib.errors import UnknownTensorError
from anchorlib.reading import gradients_first, open_run
from anchorlib.store import Writer
from anchorlib.summary import log2_histogram
from tests.anchorlib.reading.runs import make_run, training
from tests.anchorlib.store.records import filled, record, written
from tests.writing import put


def values(name: str, kind: str, steps: range, ranks: int = 1) -> np.ndarray:
    return np.concatenate(
        [
            one.array.ravel()
            for rank in range(ranks)
            for step in steps
            for one in training(step, scale=rank + 1)
            if (one.name, one.kind) == (name, kind)
        ]
    )


def test_a_histogram_is_that_of_all_values_of_all_ranks(tmp_path: Path) -> None:
    run = open_run("run1", make_run(tmp_path, ranks=2))
    expected = log2_histogram(values("fc2.bias", "grad", range(3), ranks=2))
    assert run.histogram("fc2.bias@grad") == expected
    one = run.histogram("fc2.bias@grad", steps=range(1, 3), rank=0)
    assert one == log2_histogram(values("fc2.bias", "grad", range(1, 3)))


def test_a_selector_without_a_kind_means_gradients(tmp_path: Path) -> None:
    run = open_run("run1", make_run(tmp_path))
    assert run.histogram("fc2") == log2_histogram(values("fc2", "grad", range(3)))
    parts = run.histograms("*")
    found = [(part.name, part.kind) for part in parts]
    assert found == [("fc2", "grad"), ("fc1.weight", "grad"), ("fc2.bias", "grad")]
    assert (parts[0].first_step, parts[0].last_step, parts[0].records) == (0, 2, 6)
    assert run.histogram("loss") == log2_histogram(values("loss", "value", range(3)))
    with pytest.raises(UnknownTensorError):
        run.histogram("nothing")


def test_pass_gradients_stand_in_where_there_are_no_others(tmp_path: Path) -> None:
    with Writer.open(tmp_path, "run1", 0) as writer:
        for kind in ("value", "pass_grad", "opt.exp_avg"):
            put(writer, [record("w", 0, filled("float32", (9,), len(kind)), kind=kind)])
    run = open_run("run1", tmp_path)
    assert [part.kind for part in run.histograms("w")] == ["pass_grad"]
    assert [part.kind for part in run.histograms("w@opt.*")] == ["opt.exp_avg"]


def test_histograms_need_no_values(tmp_path: Path) -> None:
    raws = [filled("bfloat16", (50,), seed) for seed in range(4)]
    records = [record("x", n, raw, dtype="bfloat16", mode="summary") for n, raw in enumerate(raws)]
    written(tmp_path, records)
    found = open_run("run1", tmp_path).histogram("x")
    assert found == log2_histogram(np.stack(raws), "bfloat16")


def test_steps_without_records_leave_a_tensor_out(tmp_path: Path) -> None:
    run = open_run("run1", make_run(tmp_path))
    assert run.histograms("fc2.bias", steps=range(50, 60)) == []
    assert run.histogram("fc2.bias", steps=range(50, 60)).numel == 0


KINDS = st.sampled_from(["value", "grad", "pass_grad", "delta"])


@given(st.lists(st.tuples(st.sampled_from("ab"), KINDS), unique=True))
def test_each_name_has_at_most_one_kind_and_a_gradient_wins(pairs: list[tuple[str, str]]) -> None:
    chosen = gradients_first(pairs)
    assert set(chosen) <= set(pairs)
    assert len({name for name, _ in chosen}) == len(chosen)
    gradients = {name for name, kind in pairs if kind.endswith("grad")}
    if gradients:
        assert {name for name, _ in chosen} == gradients
    for name, kind in chosen:
        assert (name, "grad") not in pairs or kind == "grad"
    assert bool(chosen) == bool(pairs)
