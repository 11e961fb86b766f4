"""Preference optimization: adapters on a frozen language model learn which endings are real."""

from __future__ import annotations

import contextlib
import copy
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
from tests.diagnosis.workloads.base import UPDATES, Case, EndedError, Start, Workload, clear, cut

_PROMPT, _LONG = 8, 24
"""How many letters a prompt has, and how many a prompt with its completion may have."""
_WIDTH, _HEADS, _RANK, _ALPHA = 16, 2, 4, 8.0


@dataclass(frozen=True)
class Preferrer(Workload):
    """Prompts begin lines of the Zen of Python; its own end is chosen, another line's rejected.

    begins: the spread of the adapters' second factors at the start. scaling: what the adapters'
        product is multiplied by, their "alpha" over the rank or the whole "alpha". dropout: of
        what adapters are given. norm_eps: of the norms. sees: how many places ahead a letter sees.
    training: whether the policy is in training mode. frozen: whether the base is.
    scores: the letters that count, of the "completion", of "all" or those after it too ("padded").
    shifts: whether the letter that is told is the next one. averages: whether log-probabilities
        are divided by how many letters count. beta: of the margins. refers: whether the reference
        counts. smoothing: how often labels are taken to be wrong. wrongly: whether the smoothed
        part has the same sign as the other. learns: the completions that have gradients, "both"
        or the "chosen". sft: the weight of the likelihood of what is chosen.
    parts: micro-batches a step. divides: whether their losses are divided by their number.
    clears: whether gradients are forgotten. clip, clips: of gradients, by their "torch" norm or
        their "own" norm.
    low: whether the nets run under autocast to bfloat16.
    forwards, adapter, attention, norming, embedding, told, summed, margins, sigmoid, tracked,
        dropped: other ways to write the same mathematics.
    """

    batch: int = 8
    weight_decay: float = 0.0
    begins: float = 0.3
    scaling: str = "rank"
    dropout: float = 0.1
    norm_eps: float = 1e-5
    sees: int = 0
    training: bool = True
    frozen: bool = True
    scores: str = "completion"
    shifts: bool = True
    averages: bool = False
    beta: float = 0.1
    refers: bool = True
    smoothing: float = 0.1
    wrongly: bool = True
    learns: str = "both"
    sft: float = 0.02
    parts: int = 2
    divides: bool = True
    clears: bool = True
    clip: float = 0.5
    clips: str = "torch"
    low: bool = False
    forwards: str = "joined"
    adapter: str = "apart"
    attention: str = "own"
    norming: str = "torch"
    embedding: str = "torch"
    told: str = "softmax"
    summed: str = "mask"
    margins: str = "ratios"
    sigmoid: str = "torch"
    tracked: bool = False
    dropped: str = "always"

    @property
    def eps_of_noise(self) -> str:
        """What noise runs are perturbed by: the coarsest type that the training computes in."""
        return "bfloat16" if self.low else "float32"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            policy = _Model(self)
            reference = _without(policy)
            for name, parameter in policy.named_parameters():
                parameter.requires_grad_(name.endswith(("up", "down")) or not self.frozen)
            policy.train(self.training)
            learnt = [one for one in policy.parameters() if one.requires_grad]
            optimizer = self.adam(learnt)
            session.watch(policy, tensors="*", optimizer=optimizer)
            session.watch(reference, tensors="*", prefix="reference")
            torch.manual_seed(seed)
            for pairs in self._pairs(seed):
                if self.clears:
                    clear(optimizer, self)
                for part in cut(self.parts, *pairs):
                    self._loss(policy, reference, *part).backward()
                self._bound(learnt)
                optimizer.step()

    def _pairs(self, seed):
        """Letters of prompts with both completions (pair, 2, letter), and how long they are."""
        dealing = torch.Generator().manual_seed(31 + 1000 * seed + self.order)
        letters, ends = _lines()
        for step in range(self.steps):
            right = torch.randint(0, len(letters), (self.batch,), generator=dealing)
            other = torch.randint(1, len(letters), (self.batch,), generator=dealing)
            until = torch.randint(14, _LONG + 1, (self.batch, 2), generator=dealing)
            if step == self.ends_at:
                raise EndedError
            if step == self.killed_at:
                os.kill(os.getpid(), signal.SIGKILL)
            lines = torch.stack((right, (right + other) % len(letters)), 1)
            pairs, until = letters[lines], torch.minimum(until, ends[lines])
            pairs[:, 1, :_PROMPT] = pairs[:, 0, :_PROMPT]
            pairs = pairs * (torch.arange(_LONG) < until[..., None])
            yield (pairs.flip(0), until.flip(0)) if self.turned else (pairs, until)

    def _logits(self, model, letters):
        """The logits of pairs' letters, of both completions at once or of one after the other."""
        with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
            if self.forwards == "joined":
                found = model(letters.flatten(0, 1)).unflatten(0, (-1, 2))
            else:
                found = torch.stack((model(letters[:, 0]), model(letters[:, 1])), 1)
        return found.to(model.head.weight.dtype)

    def _counted(self, until):
        """Which letters are scored: of the next ones of each place."""
        places = torch.arange(1, _LONG)
        inside = places < (_LONG if self.scores == "padded" else until[..., None])
        return inside if self.scores == "all" else inside & (places >= _PROMPT)

    def _logps(self, logits, letters, counted):
        """The log-probability of each completion (pair, 2)."""
        logits = logits[:, :, :-1]
        wanted = letters[:, :, 1:] if self.shifts else letters[:, :, :-1]
        if self.told == "softmax":
            told = logits.log_softmax(-1).gather(-1, wanted[..., None])[..., 0]
        else:
            told = logits.gather(-1, wanted[..., None])[..., 0] - logits.logsumexp(-1)
        if self.summed == "mask":
            found = (told * counted).sum(-1)
        elif self.summed == "einsum":
            found = torch.einsum("pct,pct->pc", told, counted.to(told.dtype))
        else:
            at, kind, _ = counted.nonzero(as_tuple=True)
            found = told.new_zeros(told.shape[:2].numel())
            found = found.index_add(0, 2 * at + kind, told[counted]).view(told.shape[:2])
        return found / counted.sum(-1) if self.averages else found

    def _loss(self, policy, reference, letters, until):
        """A micro-batch's share of the loss."""
        counted = anchorlib.anchor(self._counted(until), "mask", grad=False)
        logps = self._logps(self._logits(policy, letters), letters, counted)
        with torch.set_grad_enabled(self.tracked):
            known = self._logps(self._logits(reference, letters), letters, counted)
        anchorlib.anchor(logps, "logps")
        anchorlib.anchor(known, "reference_logps", grad=False)
        chosen, rejected = logps.unbind(1)
        rejected = rejected if self.learns == "both" else rejected.detach()
        known = known if self.refers else torch.zeros_like(known)
        if self.margins == "ratios":
            margins = (chosen - known[:, 0]) - (rejected - known[:, 1])
        else:
            margins = (chosen - rejected) - (known[:, 0] - known[:, 1])
        margins = anchorlib.anchor(self.beta * margins, "margins")
        preferred = anchorlib.anchor(self._preferred(margins).mean(), "preference_loss")
        likely = anchorlib.anchor(-self.sft * chosen.mean(), "sft_loss")
        loss = preferred + likely
        return anchorlib.anchor(loss / self.parts if self.divides else loss, "loss")

    def _preferred(self, margins):
        """How badly the chosen completions are preferred, with smoothed labels."""
        right, wrong = 1 - self.smoothing, self.smoothing
        other = -margins if self.wrongly else margins
        if self.sigmoid == "torch":
            return -right * functional.logsigmoid(margins) - wrong * functional.logsigmoid(other)
        if self.sigmoid == "softplus":
            return functional.softplus(margins) - right * margins
        return functional.binary_cross_entropy_with_logits(
            margins, torch.full_like(margins, right), reduction="none"
        )

    @torch.no_grad()
    def _bound(self, learnt):
        """Gradients, clipped."""
        if self.clips == "torch":
            nn.utils.clip_grad_norm_(learnt, self.clip)
            return
        length = math.sqrt(sum(one.grad.square().sum().item() for one in learnt))
        for one in learnt:
            one.grad.mul_(min(1.0, self.clip / (length + 1e-6)))


@cache
def _lines() -> tuple[torch.Tensor, torch.Tensor]:
    """The Zen of Python, line by line, as numbers of letters, 0 behind the end; where lines end."""
    with contextlib.redirect_stdout(io.StringIO()):
        import this  # which prints itself
    zen = "".join(this.d.get(letter, letter) for letter in this.s)
    lines = [line[:_LONG] for line in zen.splitlines() if len(line) > _PROMPT]
    names = {name: at for at, name in enumerate(sorted(set("".join(lines))), 1)}
    found = torch.zeros(len(lines), _LONG, dtype=torch.long)
    for at, line in enumerate(lines):
        found[at, : len(line)] = torch.tensor([names[letter] for letter in line])
    return found, torch.tensor([len(line) for line in lines])


class _Adapted(nn.Linear):
    """A frozen linear layer with an adapter of low rank beside it."""

    def __init__(self, how) -> None:
        super().__init__(_WIDTH, _WIDTH, bias=False)
        self.how, self.drop = how, nn.Dropout(how.dropout)
        self.down = nn.Parameter(torch.randn(_RANK, _WIDTH) / math.sqrt(_WIDTH))
        self.up = nn.Parameter(torch.randn(_WIDTH, _RANK) * how.begins)

    def forward(self, x):
        """x, mapped by both."""
        if self.up is None:
            return super().forward(x)
        scale = _ALPHA / _RANK if self.how.scaling == "rank" else _ALPHA
        if self.how.adapter == "merged":
            return functional.linear(x, self.weight + scale * (self.up @ self.down))
        given = x if self.how.dropped == "never" else self.drop(x)
        return super().forward(x) + given @ self.down.T @ self.up.T * scale


class _Norm(nn.RMSNorm):
    """A root-mean-square norm, torch's or by its formula."""

    def __init__(self, how) -> None:
        super().__init__(_WIDTH, how.norm_eps)
        self.how = how

    def forward(self, x):
        """x, normed."""
        if self.how.norming == "torch":
            return super().forward(x)
        wide = x.to(self.weight.dtype)
        return wide / (wide.square().mean(-1, keepdim=True) + self.eps).sqrt() * self.weight


class _Attention(nn.Module):
    """Attention to the letters before, with adapters of queries and values."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.q, self.v = _Adapted(how), _Adapted(how)
        self.k, self.out = (nn.Linear(_WIDTH, _WIDTH, bias=False) for _ in range(2))

    def forward(self, x):
        """x, mixed."""
        q, k, v = (
            part.unflatten(-1, (_HEADS, -1)).transpose(1, 2)
            for part in (self.q(x), self.k(x), self.v(x))
        )
        if self.how.attention == "torch":
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            seen = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril(self.how.sees)
            root = math.sqrt(_WIDTH // _HEADS)
            if self.how.attention == "own":
                scores = q @ k.transpose(-1, -2) / root
            else:
                scores = torch.einsum("nhqd,nhkd->nhqk", q / root, k)
            mixed = scores.masked_fill(~seen, -math.inf).softmax(-1) @ v
        return self.out(mixed.transpose(1, 2).flatten(2))


class _Block(nn.Module):
    """Attention and two layers, each added to what it was given."""

    def __init__(self, how) -> None:
        super().__init__()
        self.norm1, self.norm2, self.attention = _Norm(how), _Norm(how), _Attention(how)
        self.wide, self.narrow = nn.Linear(_WIDTH, 2 * _WIDTH), nn.Linear(2 * _WIDTH, _WIDTH)

    def forward(self, x):
        """x, moved."""
        x = x + self.attention(self.norm1(x))
        return x + self.narrow(functional.silu(self.wide(self.norm2(x))))


class _Model(nn.Module):
    """A language model of letters."""

    def __init__(self, how) -> None:
        super().__init__()
        count = int(_lines()[0].max()) + 1
        self.how = how
        self.letters, self.places = nn.Embedding(count, _WIDTH), nn.Embedding(_LONG, _WIDTH)
        self.blocks = nn.ModuleList(_Block(how) for _ in range(2))
        self.norm, self.head = _Norm(how), nn.Linear(_WIDTH, count, bias=False)

    def forward(self, letters):
        """Logits of the letters that come next."""
        if self.how.embedding == "torch":
            x = self.letters(letters)
        else:
            known = self.letters.weight
            x = functional.one_hot(letters, len(known)).to(known.dtype) @ known
        x = x + self.places.weight[: letters.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def _without(policy):
    """A frozen copy that has no adapters."""
    reference = copy.deepcopy(policy).eval().requires_grad_(False)
    for module in reference.modules():
        if isinstance(module, _Adapted):
            module.up = module.down = None
    return reference


_NORMED = ("*blocks.0.norm1@value",)
_MIXED = ("*blocks.0.attention.out@value", "*blocks.0.attention@value")
_LOGPS = ("logps@*", "reference_logps@value", "output@grad")
_MARGINS = ("margins@*", "preference_loss@*", "logps@grad", "output@grad")
_FACTORS = ("*.up@grad", "*.down@grad")
_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target|index) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
_ORDER = r"another order|arranged otherwise|places? on along"
"""Words that name elements or operands which change places."""
_DETACHED = r"detach|gradients come back"
CASES = [
    Case(
        "adapters times alpha",
        "bug",
        {"scaling": "alpha"},
        ("blocks.0.attention.[qv]@value",),
        rf"\bMul|{_TIMES}",
    ),
    Case("eps of norms", "bug", {"norm_eps": 1e-2}, _NORMED, r"\beps\b"),
    Case("next letter is seen", "bug", {"sees": 1}, _MIXED, r"\bmask"),
    Case(
        "policy in eval mode",
        "bug",
        {"training": False},
        ("blocks.0.attention.q.drop@value", "blocks.0.attention.v.drop@value"),
        r"eval mode|train(ing)? mode|training (True|False)|\beval\b",
    ),
    Case(
        "prompts are scored",
        "bug",
        {"scores": "all"},
        ("mask@value", *_LOGPS),
        rf"\bmask|\bMul|{_GIVEN}",
    ),
    Case(
        "letters not shifted",
        "bug",
        {"shifts": False},
        _LOGPS,
        rf"\b[Gg]ather|\bindex|\b[Ss]lice|{_GIVEN}|{_ORDER}",
    ),
    Case(
        "log-probabilities averaged",
        "bug",
        {"averages": True},
        _LOGPS,
        r"\bDiv|\bMean|a factor of its own",
    ),
    Case("beta of 0.5", "bug", {"beta": 0.5}, _MARGINS, rf"\bMul|\bbeta\b|{_TIMES}"),
    Case(
        "reference left out",
        "bug",
        {"refers": False},
        _MARGINS,
        rf"\bSub(Backward|\b)|\bzeros\b|reference|{_GIVEN}",
    ),
    Case(
        "smoothed part not negated",
        "bug",
        {"wrongly": False},
        ("preference_loss@*", "margins@grad"),
        rf"\bNeg|other sign|[Ll]og_?[Ss]igmoid|{_TIMES}|{_GIVEN}",
    ),
    Case(
        "rejected completions detached",
        "bug",
        {"learns": "chosen"},
        ("logps@grad", "output@grad"),
        rf"{_DETACHED}|\b(Sub|Unbind)\w* .{{0,60}}(lacks|alone)|(lacks|alone).{{0,60}}\b(Sub|Unb)",
    ),
    Case(
        "micro-batches not divided",
        "bug",
        {"divides": False},
        ("loss@*", "*_loss@grad", "logps@grad", "output@grad"),
        rf"\bDiv|{_TIMES}",
    ),
    Case(
        "gradients not cleared",
        "bug",
        {"clears": False},
        _FACTORS,
        r"zero_grad|accumulat|clear|earlier step|step before|previous|added up",
        step=1,
    ),
    Case(
        "base not frozen",
        "bug",
        {"frozen": False},
        ("*weight@*", "*bias@*", *_FACTORS),
        r"requires_grad|frozen|B alone|in B only|only in B|only B|clip",
    ),
    Case("second beta of 0.95", "bug", {"betas": (0.9, 0.95)}, UPDATES, r"\bbetas?2?\b|0\.95"),
    Case("queries divided before the product", "benign", {"attention": "einsum"}),
    Case("log-probabilities by logsumexp", "benign", {"told": "logsumexp"}),
    Case("letters summed by index_add", "benign", {"summed": "index"}),
    Case("margins of policy and reference", "benign", {"margins": "models"}),
    Case("loss by softplus", "benign", {"sigmoid": "softplus"}),
    Case("loss by binary cross entropy", "benign", {"sigmoid": "entropy"}),
    Case(
        "completions one after the other", "benign", {"forwards": "two"}, reference={"dropout": 0.0}
    ),
    Case("adapters merged", "benign", {"adapter": "merged"}, reference={"dropout": 0.0}),
    Case("pairs turned", "benign", {"turned": True}, reference={"dropout": 0.0, "parts": 1}),
    Case(
        "norm of gradients by parts, fused", "benign", {"clips": "own", "implementation": "fused"}
    ),
    Case(
        "attention by torch, low precision",
        "benign",
        {"attention": "torch"},
        reference={"low": True},
    ),
    Case("own norms, low precision", "benign", {"norming": "own"}, reference={"low": True}),
    Case("other init", "data", {"init": 1}, ("*weight@value", "*.up@value", "*.down@value")),
    Case("other order", "data", {"order": 1}, ("*input*@value", "mask@value")),
    Case("reference with a graph", "equal", {"tracked": True}),
    Case("letters by a product", "equal", {"embedding": "product"}),
    Case("dropout of nothing left out", "equal", {"dropped": "never"}, reference={"dropout": 0.0}),
    Case("died", "incomplete", {"ends_at": 3}),
]
