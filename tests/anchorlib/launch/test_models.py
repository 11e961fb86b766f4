"""Which models are watched, under which names: the same at a second start."""

from __future__ import annotations

import numpy as np
import pytest

from tests.anchorlib.launch.launching import PLAIN

HEAD = """
import copy, io
import torch
from torch import nn
from torch.optim import SGD

torch.manual_seed(0)

def train(optimizers, forward, steps=2):
    for step in range(steps):
        for one in optimizers:
            one.zero_grad()
        forward(torch.ones(2, 3)).sum().backward()
        for one in optimizers:
            one.step()
"""

SAM = """
class SAM(torch.optim.Optimizer):
    def __init__(self, parameters, base, **options):
        super().__init__(parameters, dict(options))
        self.base_optimizer = base(self.param_groups, **options)
        self.param_groups = self.base_optimizer.param_groups

    @torch.no_grad()
    def step(self, closure=None):
        self.base_optimizer.step()

net = nn.Linear(3, 2)
train([SAM(net.parameters(), SGD, lr=0.1)], net)
"""

PROGRAMS = {
    "one model": (
        "net = nn.Linear(3, 2)\ntrain([SGD(net.parameters(), 0.1)], net)",
        {"weight", "bias"},
    ),
    "two models, by their variables": (
        "first, second = nn.Linear(3, 3), nn.Linear(3, 2)\n"
        "train([SGD(m.parameters(), 0.1) for m in (first, second)], lambda x: second(first(x)))",
        {"first.weight", "first.bias", "second.weight", "second.bias"},
    ),
    "models in a list": (
        "models = [nn.Linear(3, 3) for _ in range(2)]\noptimizers = []\n"
        "for m in models:\n    optimizers.append(SGD(m.parameters(), 0.1))\n"
        "train(optimizers, lambda x: models[1](models[0](x)))",
        {"models.0.weight", "models.0.bias", "models.1.weight", "models.1.bias"},
    ),
    "models in one optimizer": (
        "class Agent:\n    def __init__(self):\n"
        "        self.actor, self.critic = nn.Linear(3, 3), nn.Linear(3, 2, bias=False)\n"
        "        self.opt = SGD([*self.actor.parameters(), *self.critic.parameters()], 0.1)\n"
        "agent = Agent()\ntrain([agent.opt], lambda x: agent.critic(agent.actor(x)))",
        {"actor.weight", "actor.bias", "critic.weight"},
    ),
    "models without a name": (
        "def pair():\n    return [(m := nn.Linear(3, 3)).forward, SGD(m.parameters(), 0.1)]\n"
        "def make():\n    return pair()\n"
        "one, two = make(), make()\ntrain([one[1], two[1]], lambda x: two[0](one[0](x)))",
        {"Linear.weight", "Linear.bias", "Linear_2.weight", "Linear_2.bias"},
    ),
    "a part built late": (
        "net = nn.Linear(3, 3)\nopt = SGD(net.parameters(), 0.1)\ntrain([opt], net)\n"
        "head = nn.Linear(3, 2)\nopt.add_param_group({'params': head.parameters()})\n"
        "train([opt], lambda x: head(net(x)))",
        {"weight", "bias", "head.weight", "head.bias"},
    ),
    "a layer that thaws": (
        "net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))\n"
        "opt = SGD(net[1].parameters(), 0.1)\ntrain([opt], net)\n"
        "opt.add_param_group({'params': net[0].parameters()})\ntrain([opt], net)",
        {"0.weight", "0.bias", "1.weight", "1.bias"},
    ),
    "the folds of a cross-validation": (
        "def fit(model):\n    train([SGD(model.parameters(), 0.1)], model)\n"
        "for fold in range(3):\n    net = nn.Linear(3, 2)\n    fit(net)",
        {"weight", "bias"},
    ),
    "folds whose models are freed at once": (
        "import gc\ndef fit(model):\n    train([SGD(model.parameters(), 0.1)], model)\n"
        "for fold in range(3):\n    net = nn.Linear(3, 2)\n    fit(net)\n"
        "    del net\n    gc.collect()",
        {"weight", "bias"},
    ),
    "a copy and a loaded model": (
        "file = io.BytesIO()\ntorch.save(nn.Linear(3, 3), file)\nfile.seek(0)\n"
        "net = copy.deepcopy(torch.load(file, weights_only=False))\n"
        "opt = SGD(net.parameters(), 0.1)\nnet.load_state_dict(nn.Linear(3, 3).state_dict())\n"
        "net.to('cpu')\ntrain([opt], net)",
        {"weight", "bias"},
    ),
    "a shared part, also held elsewhere": (
        "class Twice(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.a = nn.Sequential(nn.Linear(3, 3))\n"
        "        self.b = nn.Sequential(self.a[0])\n"
        "    def forward(self, x):\n        return self.b(self.a(x))\n"
        "net = Twice()\nkept = nn.ModuleList([net])\nother = nn.ModuleDict({'net': net})\n"
        "train([SGD(net.parameters(), 0.1)], net)",
        {"a.0.weight", "a.0.bias"},
    ),
    "an optimizer that makes another": (SAM, {"weight", "bias"}),
    "compiled afterwards": (
        "net = nn.Sequential(nn.Linear(3, 2))\nopt = SGD(net.parameters(), 0.1)\n"
        "net = torch.compile(net, backend='eager')\ntrain([opt], net)",
        {"0.weight", "0.bias"},
    ),
    "compiled before": (
        "net = torch.compile(nn.Sequential(nn.Linear(3, 2)), backend='aot_eager')\n"
        "train([SGD(net.parameters(), 0.1)], net)",
        {"0.weight", "0.bias"},
    ),
}


# Each is near to another idiom that `make test` runs.
REPEATED = {"models in a list", "folds whose models are freed at once", "compiled before"}


@pytest.mark.parametrize(
    "idiom",
    [pytest.param(idiom, marks=[pytest.mark.long] * (idiom in REPEATED)) for idiom in PROGRAMS],
)
def test_every_model_that_an_optimizer_updates_has_names_that_a_second_start_gives_again(
    warm, idiom
):
    body, expected = PROGRAMS[idiom]
    program = warm.program(HEAD + body)
    done = warm.observed(program, options=("--watch", "*@grad"))
    assert done.code == 0, done.err
    assert len(done.said) == 1, done.err
    parameters = {name for name in warm.names() if name.endswith(("weight", "bias"))}
    assert parameters == expected
    assert warm.observed(program, name="again", options=("--watch", "*@grad")).code == 0
    assert "IDENTICAL" in warm.anchor("compare", "run1", "again").out


def test_a_layer_that_thaws_is_recorded_from_the_step_in_which_it_does(warm):
    warm.observed(warm.program(HEAD + PROGRAMS["a layer that thaws"][0]))
    run = warm.run()
    assert run["1.weight@grad"].columns["step"].tolist() == [0, 1, 2, 3]
    assert run["0.weight@grad"].columns["step"].tolist() == [2, 3]
    assert run["1@value"].columns["call"].tolist() == [0, 0, 0, 0]


def test_folds_go_on_in_the_steps_that_follow_and_earlier_models_are_let_go(warm):
    body = PROGRAMS["the folds of a cross-validation"][0]
    done = warm.observed(
        warm.program(
            HEAD + body.replace("    fit(net)", "    fit(net)\n    kept.append(weakref.ref(net))")
            .replace("for fold", "import gc, weakref\nkept = []\nfor fold")
            + "\ngc.collect()\nassert [one() is None for one in kept] == [True, True, False]"
            "\ndel net\ngc.collect()\nassert kept[2]() is None\nprint('all gone')"
        )
    )  # fmt: skip
    assert done.out == "all gone\n"
    run = warm.run()
    assert run["weight@grad"].columns["step"].tolist() == list(range(6))
    assert run["output@value"].columns["step"].tolist() == list(range(6))


def test_of_two_optimizers_that_alternate_the_one_made_last_ends_the_step(warm):
    warm.observed(warm.program(HEAD + PROGRAMS["two models, by their variables"][0]))
    run = warm.run()
    for name in ("first.weight", "second.weight"):
        assert run[f"{name}@grad"].columns["step"].tolist() == [0, 1]


def test_selectors_may_name_a_tensor_of_one_model_alone(warm):
    body = PROGRAMS["two models, by their variables"][0].replace("3, 2", "3, 2, bias=False")
    options = ("--watch", "bias@grad", "--watch", "second.weight@delta")
    done = warm.observed(warm.program(HEAD + body), options=options)
    assert len(done.said) == 1, done.err
    assert warm.names() == {"first.bias", "second.weight", "loss"}


def test_parts_that_are_called_by_themselves_say_how_the_model_runs(warm):
    body = """
class Steps(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(3, 2)

    def training_step(self, x):
        return self.net(x)

model = Steps()
opt = SGD(model.parameters(), 0.1)
model.eval()
with torch.no_grad():
    model.training_step(torch.ones(2, 3))
model.train()
train([opt], model.training_step)
"""
    warm.observed(warm.program(HEAD + body))
    columns = warm.run()["net@value"].columns
    found = list(zip(columns["phase"].tolist(), columns["step"].tolist(), strict=True))
    assert found == [("eval", 0), ("train", 0), ("train", 1)]
    assert set(columns["call"].tolist()) == {0}


def test_weights_are_those_of_the_unobserved_program(warm):
    program = warm.program(PLAIN)
    alone = warm.python(program)
    watched = warm.observed(program, options=("--watch", "*"))
    assert watched.out == alone.out
    updated = warm.run()["0.weight@updated"].values()
    assert repr(float(np.sum(updated[-1].astype(np.float64)))) == alone.out.strip()


VARIABLES = """
import weakref

class Large:
    pass

class Lazy:
    @property
    def __class__(self):
        print("woken")
        return Large

def main(rate=0.1):
    large, lazy = Large(), Lazy()
    alive = weakref.ref(large)
    net, other = nn.Linear(3, 3), nn.Linear(3, 2)
    optimizers = [SGD(net.parameters(), rate), SGD(other.parameters(), rate)]
    del large
    print(alive() is None)
    train(optimizers, lambda x: other(net(x)))

def configured(rate=0.1):
    configuration = locals()
    exec("hidden = 1")
    net = nn.Linear(3, 3)
    optimizer = SGD(net.parameters(), rate)
    print(sorted(configuration), eval("hidden"))

configured()
main()
"""


def test_variables_of_the_program_live_and_end_as_without_us(warm):
    program = warm.program(HEAD + VARIABLES)
    alone = warm.python(program)
    assert alone.out.splitlines() == ["['configuration', 'hidden', 'rate'] 1", "True"]
    assert warm.observed(program).out == alone.out
    assert {"net.weight", "other.weight"} <= warm.names()


ONE_A_PARAMETER = """
import sys
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(*(nn.Linear(2, 2) for _ in range(64)))
parameters, optimizers = list(net.parameters()), []

def calls_for(some):
    calls = 0
    def count(frame, event, argument):
        nonlocal calls
        calls += event in ("call", "c_call")
    sys.setprofile(count)
    for one in some:
        optimizers.append(torch.optim.Adam([one], lr=0.1))
    sys.setprofile(None)
    return calls

calls_for(parameters[:32])
early = calls_for(parameters[32:64])
calls_for(parameters[64:96])
late = calls_for(parameters[96:])
assert late <= early * 1.1, (early, late)
for step in range(2):
    loss = net(torch.randn(3, 2)).pow(2).mean()
    loss.backward()
    for one in optimizers:
        one.step()
        one.zero_grad()
print(repr(net[0].weight.double().sum().item()))
"""


def test_hundreds_of_optimizers_of_one_model_cost_the_same_each_and_are_all_recorded(warm):
    program = warm.program(ONE_A_PARAMETER)
    alone = warm.python(program)
    done = warm.observed(program, options=("--watch", "*"))
    assert (done.code, done.out, alone.err) == (0, alone.out, ""), done.err
    run = warm.run()
    for name in ("0.weight", "3.bias", "40.weight", "63.bias"):
        for kind in ("grad", "updated", "delta", "opt.exp_avg"):
            assert run[f"{name}@{kind}"].columns["step"].tolist() == [0, 1]
    assert run["output@value"].columns["step"].tolist() == [0, 1]
    assert run["loss@value"].columns["step"].tolist() == [0, 1]


SAVED_WHOLE = """
import torch
from torch import nn

class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.rnn = nn.Embedding(11, 4), nn.LSTM(4, 4)
        self.decoder = nn.Linear(4, 11)

    def forward(self, x):
        return self.decoder(self.rnn(self.encoder(x))[0])

def epoch(model, optimizer):
    model.train()
    for batch in range(2):
        loss = nn.functional.cross_entropy(model(words[:-1]).view(-1, 11), words[1:].view(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

torch.manual_seed(0)
words = torch.randint(0, 11, (6, 3))
model = Words()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
for number in range(2):
    epoch(model, optimizer)
    with open("model.pt", "wb") as file:
        torch.save(model, file)
with torch.serialization.safe_globals([Words, nn.Embedding, nn.LSTM, nn.Linear, set]):
    with open("model.pt", "rb") as file:
        model = torch.load(file)
model.rnn.flatten_parameters()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
epoch(model, optimizer)
print(repr(model.decoder.weight.double().sum().item()))
"""


def test_a_model_that_is_saved_whole_is_loaded_with_its_safe_globals_and_recorded_on(warm):
    program = warm.program(SAVED_WHOLE)
    alone = warm.python(program)
    expected = (warm.place / "model.pt").read_bytes()
    done = warm.observed(program, options=("--watch", "*"))
    assert (done.code, done.out, alone.code) == (0, alone.out, 0), done.err
    assert (warm.place / "model.pt").read_bytes() == expected
    run = warm.run()
    assert run["decoder.weight@grad"].columns["step"].tolist() == list(range(6))
    assert run["decoder@value"].columns["step"].tolist() == list(range(6))
