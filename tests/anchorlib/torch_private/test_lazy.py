"""Names that are looked up where they are needed: what torch has moved is said there, once."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

import anchorlib
from anchorlib import torch_private
from anchorlib.torch_private import DOORS, backward, door, tensors
from tests.anchorlib.capture.compiled.observing import QUIET
from tests.recording import recording

pytestmark = QUIET

MARKS = {
    "_torchdynamo_disable": "disable",
    "_dynamo_marked_constant": "assume_constant_result",
}
LINKS = "_orig_mod, _fsdp_wrapped_module, _checkpoint_wrapped_module"
SHARD = "torch.distributed.tensor.DTensor._local_tensor"


@pytest.fixture(autouse=True)
def nothing_said_yet(monkeypatch, caplog):
    monkeypatch.setattr(door, "_logged", set())
    caplog.set_level(logging.WARNING, "anchorlib")


def of(messages):
    return [line for line in messages if " has no " in line]


def said(name):
    return [f"anchorlib: {DOORS[name].said}"]


@pytest.mark.parametrize("mark", MARKS)
def test_a_mark_that_dynamo_does_not_know_is_said_at_the_end_of_a_step(monkeypatch, caplog, mark):
    import torch._dynamo

    monkeypatch.setattr(torch.compiler, MARKS[mark], lambda function: function)
    with recording() as run:
        run.session.step()
        assert of(caplog.messages) == said(mark)
        run.session.step()
    assert of(caplog.messages) == said(mark)


def compiled_by_torch(layer):
    return torch.compile(layer)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wrap", "link"),
    [
        (compiled_by_torch, "_orig_mod"),
        (checkpoint_wrapper, "_checkpoint_wrapped_module"),
    ],
)
def test_a_wrapper_that_calls_its_module_otherwise_is_said(caplog, wrap, link):
    model = nn.Sequential(wrap(nn.Linear(2, 2)))
    assert "0.weight@value" in anchorlib.tensor_names(model)
    assert caplog.messages == []
    parts = model[0]._modules
    parts["_inside"] = parts.pop(link)
    for _ in range(2):
        assert "0._inside.weight@value" in anchorlib.tensor_names(model)
    assert caplog.messages == said(LINKS)


class _Sharded:
    """As a DTensor: its shard has another name."""

    placements = ()

    def to_local(self):
        return torch.ones(2)


@pytest.mark.parametrize(("module", "lines"), [("torch.distributed.tensor", 1), ("theirs", 0)])
def test_a_shard_under_another_name_is_asked_for_and_that_is_said(
    monkeypatch, caplog, module, lines
):
    monkeypatch.setattr(_Sharded, "__module__", module)
    for _ in range(2):
        assert tensors.has_local_tensor(_Sharded())
        assert tensors.local_tensor(_Sharded()).tolist() == [1, 1]
    assert caplog.messages == said(SHARD) * lines


@pytest.mark.slow
def test_a_node_that_hides_its_function_is_said_and_its_gradient_taken_for_a_part(
    monkeypatch, caplog
):
    monkeypatch.setattr(backward, "_FORWARD", "_moved")
    alone = torch.compile(lambda x: x.sin() * 2, backend="aot_eager")
    with recording() as run:
        for _ in range(2):
            made = anchorlib.anchor(alone(torch.ones(2, requires_grad=True)), "alone")
            made.sum().backward()
    assert of(caplog.messages) == said("Node._forward_cls")
    assert run.sink.entries["grad.from_outside"] == ["alone"]
    assert len(run.arrays("alone", "grad")) == 2


def test_where_all_is_in_its_place_nothing_is_said(caplog):
    assert torch_private.tell_marks()
    assert caplog.messages == []
