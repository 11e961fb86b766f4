"""Two runs whose operations were traced: what ran otherwise, joined with what differs."""

from __future__ import annotations

import inspect
from collections import OrderedDict

import pytest
import torch
from torch import nn
from torch.nn import functional

import anchorlib
from anchorlib.amounts import figure
from anchorlib.errors import DamagedError, OptionError
from anchorlib.operations import gap_entry
from anchorlib.store import Writer
from tests.by_hand import Applied, TanhByHand

FORMULAS = {
    "plain": torch.tanh,
    "decomposed": TanhByHand.apply,
    "sigmoid": lambda x: 2 * torch.sigmoid(2 * x) - 1,
    "idle": lambda x: torch.tanh(x) * 1.0,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
}


def net(function, prefix=""):
    torch.manual_seed(0)
    return nn.Sequential(
        OrderedDict(
            {
                f"{prefix}fc1": nn.Linear(16, 32),
                f"{prefix}act1": Applied(function),
                f"{prefix}fc2": nn.Linear(32, 32),
                f"{prefix}act2": Applied(function),
                f"{prefix}out": nn.Linear(32, 1),
            }
        )
    )


def train(store, run, function, *, traced=1, first=0, prefix=""):
    model = net(function, prefix)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x = torch.randn(16, 16)
    with anchorlib.start(run, store=store) as session:
        session.watch(model, tensors="*", optimizer=optimizer)
        for step in range(3):
            if step == first and traced:
                session.trace(traced)
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A run of each formula; `untraced`; `later`, which traced other steps; `renamed`."""
    place = tmp_path_factory.mktemp("traces")
    for name, function in FORMULAS.items():
        train(place, name, function, traced=2)
    train(place, "untraced", torch.tanh, traced=0)
    train(place, "later", torch.tanh, first=2)
    train(place, "renamed", FORMULAS["sigmoid"], prefix="the_")
    return place


@pytest.fixture
def parted(store):
    return lambda a, b, **options: anchorlib.compare(a, b, store=store, **options)


def last_line(function):
    lines, first = inspect.getsourcelines(function)
    return first + len(lines) - 1


@pytest.mark.slow
def test_what_ran_otherwise_is_told_without_being_asked(parted):
    told = parted("plain", "decomposed").to_dict()["ops"]
    assert list(told) == ["matched", "only_a", "only_b", "differences"]
    assert (told["only_a"], told["only_b"]) == (4, 12), "two modules, two steps"
    [one] = told["differences"]
    lines = one.pop("where")
    assert one == {
        "stage": "backward",
        "module": "act2",
        "only_a": ["tanh_backward"],
        "only_b": ["mul", "sub", "mul"],
        "arguments": None,
        "decomposed_from": None,
        "inputs_equal": True,
        "outputs_equal": False,
        "like_it": ["act1"],
    }
    assert lines == [f"by_hand.py:{last_line(of)}" for of in (Applied.forward, TanhByHand.backward)]


def test_operations_are_joined_with_the_difference_in_values(parted):
    found = parted("plain", "decomposed")
    [origin] = found.origins
    assert (origin.place.name, origin.place.kind) == ("fc2", "grad")
    assert (origin.ops_a, origin.ops_b) == (("tanh_backward",), ("mul", "sub", "mul"))
    assert "(A ran tanh_backward, B mul sub mul)" in found.sentence
    [entry] = next(one for one in anchorlib.diagnosis.sections(found) if one.key == "ops").entries
    size = figure(origin.measure.error_eps)
    assert entry.text.startswith(f"fc2@grad differs by {size} eps; equal")


def test_an_argument_that_is_another_is_told(parted):
    found = parted("gelu", "gelu_tanh")
    told = found.to_dict()["ops"]
    assert {one["stage"]: one["arguments"] for one in told["differences"]} == {
        "forward": "approximate none | tanh",
        "backward": "approximate none | tanh",
    }
    assert told["differences"][0]["like_it"] == ["act2"]
    assert (told["only_a"], told["only_b"]) == (0, 0)
    assert found.sentence.count("approximate") == 1, "autograd had told it already"


@pytest.mark.parametrize("other", ["plain", "decomposed", "sigmoid", "idle", "gelu"])
def test_operations_never_change_the_verdict(parted, other):
    without, found = (parted("plain", other, ops=ops) for ops in (False, None))
    assert found.verdict == without.verdict
    judged = [[(o.place, o.cls, o.measure) for o in c.origins] for c in (without, found)]
    assert repr(judged[0]) == repr(judged[1])
    assert (found.incomplete, found.first) == (without.incomplete, without.first)
    assert without.to_dict()["ops"] is None


def test_another_operation_that_makes_the_same_bits_is_told_of_identical_runs(parted):
    found = parted("plain", "idle")
    assert found.verdict == "identical"
    told = found.to_dict()["ops"]["differences"]
    assert [(one["stage"], one["only_a"], one["only_b"]) for one in told] == [
        ("forward", [], ["mul"]),
        ("backward", [], ["mul"]),
    ]
    assert all(one["outputs_equal"] for one in told)


def test_modules_of_other_names_are_aligned(parted):
    found = parted("plain", "renamed")
    assert {one.module for one in found.ops.every} == {"act1", "act2"}
    assert found.origins[0].ops_b == ("mul", "sigmoid", "mul", "sub")


def test_replay_knows_traced_operations(parted):
    for a, b in (("plain", "decomposed"), ("decomposed", "plain")):
        [origin] = parted(a, b, replay=True).origins
        assert origin.replay is not None
        assert "A ran " in origin.why


def test_what_was_not_traced_is_null_and_refused_where_it_was_asked_for(parted):
    assert parted("plain", "untraced").to_dict()["ops"] is None
    assert not parted("plain", "untraced").notes
    for pair in (("plain", "untraced"), ("untraced", "plain")):
        with pytest.raises(OptionError, match=r"no operation of untraced was traced: trace one"):
            parted(*pair, ops=True)


def test_runs_that_traced_no_step_in_common_say_so(parted):
    found = parted("plain", "later")
    assert found.to_dict()["ops"] is None
    assert any("plain and later traced no step in common" in note for note in found.notes)
    with pytest.raises(OptionError, match="no step in common"):
        parted("plain", "later", ops=True)


def test_a_damaged_trace_is_told_and_harms_nothing_else(parted, store, tmp_path):
    train(tmp_path, "broken", torch.tanh)
    chunk = tmp_path / "broken.zarr" / "rank0" / "ops" / "log" / "c.0"
    data = bytearray(chunk.read_bytes())
    data[20] ^= 1
    chunk.write_bytes(data)
    runs = store / "plain.zarr", tmp_path / "broken.zarr"
    found = anchorlib.compare(*runs)
    assert found.verdict == "identical"
    assert any("the log of operations is damaged" in n for n in found.notes)
    with pytest.raises(DamagedError):
        anchorlib.compare(*runs, ops=True)


def test_a_trace_with_a_gap_is_told(store, tmp_path):
    train(tmp_path, "lacking", torch.tanh)
    with Writer.open(tmp_path, "lacking", 0, resume=True) as writer:
        writer.operations([gap_entry("operations inside compiled code", 1, 0, 0)])
    found = anchorlib.compare(store / "plain.zarr", tmp_path / "lacking.zarr")
    assert "lacking lacks operations inside compiled code" in found.notes
