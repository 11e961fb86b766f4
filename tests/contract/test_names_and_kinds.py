"""Contract, section 1, "Names and kinds": the table, selectors, names that come back."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

import anchorlib
from anchor_server import Collector
from anchorlib import InvalidNameError, Sum, Summary, UnknownTensorError
from tests.cli.made import anchor
from tests.contract.runs import Net, batches, listed, places, recorded
from tests.seeds import examples


def equal(series: anchorlib.Series, expected: list[torch.Tensor]) -> bool:
    """Whether the records are `expected`, bit for bit."""
    return torch.equal(series.to_torch(), torch.stack(expected))


# -- the table: an anchored tensor, or a module's output


def test_the_value_of_an_anchored_tensor_is_that_where_it_was_anchored(store):
    h = torch.tensor([1.0, -2.0])

    def body(_: object) -> None:
        anchorlib.anchor(h, "h")
        h.relu_()
        anchorlib.anchor(h, "h")

    assert recorded(store, body)["h"].values().tolist() == [[1.0, -2.0], [1.0, 0.0]]


def test_the_value_of_a_module_output_is_that_before_the_next_module_changes_it(store):
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(inplace=True))
    x = torch.tensor([[1.0, 2.0], [-3.0, 4.0]])
    expected = nn.functional.linear(x, model[0].weight, model[0].bias).detach()

    def body(session: anchorlib.Session) -> None:
        session.watch(model, tensors=["0@value", "1@value"])
        model(x)

    run = recorded(store, body)
    assert equal(run["0"], [expected])
    assert equal(run["1"], [expected.relu()])


def test_the_grad_of_an_anchored_tensor_is_after_hooks_registered_before_it(store):
    w = torch.ones(2, requires_grad=True)

    def body(_: object) -> None:
        h = w * 3
        h.register_hook(lambda g: g * 10)
        anchorlib.anchor(h, "h")
        h.register_hook(lambda g: g * 100)
        (h * torch.tensor([1.0, 2.0])).sum().backward()

    assert recorded(store, body)["h@grad"].values().tolist() == [[10.0, 20.0]]
    assert w.grad.tolist() == [3000.0, 6000.0]


def test_the_grad_of_a_module_output_is_the_gradient_reaching_it(store):
    net = Net()
    x = next(batches(1))
    hidden = net.fc1(x)
    hidden.retain_grad()
    net.fc2(torch.relu(hidden)).sum().backward()

    def body(session: anchorlib.Session) -> None:
        session.watch(net, tensors=["fc1@grad"])
        net(x).sum().backward()

    assert equal(recorded(store, body)["fc1@grad"], [hidden.grad])


def test_anchored_tensors_and_outputs_have_no_other_kinds(store):
    net = Net()
    optimizer = torch.optim.Adam(net.parameters())

    def body(session: anchorlib.Session) -> None:
        session.watch(net, tensors="*", optimizer=optimizer)
        h = anchorlib.anchor(net(torch.ones(1, 2)), "h")
        h.sum().backward()
        optimizer.step()

    found = listed(recorded(store, body))
    parameters = {name for name, _ in net.named_parameters()}
    for selector in found:
        name, kind = selector.split("@")
        assert name in parameters or kind in ("value", "grad")


# -- the table: a parameter


class Training:
    """Two steps of two micro-batches, clipped; what torch itself says of them, and the run."""

    def __init__(self, store: Path, make: Callable[..., torch.optim.Optimizer], **options: Any):
        self.net = Net()
        mirror = copy.deepcopy(self.net)
        self.kinds: dict[str, list[torch.Tensor]] = {}
        self.run_mirror(mirror, make(mirror.parameters(), **options))
        self.optimizer = make(self.net.parameters(), **options)
        self.run = recorded(store, self.body)

    def body(self, session: anchorlib.Session) -> None:
        session.watch(self.net, tensors=["fc1.weight"], optimizer=self.optimizer)
        session.watch(self.net, tensors=["fc1.weight@opt.*"], optimizer=self.optimizer)
        for pair in self.steps():
            self.optimizer.zero_grad()
            for x in pair:
                self.net(x).sum().backward()
            nn.utils.clip_grad_norm_(self.net.parameters(), 2.0)
            self.optimizer.step()

    @staticmethod
    def steps() -> list[tuple[torch.Tensor, torch.Tensor]]:
        made = list(batches(4))
        return [(made[0], made[1]), (made[2], made[3])]

    def run_mirror(self, net: Net, optimizer: torch.optim.Optimizer) -> None:
        w = net.fc1.weight
        for pair in self.steps():
            self.note("value", w)
            before = w.detach().clone()
            optimizer.zero_grad()
            for x in pair:
                (alone,) = torch.autograd.grad(net(x).sum(), w)
                self.note("pass_grad", alone)
                net(x).sum().backward()
            nn.utils.clip_grad_norm_(net.parameters(), 2.0)
            self.note("grad", w.grad)
            optimizer.step()
            self.note("updated", w)
            self.note("delta", w.detach() - before)
            for key, state in optimizer.state[w].items():
                if isinstance(state, torch.Tensor):
                    self.note(f"opt.{key}", state)

    def note(self, kind: str, x: torch.Tensor) -> None:
        self.kinds.setdefault(kind, []).append(x.detach().clone())


MAKERS: dict[str, tuple[Any, dict[str, Any], set[str]]] = {
    "sgd": (torch.optim.SGD, {"lr": 0.25, "momentum": 0.5}, {"opt.momentum_buffer"}),
    "adam": (torch.optim.Adam, {"lr": 0.125}, {"opt.exp_avg", "opt.exp_avg_sq", "opt.step"}),
}


@pytest.mark.parametrize("maker", MAKERS)
def test_each_kind_of_a_parameter_is_what_torch_says_it_is(store, maker):
    make, options, state = MAKERS[maker]
    training = Training(store, make, **options)
    expected = {"value", "pass_grad", "grad", "updated", "delta", *state}
    assert {info.kind for info in training.run.tensors("fc1.weight")} == expected
    for kind in expected:
        assert equal(training.run[f"fc1.weight@{kind}"], training.kinds[kind]), kind


def numbers_in(key: str, value: Any) -> dict[str, torch.Tensor]:
    """What is to be recorded of one entry of an optimizer's state, by its kind."""
    if value is None:
        return {}
    if isinstance(value, list):
        inside = [numbers_in(f"{key}:{number}", one) for number, one in enumerate(value)]
        return {kind: tensor for one in inside for kind, tensor in one.items()}
    if isinstance(value, float):
        return {key: torch.tensor(value, dtype=torch.float64)}
    return {key: torch.as_tensor(value).detach().clone()}


@pytest.mark.slow
@pytest.mark.parametrize("line_search", [None, "strong_wolfe"])
def test_all_of_an_lbfgs_state_is_what_torch_says_it_is(store, line_search):
    torch.manual_seed(0)
    net, x = nn.Linear(2, 1), torch.randn(8, 2)
    optimizer = torch.optim.LBFGS(
        net.parameters(), lr=0.1, max_iter=4, history_size=3, line_search_fn=line_search
    )
    seen: dict[str, list[torch.Tensor]] = {}

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = torch.cosh(net(x) - 1).sum()
        loss.backward()
        return loss

    def body(session: anchorlib.Session) -> None:
        session.watch(net, tensors="*", optimizer=optimizer)
        for _ in range(3):
            optimizer.step(closure)
            for key, value in optimizer.state[net.weight].items():
                for kind, tensor in numbers_in(f"opt.{key}", value).items():
                    seen.setdefault(kind, []).append(tensor)

    run = recorded(store, body)
    state = {info.kind for info in run.tensors("weight@opt.*")}
    assert state == seen.keys()
    assert state >= {"opt.prev_loss", "opt.func_evals", "opt.old_dirs:2", "opt.ro:0", "opt.al:0"}
    assert run["weight@opt.prev_loss"].dtypes == ["float64"] * 3
    assert run["weight@opt.n_iter"].dtypes == ["int64"] * 3
    for kind, tensors in seen.items():
        found = [record.array.tolist() for record in run[f"weight@{kind}"].records()]
        assert found == [tensor.tolist() for tensor in tensors], kind
    assert run.gaps() == []
    assert anchor("doctor", "run1", "--store", store).code == 0
    assert anchor("compare", "run1", "run1", "--store", store).code == 0
    assert set(listed(run)) >= {f"weight@{kind}" for kind in state}


def test_a_key_of_optimizer_state_names_all_that_its_list_holds(store):
    net = nn.Linear(2, 1)
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=4)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = torch.cosh(net(torch.ones(3, 2))).sum()
        loss.backward()
        return loss

    def body(session: anchorlib.Session) -> None:
        session.watch(net, tensors=["weight@opt.old_dirs", "*@opt.ro:1"], optimizer=optimizer)
        optimizer.step(closure)

    assert listed(recorded(store, body)) == [
        *(f"weight@opt.old_dirs:{number}" for number in range(3)),
        "weight@opt.ro:1",
    ]
    known = [name for name in anchorlib.tensor_names(net, optimizer) if "@opt." in name]
    assert "weight@opt.old_dirs:2" in known
    assert "weight@opt.prev_loss" in known
    assert not {"weight@opt.old_dirs", "weight@opt.al", "weight@opt.al:50"} & set(known)


def test_the_grad_of_a_parameter_is_what_the_optimizer_consumes(store):
    training = Training(store, torch.optim.SGD, lr=1.0)
    run = training.run
    consumed = run["fc1.weight@grad"].values()
    parts = run["fc1.weight@pass_grad"].values().reshape(2, 2, 3, 2)
    assert not np.array_equal(consumed, parts.sum(1)), "clipping changed nothing"
    # What plain SGD consumed, it subtracted.
    before = run["fc1.weight@value"].values()
    assert np.array_equal(before - consumed, run["fc1.weight@updated"].values())


def test_the_grad_of_a_parameter_is_taken_after_a_closure_ran(store):
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.25)
    made = []

    def body(session: anchorlib.Session) -> None:
        session.watch(net, tensors=["fc1.weight@grad"], optimizer=optimizer)
        for x in batches(2):

            def closure(x: torch.Tensor = x) -> torch.Tensor:
                optimizer.zero_grad()
                loss = net(x).sum()
                loss.backward()
                made.append(net.fc1.weight.grad.clone())
                return loss.detach()

            optimizer.step(closure)

    run = recorded(store, body)
    assert equal(run["fc1.weight@grad"], made)
    assert places(run["fc1.weight@grad"]) == [(0, 0, 0), (1, 0, 0)]


def test_a_parameters_value_is_recorded_for_each_steps_first_pass_and_where_its_bits_changed(store):
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)  # each step starts with equal bits

    def body(session: anchorlib.Session) -> None:
        session.watch(net, tensors=["fc1.weight@value", "fc2.weight@value"], optimizer=optimizer)
        for _ in range(2):
            for turn in range(3):
                if turn == 1:
                    net.fc1.weight.data[0, 0] += 1  # as SAM's first step does, past autograd
                net(torch.ones(1, 2)).sum().backward()
            optimizer.step()

    run = recorded(store, body)
    assert places(run["fc1.weight"]) == [(0, 0, 0), (0, 1, 0), (1, 0, 0), (1, 1, 0)]
    assert run["fc1.weight"].values()[:, 0, 0].tolist() == [0, 1, 1, 2]
    assert places(run["fc2.weight"]) == [(0, 0, 0), (1, 0, 0)]


def test_an_eval_forward_between_two_passes_changes_no_parameter(store):
    net = Net()

    def body(session: anchorlib.Session) -> None:
        session.watch(net, tensors=["fc1.weight@value"])
        for _ in range(2):
            net.train()(torch.ones(1, 2)).sum().backward()
            with torch.no_grad():
                net.eval()(torch.ones(1, 2))

    assert places(recorded(store, body)["fc1.weight"].where(phase="train")) == [(0, 0, 0)]


def test_a_pass_grad_under_amp_is_scaled_and_the_scale_is_stored(store):
    model = nn.Linear(2, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)

    def body(session: anchorlib.Session) -> None:
        session.watch(model, tensors=["weight"], optimizer=optimizer)
        scaler.scale(model(torch.tensor([[3.0, 5.0]])).sum()).backward()
        scaler.step(optimizer)

    run = recorded(store, body)
    (made,) = run["weight@pass_grad"].records()
    (consumed,) = run["weight@grad"].records()
    assert made.array.tolist() == [[3 * 256.0, 5 * 256.0]]
    assert made.scale == 256.0
    assert consumed.array.tolist() == [[3.0, 5.0]]
    assert consumed.scale == 1.0


# -- the table: PopTorch's spellings, accepted everywhere

SPELLINGS = {
    "fc1": "fc1@grad fc1@value",
    "Gradient___fc1.weight": "fc1.weight@pass_grad",
    "Gradient___fc1": "fc1@grad",
    "Accum___fc1.weight": "fc1.weight@grad",
    "FinalReducedGradient___fc1.weight": "fc1.weight@grad",
    "UpdatedVar___fc1.weight": "fc1.weight@updated",
    "Accl1___fc1.weight": "fc1.weight@opt.exp_avg",
    "Accl2___fc1.weight": "fc1.weight@opt.exp_avg_sq",
}


def adam_step(session: anchorlib.Session, tensors: Any, net: nn.Module | None = None) -> None:
    net = net or Net()
    optimizer = torch.optim.Adam(net.parameters())
    session.watch(net, tensors=tensors, optimizer=optimizer)
    net(torch.ones(1, 2)).sum().backward()
    optimizer.step()


@pytest.mark.parametrize(("spelling", "meant"), SPELLINGS.items())
def test_watch_accepts_poptorchs_spellings(store, spelling, meant):
    run = recorded(store, lambda session: adam_step(session, [spelling]))
    assert " ".join(sorted(listed(run))) == meant


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store whose run1 holds all that Adam and a small net have."""
    place = tmp_path_factory.mktemp("kinds") / "anchors"
    recorded(place, lambda session: adam_step(session, "*"))
    return place


@pytest.mark.parametrize(("spelling", "meant"), SPELLINGS.items())
def test_readers_accept_poptorchs_spellings(everything, spelling, meant):
    run = anchorlib.open_run("run1", everything)
    found = sorted(f"{info.name}@{info.kind}" for info in run.tensors(spelling))
    assert " ".join(found) == meant
    if " " not in meant:
        assert f"{run[spelling].name}@{run[spelling].kind}" == meant
        assert run.histogram(spelling) == run.histogram(meant)


@pytest.mark.parametrize("spelling", [one for one in SPELLINGS if "___" in one])
def test_the_command_line_accepts_poptorchs_spellings(everything, spelling):
    meant = SPELLINGS[spelling]
    (named,) = anchor("names", "run1", spelling, "--store", everything, "--json").json
    assert f"{named['name']}@{named['kind']}" == meant
    for command in ("hist", "stats", "pull"):
        told = anchor(command, "run1", "-t", spelling, "--store", everything, "--json").json
        (one,) = told if command == "stats" else [told]
        assert f"{one['tensor']}@{one['kind']}" == meant


@pytest.mark.parametrize("spelling", [one for one in SPELLINGS if one != "Gradient___fc1.weight"])
def test_start_and_anchor_tensors_accept_poptorchs_spellings(store, monkeypatch, spelling):
    by_argument = recorded(store, lambda session: adam_step(session, "*"), tensors=[spelling])
    assert " ".join(sorted(listed(by_argument))) == SPELLINGS[spelling]
    monkeypatch.setenv("ANCHOR_TENSORS", spelling)
    by_environment = recorded(store, lambda session: adam_step(session, "*"), "run2")
    assert listed(by_environment) == listed(by_argument)


def test_accl_without_a_number_is_sgds_momentum(store):
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.5)

    def body(session: anchorlib.Session) -> None:
        session.watch(net, tensors=["Accl___fc1.weight"], optimizer=optimizer)
        net(torch.ones(1, 2)).sum().backward()
        optimizer.step()

    run = recorded(store, body)
    assert listed(run) == ["fc1.weight@opt.momentum_buffer"]
    buffer = optimizer.state[net.fc1.weight]["momentum_buffer"]
    assert equal(run["Accl___fc1.weight"], [buffer])


class Traced(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.only_here = nn.Linear(2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.only_here(x)


def test_a_traced_name_resolves_to_the_plain_one_with_a_notice(store, caplog):
    # Names of this test's own: a notice comes once a process for each text.
    with caplog.at_level(logging.WARNING, "anchorlib"):
        run = recorded(
            store, lambda session: adam_step(session, ["Gradient___model.only_here"], Traced())
        )
        assert listed(run) == ["only_here@grad"]
        (notice,) = caplog.records
        assert "Gradient___model.only_here" in notice.getMessage()
        caplog.clear()
        assert run["Gradient___model.only_he*"].name == "only_here"
        (notice,) = caplog.records
        assert "Gradient___model.only_he*" in notice.getMessage()


# -- selectors, as readers take them


@pytest.fixture(scope="module")
def odd_names(tmp_path_factory: pytest.TempPathFactory) -> anchorlib.Run:
    """Names that could mean something else."""
    w = torch.ones(1, requires_grad=True)
    odd = ["a*", "ab", "a@b", "x@grad", "x", "re:a.", "Gradient___x", "fc[12]", "fc1", "fc2", "q?"]

    def body(_: object) -> None:
        for name in [*odd, "qq"]:
            anchorlib.anchor(w * 2, name).sum().backward()

    return recorded(tmp_path_factory.mktemp("odd") / "anchors", body)


def chosen(run: anchorlib.Run, *selectors: str) -> list[str]:
    return [f"{info.name}@{info.kind}" for info in run.tensors(*selectors)]


@pytest.mark.parametrize("name", ["a*", "x@grad", "re:a.", "Gradient___x", "fc[12]", "q?"])
def test_an_exact_name_wins_over_everything(odd_names, name):
    assert chosen(odd_names, name) == [f"{name}@value", f"{name}@grad"]
    assert chosen(odd_names, f"{name}@grad") == [f"{name}@grad"]


def test_without_a_kind_all_kinds_are_meant(odd_names):
    assert chosen(odd_names, "fc1") == ["fc1@value", "fc1@grad"]
    assert chosen(odd_names, "fc1@value") == ["fc1@value"]


def test_an_at_splits_only_before_a_known_kind(odd_names):
    assert chosen(odd_names, "a@b") == ["a@b@value", "a@b@grad"]
    assert chosen(odd_names, "a@b@grad") == ["a@b@grad"]
    with pytest.raises(UnknownTensorError):
        odd_names.tensors("fc1@gradient")


def test_only_a_star_and_a_question_mark_are_wild(odd_names):
    assert chosen(odd_names, "fc?@grad") == ["fc1@grad", "fc2@grad"]
    assert chosen(odd_names, "fc*@value") == ["fc[12]@value", "fc1@value", "fc2@value"]
    assert chosen(odd_names, "*]@value") == ["fc[12]@value"]
    for regular in ("fc[1]", "fc.", "fc1|fc2", "^fc1", "fc{1,2}"):
        with pytest.raises(UnknownTensorError):
            odd_names.tensors(regular)


def test_a_regular_expression_matches_the_whole_name_and_a_kind_may_follow(odd_names):
    assert chosen(odd_names, "re:fc[12]@grad") == ["fc1@grad", "fc2@grad"]
    assert chosen(odd_names, "re:fc[12]") == ["fc1@value", "fc1@grad", "fc2@value", "fc2@grad"]
    with pytest.raises(UnknownTensorError):
        odd_names.tensors("re:fc")


def test_several_selectors_name_each_tensor_once_in_execution_order(odd_names):
    assert chosen(odd_names, "fc2", "fc*@value", "ab") == [
        *("ab@value", "ab@grad", "fc[12]@value", "fc1@value", "fc2@value", "fc2@grad"),
    ]


# -- what watch accepts


def test_every_one_of_tensor_names_is_accepted_by_watch_before_any_step():
    net = Net()
    optimizer = torch.optim.Adam(net.parameters())
    names_of = anchorlib.tensor_names(net, optimizer)
    outputs = [name for name in names_of if name.split("@")[0] in ("fc1", "fc2", "output")]
    assert outputs == [f"{n}@{k}" for n in ("fc1", "fc2", "output") for k in ("value", "grad")]
    for name, _ in net.named_parameters():
        for kind in ("value", "pass_grad", "grad", "updated", "delta"):
            assert f"{name}@{kind}" in names_of
    assert not any(name.endswith("opt.exp_avg") for name in names_of)


def test_tensor_names_lists_outputs_parameters_and_buffers_each_with_its_kinds():
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    names_of = [one for one in anchorlib.tensor_names(model) if not one.startswith("input")]
    outputs = [f"{n}@{k}" for n in ("0", "1", "output") for k in ("value", "grad")]
    parameters = [f"{n}@{k}" for n, _ in model.named_parameters() for k in ("value", "pass_grad")]
    buffers = [f"{name}@value" for name, _ in model.named_buffers()]
    assert names_of == [*outputs, *parameters, *buffers]


def test_by_default_watch_records_outputs_with_gradients_and_parameters_grad(store):
    with_optimizer = recorded(store, lambda session: adam_step(session, None))
    outputs = {f"{n}@{k}" for n in ("fc1", "fc2", "output") for k in ("value", "grad")}
    parameters = [name for name, _ in Net().named_parameters()]
    assert set(listed(with_optimizer)) == outputs | {f"{name}@grad" for name in parameters}

    def body(session: anchorlib.Session) -> None:
        net = Net()
        session.watch(net)
        net(torch.ones(1, 2)).sum().backward()

    without = recorded(store, body, "run2")
    assert set(listed(without)) == outputs | {f"{name}@pass_grad" for name in parameters}


@pytest.mark.parametrize("wrong", ["fc2.bais", "fc2.bias@gard", "Gradient___fc2.bais"])
def test_a_selector_that_matches_nothing_says_did_you_mean_and_registers_nothing(store, wrong):
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)

    def body(session: anchorlib.Session) -> None:
        with pytest.raises(UnknownTensorError, match="did you mean") as caught:
            session.watch(net, tensors=["fc1", wrong], optimizer=optimizer)
        assert isinstance(caught.value, KeyError)
        for _ in range(2):
            anchorlib.anchor(net(torch.ones(1, 2)), "h").sum().backward()
            optimizer.step()

    assert listed(recorded(store, body)) == ["h@value", "h@grad"]
    assert not net.fc1._forward_hooks


def test_optimizer_state_and_further_outputs_that_never_come_are_reported(store, caplog):
    with caplog.at_level(logging.WARNING, "anchorlib"):
        recorded(
            store,
            lambda session: adam_step(session, ["fc1.weight@opt.nothing", "fc1:1", "fc2@value"]),
        )
    for never in ("fc1.weight@opt.nothing", "fc1:1"):
        assert f"'{never}'" in caplog.text
    assert "fc2" not in caplog.text


class Wrapper:
    """An optimizer wrapper, as Accelerate's: it holds the real one as `optimizer`."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer

    def step(self) -> None:
        self.optimizer.step()


def test_an_optimizer_wrapper_is_unwrapped(store):
    net = Net()
    wrapper = Wrapper(torch.optim.SGD(net.parameters(), lr=0.5))

    def body(session: anchorlib.Session) -> None:
        session.watch(net, tensors=["fc1.weight@delta"], optimizer=wrapper)
        for _ in range(2):
            net(torch.ones(1, 2)).sum().backward()
            wrapper.step()

    assert recorded(store, body)["fc1.weight@delta"].columns["step"].tolist() == [0, 1]


def test_watching_again_adds_modes(store):
    net = Net()

    def body(session: anchorlib.Session) -> None:
        session.watch(net, tensors=["fc1@value"])
        session.watch(net, tensors=["fc1@value", "fc2@value"], mode=Sum("run"))
        session.watch(net, tensors=["fc1@value"], mode=Summary)
        for x in batches(2):
            net(x)

    run = recorded(store, body)
    assert {(t.name, t.mode) for t in run.tensors()} == {
        ("fc1", "all"),
        ("fc1", "sum:window=run"),
        ("fc1", "summary"),
        ("fc2", "sum:window=run"),
    }


# -- names of what a model has


class Several(nn.Module):
    """Two inputs, a tuple from one module, a dict from another."""

    class Pair(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x + 1, x + 2

    class Named(nn.Module):
        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"logits": x + 3, "state": x + 4}

    def __init__(self) -> None:
        super().__init__()
        self.pair = self.Pair()
        self.named = self.Named()

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.pair(x)[0] + self.named(y)["logits"]


def test_outputs_are_named_by_their_path_further_ones_by_place_or_key(store):
    model = Several()

    def body(session: anchorlib.Session) -> None:
        session.watch(model, tensors="*")
        model(torch.tensor([10.0]), torch.tensor([20.0]))

    run = recorded(store, body)
    values = {info.name: run[info.name].values()[0].tolist() for info in run.tensors()}
    assert values == {
        "input": [10.0],
        "input:1": [20.0],
        "pair": [11.0],
        "pair:1": [12.0],
        "named:logits": [23.0],
        "named:state": [24.0],
        "output": [34.0],
    }


def test_a_prefix_makes_fc1_encoder_fc1(store):
    def body(session: anchorlib.Session) -> None:
        for prefix in ("encoder", "decoder"):
            net = Net()
            session.watch(net, tensors=[f"{prefix}.fc1@value", f"{prefix}.fc?.bias"], prefix=prefix)
            net(torch.ones(1, 2)).sum().backward()

    assert sorted(listed(recorded(store, body))) == [
        f"{prefix}.{rest}"
        for prefix in ("decoder", "encoder")
        for rest in (
            *("fc1.bias@pass_grad", "fc1.bias@value", "fc1@value"),
            *("fc2.bias@pass_grad", "fc2.bias@value"),
        )
    ]


class Owner(nn.Module):
    """A user's own module called `module`."""

    def __init__(self) -> None:
        super().__init__()
        self.module = nn.Sequential(nn.Linear(2, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.module(x)


class LooksLikeFsdp(nn.Module):
    """What FSDP names the module it wraps; FSDP itself needs an accelerator."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._fsdp_wrapped_module = module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._fsdp_wrapped_module(x)


@pytest.mark.parametrize(
    "wrap",
    [
        nn.DataParallel,
        partial(torch.compile, backend="eager"),
        checkpoint_wrapper,
        LooksLikeFsdp,
    ],
    ids=["module", "_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module"],
)
def test_what_wrappers_add_never_appears_and_a_users_own_module_keeps_its_name(wrap):
    plain = anchorlib.tensor_names(Owner())
    assert "module.0.weight@value" in plain
    assert anchorlib.tensor_names(wrap(Owner())) == plain
    inside = Owner()
    inside.module[0] = wrap(inside.module[0])
    assert anchorlib.tensor_names(inside) == plain


# -- names as text

HOSTILE = [
    "\x1b[31mred",
    "line\nbreak",
    "tab\t\x00nul",
    "\u202eright",
    "../up",
    "a/b",
    " ",
    "@",
    "é" * 512,
]


@pytest.mark.parametrize("wrong", ["", "x" * 1025, "é" * 513, "\ud800", 7, None])
def test_a_name_is_a_nonempty_str_of_at_most_1024_bytes(store, wrong):
    def body(_: object) -> None:
        with pytest.raises(InvalidNameError) as caught:
            anchorlib.anchor(torch.ones(1), wrong)
        assert isinstance(caught.value, ValueError)
        assert isinstance(caught.value, anchorlib.AnchorError)
        anchorlib.anchor(torch.ones(1), "x" * 1024)

    assert listed(recorded(store, body)) == ["x" * 1024 + "@value"]


@pytest.mark.parametrize("wrong", ["", ".run", "-run", "-", "a/b", "a b", "x" * 65, "é", "run\n"])
def test_a_run_name_that_breaks_the_pattern_is_a_value_error_and_an_anchor_error(store, wrong):
    with pytest.raises(ValueError, match="name a run") as caught:
        anchorlib.start(wrong, store=store)
    assert isinstance(caught.value, anchorlib.AnchorError)


@pytest.mark.parametrize("right", ["a", "A-z_0.9", "_", "_-", "x" * 64, "run..1"])
def test_a_run_name_that_keeps_the_pattern_is_accepted(store, right):
    recorded(store, lambda _: anchorlib.anchor(torch.ones(1), "x"), right)
    assert (store / f"{right}.zarr").is_dir()


def anchor_each(those: list[str]) -> Callable[[object], None]:
    def body(_: object) -> None:
        for number, name in enumerate(those):
            anchorlib.anchor(torch.tensor(float(number)), name)

    return body


def test_names_come_back_exactly_control_characters_included(store):
    run = recorded(store, anchor_each(HOSTILE))
    assert [info.name for info in run.tensors()] == HOSTILE
    for number, name in enumerate(HOSTILE):
        assert run.series(name).values().tolist() == [number]
        assert run[f"{name}@value"].name == name


NAMES = st.text("aA./\\_0@*?:%\x00\x1b\n é\u202e", min_size=1, max_size=20)


@pytest.mark.slow
@settings(max_examples=examples(15), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(those=st.lists(NAMES, min_size=1, max_size=8, unique=True))
def test_any_names_come_back_exactly(tmp_path, those):
    run = recorded(tmp_path, anchor_each(those), overwrite=True)
    assert [info.name for info in run.tensors()] == those
    assert [run.series(name).values().tolist() for name in those] == [
        [n] for n in range(len(those))
    ]


def test_names_come_back_exactly_through_a_collector_and_the_command_line(tmp_path):
    with Collector(tmp_path, bind="127.0.0.1:0") as collector:
        place = f"grpc://{collector.address}"
        run = recorded(place, anchor_each(HOSTILE), on_full="block")
        assert [info.name for info in run.tensors()] == HOSTILE
        told = anchor("names", "run1", "--store", place, "--json").json
        assert [entry["name"] for entry in told] == HOSTILE


def is_shown_safely(text: str) -> bool:
    return all(character.isprintable() for character in text) and "\u202e" not in text


@pytest.mark.parametrize("name", HOSTILE[:4])
def test_names_are_escaped_in_errors_and_reprs_of_readers(store, name):
    run = recorded(store, anchor_each([name]), mode=Summary)
    shown = [repr(run), repr(run[name]), str(run[name])]
    for wrong in (
        lambda: run[f"{name}x"],
        lambda: run.series(name, "grad"),
        lambda: run.series(name, mode=Sum),
        run[name].values,
        lambda: run[name].at(step=9),
    ):
        with pytest.raises(anchorlib.AnchorError) as caught:
            wrong()
        shown.append(str(caught.value))
    assert all(map(is_shown_safely, shown)), shown


def test_names_are_escaped_where_a_record_says_that_its_values_were_not_kept(store):
    run = recorded(store, anchor_each([HOSTILE[0]]), mode=Summary)
    with pytest.raises(anchorlib.ValuesNotKeptError) as caught:
        _ = run[HOSTILE[0]].at(step=0).array
    assert is_shown_safely(str(caught.value))


def test_names_are_escaped_in_a_mode_error(store):
    session = anchorlib.start("run1", store=store)
    anchorlib.anchor(torch.ones(1), HOSTILE[0], Sum)
    anchorlib.anchor(torch.ones(2), HOSTILE[0], Sum)
    with pytest.raises(anchorlib.ModeError) as caught:
        session.close()
    assert is_shown_safely(str(caught.value))


@pytest.mark.slow
def test_names_are_escaped_where_the_queue_is_full(store, caplog):
    session = anchorlib.start("run1", store=store, on_full="raise", queue_bytes=1)
    anchorlib.anchor(torch.zeros(8 << 20), "large")
    anchorlib.anchor(torch.ones(1), HOSTILE[0])
    with pytest.raises(anchorlib.QueueFullError) as caught:
        session.close()
    assert is_shown_safely(str(caught.value))
    assert all(is_shown_safely(record.getMessage()) for record in caplog.records)


class Odd(nn.Module):
    """A module under a name that would colour a terminal, whose output nobody can record."""

    def __init__(self) -> None:
        super().__init__()
        self.add_module(HOSTILE[0], nn.Identity())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._modules[HOSTILE[0]](x)


class Sealed(torch.Tensor):
    """A tensor subclass that no anchor can look into."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def test_names_are_escaped_in_the_log(store, caplog):
    model = Odd()
    sealed = torch.ones(1).as_subclass(Sealed)

    def body(session: anchorlib.Session) -> None:
        session.watch(model, tensors=[HOSTILE[0]])
        model(sealed)

    recorded(store, body)
    logged = [record.getMessage() for record in caplog.records]
    assert any("31mred" in text for text in logged)
    assert all(map(is_shown_safely, logged))


@pytest.mark.parametrize(
    "command", [["names"], ["hist", "-t"], ["stats", "-t"], ["pull", "-o", "-", "-t"]]
)
def test_names_are_escaped_by_every_command(store, command):
    recorded(store, anchor_each(["\x1b[31mred\u202e", "b"]))
    done = anchor(command[0], "run1", *command[1:], "\x1b[31mred\u202e", "--store", store)
    wrong = anchor(command[0], "run1", *command[1:], "\x1b[31mrod\u202e", "--store", store)
    assert (done.code, wrong.code) == (0, 2)
    for line in (done.out + done.err + wrong.err).splitlines():
        assert is_shown_safely(line)
    assert "\\x1b[31mred\\u202e" in wrong.err
