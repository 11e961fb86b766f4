"""Models that are trained and asked as PopTorch's are."""

from __future__ import annotations

import contextlib
import gc
import threading

import pytest
import torch
from torch import nn

import anchorlib
import anchorlib.poptorch as poptorch
from anchorlib import UnknownTensorError
from anchorlib.capture import active_session
from anchorlib.poptorch import OutputMode
from tests.anchorlib.poptorch.models import Identity, Net, Plus


@contextlib.contextmanager
def refused(kind, match):
    with pytest.raises(kind, match=match) as caught:
        yield
    assert isinstance(caught.value, poptorch.Error)
    assert isinstance(caught.value, RuntimeError)


def net(seed=0):
    torch.manual_seed(seed)
    return Net()


def data(rows=4):
    torch.manual_seed(1)
    return torch.randn(rows, 10), torch.randn(rows, 10)


# -- training is torch's


def test_training_computes_what_a_plain_loop_computes():
    anchored, plain = net(), net()
    options = poptorch.Options().deviceIterations(3)
    options.anchorTensor("g", "Gradient___fc2.bias")
    model = poptorch.trainingModel(anchored, options, torch.optim.SGD(anchored.parameters(), 0.1))
    optimizer = torch.optim.SGD(plain.parameters(), 0.1)
    x, y = data(12)
    for _ in range(3):
        output, loss = model(x, y)
        for at in range(0, 12, 4):
            optimizer.zero_grad()
            out, expected = plain(x[at : at + 4], y[at : at + 4])
            expected.backward()
            optimizer.step()
        assert torch.equal(output, out)
        assert torch.equal(loss, expected)
    for mine, theirs in zip(anchored.parameters(), plain.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    assert torch.equal(model.getAnchoredTensor("g"), plain.fc2.bias.grad)
    assert loss.dim() == 0
    assert not loss.requires_grad


@pytest.mark.parametrize("reduction", [poptorch.ReductionType.Mean, poptorch.ReductionType.Sum])
def test_accumulated_gradients_are_averaged_unless_they_are_to_be_summed(reduction):
    whole, parts = net(), net()
    x, y = data(8)
    poptorch.trainingModel(whole, None, poptorch.optim.SGD(whole.parameters(), lr=0.1))(x, y)
    options = poptorch.Options()
    options.Training.gradientAccumulation(2).accumulationAndReplicationReductionType(reduction)
    rate = 0.1 if reduction is poptorch.ReductionType.Mean else 0.05
    model = poptorch.trainingModel(parts, options, poptorch.optim.SGD(parts.parameters(), lr=rate))
    model(x, y)
    for one, other in zip(whole.parameters(), parts.parameters(), strict=True):
        assert torch.allclose(one, other, atol=1e-7)


def test_the_accumulated_gradient_is_the_mean_of_those_of_the_micro_batches():
    options = poptorch.Options()
    options.Training.gradientAccumulation(4)
    options.anchorTensor("each", "Gradient___fc2.weight", OutputMode.All)
    options.anchorTensor("all", "Accum___fc2.weight")
    options.anchorTensor("sum", "Gradient___fc2.weight", OutputMode.Sum)
    model = poptorch.trainingModel(net(), options)
    model(*data(8))
    each = model.getAnchoredTensor("each").reshape(4, 10, 10)
    assert torch.allclose(each.mean(0), model.getAnchoredTensor("all"), atol=1e-7)
    assert torch.allclose(each.sum(0), model.getAnchoredTensor("sum"), atol=1e-6)


def test_tensor_values_are_those_of_the_last_call():
    """PopTorch's debug_tensors_test."""
    options = poptorch.Options()
    options.anchorTensor("grad_bias", "Gradient___fc2.bias")
    options.anchorTensor("update_weight", "UpdatedVar___fc2.weight")
    model = poptorch.trainingModel(net(), options)
    found = []
    for _ in range(2):
        model(*data())
        found.append([model.getAnchoredTensor(n) for n in ("grad_bias", "update_weight")])
        assert [tuple(one.shape) for one in found[-1]] == [(10,), (10, 10)]
        assert torch.equal(found[-1][1], model.fc2.weight.detach())
    assert not torch.equal(found[0][0], found[1][0])
    assert not torch.equal(found[0][1], found[1][1])


def test_an_anchored_tensor_is_the_callers_own_copy():
    options = poptorch.Options()
    options.anchorTensor("a", "Gradient___fc2.bias")
    options.anchorTensor("b", "Gradient___fc2.bias")
    model = poptorch.trainingModel(net(), options)
    model(*data())
    first = model.getAnchoredTensor("a").clone()
    model.getAnchoredTensor("a").zero_()
    assert torch.equal(model.getAnchoredTensor("a"), first)
    assert torch.equal(model.getAnchoredTensor("b"), first)
    assert model.getAnchoredTensor("a").untyped_storage().resizable()


def test_padding_gets_no_gradient():
    class Embed(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(10, 3, padding_idx=0)

        def forward(self, tokens):
            out = self.embedding(tokens)
            return out, out.sum()

    options = poptorch.Options()
    options.anchorTensor("g", "Gradient___embedding.weight")
    model = poptorch.trainingModel(Embed(), options)
    model(torch.arange(10))
    expected = torch.ones(10, 3)
    expected[0] = 0
    assert torch.equal(model.getAnchoredTensor("g"), expected)


def test_weight_norm_has_its_own_parameters():
    class Normed(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.utils.parametrizations.weight_norm(nn.Linear(3, 3))

        def forward(self, x):
            return self.lin(x).pow(2).mean()

    model = poptorch.trainingModel(Normed())
    model(torch.randn(2, 3))
    names = model.getTensorNames()
    for name in ("original0", "original1"):
        assert f"lin.parametrizations.weight.{name}" in names
        assert f"UpdatedVar___lin.parametrizations.weight.{name}" in names
    assert "UpdatedVar___lin.weight" not in names


def test_the_loss_is_the_marked_one_else_the_last_scalar_with_a_graph():
    class Several(nn.Module):
        def __init__(self, marked):
            super().__init__()
            self.w = nn.Parameter(torch.ones(3))
            self.marked = marked

        def forward(self, x):
            first, second = (self.w * x).sum(), (self.w * 10 * x).sum()
            if self.marked:
                first = poptorch.identity_loss(self.w * x, "sum")
            return first, second, x.sum(), {"out": self.w * x}

    for marked, gradient in ((True, 1.0), (False, 10.0)):
        options = poptorch.Options()
        options.anchorTensor("g", "Gradient___w")
        options.anchorTensor("l", "loss")
        model = poptorch.trainingModel(Several(marked), options)
        *_, last = model(torch.ones(1, 3))
        assert last["out"].shape == (1, 3)
        assert model.getAnchoredTensor("g").tolist() == [gradient] * 3
        assert model.getAnchoredTensor("l").item() == 3 * gradient
        assert "loss" in model.getTensorNames()
        model.destroy()


def test_a_loss_that_is_none_is_refused():
    class Silent(nn.Linear):
        def forward(self, x):
            return super().forward(x)

    model = poptorch.trainingModel(Silent(2, 2))
    with refused(poptorch.Error, "has to return its loss"):
        model(torch.randn(3, 2))

    class Vector(nn.Linear):
        def forward(self, x):
            return poptorch.identity_loss(super().forward(x), "none")

    with refused(poptorch.Error, r"the loss has shape \[3, 2\]"):
        poptorch.trainingModel(Vector(2, 2))(torch.randn(3, 2))


def test_arguments_are_cut_wherever_they_are():
    class Parts(nn.Module):
        def forward(self, pair, *, scale, flags=()):
            first, second = pair
            return {"sum": (first + second["b"]) * scale, "flag": flags}

    model = poptorch.inferenceModel(Parts(), poptorch.Options().deviceIterations(2))
    x = torch.arange(6.0)
    out = model((x, {"b": x}), scale=torch.tensor([1.0, 2.0]), flags=["kept"])
    assert out["sum"].tolist() == [0, 2, 4, 12, 16, 20]
    assert out["flag"] == ["kept"]
    with refused(AssertionError, "no multiple of deviceIterations × gradientAccumulation = 2"):
        model((torch.zeros(3), {"b": torch.zeros(3)}), scale=2.0)


def test_modes_of_modules_are_those_of_the_first_call():
    """Training goes on after `eval()` for validation, as a compiled PopTorch model does."""
    layer = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def forward(self, x):
            out = self.layer(x)
            return (out, out.pow(2).mean()) if self.training else out

    model = Model()
    training = poptorch.trainingModel(model)
    assert len(training(torch.randn(4, 3))) == 2
    model.eval()
    validation = poptorch.inferenceModel(model)
    before = layer[1].running_mean.clone()
    assert validation(torch.randn(4, 3)).shape == (4, 3)
    assert torch.equal(layer[1].running_mean, before)
    assert len(training(torch.randn(4, 3))) == 2
    assert not torch.equal(layer[1].running_mean, before)
    assert not model.training


def test_training_and_validation_take_turns_in_one_session():
    model = net()
    options = poptorch.Options().deviceIterations(3)
    options.anchorTensor("g", "Gradient___fc1", OutputMode.All)
    options.anchorTensor("s", "Gradient___fc2.bias", OutputMode.Sum)
    training = poptorch.trainingModel(model, options)
    evaluated = poptorch.Options().deviceIterations(2)
    evaluated.anchorTensor("h", "fc1", OutputMode.All)
    validation = poptorch.inferenceModel(model, evaluated)
    for call in range(4):
        model.train()
        training(*data(6))
        gradient, total = training.getAnchoredTensor("g"), training.getAnchoredTensor("s")
        assert gradient.shape == (6, 10)
        assert total.shape == (10,)
        model.eval()
        x = torch.full((4, 10), float(call))
        validation(x)
        with torch.no_grad():
            assert torch.allclose(validation.getAnchoredTensor("h"), model.fc1(x))
        assert torch.equal(training.getAnchoredTensor("g"), gradient)
        assert torch.equal(training.getAnchoredTensor("s"), total)


def test_an_optimizer_can_be_set_later():
    model = net()
    first = poptorch.optim.SGD(model.parameters(), lr=0.0)
    options = poptorch.Options()
    options.anchorTensor("u", "UpdatedVar___fc2.bias")
    training = poptorch.trainingModel(model, options, first)
    before = model.fc2.bias.detach().clone()
    training(*data())
    assert torch.equal(training.getAnchoredTensor("u"), before)
    training.setOptimizer(poptorch.optim.SGD(model.parameters(), lr=0.5))
    training(*data())
    assert torch.equal(training.getAnchoredTensor("u"), model.fc2.bias.detach())
    assert not torch.equal(training.getAnchoredTensor("u"), before)
    with refused(AssertionError, "an inference model has no optimizer"):
        poptorch.inferenceModel(model).setOptimizer(first)


def test_optimizer_state_is_anchored_by_its_poptorch_name():
    model = net()
    optimizer = poptorch.optim.Adam(model.parameters(), lr=0.01, loss_scaling=128.0)
    options = poptorch.Options()
    options.anchorTensor("m", "Accl1___fc2.bias")
    options.anchorTensor("v", "Accl2___fc2.bias")
    options.anchorTensor("step", "fc2.bias@opt.step")
    training = poptorch.trainingModel(model, options, optimizer)
    training(*data())
    training(*data())
    state = optimizer.state[model.fc2.bias]
    assert torch.equal(training.getAnchoredTensor("m"), state["exp_avg"])
    assert torch.equal(training.getAnchoredTensor("v"), state["exp_avg_sq"])
    assert training.getAnchoredTensor("step").item() == 2
    assert "Accl1___fc2.bias" in training.getTensorNames()


# -- names


def test_names_come_in_the_order_of_execution_and_can_all_be_anchored():
    model = net()
    training = poptorch.trainingModel(model)
    with refused(AssertionError, "Model must be compiled before calling getTensorNames"):
        training.getTensorNames()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    seed = torch.get_rng_state()
    training.compile(*data())
    assert all(torch.equal(state[name], now) for name, now in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    torch.set_rng_state(seed)
    names = training.getTensorNames()
    assert names[:9] == [
        *("input", "input:1", "fc1.weight", "fc1.bias", "fc1", "fc2.weight", "fc2.bias", "fc2"),
        "loss",
    ]
    order = ["fc1", "fc2", "loss", "Gradient___loss", "Gradient___fc2", "Gradient___fc1"]
    assert [name for name in names if name in order] == order
    assert names.index("Gradient___fc1") < names.index("UpdatedVar___fc1.weight")
    assert len(names) == len(set(names))

    options = poptorch.Options()
    for name in names:
        options.anchorTensor(name, name)
    anchored = poptorch.trainingModel(net(), options)
    anchored(*data())
    for name in names:
        assert anchored.getAnchoredTensor(name).dtype is torch.float32


def test_names_are_known_after_a_call_too_and_forgotten_by_destroy():
    compiled, called = poptorch.trainingModel(net()), poptorch.trainingModel(net())
    compiled.compile(*data())
    called(*data())
    assert compiled.getTensorNames() == called.getTensorNames()
    assert compiled.isCompiled()
    called.destroy()
    assert not called.isCompiled()
    with refused(AssertionError, "must be compiled"):
        called.getTensorNames()
    called(*data())
    assert called.getTensorNames()


def test_compiling_twice_is_ignored_and_said(caplog):
    training = poptorch.trainingModel(net())
    training.compile(*data())
    training.compile(*data())
    assert caplog.text.count("compile() is ignored") == 1


def test_compiling_records_nothing():
    class Watched(Net):
        def forward(self, x, label=None):
            anchorlib.anchor(x, "x")
            return super().forward(x, label)

    with anchorlib.start("run1", store="unused", overwrite=True) as session:
        poptorch.trainingModel(Watched()).compile(*data())
        session.flush()
        assert session.counters.records == 0


@pytest.fixture(autouse=True)
def _in_a_directory_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_traced_names_and_selectors_mean_the_same(caplog):
    options = poptorch.Options()
    names = [
        "Gradient___fc2.bias",
        "Gradient___model.fc2.bias",
        "fc2.bias@pass_grad",
        "re:fc2.bias@pass_grad",
    ]
    for name in names:
        options.anchorTensor(name, name)
    model = poptorch.trainingModel(net(), options)
    model(*data())
    first, *others = map(model.getAnchoredTensor, names)
    assert all(torch.equal(first, other) for other in others)
    assert "only PopTorch's traced models" in caplog.text


def test_an_anchor_of_no_tensor_is_refused_when_the_model_is_built():
    def build(long_name, make=poptorch.trainingModel):
        options = poptorch.Options()
        options.anchorTensor("a", long_name)
        return make(net(), options)

    with refused(UnknownTensorError, r"anchor 'a': no tensor is named .*did you mean"):
        build("Gradient___fc2.bais")
    with refused(KeyError, "anchor 'a'"):
        build("nothing")
    with refused(poptorch.Error, r"names several tensors \('fc1', 'fc1.bias', "):
        build("fc1*")
    with refused(poptorch.Error, "anchor 'a'"):
        build("UpdatedVar___fc1.weight", poptorch.inferenceModel)


# -- anchors that come after the model was built

LATE = {
    "grad": ("Gradient___fc2.bias", OutputMode.All),
    "sum": ("fc1@grad", OutputMode.Sum),
    "every": ("fc2@value", OutputMode.EveryN, 2),
    "state": ("Accl___fc1.weight", None),
    "weight": ("UpdatedVar___fc1.weight", OutputMode.Final),
    "loss": ("loss@grad", OutputMode.All),
}


def momentum(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


@pytest.mark.parametrize("name", [None, "run1"])
@pytest.mark.parametrize("at_first", [{}, {"weight": LATE["weight"]}], ids=["none", "some"])
def test_an_anchor_that_comes_later_gives_what_one_from_the_start_gives(
    tmp_path, caplog, at_first, name
):
    def outcomes(first, later):
        options = poptorch.Options().deviceIterations(2)
        options.Training.gradientAccumulation(2)
        for short, what in first.items():
            options.anchorTensor(short, *what)
        trained = net()
        model = poptorch.trainingModel(trained, options, momentum(trained))
        model(*data(8))
        for short, what in later.items():
            options.anchorTensor(short, *what)
            with refused(poptorch.Error, "call the model"):
                model.getAnchoredTensor(short)
        found = []
        for _ in range(2):
            model(*data(8))
            found.append({short: model.getAnchoredTensor(short) for short in LATE})
        model.destroy()
        return found

    def recorded(first, later, where):
        if name is None:
            return outcomes(first, later)
        with anchorlib.start(name, store=tmp_path / where):
            return outcomes(first, later)

    later = {short: what for short, what in LATE.items() if short not in at_first}
    expected, found = recorded(LATE, {}, "start"), recorded(at_first, later, "later")
    for one, other in zip(expected, found, strict=True):
        assert all(torch.equal(one[short], other[short]) for short in LATE)
    assert not caplog.records


def test_an_inference_model_takes_anchors_later_too():
    options = poptorch.Options().deviceIterations(2)
    model = poptorch.inferenceModel(net().eval(), options)
    x, _ = data(4)
    model(x)
    model.options.anchorTensor("h", "fc1", OutputMode.All)
    model(x)
    assert torch.equal(model.getAnchoredTensor("h"), model.model.fc1(x))


def test_an_anchor_that_is_given_another_mode_has_it_from_the_next_call_on():
    options = poptorch.Options().deviceIterations(4)
    options.anchorTensor("g", "Gradient___fc2.bias", OutputMode.Final)
    model = poptorch.trainingModel(net(), options)
    model(*data(4))
    assert model.getAnchoredTensor("g").shape == (10,)
    options.anchorTensor("g", "Gradient___fc2.bias", OutputMode.All)
    model(*data(4))
    assert model.getAnchoredTensor("g").shape == (40,)


def test_an_anchor_that_a_model_cannot_have_is_told_once_and_stops_no_call(caplog):
    options = poptorch.Options()
    training = poptorch.trainingModel(net(), options)
    inference = poptorch.inferenceModel(net().eval(), options)
    options.anchorTensor("g", "UpdatedVar___fc2.bias")
    options.anchorTensor("wrong", "fc2.bais")
    options.anchorTensor("period", "fc2", OutputMode.EveryN, 3)
    for _ in range(2):
        training(*data())
        inference(data()[0])
    assert training.getAnchoredTensor("g").shape == (10,)
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == len(set(told)) + 2 == 5, "two are refused by both models"
    with refused(UnknownTensorError, "anchor 'g': no tensor is named"):
        inference.getAnchoredTensor("g")
    with refused(UnknownTensorError, "anchor 'wrong'.*did you mean"):
        training.getAnchoredTensor("wrong")
    with refused(AssertionError, "anchor 'period'"):
        training.getAnchoredTensor("period")


def test_options_that_were_copied_have_no_part_in_later_anchors():
    options = poptorch.Options()
    model = poptorch.trainingModel(net(), options)
    copies = [options.clone(), model.options.clone()]
    options.anchorTensor("g", "Gradient___fc2.bias")
    model(*data())
    assert not any(copy.anchored_tensors for copy in copies)
    copies[0].anchorTensor("h", "fc1")
    model(*data())
    with refused(AssertionError, "No tensor with name 'h'"):
        model.getAnchoredTensor("h")


def test_asking_for_what_is_not_there_says_why():
    options = poptorch.Options()
    options.anchorTensor("bias", "Gradient___fc2.bias")
    options.anchorTensor("input", "Gradient___input")
    model = poptorch.trainingModel(net(), options)
    with refused(AssertionError, "No tensor with name 'bias' found; call the model"):
        model.getAnchoredTensor("bias")
    model(*data())
    with refused(AssertionError, "No tensor with name 'bais' found; did you mean 'bias'"):
        model.getAnchoredTensor("bais")
    with refused(
        poptorch.Error, "nothing was recorded of input@grad in the last call: no gradient"
    ):
        model.getAnchoredTensor("input")


# -- the session


def test_anchors_are_recorded_in_the_run_that_is_open(tmp_path):
    options = poptorch.Options().deviceIterations(2)
    options.Training.gradientAccumulation(2)
    options.anchorTensor("g", "Gradient___fc2.bias", OutputMode.All)
    options.anchorTensor("again", "Gradient___fc2.bias", OutputMode.All)
    options.anchorTensor("s", "fc1", OutputMode.Sum)
    options.anchorTensor("u", "UpdatedVar___fc2.bias")
    with anchorlib.start("run1", store=tmp_path):
        model = poptorch.trainingModel(net(), options)
        seen = []
        for _ in range(3):
            model(*data(8))
            seen.append({name: model.getAnchoredTensor(name) for name in "gsu"})
    assert model.getAnchoredTensor("g").equal(seen[-1]["g"]), "also after it was closed"
    run = anchorlib.open_run("run1", tmp_path)
    assert run.steps == list(range(6))
    gradient = run["fc2.bias@pass_grad"]
    assert len(gradient) == 12, "nothing is recorded twice"
    assert gradient.columns["step"].tolist() == sorted([*range(6)] * 2)
    assert gradient.columns["pass_index"].tolist() == [0, 1] * 6
    assert torch.equal(gradient.to_torch().reshape(3, -1), torch.stack([one["g"] for one in seen]))
    assert run["fc1@value"].mode == "sum:window=2"
    assert [record.count for record in run["fc1@value"].records()] == [4, 4, 4]
    assert torch.allclose(run["fc1@value"].to_torch().float(), torch.stack([s["s"] for s in seen]))
    assert torch.equal(run["fc2.bias@updated"].to_torch(), torch.stack([s["u"] for s in seen]))


def test_calls_of_different_length_keep_their_windows_apart(tmp_path):
    long = poptorch.Options().deviceIterations(4)
    long.anchorTensor("s", "add", OutputMode.Sum)
    short = poptorch.Options().deviceIterations(3)
    short.anchorTensor("s", "add", OutputMode.Sum)
    with anchorlib.start("run1", store=tmp_path):
        first, second = poptorch.trainingModel(Plus(), long), poptorch.trainingModel(Plus(), short)
        for number in range(1, 4):
            first(torch.full((4, 2), float(number)))
            second(torch.full((3, 2), 100.0 * number))
            assert first.getAnchoredTensor("s").tolist() == [[4 * number] * 2]
            assert second.getAnchoredTensor("s").tolist() == [[300 * number] * 2]
        poptorch.inferenceModel(Identity(), short)(torch.ones(3))


def test_the_environment_opens_a_run(tmp_path, monkeypatch):
    monkeypatch.setenv("ANCHOR_RUN", "run1")
    monkeypatch.setenv("ANCHOR_STORE", str(tmp_path))
    options = poptorch.Options()
    options.anchorTensor("g", "Gradient___fc2.bias")
    model = poptorch.trainingModel(net(), options)
    model(*data())
    session = active_session()
    assert session.run == "run1"
    found = model.getAnchoredTensor("g")
    session.close()
    assert torch.equal(
        anchorlib.open_run("run1", tmp_path)["fc2.bias@pass_grad"].to_torch()[0], found
    )


def test_without_anchors_no_session_is_opened():
    poptorch.trainingModel(net())(*data())
    assert active_session() is None
    assert "anchorlib-drain" not in [thread.name for thread in threading.enumerate()]


def test_the_session_in_memory_ends_with_its_last_model(tmp_path):
    gc.collect()  # models of tests before this one, which an exception's frames may hold
    options = poptorch.Options()
    options.anchorTensor("g", "Gradient___fc2.bias")
    first, second = (poptorch.trainingModel(net(), options) for _ in range(2))
    first(*data())
    second(*data())
    first.destroy()
    assert active_session().run == "poptorch"
    second.destroy()
    assert active_session() is None
    with anchorlib.start("run1", store=tmp_path):
        first(*data())
    assert len(anchorlib.open_run("run1", tmp_path)["fc2.bias@pass_grad"]) == 1


def test_a_call_that_was_broken_off_leaves_nothing_behind():
    class Fails(Net):
        fail = False

        def forward(self, x, label=None):
            if self.fail and x[0, 0] > 0:
                raise ZeroDivisionError
            return super().forward(x, label)

    options = poptorch.Options()
    options.Training.gradientAccumulation(2)
    options.anchorTensor("g", "Gradient___fc2.bias", OutputMode.All)
    torch.manual_seed(0)
    broken, whole = Fails(), net()
    model, other = (poptorch.trainingModel(one, options) for one in (broken, whole))
    x, y = data()
    x[:2, 0], x[2:, 0] = -1, 1
    broken.fail = True
    with pytest.raises(ZeroDivisionError):
        model(x, y)
    broken.fail = False
    model(x, y)
    other(x, y)
    assert torch.equal(model.getAnchoredTensor("g"), other.getAnchoredTensor("g"))
    assert all(map(torch.equal, broken.parameters(), whole.parameters()))


def test_memory_holds_the_last_call_alone():
    from anchorlib.poptorch import recording

    options = poptorch.Options()
    options.anchorTensor("h", "fc1", OutputMode.All)
    model = poptorch.trainingModel(net(), options)
    for _ in range(5):
        model(*data())
    session, sink = recording._in_memory
    session.flush()
    assert (sink.records, sink.lineage, sink.gaps) == ([], [], [])
    assert len(model._recording._records) == 1


# -- the rest of the model


def test_a_model_is_reached_through_its_wrapper():
    model = net()
    training = poptorch.trainingModel(model)
    assert training.model is model
    assert training.fc1 is model.fc1
    assert training.state_dict().keys() == model.state_dict().keys()
    with pytest.raises(AttributeError, match="nothing_like_it"):
        training.nothing_like_it  # noqa: B018
    with refused(poptorch.Error, "Model has not been compiled or has been destroyed"):
        training.copyWeightsToHost()
    training(*data())
    training.copyWeightsToHost()
    training.copyWeightsToDevice()
    training.detachFromDevice()
    training.attachToDevice()
    assert training.isAttachedToDevice()


def test_accumulation_is_for_training_alone():
    options = poptorch.Options()
    options.Training.gradientAccumulation(2)
    with refused(AssertionError, "leave it at 1 for inference"):
        poptorch.inferenceModel(net(), options)


def test_print_tensor_gives_back_the_tensor_itself(capsys):
    x = torch.ones(2, requires_grad=True)
    assert poptorch.ipu_print_tensor(x, "x") is x
    x.sum().backward()
    assert capsys.readouterr().err == "x: (1.000, 1.000)\nx_gradient: (1.000, 1.000)\n"
    with refused(poptorch.Error, "takes a tensor"):
        poptorch.ipu_print_tensor([1], "x")


def test_what_speaks_of_hardware_does_nothing():
    x = torch.ones(2)
    with poptorch.Block("a", ipu_id=1), poptorch.NameScope("b"):
        assert poptorch.set_available_memory(x, 0.2) is x
    layer = nn.Linear(2, 2)
    assert poptorch.BeginBlock(layer, "c", ipu_id=0) is layer
    assert poptorch.nop(x) is x
    assert poptorch.recomputationCheckpoint(x) is x
    assert poptorch.recomputationCheckpoint(x, x) == (x, x)
    assert not poptorch.isRunningOnIpu()
    assert not poptorch.ipuHardwareIsAvailable()


@pytest.mark.parametrize(("reduction", "expected"), [("sum", 6), (0, 6), ("mean", 2), (1, 2)])
def test_identity_loss_reduces(reduction, expected):
    assert poptorch.identity_loss(torch.tensor([1.0, 2.0, 3.0]), reduction).item() == expected


def test_identity_loss_refuses_what_is_no_reduction():
    with refused(AssertionError, "a reduction is 'sum', 'mean' or 'none', not 'max'"):
        poptorch.identity_loss(torch.ones(2), "max")


def test_a_step_that_the_session_leaves_out_has_no_anchored_tensor_and_says_why(tmp_path):
    options = poptorch.Options()
    options.anchorTensor("g", "Gradient___fc1", OutputMode.All)
    with anchorlib.start("limited", store=tmp_path, steps=0):
        training = poptorch.trainingModel(net(), options)
        training(*data(1))
        assert training.getAnchoredTensor("g").shape == (1, 10)
        training(*data(1))
        with refused(poptorch.Error, "started with other phases= or steps="):
            training.getAnchoredTensor("g")
