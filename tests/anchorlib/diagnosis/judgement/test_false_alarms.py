"""Programs that compute the same in another form: rounding, however much is made of it later."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import anchorlib
from tests.diagnosis.workloads.base import digits

Tensor = torch.Tensor
GRADIENTS = ("*@grad", "*@pass_grad")
EVERYTHING = ("*",)


class Attending(nn.Module):
    """Attention with a bias of its keys, whose gradient is zero but for rounding."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form = form
        self.norm, self.attention = nn.LayerNorm(32), nn.MultiheadAttention(32, 4, batch_first=True)
        self.out = nn.Linear(32, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        if self.form == "torch's":
            return self.out(x + self.attention(y, y, y, need_weights=False)[0])
        parts = functional.linear(y, self.attention.in_proj_weight, self.attention.in_proj_bias)
        q, k, v = (t.unflatten(-1, (4, 8)).transpose(1, 2) for t in parts.chunk(3, -1))
        made = (q @ k.mT / 8**0.5).softmax(-1) @ v
        return self.out(x + self.attention.out_proj(made.transpose(1, 2).flatten(2)))


class Normed(nn.Module):
    """A convolution of width 1 before a batch norm: by itself, or as a matrix product."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form = form
        self.wide = nn.Conv2d(3, 8, 3, padding=1)
        self.narrow, self.norm = nn.Conv2d(8, 16, 1), nn.BatchNorm2d(16)
        self.out = nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        h = self.wide(x).relu()
        if self.form == "torch's":
            h = self.narrow(h)
        else:
            h = functional.linear(h.movedim(1, -1), self.narrow.weight[:, :, 0, 0])
            h = (h + self.narrow.bias).movedim(-1, 1)
        return self.out(functional.hardswish(self.norm(h)).mean((2, 3)))


def trained(  # a training is told by these
    store: Any, run: str, model: nn.Module, shape: tuple[int, ...], watched: Any, eps: float = 1e-8
) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=eps)
    draw = torch.Generator().manual_seed(1)
    with anchorlib.start(run, store=store, recorder="thread") as session:
        session.watch(model, tensors=watched, optimizer=optimizer)
        for _ in range(2):
            x = torch.randn(shape, generator=draw)
            optimizer.zero_grad()
            loss = model(x).square().mean()
            anchorlib.anchor(loss, "loss").backward()
            optimizer.step()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "shape", "watched"),
    [
        (Attending, (8, 12, 32), EVERYTHING),
        (Attending, (8, 12, 32), GRADIENTS),
        (Normed, (16, 3, 16, 16), EVERYTHING),
    ],
    ids=["keys", "keys, gradients alone", "norm"],
)
def test_another_form_of_one_computation_is_no_alarm(
    tmp_path, make: Callable[[str], nn.Module], shape, watched
):
    for run, form in (("a", "torch's"), ("b", "by hand")):
        torch.manual_seed(0)
        trained(tmp_path, run, make(form), shape, watched)
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert {one.cls for one in found.origins} == {"rounding"}, found.sentence
    assert found.verdict == "suspect"


@pytest.mark.slow
def test_an_update_that_leaps_where_gradients_are_steady_is_an_alarm(tmp_path):
    """The same two programs, but the second one's optimizer is told another eps."""
    for run, form, eps in (("a", "torch's", 1e-8), ("b", "by hand", 1e-3)):
        torch.manual_seed(0)
        trained(tmp_path, run, Attending(form), (8, 12, 32), EVERYTHING, eps=eps)
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert found.verdict == "unexpected"
    assert "updated" in {one.place.kind for one in found.origins if one.cls == "not_rounding"}


def scaled(
    store: Any, run: str, scale: float, spoil: Callable[[Tensor, int], Tensor] | None = None
) -> None:
    """A training under autocast to float16; `spoil` is handed the model's result and the step."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 8))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", scale)
    draw = torch.Generator().manual_seed(1)
    with anchorlib.start(run, store=store, recorder="thread") as session:
        session.watch(model, tensors="*", optimizer=optimizer)
        for step in range(3):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.float16):
                made = model(torch.randn(8, 16, generator=draw))
            loss = (made if spoil is None else spoil(made, step)).float().square().mean()
            anchorlib.anchor(loss, "loss")
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()


@pytest.mark.slow
@pytest.mark.parametrize("scales", [(1024.0, 2.0**21), (2.0**21, 1024.0)], ids=["B", "A"])
def test_a_loss_scale_too_large_for_the_gradients_is_no_alarm(tmp_path, scales):
    for run, scale in zip("ab", scales, strict=True):
        scaled(tmp_path, run, scale)
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert found.verdict == "suspect", found.sentence
    assert "a loss scale 2,048 times the other's overflows" in found.sentence
    assert any("the scaler skipped" in note for note in found.notes)


def clipped(store: Any, run: str, scale: float, factor: float = 1.0) -> None:
    """Like `scaled`, with gradients that are clipped and then multiplied by a factor."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 8))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", scale)
    draw = torch.Generator().manual_seed(1)
    with anchorlib.start(run, store=store, recorder="thread") as session:
        session.watch(model, tensors="*", optimizer=optimizer)
        for _ in range(3):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.float16):
                loss = model(torch.randn(8, 16, generator=draw)).float().square().mean()
            anchorlib.anchor(loss, "loss")
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            for parameter in model.parameters():
                parameter.grad.mul_(factor)
            scaler.step(optimizer)
            scaler.update()


@pytest.mark.parametrize("scales", [(1024.0, 2.0**20), (2.0**20, 1024.0)], ids=["B", "A"])
def test_what_clipping_makes_of_an_overflow_is_no_alarm(tmp_path, scales):
    """Some gradients overflow; by their infinite norm clipping makes zeros of the finite ones."""
    for run, scale in zip("ab", scales, strict=True):
        clipped(tmp_path, run, scale)
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert any(one.measure.nonfinite for one in found.origins)
    assert found.verdict == "suspect", found.sentence


def test_another_factor_behind_clipping_is_an_alarm_where_no_scale_overflows(tmp_path):
    clipped(tmp_path, "a", 1024.0)
    clipped(tmp_path, "b", 2048.0, factor=0.0)
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert found.verdict == "unexpected", found.sentence


def spoilt(made: Tensor, step: int) -> Tensor:
    if step == 1:
        made.register_hook(lambda gradient: gradient / 0)
    return made


@pytest.mark.parametrize("scale", [1024.0, 2048.0, 512.0])
def test_gradients_that_overflow_at_a_scale_that_fits_are_an_alarm(tmp_path, scale):
    scaled(tmp_path, "a", 1024.0)
    scaled(tmp_path, "b", scale, spoilt)
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert found.verdict == "unexpected", found.sentence
    assert {one.place.step for one in found.origins if one.cls == "nonfinite"} == {1}


def weighed(store: Any, run: str, ratio: Callable[[Tensor, Tensor], Tensor]) -> None:
    """A policy in bfloat16 whose results meet the float32 numbers of an earlier one."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 4)).bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    draw = torch.Generator().manual_seed(1)
    with anchorlib.start(run, store=store, recorder="thread") as session:
        session.watch(model, tensors="*", optimizer=optimizer)
        for _ in range(2):
            optimizer.zero_grad()
            told = model(torch.randn(64, 6, generator=draw).bfloat16()).log_softmax(-1)[:, 0]
            loss = ratio(told, torch.rand(64, generator=draw) - 2).mean()
            anchorlib.anchor(loss, "loss").backward()
            optimizer.step()


@pytest.mark.parametrize(
    ("ratio", "verdict"),
    [
        (lambda told, old: told.exp() / old.exp(), "suspect"),
        (lambda told, old: 1.05 * (told - old).exp(), "unexpected"),
    ],
    ids=["another form", "a factor"],
)
def test_what_torch_widens_on_the_way_rounded_in_low_precision_before(tmp_path, ratio, verdict):
    weighed(tmp_path, "a", lambda told, old: (told - old).exp())
    weighed(tmp_path, "b", ratio)
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert found.verdict == verdict, found.sentence


class AdamOfOurs(torch.optim.AdamW):
    """torch's AdamW, written out."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state |= {"n": 0, "m": torch.zeros_like(p), "v": torch.zeros_like(p)}
                state["n"] += 1
                state["m"].mul_(0.9).add_(p.grad * 0.1)
                state["v"].mul_(0.999).add_(p.grad * p.grad * 0.001)
                size = (state["v"] / (1 - 0.999 ** state["n"])).sqrt() + group["eps"]
                mean = state["m"] / (1 - 0.9 ** state["n"])
                p.copy_(p - group["lr"] * 0.01 * p - group["lr"] * mean / size)


@pytest.mark.parametrize(("eps", "verdict"), [(1e-8, "suspect"), (1e-1, "unexpected")])
def test_an_optimizer_of_another_name_may_round_otherwise(tmp_path, eps, verdict):
    for run, kind, own in (("a", torch.optim.AdamW, 1e-8), ("b", AdamOfOurs, eps)):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(17, 24), nn.Linear(24, 17)).bfloat16()
        optimizer = kind(model.parameters(), lr=4e-3, eps=own)
        draw = torch.Generator().manual_seed(1)
        with anchorlib.start(run, store=tmp_path, recorder="thread") as session:
            session.watch(model, tensors="*", optimizer=optimizer)
            for _ in range(2):
                optimizer.zero_grad()
                tokens = torch.randint(0, 17, (64, 2), generator=draw)
                loss = functional.cross_entropy(model(tokens[:, 0]).float(), tokens[:, 1])
                anchorlib.anchor(loss, "loss").backward()
                optimizer.step()
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert found.verdict == verdict, found.sentence


class Repeating(nn.Module):
    """One layer norm for several turns of a loop."""

    def __init__(self) -> None:
        super().__init__()
        self.given, self.inner = nn.Linear(24, 24), nn.Linear(24, 24)
        self.norm, self.out = nn.LayerNorm(24), nn.Linear(24, 8)

    def forward(self, x: Tensor) -> Tensor:
        given = self.given(x)
        z = torch.zeros_like(given)
        for _ in range(8):
            z = self.norm(self.inner(z) + given).tanh()
        return self.out(z)


@pytest.mark.slow
@pytest.mark.parametrize(("threads", "factor"), [(2, 1.0), (1, 1.1)], ids=["threads", "a factor"])
def test_a_gradient_of_several_uses_has_the_precision_of_each(tmp_path, threads, factor):
    for run in "ab":
        torch.manual_seed(0)
        model = Repeating()
        if run == "b" and factor != 1:
            model.norm.weight.register_hook(lambda gradient: gradient * factor)
        before = torch.get_num_threads()
        torch.set_num_threads(threads if run == "b" else 1)
        try:
            with torch.autocast("cpu", torch.bfloat16):
                trained(tmp_path, run, model, (16, 24), EVERYTHING)
        finally:
            torch.set_num_threads(before)
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert (found.verdict == "unexpected") == (factor != 1), found.sentence


class Shifted(nn.Module):
    """A layer norm of positions that are averaged, so that all terms of its shift are alike."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form, self.norm, self.out = form, nn.LayerNorm(16), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        norm = self.norm
        if self.form == "a factor":
            norm.bias.register_hook(lambda gradient: gradient * (1 + 2e-4))
        return self.out(norm(x).mean(1))


@pytest.mark.parametrize("form", ["torch's", "a factor"])
def test_a_clipped_gradient_is_added_up_again_with_its_factor(tmp_path, form):
    for run, own in (("a", "torch's"), ("b", form)):
        torch.manual_seed(0)
        model = Shifted(own)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
        before = torch.get_num_threads()
        torch.set_num_threads(2 if run == "b" and form == "torch's" else 1)
        try:
            with anchorlib.start(run, store=tmp_path, recorder="thread") as session:
                session.watch(model, tensors=("*@grad", "*@value"), optimizer=optimizer)
                (2 * model(torch.randn(64, 96, 16)).square().mean()).backward()
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
                optimizer.step()
        finally:
            torch.set_num_threads(before)
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert (found.verdict == "unexpected") == (form == "a factor"), found.sentence


DECISIONS: dict[str, tuple[Callable[[], nn.Module], float]] = {
    "slope": (lambda: nn.LeakyReLU(0.01), 0.0),
    "clamp": (lambda: nn.Hardtanh(-2.0, 0.5), 0.5),
    "pool": (lambda: nn.MaxPool1d(2), 0.0),
}
"""Operations that decide, with the value near which they do."""


class Deciding(nn.Module):
    """An operation that decides, some of whose inputs lie where it does but for rounding.

    rounding: what is added to the operation's inputs. turns: whether the first element of the
    first sample lies on the other side. spoils: the step in which the gradients of other elements,
    far from a decision, are multiplied by a number.
    """

    def __init__(self, decision: str, rounding: float, turns: bool, spoils: int | None) -> None:
        super().__init__()
        self.rounding, self.turns, self.spoils, self.step = rounding, turns, spoils, 0
        self.inner, self.norm = nn.Linear(16, 32, bias=False), nn.Identity()
        make, self.limit = DECISIONS[decision]
        self.act, self.out = make(), nn.Linear(16 if decision == "pool" else 32, 8)
        self.draw = torch.Generator().manual_seed(5)

    def forward(self, x: Tensor) -> Tensor:
        h = self.inner(x)
        off = self.rounding * torch.randn(h.shape, generator=self.draw)
        off[0] = self.limit + 6e-8
        off[0, 1::2] = self.limit  # which a pool compares with the elements before them
        if self.turns and self.step == 2:
            off[0, 0] = self.limit - 6e-8
        h = h + off
        if self.spoils == self.step:
            h.register_hook(self.spoilt)
        self.step += 1
        return self.out(self.act(anchorlib.anchor(h, "h")))

    @staticmethod
    def spoilt(gradient: Tensor) -> Tensor:
        found = gradient.clone()
        found[3, 5:9] *= 0.01
        return found


def decided(store: Any, run: str, model: nn.Module) -> None:
    """A training in whose third step the first sample is zero."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    draw = torch.Generator().manual_seed(1)
    with anchorlib.start(run, store=store, recorder="thread") as session:
        session.watch(model, tensors="*", optimizer=optimizer)
        for step in range(4):
            x = torch.randn(32, 16, generator=draw)
            x[0] *= step != 2
            optimizer.zero_grad()
            loss = model(x).square().mean()
            anchorlib.anchor(loss, "loss").backward()
            optimizer.step()


@pytest.mark.slow
@pytest.mark.parametrize("decision", DECISIONS)
@pytest.mark.parametrize(
    ("turns", "spoils", "verdict"),
    [(True, None, "expected"), (False, 2, "unexpected"), (True, 2, "unexpected")],
    ids=["turned", "a fault", "both"],
)
def test_a_decision_that_rounding_turns_is_no_alarm(tmp_path, decision, turns, spoils, verdict):
    noise = [f"noise{seed}" for seed in range(3)]
    made = {"a": (0.0, False, None), "b": (1e-7, turns, spoils)}
    for run, told in (made | dict.fromkeys(noise, (1e-7, False, None))).items():
        torch.manual_seed(0)
        model = Deciding(decision, *told)
        model.draw.manual_seed(len(run) + ord(run[-1]))
        decided(tmp_path, run, model)
    found = anchorlib.compare("a", "b", store=tmp_path, noise=noise)
    assert found.verdict == verdict, found.sentence
    assert any("rounding, on its two sides" in note for note in found.notes) == (
        verdict == "expected"
    )


class Tokens(nn.Module):
    """An embedding, and a layer behind it.

    cut: takes samples away in between. width: of the tokens of a sample that are read.
    """

    def __init__(self, cut: int | None = None, width: int = 12) -> None:
        super().__init__()
        self.cut, self.width = cut, width
        self.emb, self.head = nn.Embedding(17, 16), nn.Linear(16, 17)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.emb(x[:, : self.width])[: self.cut])


@pytest.mark.parametrize(
    ("parts", "made", "verdict"),
    [(2, {}, "suspect"), (1, {"cut": 4}, "unexpected"), (1, {"width": 6}, "unexpected")],
    ids=["parts", "samples taken away", "tokens taken away"],
)
def test_samples_that_come_in_unrecorded_may_be_fewer(tmp_path, parts, made, verdict):
    """Two forward passes before both backward passes; against what the model itself takes away."""
    for run, count, own in (("a", 1, {}), ("b", parts, made)):
        torch.manual_seed(0)
        model = Tokens(**own)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        draw = torch.Generator().manual_seed(1)
        with anchorlib.start(run, store=tmp_path, recorder="thread") as session:
            session.watch(model, optimizer=optimizer)
            for _ in range(2):
                optimizer.zero_grad()
                tokens = torch.randint(0, 17, (8, 12), generator=draw).chunk(count)
                losses = [model(one).square().mean() for one in tokens]
                losses = [loss / count for loss in losses] if count > 1 else losses
                for loss in losses:
                    anchorlib.anchor(loss, "loss").backward()
                optimizer.step()
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert found.verdict == verdict, found.sentence


class Choosing(nn.Module):
    """Rows of a table, by their index or by a product with a one-hot matrix."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form, self.table = form, nn.Parameter(torch.randn(17, 24))

    def forward(self, x: Tensor) -> Tensor:
        if self.form == "torch's":
            return functional.embedding(x, self.table).tanh()
        factor = 1.05 if self.form == "a factor" else 1.0
        return (factor * (functional.one_hot(x, 17).float() @ self.table)).float().tanh()


@pytest.mark.parametrize(("form", "verdict"), [("product", "suspect"), ("a factor", "unexpected")])
def test_a_product_that_one_run_alone_has_rounds_as_autocast_does(tmp_path, form, verdict):
    for run, own in (("a", "torch's"), ("b", form)):
        torch.manual_seed(0)
        model = Choosing(own)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
        draw = torch.Generator().manual_seed(1)
        with anchorlib.start(run, store=tmp_path, recorder="thread") as session:
            session.watch(model, tensors="*", optimizer=optimizer)
            for _ in range(2):
                optimizer.zero_grad()
                with torch.autocast("cpu", torch.bfloat16):
                    made = model(torch.randint(0, 17, (32,), generator=draw))
                anchorlib.anchor(made.square().mean(), "loss").backward()
                optimizer.step()
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert found.verdict == verdict, found.sentence


def cross_entropy(form: str, made: Tensor, labels: Tensor) -> Tensor:
    """The mean loss: by torch's function, in two functions of torch's, or with a factor."""
    if form == "torch's":
        return functional.cross_entropy(made, labels)
    found = functional.nll_loss(made.log_softmax(-1), labels)
    return found * 1.05 if form == "a factor" else found


@pytest.mark.parametrize(("form", "verdict"), [("in two", "suspect"), ("a factor", "unexpected")])
def test_what_one_run_alone_computes_in_low_precision_rounds_in_it(tmp_path, form, verdict):
    for run, own in (("a", "torch's"), ("b", form)):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 10))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
        draw = torch.Generator().manual_seed(1)
        with anchorlib.start(run, store=tmp_path, recorder="thread") as session:
            session.watch(model, tensors="*", optimizer=optimizer)
            for _ in range(2):
                optimizer.zero_grad()
                x, labels = torch.randn(32, 16, generator=draw), torch.arange(32) % 10
                with torch.autocast("cpu", torch.bfloat16):
                    loss = anchorlib.anchor(cross_entropy(own, model(x), labels), "loss")
                loss.backward()
                optimizer.step()
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert found.verdict == verdict, found.sentence


class Shrinking(nn.Module):
    """A layer in bfloat16 whose results are a hundredth of what they are made of.

    off: by what each result is off beside its own rounding, which the graph does not show.
    """

    def __init__(self, off: float | Tensor) -> None:
        super().__init__()
        self.off, self.wide = off, nn.Linear(64, 64)
        self.shrink, self.out = nn.Linear(64, 64, bias=False), nn.Linear(64, 8)
        nn.init.normal_(self.shrink.weight, std=1e-3)

    def forward(self, x: Tensor) -> Tensor:
        made = functional.linear(self.wide(x), self.shrink.weight)
        made.data.copy_(made.data.float() * (1 + self.off))
        return self.out(anchorlib.anchor(made, "made"))


@pytest.mark.parametrize(
    ("off", "verdict"),
    [(2.0**-8 * torch.linspace(-1, 1, 64), "suspect"), (0.05, "unexpected")],
    ids=["rounding", "a factor"],
)
def test_a_product_in_low_precision_rounds_by_its_own_size_however_small(tmp_path, off, verdict):
    for run, own in (("a", 0.0), ("b", off)):
        torch.manual_seed(0)
        model = Shrinking(own).bfloat16()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
        with anchorlib.start(run, store=tmp_path, recorder="thread") as session:
            session.watch(model, tensors="*", optimizer=optimizer)
            loss = model(torch.randn(32, 64).bfloat16()).float().square().mean()
            anchorlib.anchor(loss, "loss").backward()
            optimizer.step()
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert found.origins[0].place.name == "made"
    assert found.verdict == verdict, found.sentence


def clicked(store: Any, run: str, *, form: str, weight: float = 1.0) -> None:
    """A loss of clicks on logits, some of which are large, or on their probabilities."""
    torch.manual_seed(0)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with anchorlib.start(run, store=store, recorder="thread") as session:
        session.watch(model, tensors="*", optimizer=optimizer)
        for _ in range(2):
            logits = model(10 * torch.randn(64, 8))[:, 0]
            clicks = (torch.arange(64) % 2).float()
            if form == "logits":
                loss = functional.binary_cross_entropy_with_logits(logits, clicks)
            else:
                loss = functional.binary_cross_entropy(logits.sigmoid(), clicks)
            anchorlib.anchor(loss * weight if weight != 1 else loss, "loss").backward()
            optimizer.step()
            optimizer.zero_grad()


@pytest.mark.parametrize(
    ("form", "weight", "verdict"),
    [
        ("probabilities", 1.0, "suspect"),
        ("probabilities", 1.01, "unexpected"),
        ("logits", 1.0001, "unexpected"),
    ],
)
def test_a_loss_of_probabilities_loses_digits_and_no_more(tmp_path, form, weight, verdict):
    clicked(tmp_path, "a", form="logits")
    clicked(tmp_path, "b", form=form, weight=weight)
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert found.origins[0].place.name == "loss"
    assert found.verdict == verdict, found.sentence


class Pairing(nn.Module):
    """Two views of each sample, told apart by products that a learnt temperature multiplies."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form, self.view = form, nn.Linear(24, 16)
        self.temperature = nn.Parameter(torch.tensor(1.0))

    def forward(self, x: Tensor) -> Tensor:
        one, other = (functional.normalize(self.view(each), dim=1) for each in (x, x.flip(1)))
        exponent, products = self.temperature, one @ other.T
        if self.form == "another slope":
            exponent = 1.1 * exponent - 0.1 * exponent.detach()
        if self.form == "divided":
            return products / (-exponent).exp()
        return products * exponent.exp()


@pytest.mark.parametrize(
    ("form", "verdict"), [("divided", "suspect"), ("another slope", "unexpected")]
)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_what_multiplies_low_precision_has_a_gradient_of_low_precision(
    tmp_path, seed, form, verdict
):
    """A tensor without dimensions widens nothing, although it is stored in float32."""
    for run, own in (("a", "multiplied"), ("b", form)):
        torch.manual_seed(seed)
        model = Pairing(own)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        draw = torch.Generator().manual_seed(1)
        with anchorlib.start(run, store=tmp_path, recorder="thread") as session:
            session.watch(model, tensors="*", optimizer=optimizer)
            for _ in range(2):
                optimizer.zero_grad()
                with torch.autocast("cpu", torch.bfloat16):
                    logits = model(torch.randn(16, 24, generator=draw))
                loss = functional.cross_entropy(logits.float(), torch.arange(16))
                anchorlib.anchor(loss, "loss").backward()
                optimizer.step()
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert found.verdict == verdict, found.sentence


def nearness(one: Tensor, other: Tensor) -> Tensor:
    return 1 - (functional.normalize(one) * functional.normalize(other)).sum(1)


def distance(one: Tensor, other: Tensor) -> Tensor:
    return (functional.normalize(one) - functional.normalize(other)).square().sum(1) / 2


def one_sided(one: Tensor, other: Tensor) -> Tensor:
    return distance(one, other.detach())


def slanted(one: Tensor, other: Tensor) -> Tensor:
    return distance(one * torch.linspace(1, 1.1, one.shape[1]), other)


@pytest.mark.parametrize(
    ("form", "verdict"),
    [(distance, "suspect"), (one_sided, "unexpected"), (slanted, "unexpected")],
)
@pytest.mark.parametrize("seed", [4, 5])
def test_a_sum_of_what_was_left_out_as_other_work_may_cancel(tmp_path, seed, form, verdict):
    """Two views nearly agree, so that what they hand back cancels in the gradient of a bias."""
    images = digits()[0].flatten(1)
    for run, own in (("a", nearness), ("b", form)):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 16))
        nn.Linear(32, 4)  # which draws numbers, too
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        draw = torch.Generator().manual_seed(seed)
        with anchorlib.start(run, store=tmp_path, recorder="thread") as session:
            session.watch(model, tensors="*", optimizer=optimizer)
            for _ in range(2):
                optimizer.zero_grad()
                x = images[torch.randint(0, len(images), (16,), generator=draw)]
                one, other = model(x), model(x + 1e-3 * torch.randn(16, 64))
                near = anchorlib.anchor(own(one, other), "near").mean()
                (near + functional.softplus(-one.var(0)).mean()).backward()
                optimizer.step()
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert found.verdict == verdict, found.sentence
