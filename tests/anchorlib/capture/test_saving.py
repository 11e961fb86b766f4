"""A watched model is saved, copied and sent to other processes as if nobody watched it."""

from __future__ import annotations

import copy
import copyreg
import importlib
import io
import pickle
import subprocess
import sys
from collections import OrderedDict
from multiprocessing.reduction import ForkingPickler

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.package import PackageExporter
from torch.utils.hooks import RemovableHandle

from anchorlib.capture.own_hooks import OwnHook, add_hook, leave_out_of_copies
from tests.recording import recording
from tests.seeds import examples


def doubles(_module, _args, output):
    """A hook of the user's."""
    return output * 2


def shifts(_module, args):
    """Another one, before the forward."""
    return (args[0] + 1, *args[1:])


class Own(nn.Module):
    """A model that says by itself what of it is saved."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 3)
        self.handle = self.inner.register_forward_hook(doubles)

    def __getstate__(self):
        return dict(vars(self), saved=True)

    def forward(self, x):
        return self.inner(x)


class Whole(torch.optim.SGD):
    """An optimizer that saves all that it has."""

    def __getstate__(self):
        return dict(vars(self))


class Rests(OwnHook):
    """A hook of ours that does nothing."""

    def __call__(self, *_of_call):
        pass


def torch_saved(thing):
    file = io.BytesIO()
    torch.save(thing, file)
    return file.getvalue()


def pickled(thing, pickler=pickle.Pickler):
    """As pickle writes it, but for where its tensors lie in memory."""

    class Pickler(pickler):
        def persistent_id(self, one):
            return repr(one) if isinstance(one, torch.Tensor) else None

    file = io.BytesIO()
    Pickler(file).dump(thing)
    return file.getvalue()


def packaged(thing):
    file = io.BytesIO()
    with PackageExporter(file) as package:
        package.extern("**")
        package.save_pickle("model", "model.pkl", thing)
    return file.getvalue()


def sent(thing):
    """What of its hooks goes to another process; tensors go as open files, no two the same."""
    held = [vars(one) for one in thing.modules()] if isinstance(thing, nn.Module) else [vars(thing)]
    hooks = [{key: some for key, some in one.items() if "hooks" in key} for one in held]
    return bytes(ForkingPickler.dumps(hooks))


WAYS = {
    "torch.save": torch_saved,
    "torch.save of a dict of both": lambda thing: torch_saved({"it": thing, "again": [thing]}),
    "pickle": pickled,
    "pickle written in Python": lambda thing: pickled(thing, pickle._Pickler),
    "deepcopy": lambda thing: torch_saved(copy.deepcopy(thing)),
    "deepcopy of its state": lambda thing: pickled(copy.deepcopy(vars(thing))),
    "torch.package": packaged,
    "torch.multiprocessing": sent,
}


def network(draw):
    """A model and an optimizer of it, with hooks of the user's: the same for the same draws."""
    torch.manual_seed(0)
    parts = [nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Sequential(nn.Tanh(), nn.Linear(3, 3)), Own()]
    model = nn.Sequential(*(parts[at] for at in draw["order"]))
    hooked(model, draw["before"])
    kind = Whole if draw["whole"] else torch.optim.Adam
    return model, kind(model.parameters(), lr=0.1)


def hooked(model, some):
    modules = list(model.modules())
    for at, before in some:
        module = modules[at % len(modules)]
        if before:
            module.register_forward_pre_hook(shifts, prepend=at % 2 == 0)
        else:
            module.register_forward_hook(doubles, prepend=at % 2 == 0, always_call=at % 3 == 0)


def trained(model, optimizer):
    torch.manual_seed(1)
    for _ in range(2):
        loss = model(torch.randn(4, 3)).pow(2).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    optimizer.zero_grad()


SOME_HOOKS = st.lists(st.tuples(st.integers(0, 8), st.booleans()), max_size=3)
DRAWS = st.fixed_dictionaries(
    {
        "order": st.lists(st.integers(0, 3), min_size=1, max_size=4, unique=True),
        "before": SOME_HOOKS,
        "after": SOME_HOOKS,
        "whole": st.booleans(),
    }
)


@pytest.mark.slow
@settings(max_examples=examples(15))
@given(DRAWS)
@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated:UserWarning")
def test_what_is_saved_of_a_watched_model_is_byte_for_byte_what_is_saved_of_its_twin(draw):
    def saved(model, optimizer):
        return {way: (save(model), save(optimizer)) for way, save in WAYS.items()}

    first = RemovableHandle.next_id  # torch numbers hooks on through a process
    model, optimizer = network(draw)
    hooked(model, draw["after"])
    trained(model, optimizer)
    expected = saved(model, optimizer)
    RemovableHandle.next_id = first
    model, optimizer = network(draw)
    with recording() as run:
        run.session.watch(model, tensors="*", optimizer=optimizer)
        hooked(model, draw["after"])
        trained(model, optimizer)
        assert saved(model, optimizer) == expected
        assert run.at("output") == [(0, 0, 0), (1, 0, 0)]
    assert saved(model, optimizer) == expected


LOADED = """
import copy, sys
sys.modules["anchorlib"] = None
import torch
from torch import nn
from net import Net

safe = [Net, nn.Linear, nn.Sequential, nn.Tanh, set]
for name in ("model", "copy"):
    with torch.serialization.safe_globals(safe):
        model = torch.load(name, weights_only=True)
    again = copy.deepcopy(torch.load(name, weights_only=False))
    compiled = torch.compile(again, backend="eager", fullgraph=True)
    print(torch.equal(model(torch.ones(2, 3)), compiled(torch.ones(2, 3))))
    print([len(one._forward_hooks) + len(one._forward_pre_hooks) for one in model.modules()])
print(type(torch.load("optimizer", weights_only=False)).__name__)
"""

NET = """
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 3), nn.Tanh())

    def forward(self, x):
        return self.body(x)
"""


@pytest.mark.slow
def test_a_saved_model_is_loaded_without_anchorlib_and_with_weights_only(tmp_path, monkeypatch):
    (tmp_path / "net.py").write_text(NET)
    monkeypatch.syspath_prepend(tmp_path)
    model = importlib.import_module("net").Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with recording() as run:
        run.session.watch(model, tensors="*", optimizer=optimizer)
        torch.save(model, tmp_path / "model")
        torch.save(copy.deepcopy(model), tmp_path / "copy")
        torch.save(optimizer, tmp_path / "optimizer")
    done = subprocess.run(
        [sys.executable, "-c", LOADED], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("True\n[0, 0, 0, 0]\n" * 2 + "SGD\n", "")


def test_an_average_of_a_watched_model_has_no_hook_of_ours():
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    with recording() as run:
        run.session.watch(model, tensors="*")
        average = torch.optim.swa_utils.AveragedModel(model)
        assert not any(one._forward_hooks or one._forward_pre_hooks for one in average.modules())
        average(torch.ones(2, 3))
        average.update_parameters(model)
        shallow = copy.copy(model[0])  # shares its dicts of hooks
        shallow(torch.ones(2, 3))
        assert run.names() == []
        model(torch.ones(2, 3))
        assert run.at("0") == [(0, 0, 0)]


def test_the_programs_own_way_to_pickle_an_ordered_dict_holds_and_is_there_afterwards(monkeypatch):
    def own(whole):
        return OrderedDict, (sorted(whole.items()),)

    monkeypatch.setitem(copyreg.dispatch_table, OrderedDict, own)
    model = nn.Linear(3, 3)
    with recording() as run:
        run.session.watch(model)
        assert list(pickle.loads(pickle.dumps(OrderedDict(b=1, a=2)))) == ["a", "b"]
        assert not copy.deepcopy(model)._forward_hooks
    assert copyreg.dispatch_table[OrderedDict] is own


def test_without_a_session_nothing_stands_between_a_program_and_pickle():
    with recording() as run:
        run.session.watch(nn.Linear(3, 3))
    assert OrderedDict not in copyreg.dispatch_table


@pytest.mark.parametrize("first", [0, 1])
def test_a_session_that_begins_while_another_closes_leaves_nothing_behind(first):
    ends = [leave_out_of_copies(), leave_out_of_copies()]
    ends[first]()
    whole = OrderedDict(mine=1)
    add_hook(whole, Rests())
    assert list(pickle.loads(pickle.dumps(whole))) == ["mine"]
    ends[1 - first]()
    assert OrderedDict not in copyreg.dispatch_table
