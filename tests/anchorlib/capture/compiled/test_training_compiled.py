"""Ways to train: a compiled model records what the model itself does, step for step."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from anchorlib.record import Flag
from tests.anchorlib.capture.compiled.observing import QUIET, assert_same, observed
from tests.recording import recording

pytestmark = QUIET

X = torch.randn(8, 3, generator=torch.Generator().manual_seed(0))
STEPS = 3


def perceptron():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def loss_of(call, n):
    return call(X * (n + 1)).pow(2).mean()


def sharpness_aware(session, compiled):
    model = perceptron()
    call, optimizer = compiled(model), sgd(model)
    session.watch(call, tensors="*", optimizer=optimizer)
    for n in range(STEPS):
        loss_of(call, n).backward()
        before = copy.deepcopy(model.state_dict())
        with torch.no_grad():
            for p in model.parameters():
                p.add_(0.05 * p.grad)
        model.zero_grad()
        loss_of(call, n).backward()
        model.load_state_dict(before)
        optimizer.step()
        model.zero_grad()


def with_a_closure(session, compiled):
    model = perceptron()
    call, optimizer = compiled(model), torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
    session.watch(call, tensors=["output", "0.weight"], optimizer=optimizer)
    for n in range(STEPS):

        def closure(n=n):
            optimizer.zero_grad()
            loss = loss_of(call, n)
            loss.backward()
            return loss

        optimizer.step(closure)


def adversarial(session, compiled):
    maker, judge = perceptron(), nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))
    for p in judge.parameters():
        nn.init.constant_(p, 0.2)
    make, judged = compiled(maker), compiled(judge)
    opt_maker, opt_judge = sgd(maker), sgd(judge)
    session.watch(judged, tensors="*", optimizer=opt_judge, prefix="judge")
    session.watch(make, tensors="*", optimizer=opt_maker, prefix="maker")
    for n in range(STEPS):
        fake = make(X * (n + 1))
        opt_judge.zero_grad()
        (judged(fake.detach()).mean() - judged(X[:, :2]).mean()).backward()
        opt_judge.step()
        opt_maker.zero_grad()
        (-judged(fake).mean()).backward()
        opt_maker.step()


def scaled(session, compiled, **options):
    model = perceptron()
    call = compiled(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, **options)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    session.watch(call, tensors="*", optimizer=optimizer)
    for n in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(call, n) * (float("inf") if n == 1 else 1.0)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def scaled_and_fused(session, compiled):
    scaled(session, compiled, fused=True)


def accumulated_and_clipped(session, compiled):
    model = perceptron()
    call, optimizer = compiled(model), torch.optim.Adam(model.parameters(), lr=0.1, foreach=True)
    session.watch(call, tensors="*", optimizer=optimizer)
    for n in range(STEPS):
        for m in range(2):
            loss_of(call, n + m).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        optimizer.step()
        optimizer.zero_grad()


def validated(session, compiled):
    model = perceptron()
    call, optimizer = compiled(model), sgd(model)
    session.watch(call, tensors="*", optimizer=optimizer)
    for n in range(STEPS):
        loss_of(call, n).backward()
        model.eval()
        with torch.no_grad():
            loss_of(call, n + 10)
        model.train()
        optimizer.step()
        optimizer.zero_grad()


def frozen(session, compiled):
    model = perceptron()
    model[0].requires_grad_(False)
    call, optimizer = compiled(model), sgd(model[2])
    session.watch(call, tensors="*", optimizer=optimizer)
    for n in range(STEPS):
        loss_of(call, n).backward()
        optimizer.step()
        optimizer.zero_grad()


def averaged(session, compiled):
    model = perceptron()
    call, optimizer = compiled(model), sgd(model)
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    session.watch(call, tensors="*", optimizer=optimizer)
    session.watch(ema, tensors=["ema.module.0", "ema.module.2.weight"], prefix="ema")
    for n in range(STEPS):
        loss_of(call, n).backward()
        optimizer.step()
        optimizer.zero_grad()
        ema.update_parameters(model)
        with torch.no_grad():
            ema(X)


def parametrised(session, compiled):
    model = perceptron()
    nn.utils.parametrizations.weight_norm(model[0])
    nn.utils.parametrizations.orthogonal(model[2])
    call, optimizer = compiled(model), sgd(model)
    session.watch(call, tensors="*", optimizer=optimizer)
    for n in range(STEPS):
        loss_of(call, n).backward()
        optimizer.step()
        optimizer.zero_grad()


WAYS = [
    sharpness_aware,
    with_a_closure,
    adversarial,
    scaled,
    scaled_and_fused,
    accumulated_and_clipped,
    validated,
    frozen,
    averaged,
    parametrised,
]


def record(train, compiled):
    torch._dynamo.reset()
    with recording() as run:
        train(run.session, compiled)
    return run


@pytest.mark.parametrize("backend", [pytest.param("eager", marks=pytest.mark.wide), "aot_eager"])
@pytest.mark.parametrize("train", WAYS, ids=lambda f: f.__name__)
def test_a_compiled_model_trains_and_is_recorded_like_the_model_itself(train, backend):
    truth = record(train, lambda model: model)
    assert {p.step for p in observed(truth)} >= set(range(STEPS))
    assert_same(record(train, lambda model: torch.compile(model, backend=backend)), truth)


@pytest.mark.long
@pytest.mark.parametrize(
    "train",
    [pytest.param(sharpness_aware, marks=pytest.mark.long), scaled],
    ids=lambda f: f.__name__,
)
def test_with_inductor_too(train):
    truth = record(train, lambda model: model)
    run = record(train, torch.compile)
    assert_same(run, truth)
    if train is scaled:
        for kind in ("grad", "pass_grad"):
            assert len(run.records("0.weight", kind)) == STEPS
        skipped = [Flag.STEP_SKIPPED in r.flags for r in run.records("0.weight", "grad")]
        assert skipped == [False, True, False]
        assert [r.scale for r in run.records("0.weight", "pass_grad")] == [64.0, 64.0, 32.0]
