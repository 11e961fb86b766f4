"""What kernels of a GPU do otherwise than those of a CPU, imitated: rounding, as far as it goes."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional

import anchorlib
from anchorlib.diagnosis.judgement.rounding import moving_averages
from anchorlib.diagnosis.judgement.verdict import MOST_TIMES, times_of_origins
from tests.diagnosis.training import perturbed
from tests.once import Once

BETAS = (0.9, 0.999)
NOISE = (1, 2, 3)


@dataclass(frozen=True)
class Training:
    """A net that is trained with AdamW for three steps.

    off: how far a kernel of its own is off. low: whether it trains under autocast. sparing: whether
    little of what is inside is recorded. fused: of the optimizer. kept: the positions that the loss
    is taken of. factor: by which the convolution is multiplied. precision: of products,
    by torch's setting. rounded: whether the last product is off as by TF32.
    """

    net: str
    off: float = 0.0
    low: bool = False
    sparing: bool = False
    fused: bool = False
    kept: tuple[int | None, int | None] = (None, -1)
    factor: float = 1.0
    precision: str = "highest"
    rounded: bool = False


def waves(x: torch.Tensor) -> torch.Tensor:
    """Numbers from -1 to 1 for the elements of a tensor."""
    return torch.sin(torch.arange(x.numel()) * 7.0).view(x.shape)


class Recurrent(nn.LSTM):
    """An LSTM whose result is off by a relative error in each element."""

    _off = 0.0

    def forward(self, x):
        h, state = super().forward(x)
        h.data.mul_(1 + self._off * waves(h))  # autograd does not see it, as it sees no kernel
        return h, state


class Convolution(nn.Conv1d):
    """A convolution of which a share of the elements is rounded up by one unit of bfloat16."""

    _off, _factor = 0.0, 1.0

    def forward(self, x):
        h = super().forward(x) * self._factor
        up = torch.arange(h.numel()).view(h.shape) % 1000 < 1000 * self._off
        h.data.mul_(1 + 2.0**-7 * up)
        return h


class Product(nn.Linear):
    """A product whose result is off by a relative error in each element."""

    _off = 0.0

    def forward(self, x):
        h = super().forward(x)
        h.data.mul_(1 + self._off * waves(h))
        return h


class Net(nn.Module):
    def __init__(self, how: Training) -> None:
        super().__init__()
        self.rnn = Recurrent(8, 32, batch_first=True)
        self.conv, self.bn = Convolution(8, 16, 3, padding=1), nn.BatchNorm1d(16)
        self.norm, self.head = nn.LayerNorm(16), Product(32 if how.net == "rnn" else 16, 5)
        self.head._off = 3e-3 * how.rounded
        self.net, self.conv._factor = how.net, how.factor
        if how.net != "norm":
            {"rnn": self.rnn, "conv": self.conv}.get(how.net, self)._off = how.off
        else:
            self.norm.weight.register_hook(lambda g: g + how.off * g.norm() / 4 * waves(g))

    def forward(self, x):
        if self.net == "rnn":
            return self.head(self.rnn(x)[0])
        h = self.bn(self.conv(x.transpose(1, 2))).transpose(1, 2)
        return self.head(self.norm(h))


def train(how: Training, name: str, store) -> None:
    torch.set_float32_matmul_precision(how.precision)
    try:
        _train(how, name, store)
    finally:
        torch.set_float32_matmul_precision("highest")


def _train(how: Training, name: str, store) -> None:
    torch.manual_seed(0)
    model = Net(how)
    optimizer = torch.optim.AdamW(model.parameters(), betas=BETAS, fused=how.fused or None)
    if how.net == "squares":
        optimizer.register_step_post_hook(lambda *_: wrong_squares(optimizer, how.off))
    draw = torch.Generator().manual_seed(1)
    tensors = ["output@value", "bn.running_*"] if how.sparing else "*"
    with anchorlib.start(name, store=store, recorder="thread") as session:
        session.watch(model, optimizer=optimizer, tensors=tensors)
        for _ in range(3):
            optimizer.zero_grad()
            x = torch.randn(6, 9, 8, generator=draw)
            labels = torch.randint(0, 5, (6, 9), generator=draw)
            with torch.autocast("cpu", torch.bfloat16) if how.low else nullcontext():
                logits = model(x)
                loss = functional.cross_entropy(
                    logits[:, slice(*how.kept)].flatten(0, 1), labels[:, 1:].flatten()
                )
            anchorlib.anchor(loss, "loss").backward()
            optimizer.step()


def wrong_squares(optimizer: torch.optim.Optimizer, off: float) -> None:
    """Add to Adam's squares what a rounded 1 − β₂ adds."""
    for parameter, state in optimizer.state.items():
        state["exp_avg_sq"] += off * (1 - BETAS[1]) * parameter.grad**2


def noise_of(one: Training, store) -> list[anchorlib.Run]:
    for number in NOISE:
        with perturbed(f"{number}:float32"):
            train(one, "a", store)
    return [anchorlib.open_run(f"a-noise{number}", store) for number in NOISE]


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    return Once(train, tmp_path_factory.mktemp("runs"))


def compared(once, one: Training, **changes) -> anchorlib.Comparison:
    return anchorlib.compare(once(one), once(replace(one, **changes)))


def test_a_kernel_of_a_recurrent_layer_rounds_in_each_of_its_steps(once, tmp_path):
    one = Training("rnn")
    found = compared(once, one, off=8e-6)
    assert found.verdict == "suspect", found
    assert found.origins[0].measure.error_eps > 8
    noise = noise_of(one, tmp_path)
    found = anchorlib.compare(once(one), once(replace(one, off=8e-6)), noise=noise)
    assert found.verdict == "expected", found


@pytest.mark.parametrize(
    ("kind", "cls", "op", "eps", "times"),
    [
        ("value", "rounding", "CudnnRnnBackward0", 32.0, 4.0),
        ("value", "rounding", "CudnnRnnBackward0", 1e6, MOST_TIMES),
        ("value", "rounding", "CudnnRnnBackward0", 2.0, 1.0),
        ("pass_grad", "rounding", "CudnnRnnBackward0", 1e6, 1.0),
        ("value", "not_rounding", "CudnnRnnBackward0", 32.0, 1.0),
        ("value", "rounding", "AddmmBackward0", 32.0, 1.0),
    ],
)
def test_results_of_such_a_kernel_alone_widen_the_noise_and_not_without_end(
    kind, cls, op, eps, times
):
    place = SimpleNamespace(kind=kind)
    measure = SimpleNamespace(error_eps=eps)
    origin = SimpleNamespace(place=place, cls=cls, ops_a=(op,), ops_b=(), measure=measure)
    origin.evidence = None
    assert times_of_origins([origin]) == times


def test_a_recurrent_layer_that_is_further_off_is_a_fault(once):
    found = compared(once, Training("rnn"), off=1e-3)
    assert found.verdict == "unexpected", found
    assert found.origins[0].place.name == "rnn"


def test_moments_behind_roundings_of_one_run_s_input_are_rounding(once):
    one = Training("conv", low=True)
    found = compared(once, one, off=0.1, sparing=True)
    assert found.verdict == "suspect", found


def test_moments_of_an_input_by_another_factor_are_a_fault(once):
    one = Training("conv", low=True)
    found = compared(once, one, factor=4.0, sparing=True)
    assert found.verdict == "unexpected", found
    (fault,) = (origin for origin in found.origins if origin.cls == "not_rounding")
    assert fault.place.name.startswith("bn.running")


@pytest.mark.parametrize(("off", "verdict"), [(0.4, "suspect"), (40.0, "unexpected")])
def test_a_sum_of_low_gradients_rounds_as_they_do(off, verdict, once):
    found = compared(once, Training("norm", low=True), off=off * 2.0**-7)
    assert found.verdict == verdict, found
    assert found.origins[0].place[-2:] == ("norm.weight", "pass_grad")


def test_a_sum_of_float32_gradients_has_no_such_excuse(once):
    found = compared(once, Training("norm"), off=0.4 * 2.0**-7)
    assert found.verdict == "unexpected", found


@pytest.mark.parametrize(
    ("fused", "off", "verdict"),
    [(True, 1.3e-5, "suspect"), (True, 1e-4, "unexpected"), (False, 1.3e-5, "unexpected")],
)
def test_squares_of_a_fused_optimizer_keep_the_rounding_of_beta(
    fused, off, verdict, once, monkeypatch
):
    monkeypatch.setattr(moving_averages, "DEVICES", "python")  # an entry that does not say "cpu"
    found = compared(once, Training("squares"), off=off, fused=fused)
    assert found.verdict == verdict, found


def test_a_fused_optimizer_on_the_cpu_has_no_such_excuse(once):
    found = compared(once, Training("squares"), off=1.3e-5, fused=True)
    assert found.verdict == "unexpected", found


def test_a_view_before_a_cast_is_no_computation_in_low_precision(once):
    found = compared(once, Training("rnn", low=False), kept=(1, None))
    assert found.verdict == "unexpected", found
    low = compared(once, Training("conv", low=True), kept=(1, None))
    assert low.verdict == "unexpected", low
    assert low.origins[0].place.name == "loss"


def test_another_precision_of_products_is_told_where_a_product_differs(once):
    one = Training("rnn")
    found = compared(once, one, precision="high", rounded=True)
    assert "float32_matmul_precision highest | high" in found.sentence, found
    told = compared(once, one, precision="high", off=1e-3)
    assert "float32_matmul_precision" not in told.sentence, told
