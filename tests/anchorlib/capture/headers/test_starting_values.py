"""What a model begins with is known by digest where no values of it are recorded."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import anchorlib
from anchorlib.capture.headers import StartingValues
from anchorlib.capture.headers.starting_values import _MOST_BYTES, _MOST_TENSORS


def model_of(changed: str = "") -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
    if changed:
        with torch.no_grad():
            dict([*model.named_parameters(), *model.named_buffers()])[changed].add_(0.5)
    return model


def trained(folder, run, model, *, tensors=None, evaluated=False):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.linspace(-1, 1, 32).reshape(8, 4)
    with anchorlib.start(run, store=folder, recorder="thread") as session:
        session.watch(model, optimizer=optimizer, tensors=tensors)
        if evaluated:
            model.eval()(x)
            model.train()
        for _ in range(2):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
    return anchorlib.open_run(run, folder)


def test_what_has_no_records_has_a_digest_of_the_first_pass_and_what_has_records_none(tmp_path):
    starts = trained(tmp_path, "a", model_of(), tensors=["0", "0.weight"]).header()["starts"]
    assert set(starts) == {
        *("0.bias", "1.weight", "1.bias", "2.weight", "2.bias"),
        *("1.running_mean", "1.running_var", "1.num_batches_tracked"),
    }
    assert {step for step, _ in starts.values()} == {0}
    again = trained(tmp_path, "b", model_of("2.bias"), tensors=["0", "0.weight"]).header()["starts"]
    assert {name for name in starts if starts[name] != again[name]} == {"2.bias"}


def test_a_parameter_whose_memory_was_given_back_has_no_digest_and_harms_nothing(tmp_path):
    """As FSDP does between the passes; its hooks bring the values back before they are read."""
    model = model_of()
    bare = model[0].weight.data
    bare.untyped_storage().resize_(0)
    model[0].register_forward_pre_hook(lambda module, _args: refill(module))
    starts = trained(tmp_path, "a", model).header()["starts"]
    assert {"0.bias", "2.weight"} <= set(starts)
    assert "0.weight" not in starts


def refill(layer: nn.Linear) -> None:
    with torch.no_grad():
        layer.weight.data.untyped_storage().resize_(4 * layer.weight.numel())
        layer.weight.data.fill_(0.1)


def test_a_storage_whose_digest_was_taken_can_still_be_resized(tmp_path):
    model = model_of()
    trained(tmp_path, "a", model)
    model[2].weight.data.untyped_storage().resize_(0)


@pytest.mark.parametrize(
    ("size", "most"), [(1, _MOST_TENSORS), (_MOST_BYTES // 2, 2)], ids=["tensors", "bytes"]
)
def test_no_more_is_hashed_than_the_bounds_say(size, most):
    told, read = {}, []
    starts = StartingValues(told.__setitem__)
    every = ((f"w{n}", lambda: (read.append(0), (size, b"\1" * 16))[1]) for n in range(9999))
    starts.note(3, every)
    assert len(read) == len(told["starts"]) == most
    assert told["starts"]["w0"] == [3, "01" * 8]


@pytest.mark.parametrize(
    ("changed", "reader"), [("2.weight", "2"), ("2.bias", "2"), ("0.weight", "0")]
)
def test_a_parameter_that_began_unequal_is_named_and_no_operation_is_blamed(
    tmp_path, changed, reader
):
    trained(tmp_path, "a", model_of())
    trained(tmp_path, "b", model_of(changed))
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert found.verdict == "suspect"
    assert (found.origins[0].place.name, found.origins[0].cls) == (reader, "starts_unequal")
    assert f"B began with other values of {changed}" in found.sentence
    assert f"{changed} at the start" in found.config_diff


def test_statistics_that_began_unequal_are_named_where_they_are_read(tmp_path):
    trained(tmp_path, "a", model_of(), evaluated=True)
    trained(tmp_path, "b", model_of("1.running_mean"), evaluated=True)
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert found.origins[0].place.name == "1"
    assert "B began with other values of 1.running_mean" in found.sentence


def test_statistics_are_no_excuse_for_a_fault_of_a_training_that_reads_none(tmp_path):
    faulty = model_of("1.running_mean")
    faulty[1].eps = 0.1
    trained(tmp_path, "a", model_of())
    trained(tmp_path, "b", faulty)
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert (found.verdict, found.origins[0].place.name) == ("unexpected", "1")
    assert "eps 1e-05 | 0.1" in found.sentence


def test_an_operation_with_equal_parameters_is_still_blamed(tmp_path):
    faulty = model_of()
    faulty[2].register_forward_hook(lambda _module, _args, output: output * 1.1)
    trained(tmp_path, "a", model_of())
    trained(tmp_path, "b", faulty)
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert (found.verdict, found.origins[0].place.name) == ("unexpected", "2")


def test_many_tensors_that_began_unequal_are_counted_in_one_entry(tmp_path):
    other = model_of()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(1)
    trained(tmp_path, "a", model_of())
    trained(tmp_path, "b", other)
    found = anchorlib.compare("a", "b", store=tmp_path)
    (entry,) = [name for name in found.config_diff if name.endswith(" at the start")]
    assert entry == "6 of 9 parameters and buffers at the start"
