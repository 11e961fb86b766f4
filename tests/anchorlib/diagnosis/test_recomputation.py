"""An origin is computed again from what both runs stored: which formula each of them ran."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import anchorlib
from tests.by_hand import Applied, tanh_by_hand
from tests.cli.made import anchor

SIZE, BATCH, STEPS = 48, 64, 2
Tensor = torch.Tensor


class NormByHand(nn.LayerNorm):
    """A layer norm as people write it."""

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(-1, keepdim=True)
        variance = (x - mean).pow(2).mean(-1, keepdim=True)
        return (x - mean) / (variance + self.eps).sqrt() * self.weight + self.bias


class LinearByHand(nn.Linear):
    """A linear layer that adds one product after another."""

    def forward(self, x: Tensor) -> Tensor:
        total = x[:, :1] * self.weight[:, 0]
        for at in range(1, self.in_features):
            total = total + x[:, at : at + 1] * self.weight[:, at]
        return total + self.bias


@pytest.fixture
def train(tmp_path: Any) -> Callable[..., str]:
    """Records a short training of a net whose middle is given; the name of the run."""

    def trained(
        run: str, middle: nn.Module, *, dtype: torch.dtype = torch.float32, **options: Any
    ) -> str:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(32, SIZE), middle, nn.Linear(SIZE, 8)).to(dtype)
        torch.manual_seed(1)
        for parameter in model.parameters():
            nn.init.normal_(parameter, std=0.3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        data = torch.Generator().manual_seed(2)
        batch = options.pop("batch", BATCH)
        with anchorlib.start(run, store=tmp_path) as session:
            session.watch(model, tensors="*", optimizer=optimizer, **options)
            for _ in range(STEPS):
                optimizer.zero_grad()
                x = torch.randn(batch, 32, generator=data).to(dtype)
                model(x).float().square().mean().backward()
                optimizer.step()
        return run

    return trained


@pytest.fixture
def replays(train: Callable[..., str], tmp_path: Any) -> Callable[..., Any]:
    """The first origin of two trainings that differ in their middle."""

    def first(a: nn.Module, b: nn.Module, **options: Any) -> Any:
        found = anchorlib.compare(
            train("a", a, **options), train("b", b, **options), store=tmp_path, replay=True
        )
        return found.origins[0]

    return first


@pytest.mark.slow
def test_the_gradient_of_tanh_is_told_by_the_formula_of_each_run(replays: Any) -> None:
    origin = replays(nn.Tanh(), tanh_by_hand())
    assert (origin.place.name, origin.place.kind) == ("0", "grad")
    assert "g*fma(-y, y, 1)" in origin.replay.a
    assert origin.replay.b == ("g*(1 - y*y)",)
    assert origin.replay.nearer == "a"
    assert origin.replay.error_a < origin.replay.error_b < 0.5
    assert "A computes g*fma(-y, y, 1), B g*(1 - y*y); A is nearer to the truth" in origin.why


@pytest.mark.slow
def test_it_does_not_matter_which_run_wrote_the_operation_by_hand(replays: Any) -> None:
    origin = replays(tanh_by_hand(), nn.Tanh())
    assert origin.replay.a == ("g*(1 - y*y)",)
    assert "g*fma(-y, y, 1)" in origin.replay.b
    assert origin.replay.nearer == "b"


BY_HAND: dict[str, tuple[Callable[[], nn.Module], Callable[[], nn.Module], str]] = {
    "silu": (
        nn.SiLU,
        lambda: Applied(lambda x: x * torch.sigmoid(x)),
        "x*sigmoid(x) (torch's functions)",
    ),
    "softmax": (
        lambda: nn.Softmax(-1),
        lambda: Applied(
            lambda x: (e := (x - x.amax(-1, keepdim=True)).exp()) / e.sum(-1, keepdim=True)
        ),
        "exp(x - max)/sum, torch's sum (torch's functions)",
    ),
    "layer norm": (
        lambda: nn.LayerNorm(SIZE),
        lambda: NormByHand(SIZE),
        "(x - mean)/sqrt(var + eps)*w + b, torch's sum (torch's functions)",
    ),
    "linear": (
        lambda: nn.Linear(SIZE, SIZE),
        lambda: LinearByHand(SIZE, SIZE),
        "sequential",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BY_HAND)
def test_operations_written_by_hand_are_told_from_torchs_kernels(name: str, replays: Any) -> None:
    torchs, by_hand, formula = BY_HAND[name]
    origin = replays(torchs(), by_hand())
    assert origin.place.name == "1"
    assert "torch's kernel" in origin.replay.a
    assert formula in origin.replay.b
    assert "torch's kernel" not in origin.replay.b


@pytest.mark.slow
@pytest.mark.parametrize(
    ("a", "b", "words"),
    [
        (
            nn.GELU(),
            nn.GELU(approximate="tanh"),
            "A computes gelu, B gelu(approximate='tanh')",
        ),
        (
            nn.LayerNorm(SIZE),
            nn.LayerNorm(SIZE, eps=0.01),
            "A computes layer_norm(eps=1e-05), B layer_norm(eps=0.01)",
        ),
        (
            nn.RMSNorm(SIZE),
            nn.RMSNorm(SIZE, eps=0.001),
            "A computes rms_norm(eps=1.19209e-07), B rms_norm(eps=0.001)",
        ),
    ],
)
def test_other_mathematics_is_named_and_nobody_is_nearer_to_the_truth(
    a: nn.Module, b: nn.Module, words: str, replays: Any
) -> None:
    origin = replays(a, b)
    assert words in origin.why
    assert origin.replay.nearer is None
    assert "torch's kernel" in origin.replay.a
    assert "torch's kernel" in origin.replay.b


@pytest.mark.slow
def test_in_bfloat16_one_rounding_is_told_from_several(replays: Any) -> None:
    origin = replays(nn.Tanh(), tanh_by_hand(), dtype=torch.bfloat16)
    assert "g*(1 - y*y), in float32" in origin.replay.a
    assert origin.replay.b == ("g*(1 - y*y), each step in bfloat16",)
    assert "more that agree here" in origin.why


@pytest.mark.slow
def test_a_weights_gradient_is_replayed_as_the_product_it_is(
    train: Callable[..., str], tmp_path: Any
) -> None:
    class Backwards(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, w: Tensor, b: Tensor) -> Tensor:
            ctx.save_for_backward(x, w)
            return functional.linear(x, w, b)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            x, w = ctx.saved_tensors
            total = g[:1].T * x[:1]
            for at in range(1, len(g)):
                total = total + g[at : at + 1].T * x[at : at + 1]
            return g @ w, total, g.sum(0)

    class Linear(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return Backwards.apply(x, self.weight, self.bias)

    runs = [train("a", nn.Linear(SIZE, SIZE)), train("b", Linear(SIZE, SIZE))]
    found = anchorlib.compare(*runs, store=tmp_path)
    weight = next(one for one in found.origins if one.place.name == "1.weight")
    told = anchorlib.replay(weight)
    assert told is not None
    assert "torch's kernel" in told.a
    assert told.b == ("sequential",)


def test_few_elements_are_said_to_agree_by_chance(replays: Any) -> None:
    origin = replays(nn.Tanh(), tanh_by_hand(), batch=4)
    assert "192 elements are few: formulas may agree by chance" in origin.why


@pytest.mark.slow
def test_without_values_or_with_several_operations_nothing_is_replayed(
    replays: Any, train: Callable[..., str], tmp_path: Any
) -> None:
    several = replays(
        nn.Sequential(nn.Tanh(), Applied(lambda x: x + x.square())),
        nn.Sequential(nn.Tanh(), Applied(lambda x: x * (1 + x))),
    )
    assert several.replay is None
    assert "not computed again: 2 operations lie between it and what was recorded" in several.why
    for run, middle in (("c", nn.Tanh()), ("d", tanh_by_hand())):
        train(run, middle, mode=anchorlib.Summary())
    found = anchorlib.compare("c", "d", store=tmp_path, replay=True)
    assert found.origins
    assert all(one.replay is None for one in found.origins)
    assert "the runs do not both have the values of all its operands" in found.origins[0].why


@pytest.mark.slow
def test_an_origin_of_which_no_formula_is_known_says_so(replays: Any) -> None:
    told = replays(nn.Softplus(), Applied(lambda x: functional.softplus(x) * 1.0000002))
    assert told.replay is None
    assert "not computed again: no rule computes SoftplusBackward0" in told.why


@pytest.mark.slow
def test_values_that_rotted_are_not_replayed(train: Callable[..., str], tmp_path: Any) -> None:
    found = anchorlib.compare(train("a", nn.Tanh()), train("b", tanh_by_hand()), store=tmp_path)
    origin = found.origins[0]
    assert anchorlib.replay(origin) is not None
    for chunk in tmp_path.glob("a.zarr/rank0/forms/*/value/c*"):
        chunk.write_bytes(bytes(255 - one for one in chunk.read_bytes()))
    reopened = anchorlib.compare("a", "b", store=tmp_path, replay=True)
    assert all(one.replay is None for one in reopened.origins)
    assert "not computed again: stored values are damaged" in reopened.origins[0].why


@pytest.mark.slow
def test_the_command_replays_where_it_is_asked_to(train: Callable[..., str], tmp_path: Any) -> None:
    train("a", nn.Tanh())
    train("b", tanh_by_hand())
    line = ["compare", "a", "b", "--store", str(tmp_path), "--json"]
    without, told = (
        json.loads(anchor(*line, *more).out)["origins"][0] for more in ([], ["--replay"])
    )
    assert without["replay"] is None
    assert told["replay"]["b"] == ["g*(1 - y*y)"]
    assert set(told["replay"]) == {"a", "b", "error_a", "error_b", "nearer"}


class ConvByHand(nn.Conv2d):
    """A convolution as a product of patches, its terms added up one after another."""

    def forward(self, x: Tensor) -> Tensor:
        size, axes = self.kernel_size, {"stride": self.stride, "padding": self.padding}
        patches = functional.unfold(x, size, **axes).unsqueeze(1)
        weight = self.weight.flatten(1)[:, :, None]
        total = patches[:, :, 0] * weight[:, 0]
        for at in range(1, weight.shape[1]):
            total = total + patches[:, :, at] * weight[:, at]
        side = (x.shape[-1] + 2 * self.padding[0] - size[0]) // self.stride[0] + 1
        return total.unflatten(-1, (side, side)) + self.bias[:, None, None]


def entropy_by_hand(x: Tensor, wanted: Tensor) -> Tensor:
    """A cross entropy whose backward is the textbook's."""

    class ByHand(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return functional.cross_entropy(x, wanted)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            e = (x - x.amax(-1, keepdim=True)).exp()
            p = e / e.sum(-1, keepdim=True)
            return (p - functional.one_hot(wanted, x.shape[1])) * (g / len(x))

    return ByHand.apply(x)


def squares_by_hand(x: Tensor, wanted: Tensor) -> Tensor:
    """A mean of squares whose gradient is rounded more often."""
    return (x - wanted).div(3.0).square().mean() * 9.0


def attention_by_hand(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention in its single steps."""
    return functional.softmax(q @ k.mT / q.shape[-1] ** 0.5, -1) @ v


@pytest.fixture
def anchored(tmp_path: Any) -> Callable[..., Any]:
    """The first origin of two runs that anchor what goes in, what comes out, and a gradient."""

    def run(name: str, function: Callable[..., Tensor], given: dict[str, Tensor]) -> None:
        with anchorlib.start(name, store=tmp_path) as session:
            leaves = {key: one.clone() for key, one in given.items()}
            for one in leaves.values():
                one.requires_grad_(one.is_floating_point())
            held = {key: anchorlib.anchor(one, key) for key, one in leaves.items()}
            out = anchorlib.anchor(function(*held.values()), "out")
            (out if not out.shape else out.square().mean()).backward()
            session.step()

    def first(a: Callable[..., Tensor], b: Callable[..., Tensor], **given: Tensor) -> Any:
        run("a", a, given)
        run("b", b, given)
        return anchorlib.compare("a", "b", store=tmp_path, replay=True).origins[0]

    return first


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.slow
def test_a_convolution_is_told_from_one_that_adds_in_another_order(tmp_path: Any) -> None:
    for run, kind in (("a", nn.Conv2d), ("b", ConvByHand)):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(3, 4, 3), kind(4, 8, 3, stride=2, padding=1))
        with anchorlib.start(run, store=tmp_path) as session:
            session.watch(model, tensors="*")
            model(random(2, 3, 14, 14))
            session.step()
    origin = anchorlib.compare("a", "b", store=tmp_path, replay=True).origins[0]
    assert origin.place.name == "1"
    assert "torch's kernel" in origin.replay.a
    assert "sequential, channels first" in origin.replay.b


def test_the_gradient_of_a_cross_entropy_is_told_without_its_target(anchored: Any) -> None:
    wanted = torch.arange(64) % 10
    origin = anchored(
        lambda x: functional.cross_entropy(x, wanted),
        lambda x: entropy_by_hand(x, wanted),
        x=random(64, 10),
    )
    assert (origin.place.name, origin.place.kind) == ("x", "grad")
    assert "torch's kernels" in origin.replay.a
    assert "(softmax(x) - t)*(g/n), torch's sum (torch's functions)" in origin.replay.b
    assert 0 < origin.replay.error_a < 2
    assert 0 < origin.replay.error_b < 2


def test_of_squares_it_is_told_which_run_is_nearer_where_no_formula_fits(anchored: Any) -> None:
    origin = anchored(
        functional.mse_loss, squares_by_hand, x=random(40, 9), t=random(40, 9, seed=1)
    )
    assert "torch's kernel" in origin.replay.a
    assert origin.replay.error_a < origin.replay.error_b
    assert origin.replay.nearer == "a"


def test_attention_in_single_steps_is_told_from_torchs_kernel(anchored: Any) -> None:
    origin = anchored(
        functional.scaled_dot_product_attention,
        attention_by_hand,
        **{name: random(2, 3, 16, 8, seed=seed) for seed, name in enumerate("qkv")},
    )
    assert origin.place.name == "out"
    assert "torch's scaled_dot_product_attention" in origin.replay.a
    assert origin.replay.nearer in {"a", "b"}
    assert max(origin.replay.error_a, origin.replay.error_b) < 4
