"""A Fourier neural operator that learns where Burgers' equation moves a digit's profile."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

import anchorlib
from tests.diagnosis.workloads.base import UPDATES, Case, Start, Workload, clear

_POINTS, _MODES, _WIDTH, _LAYERS = 32, 6, 10, 3
_VISCOSITY, _LATER = 0.02, 0.2
"""Of Burgers' equation, and the time between a profile and the one that is told of it."""


@dataclass(frozen=True)
class Operator(Workload):
    """A profile is told at two later times, the second from what was told at the first.

    modes: how many modes have weights. forth: how rfft is normed; back: how irfft is.
    conjugates: whether weights are conjugated. grid: whether the last point stands on the border
        ("closed"). bends: what is bent, the "sum" of both paths or the "spectral" one alone.
    decodes: whether what is told has the size of profiles.
    root: whether relative errors are roots of squares. relative: what errors are divided by, the
        "wanted" profiles or the "told" ones. over: whether lengths are of each "sample" or the
        whole "batch". slopes: the weight of the error of slopes. rolled: the axis slopes are along.
    pushes: whether the second time's gradient reaches the first one.
    gamma, every: the learning rate is multiplied by gamma after so many steps. schedules: whether
        it changes "after" the optimizer steps, or "before".
    learns: what the optimizer learns, "all" or what is not a "complex" number.
    forgets: the step before which the optimizer loses its state.
    low: whether the net runs under autocast to bfloat16.
    product, fourier, pads, mixed, gelu, encodes, length, sums, backward, laid: other ways
        to write the same mathematics. implementation: "own", too.
    """

    lr: float = 5e-3
    weight_decay: float = 1e-3
    modes: int = _MODES
    forth: str = "backward"
    back: str = "backward"
    conjugates: bool = False
    grid: str = "periodic"
    bends: str = "sum"
    decodes: bool = True
    root: bool = True
    relative: str = "wanted"
    over: str = "sample"
    slopes: float = 0.1
    rolled: int = 1
    pushes: bool = True
    gamma: float = 0.5
    every: int = 2
    schedules: str = "after"
    learns: str = "all"
    forgets: int | None = None
    low: bool = False
    product: str = "einsum"
    fourier: str = "torch"
    pads: str = "zeros"
    mixed: str = "torch"
    gelu: str = "torch"
    encodes: str = "quotient"
    length: str = "torch"
    sums: str = "at once"
    backward: str = "once"
    laid: str = "strided"

    @property
    def eps_of_noise(self) -> str:
        """What noise runs are perturbed by: the coarsest type that the training computes in."""
        return "bfloat16" if self.low else "float32"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = _Net(self)
            learnt = [
                one for one in model.parameters() if self.learns == "all" or one.is_floating_point()
            ]
            own = self.implementation == "own"
            optimizer = _Own(learnt, self) if own else self.adam(learnt)
            schedule = torch.optim.lr_scheduler.StepLR(optimizer, self.every, self.gamma)
            session.watch(model, tensors="*", optimizer=optimizer)
            torch.manual_seed(seed)
            for step, (images, _) in enumerate(self.images(seed)):
                began, *wanted = _moved(images)
                if step == self.forgets:
                    optimizer.state.clear()
                clear(optimizer, self)
                self._back(*self._losses(model, began, wanted))
                if self.schedules == "before":
                    schedule.step()
                optimizer.step()
                if self.schedules == "after":
                    schedule.step()

    def _losses(self, model, began, wanted):
        """The relative errors of both times, and of their slopes."""
        known, told = began, []
        for _ in wanted:
            with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
                known = model(known if self.pushes else known.detach()).to(began.dtype)
            told.append(known)
        errors, bent = (
            sum(self._missed(one, other) for one, other in pairs)
            for pairs in (
                zip(told, wanted, strict=True),
                (
                    (self._slopes(one), self._slopes(other))
                    for one, other in zip(told, wanted, strict=True)
                ),
            )
        )
        return errors, self.slopes * bent

    def _slopes(self, profiles):
        """Central differences on a circle."""
        there = profiles.roll(-1, self.rolled) - profiles.roll(1, self.rolled)
        return there * (_POINTS / 2)

    def _missed(self, told, wanted):
        """How far told profiles are from wanted ones, as a part of these."""
        if self.sums == "looped":
            found = [
                self._length(a - b) / self._length(b) for a, b in zip(told, wanted, strict=True)
            ]
            return sum(found) / len(found)
        if self.over == "batch":
            told, wanted = told.reshape(1, -1), wanted.reshape(1, -1)
        beside = wanted if self.relative == "wanted" else told
        return (self._length(told - wanted) / self._length(beside)).mean()

    def _length(self, profiles):
        if self.length == "own" or not self.root:
            squares = profiles.square().sum(-1)
            return squares.sqrt() if self.root else squares
        return torch.linalg.vector_norm(profiles, dim=-1)

    def _back(self, errors, slopes):
        """Both losses' gradients."""
        loss = errors + slopes
        for one, name in ((errors, "error_loss"), (slopes, "slope_loss"), (loss, "loss")):
            anchorlib.anchor(one, name)
        if self.backward == "once":
            loss.backward()
        else:
            errors.backward(retain_graph=True)
            slopes.backward()


def _moved(images):
    """Profiles of digits on a circle (sample, point), at the start and at two later times."""
    rows = images.double().mean(2)
    rows = (rows - rows.mean(1, keepdim=True)) * 2
    began = torch.fft.irfft(torch.fft.rfft(rows) * (_POINTS / 8), n=_POINTS)
    waves = 2 * math.pi * torch.arange(_POINTS // 2 + 1, dtype=torch.float64)
    count = 50
    pause = _LATER / count
    damps = torch.exp(-_VISCOSITY * waves.square() * pause / 2)

    def flux(spectrum):
        squares = torch.fft.irfft(spectrum, n=_POINTS).square() / 2
        return -1j * waves * torch.fft.rfft(squares) * (waves < 2 * math.pi * _POINTS / 3)

    spectrum, found = torch.fft.rfft(began), [began]
    for step in range(2 * count):
        first = pause * flux(spectrum)
        second = pause * flux(damps * (spectrum + first / 2))
        spectrum = damps * (damps * spectrum + second)
        if (step + 1) % count == 0:
            found.append(torch.fft.irfft(spectrum, n=_POINTS))
    return [one.to(torch.get_default_dtype()) for one in found]


class _Spectral(nn.Module):
    """Complex weights of the lowest modes, which mix channels mode by mode."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        kind = torch.get_default_dtype().to_complex()
        self.weight = nn.Parameter(torch.randn(_WIDTH, _WIDTH, _MODES, dtype=kind) / _WIDTH)

    def forward(self, x):
        """x (sample, channel, point), convolved."""
        how = self.how
        weight = self.weight.conj() if how.conjugates else self.weight
        weight, modes = weight[..., : how.modes], how.modes
        x = x.to(self.weight.real.dtype)
        if how.fourier == "matrix":
            angles = torch.outer(torch.arange(_POINTS), torch.arange(modes)).to(x.dtype)
            angles = angles.remainder(_POINTS) * (2 * math.pi / _POINTS)
            found = torch.complex(x @ angles.cos(), -(x @ angles.sin()))
        else:
            found = torch.fft.rfft(x, norm=how.forth)[..., :modes]
        if how.product == "einsum":
            found = torch.einsum("nik,iok->nok", found, weight)
        elif how.product == "matmul":
            found = (found.permute(2, 0, 1) @ weight.permute(2, 0, 1)).permute(1, 2, 0)
        else:
            parts = (found.real, weight.real), (found.imag, weight.imag), (found.real, weight.imag)
            parts = (*parts, (found.imag, weight.real))
            a, b, c, d = (torch.einsum("nik,iok->nok", *pair) for pair in parts)
            found = torch.complex(a - b, c + d)
        if how.fourier == "matrix":
            counts = torch.full((modes, 1), 2.0).index_fill(0, torch.tensor(0), 1.0) / _POINTS
            counts = counts.to(x.dtype)
            return found.real @ (counts * angles.cos().T) - found.imag @ (counts * angles.sin().T)
        if how.pads == "zeros":
            whole = found.new_zeros(*found.shape[:2], _POINTS // 2 + 1)
            whole[..., :modes] = found
            found = whole
        return torch.fft.irfft(found, n=_POINTS, norm=how.back)


class _Mixed(nn.Conv1d):
    """A convolution of single points, torch's or as a product."""

    def __init__(self, how, into: int, out: int) -> None:
        super().__init__(into, out, 1)
        self.how = how

    def forward(self, x):
        """x, with its channels mixed."""
        if self.how.mixed == "torch":
            return super().forward(x)
        return functional.linear(x.transpose(1, 2), self.weight[..., 0], self.bias).transpose(1, 2)


class _Layer(nn.Module):
    """What is convolved by modes and what is mixed point by point, added and bent."""

    def __init__(self, how, last: bool) -> None:
        super().__init__()
        self.how, self.last = how, last
        self.spectral, self.mixed = _Spectral(how), _Mixed(how, _WIDTH, _WIDTH)

    def forward(self, x):
        """x, moved."""
        x = x.contiguous() if self.how.laid == "contiguous" else x
        spectral, mixed = self.spectral(x), self.mixed(x)
        if self.last:
            return spectral + mixed
        if self.how.bends == "spectral":
            return _gelu(self.how, spectral) + mixed
        return _gelu(self.how, spectral + mixed)


class _Net(nn.Module):
    """Profiles, made wide together with their grid, through the layers, and narrow again."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.lift = nn.Linear(2, _WIDTH)
        self.layers = nn.ModuleList(_Layer(how, at == _LAYERS - 1) for at in range(_LAYERS))
        self.project, self.tell = _Mixed(how, _WIDTH, 2 * _WIDTH), _Mixed(how, 2 * _WIDTH, 1)

    def forward(self, profiles):
        """The profiles some time later."""
        how, mean, size = self.how, 0.05, 0.7
        if how.encodes == "quotient":
            x = (profiles - mean) / size
        else:
            x = torch.add(profiles * (1 / size), -mean / size)
        grid = torch.arange(_POINTS) / (_POINTS if how.grid == "periodic" else _POINTS - 1)
        grid = grid.to(x.dtype).expand_as(x)
        x = self.lift(torch.stack((x, grid), -1)).transpose(1, 2)
        for layer in self.layers:
            x = layer(x)
        x = self.tell(_gelu(how, self.project(x)))[:, 0]
        return x * size + mean if how.decodes else x


def _gelu(how, x):
    """A GELU, torch's or by its formula."""
    if how.gelu == "torch":
        return functional.gelu(x)
    return 0.5 * x * (1 + torch.erf(x * math.sqrt(0.5)))


class _Own(torch.optim.Optimizer):
    """AdamW, written by its formula with the corrections of both moments apart."""

    def __init__(self, parameters, how) -> None:
        super().__init__(
            parameters,
            {
                "lr": how.lr,
                "betas": how.betas,
                "eps": how.adam_eps,
                "weight_decay": how.weight_decay,
            },
        )

    @torch.no_grad()
    def step(self, closure=None):
        """One step."""
        for group in self.param_groups:
            for one in group["params"]:
                self._move(one, group, self.state[one])

    def _move(self, parameter, group, state):
        if not state:
            state["step"] = torch.tensor(0.0)
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        state["step"] += 1
        first, second = group["betas"]
        one, grad, mean, square = (
            torch.view_as_real(part) if part.is_complex() else part
            for part in (parameter, parameter.grad, state["exp_avg"], state["exp_avg_sq"])
        )
        mean.mul_(first).add_((1 - first) * grad)
        square.mul_(second).add_((1 - second) * grad * grad)
        count = state["step"].item()
        found = (square / (1 - second**count)).sqrt() + group["eps"]
        moved = mean / (1 - first**count) / found + group["weight_decay"] * one
        one.sub_(group["lr"] * moved)


_FIRST = ("layers.0.spectral@value",)
_LOSS = ("error_loss@*", "slope_loss@*", "output*@grad")
_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
_ORDER = r"another order|arranged otherwise|places? on along"
"""Words that name elements or operands which change places."""
_DETACHED = r"detach|gradients come back"
CASES = [
    Case(
        "fewer modes",
        "bug",
        {"modes": 4},
        _FIRST,
        r"\b[Ss]lice|\bshapes?\b|\bsizes?\b|\bmodes\b|\[\d+, ?\d+, ?\d+\]",
    ),
    Case(
        "irfft normed otherwise than rfft",
        "bug",
        {"forth": "ortho"},
        _FIRST,
        rf"\bnorm(alization)?\b|ortho|{_TIMES}",
    ),
    Case("weights conjugated", "bug", {"conjugates": True}, _FIRST, r"\b_?[Cc]onj"),
    Case(
        "last point on the border",
        "bug",
        {"grid": "closed"},
        ("lift@value",),
        rf"\bDiv|{_TIMES}|{_GIVEN}|a factor of its own",
    ),
    Case(
        "spectral path bent alone",
        "bug",
        {"bends": "spectral"},
        ("layers.0@value",),
        r"\b[Gg]elu|\bAdd(Backward|\b)",
    ),
    Case(
        "told profiles not decoded",
        "bug",
        {"decodes": False},
        ("output@value",),
        r"\bMul|\bAdd(Backward|\b)",
    ),
    Case(
        "squares without a root",
        "bug",
        {"root": False},
        _LOSS,
        r"\bPow|\b[Ss]qrt|[Vv]ector_?[Nn]orm|\bnorm\b",
    ),
    Case(
        "errors as a part of what is told",
        "bug",
        {"relative": "told"},
        _LOSS,
        rf"\bDiv|[Vv]ector_?[Nn]orm|{_GIVEN}",
    ),
    Case(
        "lengths of the whole batch",
        "bug",
        {"over": "batch"},
        _LOSS,
        r"\bdims?\b|\bshapes?\b|[Vv]ector_?[Nn]orm|\bView|reshape|\bMean",
    ),
    Case(
        "slopes along samples",
        "bug",
        {"rolled": 0},
        ("slope_loss@*", "loss@value", "output*@grad"),
        r"\bdims?\b|\b[Rr]oll",
    ),
    Case(
        "second time detached",
        "bug",
        {"pushes": False},
        ("output@grad",),
        _DETACHED,
    ),
    Case(
        "rate changes before the step", "bug", {"schedules": "before"}, UPDATES, r"\blr\b", step=1
    ),
    Case(
        "decay inside the gradient",
        "bug",
        {"decoupled": False, "weight_decay": 0.1},
        UPDATES,
        r"decoupled|weight_decay|AdamW?\b",
        reference={"weight_decay": 0.1},
    ),
    Case(
        "spectral weights not learnt",
        "bug",
        {"learns": "real"},
        ("layers.*.spectral.weight@*",),
        r"optimizer|not (moved|updated|changed)|A alone|in A only|only in A|stays",
    ),
    Case(
        "moments forgotten",
        "bug",
        {"forgets": 3},
        UPDATES,
        r"\bstate\b|moment|exp_avg|opt\.|\bstep\b.{0,40}\b1\b|begins? anew|reset",
        step=3,
    ),
    Case("complex product by real ones", "benign", {"product": "real"}),
    Case("Fourier transforms by matrices", "benign", {"fourier": "matrix"}),
    Case("both transforms orthonormal", "benign", {"forth": "ortho", "back": "ortho"}),
    Case("points mixed by a linear layer", "benign", {"mixed": "linear"}),
    Case("gelu by erf", "benign", {"gelu": "erf"}),
    Case("profiles encoded by a factor", "benign", {"encodes": "factor"}),
    Case("lengths by sums of squares", "benign", {"length": "own"}),
    Case("errors sample by sample", "benign", {"sums": "looped"}),
    Case("own AdamW", "benign", {"implementation": "own"}),
    Case(
        "points mixed by a linear layer, low precision",
        "benign",
        {"mixed": "linear"},
        reference={"low": True, "lr": 1e-3},
    ),
    Case("samples turned", "benign", {"turned": True}),
    Case("a backward for each loss", "benign", {"backward": "each"}),
    Case("other init", "data", {"init": 1}, ("*weight@value",)),
    Case("other order", "data", {"order": 1}, ("input*@value",)),
    Case("modes padded by irfft", "equal", {"pads": "irfft"}),
    Case("layers given what lies in order", "equal", {"laid": "contiguous"}),
    Case("modes as a batch of products", "equal", {"product": "matmul"}),
    Case("died", "incomplete", {"ends_at": 4}),
]
