"""What a comparison says of what it could not tell."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import anchorlib
from anchorlib.store import Writer
from tests.anchorlib.store.records import record
from tests.writing import put


def write(folder, run, *, name="x", steps=3, mode="all", died=False):
    writer = Writer.open(folder, run, 0)
    for step in range(steps):
        raw = np.full(64, step, "<f4")
        put(writer, [record(name, step, raw, kind="value", mode=mode)])
    if died:
        writer.abandon()
    else:
        writer.close()


@pytest.mark.parametrize(
    ("died", "why"),
    [
        (False, "b ends at step 2, a goes on to step 5"),
        (True, "b ended in the forward of step 2 and never closed, a goes on to step 5"),
    ],
)
def test_it_is_said_which_run_ends_earlier_and_whether_its_process_died(tmp_path, died, why):
    write(tmp_path, "long", steps=6)
    write(tmp_path, "short", steps=3, died=died)
    found = anchorlib.compare("long", "short", store=tmp_path)
    assert (found.verdict, found.incomplete) == ("identical", True)
    assert found.to_dict()["complete"] == {"a": True, "b": False, "why": why}
    said = why.replace("b e", "B e").replace("a goes", "A goes")
    assert found.sentence.endswith(f" that both have; but {said}.")


def test_a_run_that_died_is_incomplete_however_far_it_came(tmp_path):
    write(tmp_path, "whole")
    write(tmp_path, "dead", died=True)
    found = anchorlib.compare("dead", "whole", store=tmp_path)
    assert (found.complete.a, found.complete.b, found.incomplete) == (False, True, True)
    assert "; but A ended in the forward of step 2 and never closed." in found.sentence


def test_what_a_complete_pair_says_of_it_is_nothing(tmp_path):
    for name in ("a", "b"):
        write(tmp_path, name)
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert found.to_dict()["complete"] == {"a": True, "b": True, "why": ""}
    assert (found.incomplete, "but" in found.sentence) == (False, False)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"mode": "sum:window=2"}, "the modes differ (all in a; sum:window=2 in b)"),
        ({"name": "y"}, "no tensor of one has a name of the other"),
        ({"steps": 0}, "b holds no record"),
    ],
)
def test_it_is_said_why_runs_have_no_record_in_common(tmp_path, other, said):
    write(tmp_path, "a")
    write(tmp_path, "b", **other)
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert found.verdict == "incomparable"
    assert any(note.startswith(said) for note in found.notes)


def train(folder, run, fault=None):
    """Four steps; from step 3 on `fault` is put behind tanh."""
    torch.manual_seed(0)
    first, last = nn.Linear(8, 64), nn.Linear(64, 4)
    optimizer = torch.optim.SGD([*first.parameters(), *last.parameters()], lr=0.1)
    x = torch.randn(32, 8)
    with anchorlib.start(run, store=folder) as session:
        session.watch(nn.ModuleDict({"first": first, "last": last}), optimizer=optimizer)
        for step in range(4):
            hidden = anchorlib.anchor(torch.tanh(first(x)), "hidden")
            if fault and step == 3:
                hidden = fault(hidden)
            last(hidden).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()


def test_operations_that_were_seen_steps_before_are_said_to_be(tmp_path):
    train(tmp_path, "a")
    train(tmp_path, "b", lambda hidden: hidden / (hidden - hidden))
    origin = anchorlib.compare("a", "b", store=tmp_path).origins[0]
    assert (origin.cls, origin.place.step, origin.place.name) == ("nonfinite", 3, "last")
    assert "what B did at step 3 was not looked at" in origin.why


@pytest.mark.parametrize(("a", "b", "said"), [(0, 6, "step n + 6"), (6, 0, "step n - 6")])
def test_runs_that_count_their_steps_differently_are_said_to(tmp_path, a, b, said):
    for run, first in (("a", a), ("b", b)):
        with Writer.open(tmp_path, run, 0) as writer:
            for step in range(first, first + 8):
                raw = np.arange(64, dtype="<f4") + step - first
                for name in ("input", "x"):
                    put(writer, [record(name, step, raw, kind="value")])
                    raw = raw * 2
    notes = anchorlib.compare("a", "b", store=tmp_path).notes
    assert f"step n of a was compared with {said} of b" in notes
