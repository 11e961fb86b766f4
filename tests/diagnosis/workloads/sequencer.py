"""A language model of characters by selective state spaces: what is kept depends on what is read.

The text is the one that Python's module `this` holds.
"""

from __future__ import annotations

import codecs
import contextlib
import importlib
import io
import math
import os
import signal
from dataclasses import dataclass
from functools import cache

import torch
from torch import nn
from torch.nn import functional

import anchorlib
from tests.diagnosis.workloads.base import (
    UPDATES,
    Case,
    EndedError,
    Start,
    Workload,
    clear,
    cut,
)

_WIDTH, _INNER, _STATE, _RANK, _TAPS = 16, 24, 4, 2, 4
_LENGTH, _CONTEXT = 20, 4
"""Characters of a window, and those at its beginning that are not judged."""


@dataclass(frozen=True)
class Sequencer(Workload):
    """Windows of a text; each character is told from those before it.

    lowers: whether the text is in lower case. alike: whether all states begin with the same rate.
    causal: whether the convolution sees no later character. norm_eps: of the norms. steps_by: how
        steps become positive, by "softplus" or "exp". falls: whether states fade. exchanged:
        whether what writes a state and what reads it are exchanged. keeps: whether gradients go
        through the states, "attached" or "detached".
    shifted: whether the targets are the next characters. judged: the characters that count, those
        "after" the context or the context "itself". over: what the loss is divided by, the "judged"
        characters or "all". smoothing: of the labels.
    clears: whether gradients are cleared. clip, clips: of gradients, by their "torch" norm, their
        "own" norm, or each parameter by "itself".
    spares: whether the states' rates do not decay. warmup: steps of rising rate. early: whether the
        rate changes before the optimizer's step. forgets: the step before which the optimizer's
        state is lost.
    low: whether the net runs under autocast to bfloat16. parts: micro-batches a step.
    scanned, power, convolution, plus, norming, packing, entropy, drop, whole: other ways to write
        the same mathematics.
    """

    batch: int = 8
    lr: float = 1e-2
    weight_decay: float = 0.1
    lowers: bool = False
    alike: bool = False
    causal: bool = True
    norm_eps: float = 1e-5
    steps_by: str = "softplus"
    falls: bool = True
    exchanged: bool = False
    keeps: str = "attached"
    shifted: bool = True
    judged: str = "after"
    over: str = "judged"
    smoothing: float = 0.1
    clears: bool = True
    clip: float = 0.1
    clips: str = "torch"
    spares: bool = True
    warmup: int = 4
    early: bool = False
    forgets: int | None = None
    low: bool = False
    parts: int = 1
    scanned: str = "loop"
    power: str = "exp"
    convolution: str = "torch"
    plus: str = "torch"
    norming: str = "torch"
    packing: str = "joined"
    entropy: str = "torch"
    drop: bool = False
    whole: bool = False

    @property
    def eps_of_noise(self) -> str:
        """What noise runs are perturbed by: the coarsest type that the training computes in."""
        return "bfloat16" if self.low else "float32"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = Model(self, _text()[1])
            optimizer = self.adam(self._groups(model))
            schedule = torch.optim.lr_scheduler.LambdaLR(
                optimizer, lambda step: min(1.0, (step + 1) / (self.warmup + 1))
            )
            session.watch(model, tensors="*", optimizer=optimizer)
            torch.manual_seed(seed)
            for step, windows in enumerate(self._windows(seed)):
                if self.clears:
                    clear(optimizer, self)
                for (part,) in cut(self.parts, windows):
                    (self._loss(model, part) / self.parts).backward()
                self._bound(model)
                if step == self.forgets:
                    optimizer.state.clear()
                for one in (schedule, optimizer) if self.early else (optimizer, schedule):
                    one.step()

    def _groups(self, model):
        """What decays, and what does not: biases, norms, skips and the rates of the states."""
        named = [
            (one.ndim > 1 and not (self.spares and name.endswith("log_rates")), one)
            for name, one in model.named_parameters()
        ]
        return [
            {
                "params": [one for deep, one in named if deep is decays],
                "weight_decay": self.weight_decay if decays else 0.0,
            }
            for decays in (True, False)
        ]

    def _windows(self, seed):
        """Windows of the text, step by step, one character longer than what is read."""
        text, _ = _text(self.lowers)
        dealing = torch.Generator().manual_seed(19 + 1000 * seed + self.order)
        for step in range(self.steps):
            starts = torch.randint(0, len(text) - _LENGTH, (self.batch,), generator=dealing)
            starts = starts.flip(0) if self.turned else starts
            if step == self.ends_at:
                raise EndedError
            if step == self.killed_at:
                os.kill(os.getpid(), signal.SIGKILL)
            yield text[starts[:, None] + torch.arange(_LENGTH + 1)]

    def _loss(self, model, windows):
        """The mean cross entropy of the characters that are judged."""
        read = windows[:, :-1]
        targets = windows[:, 1:] if self.shifted else read
        with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
            logits = model(read)
        logits = logits.to(model.head.weight.dtype)
        late = torch.arange(_LENGTH) >= _CONTEXT
        late = late if self.judged == "after" else ~late
        mask = anchorlib.anchor(late.to(logits.dtype).expand(targets.shape), "mask")
        anchorlib.anchor(targets, "targets", grad=False)
        missed = anchorlib.anchor(self._entropy(logits, targets), "missed")
        count = mask.sum() if self.over == "judged" else mask.numel()
        return anchorlib.anchor((missed * mask).sum() / count, "loss")

    def _entropy(self, logits, targets):
        """The cross entropy of each character, with smoothed labels."""
        if self.entropy == "torch":
            return functional.cross_entropy(
                logits.transpose(1, 2), targets, reduction="none", label_smoothing=self.smoothing
            )
        right = logits.gather(-1, targets[..., None])[..., 0]
        wanted = torch.lerp(right, logits.mean(-1), self.smoothing)
        return logits.logsumexp(-1) - wanted

    @torch.no_grad()
    def _bound(self, model):
        """Gradients, clipped."""
        if self.clips == "torch":
            nn.utils.clip_grad_norm_(model.parameters(), self.clip)
        elif self.clips == "itself":
            for parameter in model.parameters():
                nn.utils.clip_grad_norm_([parameter], self.clip)
        else:
            grads = [one.grad for one in model.parameters()]
            length = torch.cat([grad.flatten() for grad in grads]).square().sum().sqrt()
            for grad in grads:
                grad.mul_((self.clip / (length + 1e-6)).clamp(max=1))


@cache
def _text(lowers: bool = False) -> tuple[torch.Tensor, int]:
    """The Zen of Python as numbers of its characters, and how many characters there are."""
    with contextlib.redirect_stdout(io.StringIO()):
        text = codecs.decode(importlib.import_module("this").s, "rot13")
    letters = sorted(set(text) | set(text.lower()))
    text = text.lower() if lowers else text
    return torch.tensor([letters.index(one) for one in text]), len(letters)


class Norm(nn.RMSNorm):
    """A norm by the root of the mean square, torch's or by its formula."""

    def __init__(self, how) -> None:
        super().__init__(_WIDTH, how.norm_eps)
        self.how = how

    def forward(self, x):
        """x, normed."""
        if self.how.norming == "torch":
            return super().forward(x)
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return x / (length.square() / _WIDTH + self.eps).sqrt() * self.weight


class Conv(nn.Conv1d):
    """A convolution of each channel over the latest characters (sample, place, channel)."""

    def __init__(self, how) -> None:
        super().__init__(_INNER, _INNER, _TAPS, groups=_INNER)
        self.how = how

    def forward(self, x):
        """x, with what was shortly before."""
        before = _TAPS - 1 if self.how.causal else _TAPS // 2
        x = functional.pad(x.transpose(1, 2), (before, _TAPS - 1 - before))
        if self.how.convolution == "torch":
            return super().forward(x).transpose(1, 2)
        taps = (x[..., at : at + _LENGTH] * self.weight[:, :, at] for at in range(_TAPS))
        return (sum(taps) + self.bias[:, None]).transpose(1, 2)


class Step(nn.Linear):
    """How long each channel lets its states go on at a character."""

    def __init__(self, how) -> None:
        super().__init__(_RANK, _INNER)
        self.how = how
        with torch.no_grad():  # steps of 0.01 to 0.3
            steps = torch.exp(torch.rand(_INNER) * math.log(30) + math.log(0.01))
            self.bias.copy_(torch.log(torch.expm1(steps)))

    def forward(self, x):
        """The steps."""
        x = super().forward(x)
        if self.how.steps_by == "exp":
            return x.exp()
        if self.how.plus == "torch":
            return functional.softplus(x)
        return x.clamp(min=0) + torch.log1p(torch.exp(-x.abs()))


class Scan(nn.Module):
    """States that fade and are written to, character by character, and what is read of them."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        rates = torch.arange(1, _STATE + 1).to(torch.get_default_dtype()).repeat(_INNER, 1)
        self.log_rates = nn.Parameter((torch.ones_like(rates) if how.alike else rates).log())
        self.skip = nn.Parameter(torch.ones(_INNER))

    def forward(self, x, step, write, read):
        """What is read (sample, place, channel)."""
        rates = self.log_rates.exp()
        fade = step[..., None] * (-rates if self.how.falls else rates)
        drive = (step * x)[..., None] * write[:, :, None]
        states = getattr(self, f"_{self.how.scanned}")(fade, drive)
        return (states * read[:, :, None]).sum(-1) + self.skip * x

    def _kept(self, fade):
        """What is left of a state."""
        return fade.exp() if self.how.power == "exp" else torch.exp2(fade * math.log2(math.e))

    def _loop(self, fade, drive):
        """One character after the other."""
        kept, states = self._kept(fade), [torch.zeros_like(drive[:, 0])]
        for at in range(_LENGTH):
            last = states[-1] if self.how.keeps == "attached" else states[-1].detach()
            states.append(kept[:, at] * last + drive[:, at])
        return torch.stack(states[1:], 1)

    def _doubled(self, fade, drive):
        """All characters at once, in as many rounds as the length can be halved."""
        kept, states, far = self._kept(fade), drive, 1
        while far < _LENGTH:
            moved = (0, 0, 0, 0, far, 0)
            states = states + kept * functional.pad(states, moved)[:, :_LENGTH]
            kept = kept * functional.pad(kept, moved, value=1.0)[:, :_LENGTH]
            far *= 2
        return states

    def _triangle(self, fade, drive):
        """As attention: each character is weighed by how much faded since."""
        since = fade.cumsum(1)
        since = since[:, :, None] - since[:, None]
        later = torch.ones(_LENGTH, _LENGTH, dtype=torch.bool).triu(1)[:, :, None, None]
        return torch.einsum("btsin,bsin->btin", since.masked_fill(later, -torch.inf).exp(), drive)


class Mixer(nn.Module):
    """A convolution, a scan and a gate."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.into = nn.Linear(_WIDTH, 2 * _INNER, bias=False)
        self.conv, self.step, self.scan = Conv(how), Step(how), Scan(how)
        self.told = nn.Linear(_INNER, _RANK + 2 * _STATE, bias=False)
        self.out = nn.Linear(_INNER, _WIDTH, bias=False)

    def forward(self, x):
        """x, mixed along its places."""
        if self.how.packing == "joined":
            x, gate = self.into(x).chunk(2, -1)
        else:
            x, gate = (x @ part.T for part in self.into.weight.chunk(2))
        x = functional.silu(self.conv(x.contiguous() if self.how.whole else x))
        rank, write, read = self.told(x).split((_RANK, _STATE, _STATE), -1)
        write, read = (read, write) if self.how.exchanged else (write, read)
        x = self.scan(x, self.step(rank), write, read) * functional.silu(gate)
        return self.out(functional.dropout(x, 0.0) if self.how.drop else x)


class Model(nn.Module):
    """Two mixers, each behind a norm and added to what it was given."""

    def __init__(self, how, letters: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(letters, _WIDTH)
        self.norms = nn.ModuleList(Norm(how) for _ in range(2))
        self.mixers = nn.ModuleList(Mixer(how) for _ in range(2))
        self.norm, self.head = Norm(how), nn.Linear(_WIDTH, letters, bias=False)

    def forward(self, letters):
        """Logits of the next characters."""
        x = self.embed(letters)
        for norm, mixer in zip(self.norms, self.mixers, strict=True):
            x = x + mixer(norm(x))
        return self.head(self.norm(x))


_SCAN = ("mixers.0.scan@value",)
_MISSED = ("missed@*", "loss@*", "output@grad", "head@grad")
_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
_LOW = {"low": True}
CASES = [
    Case(
        "convolution sees what comes",
        "bug",
        {"causal": False},
        ("mixers.0.conv@value",),
        r"\bpad|another order|arranged otherwise|places? on along",
    ),
    Case("eps of norms", "bug", {"norm_eps": 1e-2}, ("norms.0@value",), r"\beps\b"),
    Case(
        "steps by exp",
        "bug",
        {"steps_by": "exp"},
        ("mixers.0.step@value",),
        r"softplus|\b[Ee]xp(Backward|\b)",
    ),
    Case(
        "states grow",
        "bug",
        {"falls": False},
        _SCAN,
        rf"\b[Nn]eg(Backward|\b)|other sign|{_TIMES}",
    ),
    Case(
        "written and read exchanged",
        "bug",
        {"exchanged": True},
        _SCAN,
        rf"{_GIVEN}|[Ss]plit|exchange|swap|another order",
    ),
    Case(
        "states detached",
        "bug",
        {"keeps": "detached"},
        ("mixers.1.scan*@*grad", "mixers.1.step*@*grad", "mixers.1.told*@*grad"),
        r"detach|gradients come back|(lacks|alone|without).{0,60}(Mul|Backward)",
    ),
    Case(
        "targets not shifted",
        "bug",
        {"shifted": False},
        ("targets@value", *_MISSED),
        rf"{_GIVEN}|\btargets?\b|another order|places? on along",
    ),
    Case(
        "context judged alone",
        "bug",
        {"judged": "context"},
        ("mask@value", "missed@grad", "loss@*"),
        r"\bmask|\b[Gg]e\b|\b[Ll]t\b|[Nn]ot\b",
    ),
    Case(
        "loss over all characters",
        "bug",
        {"over": "all"},
        ("loss@value", "missed@grad"),
        rf"\bDiv|{_TIMES}",
    ),
    Case(
        "gradients not cleared",
        "bug",
        {"clears": False},
        ("*@grad",),
        r"zero_grad|clear|accumulat|add(s|ed) (up|to)|left over|(before|earlier|last) step",
        step=1,
    ),
    Case(
        "each parameter clipped by itself",
        "bug",
        {"clips": "itself"},
        ("*@grad",),
        rf"\bclip|\bnorms?\b|{_TIMES}",
    ),
    Case("rates of states decay", "bug", {"spares": False}, UPDATES, r"weight_decay"),
    Case("rate changes too early", "bug", {"early": True}, UPDATES, r"\blr\b"),
    Case("second beta", "bug", {"betas": (0.9, 0.95)}, UPDATES, r"\bbetas?\d?\b"),
    Case(
        "optimizer forgets",
        "bug",
        {"forgets": 3},
        UPDATES,
        r"exp_avg|\bstate\b|step (count|number)|\bstep 1\b",
        step=3,
    ),
    Case("scan by doubling", "benign", {"scanned": "doubled"}),
    Case("scan as attention", "benign", {"scanned": "triangle"}),
    Case("powers of two", "benign", {"power": "exp2"}),
    Case("convolution tap by tap", "benign", {"convolution": "taps"}),
    Case("stable softplus", "benign", {"plus": "own"}),
    Case("norm by the length", "benign", {"norming": "own"}),
    Case("two projections for one", "benign", {"packing": "apart"}),
    Case("entropy by logsumexp", "benign", {"entropy": "own"}),
    Case("norm of gradients at once", "benign", {"clips": "own"}),
    Case("4 micro-batches", "benign", {"parts": 4}),
    Case("scan by doubling, low precision", "benign", {"scanned": "doubled"}, reference=_LOW),
    Case("windows turned, low precision", "benign", {"turned": True}, reference=_LOW),
    Case("text in lower case", "data", {"lowers": True}, ("input*@value",)),
    Case("states begin alike", "data", {"alike": True}, ("*log_rates@value",)),
    Case("zeros for none", "equal", {"set_to_none": False}),
    Case("dropout of nothing", "equal", {"drop": True}),
    Case("channels made contiguous", "equal", {"whole": True}),
    Case("killed", "incomplete", {"killed_at": 4}),
]
