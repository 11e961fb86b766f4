"""What an optimizer keeps of a parameter: tensors, numbers, and what is nested."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

from tests.recording import recording
from tests.seeds import examples


class Keeping(torch.optim.SGD):
    """An optimizer that keeps `state` of each parameter."""

    def __init__(self, parameters, state):
        super().__init__(parameters, lr=0.1)
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p].update(state)


def kept_state(state, tensors=("weight@opt.*",)):
    """What was recorded of such a state, by its key, and the session."""
    model = nn.Linear(2, 1)
    optimizer = Keeping(model.parameters(), state)
    with recording() as run:
        run.session.watch(model, tensors=list(tensors), optimizer=optimizer)
        model(torch.ones(3, 2)).sum().backward()
        optimizer.step()
    return {r.kind.removeprefix("opt."): r for r in run.sink.records}, run.session


NUMBERS = {
    "float": (0.1, "float64"),
    "int": (-(2**63), "int64"),
    "wide": (2**64 - 1, "uint64"),
    "bool": (True, "bool"),
    "complex": (1 + 0.1j, "complex128"),
    "numpy": (np.float32(0.1), "float32"),
    "array": (np.arange(3, dtype=np.int16), "int16"),
    "low": (torch.ones(2, dtype=torch.bfloat16), "bfloat16"),
}


def test_numbers_in_optimizer_state_keep_every_bit():
    found, session = kept_state({key: value for key, (value, _) in NUMBERS.items()})
    assert {key: record.dtype for key, record in found.items()} == {
        key: dtype for key, (_, dtype) in NUMBERS.items()
    }
    for key, (value, _) in NUMBERS.items():
        as_it_was = value if isinstance(value, int | float | complex) else value.tolist()
        assert found[key].array.tolist() == as_it_was, key
    assert not session.counters.skipped


def test_what_optimizer_state_nests_is_recorded_by_its_place():
    state = {
        "pair": (torch.zeros(2), 1.5),
        "deep": [[1, None], {"a": [2.0], "b": ()}],
        "table": {3: True},
        "none": None,
        "empty": [],
    }
    found, session = kept_state(state)
    assert sorted(found) == ["deep:0.0", "deep:1.a.0", "pair:0", "pair:1", "table:3"]
    assert not session.counters.skipped
    assert session.counters.gaps == 0


def test_a_default_device_of_the_users_has_no_part_in_numbers_of_the_state():
    model = nn.Linear(2, 1)
    optimizer = Keeping(model.parameters(), {"it": 0.5})
    with recording() as run, torch.device("meta"):
        run.session.watch(model, tensors=["weight@opt.*"], optimizer=optimizer)
        model(torch.ones(3, 2, device="cpu")).sum().backward()
        optimizer.step()
    assert run.arrays("weight", "opt.it")[0] == 0.5
    assert not run.session.counters.skipped


def test_state_that_holds_no_numbers_is_counted_and_takes_nothing_else_with_it():
    around = []
    around.append(around)
    state = {
        "text": "warm-up",
        "mixed": [object(), 1.0],
        "huge": 2**64,
        "sub": TwoTensor(torch.ones(1), torch.ones(1)),
        "around": around,
        "last": 2.0,
    }
    found, session = kept_state(state)
    assert sorted(found) == ["last", "mixed:1"]
    assert {reason.partition(":")[0] for reason in session.counters.skipped} == {
        "optimizer state of type str",
        "optimizer state of type object",
        "optimizer state of type int beyond 64 bits",
        "optimizer state nested too deep",
        "UnsupportedError",
    }


@pytest.mark.slow
@given(st.floats() | st.integers() | st.booleans() | st.complex_numbers())
@settings(max_examples=examples(30))
def test_any_number_in_optimizer_state_comes_back_as_it_was(number):
    found, session = kept_state({"it": [number]})
    if isinstance(number, int) and not -(2**63) <= number < 2**64:
        assert not found
        assert len(session.counters.skipped) == 1
    else:
        back = found["it:0"].array[()].item()
        assert (type(back), repr(back)) == (type(number), repr(number))
