"""A selective state-space model that reads packed documents of pixels and tells the next one."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import anchorlib
from tests.diagnosis.workloads.base import UPDATES, Case, Start, Workload, clear, cut

_LEVELS, _PAD, _WIDTH, _INNER, _STATES, _RANK, _TAPS = 17, 17, 16, 24, 4, 2, 4
_LONG = 12
"""Places of one document; a sequence has two of them."""


@dataclass(frozen=True)
class Scanner(Workload):
    """A sequence holds two digits' pixels as documents, each ending in padding.

    sides: where the convolution is padded, "left" or "both". leaks: whether it sees the document
        before. bends: whether its result passes an activation.
    rates: what makes a step's rate positive, "softplus" or "exp". biases: how often the rate's bias
        is added. poles: whether decay rates are the "exp" of what is trained, or "as they are".
    inputs: how an input enters the state: times its rate ("euler"), as the "exact" integral, or
        "without" the rate. skips: whether the input is added to the result. exchanged: whether the
        vectors that write and read the state change places. reads: the state "behind" or "before"
        a step's update. resets: whether each document begins with an empty state.
    gate: "silu" or "sigmoid". halves: which half is the gate, "second" or "first".
    norm_eps: of the norms. placed: whether a norm stands "before" a mixer or "behind" the sum.
    ahead: how far the target is. crosses: whether the next document's first pixel is a target.
        pads: whether padding is a target. counts: the targets that a loss is a mean of, of "all"
        micro-batches or of its own "part".
    parts: micro-batches a step. decays: whether all parameters decay. stable: steps of full rate.
    clip: of the gradients' norm. low: whether the net runs under autocast to bfloat16.
    scan, taps, softplus, silu, norm, read, decay, packing, loss, scale, checkpoints: other ways
        to write the same mathematics.
    """

    steps: int = 4
    lr: float = 4e-3
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.1
    sides: str = "left"
    leaks: bool = False
    bends: bool = True
    rates: str = "softplus"
    biases: int = 1
    poles: str = "exp"
    inputs: str = "euler"
    skips: bool = True
    exchanged: bool = False
    reads: str = "behind"
    resets: bool = True
    gate: str = "silu"
    halves: str = "second"
    norm_eps: float = 1e-5
    placed: str = "before"
    ahead: int = 1
    crosses: bool = False
    pads: bool = False
    counts: str = "all"
    parts: int = 2
    decays: bool = False
    stable: int = 3
    clip: float = 1.0
    low: bool = False
    scan: str = "steps"
    taps: str = "torch"
    softplus: str = "torch"
    silu: str = "torch"
    norm: str = "rsqrt"
    read: str = "sum"
    decay: str = "exp"
    packing: str = "together"
    loss: str = "torch"
    scale: float = 1.0
    checkpoints: bool = False

    @property
    def eps_of_noise(self) -> str:
        """What noise runs are perturbed by: the coarsest type that the training computes in."""
        return "bfloat16" if self.low else "float32"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = Net(self)
            optimizer = self.adam(self._groups(model))
            schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, self._rate)
            session.watch(model, tensors="*", optimizer=optimizer)
            torch.manual_seed(seed)
            for images, labels in self.images(seed):
                tokens, targets = self._documents(images, labels)
                clear(optimizer, self)
                count = (targets >= 0).sum()
                for one, wanted in cut(self.parts, tokens, targets):
                    with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
                        logits = model(one)
                    loss = self._loss(logits.to(model.norm.weight.dtype), wanted, count)
                    anchorlib.anchor(loss, "loss")
                    (loss * self.scale).backward()
                if self.scale != 1:
                    for parameter in model.parameters():
                        parameter.grad.div_(self.scale)
                nn.utils.clip_grad_norm_(model.parameters(), self.clip)
                optimizer.step()
                schedule.step()

    def _groups(self, model):
        """Matrices decay; biases, norms and what is trained of the states do not."""
        named = list(model.named_parameters())
        kept = [one for name, one in named if one.ndim < 2 or "scan" in name]
        rest = [one for name, one in named if not (one.ndim < 2 or "scan" in name)]
        decay = self.weight_decay if self.decays else 0.0
        return [{"params": rest}, {"params": kept, "weight_decay": decay}]

    def _rate(self, step: int) -> float:
        """A rise of one step, full rate, then a straight fall."""
        if step == 0:
            return 0.5
        return max(0.1, 1.0 if step <= self.stable else 1 - (step - self.stable) / 3)

    def _documents(self, images, labels):
        """Tokens (sequence, place) of two documents each, and targets; -1 is no target."""
        tokens = ((images.flatten(1)[:, 18 : 18 + _LONG] + 1) * 8).long()
        ends = _LONG - labels.remainder(5)
        tokens = tokens.masked_fill(torch.arange(_LONG) >= ends[:, None], _PAD)
        tokens = tokens.view(-1, 2 * _LONG)
        targets = tokens.roll(-self.ahead, 1)
        places = torch.arange(2 * _LONG)
        if not self.pads:
            targets = targets.masked_fill(targets == _PAD, -1)
        if not self.crosses:
            targets = targets.masked_fill(places % _LONG >= _LONG - self.ahead, -1)
        return tokens, targets.masked_fill(places >= 2 * _LONG - self.ahead, -1)

    def _loss(self, logits, targets, count):
        logits, targets = logits.flatten(0, 1), targets.flatten()
        if self.loss == "torch":
            told = functional.cross_entropy(logits, targets, ignore_index=-1, reduction="sum")
        else:
            seen = targets >= 0
            chosen = logits.gather(1, targets.clamp(min=0)[:, None])[:, 0]
            told = torch.where(seen, logits.logsumexp(1) - chosen, 0.0).sum()
        if self.counts == "part":
            return told / (targets >= 0).sum() / self.parts
        return told / count


class Norm(nn.Module):
    """A norm by the root of the mean square."""

    def __init__(self, how: Scanner) -> None:
        super().__init__()
        self.how, self.weight = how, nn.Parameter(torch.ones(_WIDTH))

    def forward(self, x):
        """x, normed."""
        wide = x.to(self.weight.dtype)
        square = wide.square().mean(-1, keepdim=True) + self.how.norm_eps
        wide = wide * square.rsqrt() if self.how.norm == "rsqrt" else wide / square.sqrt()
        return wide * self.weight


class Conv(nn.Conv1d):
    """A convolution of each channel by itself, which sees what was and not what will be."""

    how: Scanner

    def forward(self, x):
        """x (sequence, place, channel), document by document, convolved."""
        how = self.how
        documents = x if how.leaks else x.unflatten(1, (2, _LONG)).flatten(0, 1)
        sides = {"left": (_TAPS - 1, 0), "both": (_TAPS // 2, _TAPS // 2 - 1)}[how.sides]
        moved = functional.pad(documents.transpose(1, 2), sides)
        if how.taps == "torch":
            moved = super().forward(moved)
        else:
            long = documents.shape[1]
            parts = [moved[..., at : at + long] * self.weight[:, 0, at, None] for at in range(4)]
            moved = sum(parts[1:], parts[0]) + self.bias[:, None]
        return moved.transpose(1, 2).reshape(x.shape)


class Act(nn.Module):
    """x sigmoid(x)."""

    def __init__(self, how: Scanner) -> None:
        super().__init__()
        self.how = how

    def forward(self, x):
        """The activation."""
        return functional.silu(x) if self.how.silu == "torch" else x * torch.sigmoid(x)


class Scan(nn.Module):
    """States that decay, take what is written to them, and are read."""

    def __init__(self, how: Scanner) -> None:
        super().__init__()
        self.how = how
        begin = torch.arange(1, _STATES + 1).to(torch.get_default_dtype()).log()
        self.log_poles = nn.Parameter(begin.repeat(_INNER, 1))
        self.skip = nn.Parameter(torch.ones(_INNER))

    def forward(self, x, rates, writes, reads):
        """What is read at each place, of x and rates (sequence, place, channel)."""
        how = self.how
        poles = -(self.log_poles.exp() if how.poles == "exp" else self.log_poles)
        powers = rates[..., None] * poles
        entering = (x if how.inputs == "without" else rates * x)[..., None] * writes[:, :, None]
        if how.inputs == "exact":
            entering = powers.expm1() / poles * x[..., None] * writes[:, :, None]
        states = self._states(powers, entering)
        if how.reads == "before":
            states = torch.cat((torch.zeros_like(states[:, :1]), states[:, :-1]), 1)
        if how.read == "sum":
            told = (states * reads[:, :, None]).sum(-1)
        else:
            told = torch.einsum("btcn,btn->btc", states, reads)
        return told + x * self.skip if how.skips else told

    def _states(self, powers, entering):
        """The state behind each place, of what it decays by and of what enters."""
        how = self.how
        long = powers.shape[1]
        first = torch.arange(long) % _LONG == 0 if how.resets else torch.arange(long) == 0
        if how.scan == "pairs":
            document = first.cumsum(0)
            earlier = torch.ones(long, long).tril() * (document[:, None] == document)
            apart = powers.cumsum(1)[:, :, None] - powers.cumsum(1)[:, None]
            apart = apart.masked_fill((earlier == 0)[..., None, None], -torch.inf)
            return (apart.exp() * entering[:, None]).sum(2)
        decays = powers.exp() if how.decay == "exp" else torch.exp2(powers * 1.4426950408889634)
        decays = decays * (~first)[:, None, None]
        if how.scan == "steps":
            state, found = torch.zeros_like(entering[:, 0]), []
            for at in range(long):
                state = decays[:, at] * state + entering[:, at]
                found.append(state)
            return torch.stack(found, 1)
        state, far = entering, 1
        while far < long:
            late = torch.cat((torch.zeros_like(state[:, :far]), state[:, :-far]), 1)
            state = state + decays * late
            decays = decays * torch.cat((torch.ones_like(decays[:, :far]), decays[:, :-far]), 1)
            far *= 2
        return state


class Mixer(nn.Module):
    """A convolution and a scan, times a gate."""

    def __init__(self, how: Scanner) -> None:
        super().__init__()
        self.how = how
        self.enter = nn.Linear(_WIDTH, 2 * _INNER, bias=False)
        self.conv, self.act = Conv(_INNER, _INNER, _TAPS, groups=_INNER), Act(how)
        self.conv.how = how
        self.select = nn.Linear(_INNER, _RANK + 2 * _STATES, bias=False)
        self.rate, self.scan = nn.Linear(_RANK, _INNER), Scan(how)
        with torch.no_grad():
            self.rate.bias.copy_(torch.empty(_INNER).uniform_(0.05, 0.5).expm1().log())
        self.gate, self.leave = Act(how), nn.Linear(_INNER, _WIDTH, bias=False)

    def forward(self, x):
        """x, mixed along its places."""
        how = self.how
        if how.packing == "together":
            inner, gate = self.enter(x).chunk(2, -1)
        else:
            inner, gate = (functional.linear(x, part) for part in self.enter.weight.chunk(2))
        inner, gate = (inner, gate) if how.halves == "second" else (gate, inner)
        inner = self.conv(inner)
        inner = self.act(inner) if how.bends else inner
        rank, writes, reads = self.select(inner).split((_RANK, _STATES, _STATES), -1)
        writes, reads = (reads, writes) if how.exchanged else (writes, reads)
        rates = self.rate(rank) + (how.biases - 1) * self.rate.bias
        wide = self.scan.skip.dtype
        told = self.scan(inner.to(wide), self._positive(rates.to(wide)), writes, reads)
        gate = self.gate(gate) if how.gate == "silu" else gate.sigmoid()
        return self.leave(told.to(gate.dtype) * gate)

    def _positive(self, rates):
        if self.how.rates == "exp":
            return rates.exp()
        if self.how.softplus == "torch":
            return functional.softplus(rates)
        return torch.logaddexp(rates, torch.zeros_like(rates))


class Layer(nn.Module):
    """A norm, a mixer, and what was given added."""

    def __init__(self, how: Scanner) -> None:
        super().__init__()
        self.how, self.norm, self.mixer = how, Norm(how), Mixer(how)

    def forward(self, x):
        """x, moved."""
        if self.how.placed == "before":
            return x + self.mixer(self.norm(x))
        return self.norm(x + self.mixer(x))


class Net(nn.Module):
    """Two layers between an embedding and a head."""

    def __init__(self, how: Scanner) -> None:
        super().__init__()
        self.how, self.embed = how, nn.Embedding(_LEVELS + 1, _WIDTH)
        self.layers = nn.ModuleList(Layer(how) for _ in range(2))
        self.norm, self.head = Norm(how), nn.Linear(_WIDTH, _LEVELS + 1, bias=False)

    def forward(self, tokens):
        """Logits of the next token at each place."""
        x = self.embed(tokens)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.how.checkpoints else layer(x)
        return self.head(self.norm(x))


_CONV = ("layers.0.mixer.conv@value",)
_SCAN = ("layers.0.mixer.scan@value",)
_GATE = ("layers.0.mixer.leave@value", "layers.0.mixer.gate@value", "layers.0.mixer@value")
_LOSS = ("loss@*", "output@grad")
_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
_ORDER = r"another order|arranged otherwise|places? on along"
"""Words that name elements or operands which change places."""
CASES = [
    Case(
        "future in the convolution",
        "bug",
        {"sides": "both"},
        _CONV,
        r"\bpad|constant_?pad|places? on|shift",
    ),
    Case(
        "convolution over the border",
        "bug",
        {"leaks": True},
        _CONV,
        r"\bView|reshape|unflatten|\bpad|constant_?pad",
    ),
    Case(
        "convolution not bent",
        "bug",
        {"bends": False},
        ("layers.0.mixer.select@value", "layers.0.mixer.act@value"),
        r"silu|\bact\b.{0,60}(called|alone)",
    ),
    Case(
        "rates by exp",
        "bug",
        {"rates": "exp"},
        _SCAN,
        r"[Ss]oftplus|\b[Ee]xp(Backward|\b)",
    ),
    Case(
        "bias of rates twice",
        "bug",
        {"biases": 2},
        _SCAN,
        rf"\bAdd(Backward|\b)|\bMul|{_TIMES}",
    ),
    Case("poles without exp", "bug", {"poles": "as they are"}, _SCAN, r"\b[Ee]xp(Backward|\b)"),
    Case("inputs without rates", "bug", {"inputs": "without"}, _SCAN, r"\bMul"),
    Case(
        "inputs integrated",
        "bug",
        {"inputs": "exact"},
        _SCAN,
        r"expm1|\bDiv|\bMul",
    ),
    Case("no skip", "bug", {"skips": False}, _SCAN, r"\bAdd(Backward|\b)|\bMul"),
    Case(
        "gate by a sigmoid",
        "bug",
        {"gate": "sigmoid"},
        _GATE,
        r"[Ss]igmoid|[Ss]i[Ll][Uu]",
    ),
    Case(
        "halves exchanged",
        "bug",
        {"halves": "first"},
        _CONV,
        rf"{_ORDER}|\bsplit|\bchunk|\bslice|narrow|output [01] \|",
    ),
    Case(
        "written for read",
        "bug",
        {"exchanged": True},
        _SCAN,
        rf"{_ORDER}|\bsplit|\bchunk|\bslice|narrow|output [0-2] \|",
    ),
    Case(
        "state read too early",
        "bug",
        {"reads": "before"},
        _SCAN,
        r"places? on|\bCat|\bslice|zeros_like|shift",
    ),
    Case(
        "state kept between documents",
        "bug",
        {"resets": False},
        _SCAN,
        rf"\bMul|\bmask|{_GIVEN}",
    ),
    Case(
        "epsilon of norms",
        "bug",
        {"norm_eps": 1e-2},
        ("layers.0.norm@value",),
        r"\beps\b|\b0\.01\b|1e-0?2|\bAdd(Backward|\b)",
    ),
    Case(
        "norms behind sums",
        "bug",
        {"placed": "behind"},
        ("layers.0.norm@value", "layers.0.mixer.enter@value"),
        r"\bAdd(Backward|\b)|computes it from|rsqrt",
    ),
    Case(
        "target two ahead",
        "bug",
        {"ahead": 2},
        _LOSS,
        r"targets? differ|\blabel \d|nll|cross.?entropy",
    ),
    Case(
        "target over the border",
        "bug",
        {"crosses": True},
        _LOSS,
        rf"targets? differ|ignored|ignore_index|\bDiv|{_TIMES}",
    ),
    Case(
        "padding as a target",
        "bug",
        {"pads": True},
        _LOSS,
        rf"targets? differ|ignored|ignore_index|\bDiv|{_TIMES}",
    ),
    Case("mean of means", "bug", {"counts": "part"}, _LOSS, rf"\bDiv|{_TIMES}"),
    Case("poles and norms decay", "bug", {"decays": True}, UPDATES, r"weight_decay"),
    Case("rate falls sooner", "bug", {"stable": 1}, UPDATES, r"\blr\b", step=2),
    Case("second beta", "bug", {"betas": (0.9, 0.999)}, UPDATES, r"\bbetas?\b"),
    Case("norm of gradients", "bug", {"clip": 0.1}, ("*@grad",), rf"\bclips?\b|{_TIMES}"),
    Case("scan by doubling", "benign", {"scan": "doubling"}),
    Case("scan as one product of pairs", "benign", {"scan": "pairs"}),
    Case("tap by tap", "benign", {"taps": "own"}),
    Case("softplus by logaddexp", "benign", {"softplus": "own"}),
    Case("own silu", "benign", {"silu": "own"}),
    Case("division by a root", "benign", {"norm": "root"}),
    Case("read by einsum", "benign", {"read": "einsum"}),
    Case("powers of two", "benign", {"decay": "exp2"}),
    Case("entered in two products", "benign", {"packing": "apart"}),
    Case("loss by gather", "benign", {"loss": "own"}),
    Case("4 micro-batches", "benign", {"parts": 4}),
    Case("one batch", "benign", {"parts": 1}),
    Case("fused AdamW", "benign", {"implementation": "fused"}),
    Case("2 threads", "benign", {"threads": 2}),
    Case("gradients unscaled", "benign", {"scale": 1000.0}),
    Case("tap by tap, low precision", "benign", {"taps": "own"}, reference={"low": True}),
    Case("own silu, low precision", "benign", {"silu": "own"}, reference={"low": True}),
    Case("entered apart, low precision", "benign", {"packing": "apart"}, reference={"low": True}),
    Case(
        "scan by doubling, low precision", "benign", {"scan": "doubling"}, reference={"low": True}
    ),
    Case("one batch, low precision", "benign", {"parts": 1}, reference={"low": True}),
    Case("other init", "data", {"init": 1}, ("*weight@value",)),
    Case("other order", "data", {"order": 1}, ("input*@value", "embed@value")),
    Case("again", "equal"),
    Case("foreach", "equal", {"implementation": "foreach"}),
    Case("layers checkpointed", "equal", {"checkpoints": True}),
    Case("checkpointed, low precision", "equal", {"checkpoints": True}, reference={"low": True}),
    Case("died", "incomplete", {"ends_at": 2}),
]
