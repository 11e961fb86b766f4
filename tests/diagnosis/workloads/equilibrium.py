"""A net whose layer is applied until it rests: the digit is read from the fixed point."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

import anchorlib
from tests.diagnosis.workloads.base import UPDATES, Case, Start, Workload, clear, cut, warmed

_WIDTH, _HIDDEN, _KEPT = 24, 32, 4


@dataclass(frozen=True)
class Equilibrium(Workload):
    """A layer's fixed point is found by Anderson's method, its gradient by another iteration.

    forward, back: how many iterations find the fixed point, and its gradient. ridge: what steadies
        Anderson's equations. mix: the share of the layer's answers in the next point, the rest is
        that of the points which they answer.
    across: whether images lie on their sides. last: what ends the layer, the "norm" or the "act".
    norm_eps: of the layer norms. dropout: before the head.
    shows: whether the gradient reaches what images are made to. hooks: whether the gradient is that
        of the fixed point, else that of one application. given: whether each iteration of it adds
        what came from the head.
    over: what log-softmax is over, "classes" or "samples". summed: whether costs are summed.
    smooth: the share of a target that is dealt to all classes.
    penalty: the weight of the Jacobian's size. per: by what that is divided, "numbers" or
        "samples". graphs: whether it is differentiable.
    clears: whether gradients are forgotten at each step. wakes: whether the model is in training
        mode again after an evaluation. clip, clips: of gradients, by their "torch" or "own" norm.
    warmup: steps of rising rate. parts: micro-batches a step.
    linear, norming, act, equations, mixing, costs, sizes, series, backward, scale, lies, idle:
        other ways to write the same mathematics.
    """

    lr: float = 5e-3
    weight_decay: float = 0.05
    forward: int = 7
    back: int = 8
    ridge: float = 1e-4
    mix: float = 0.8
    across: bool = False
    last: str = "norm"
    norm_eps: float = 1e-5
    dropout: float = 0.1
    shows: bool = True
    hooks: bool = True
    given: bool = True
    over: str = "classes"
    summed: bool = False
    smooth: float = 0.1
    penalty: float = 0.5
    per: str = "numbers"
    graphs: bool = True
    clears: bool = True
    wakes: bool = True
    clip: float = 1.0
    clips: str = "torch"
    warmup: int = 2
    parts: int = 1
    linear: str = "torch"
    norming: str = "torch"
    act: str = "relu"
    equations: str = "divided"
    mixing: str = "sum"
    costs: str = "own"
    sizes: str = "squares"
    series: str = "iterated"
    backward: str = "once"
    scale: float = 1.0
    lies: str = "plain"
    idle: bool = False

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = Net(self)
            optimizer = self.adam(model.parameters())
            schedule = torch.optim.lr_scheduler.LambdaLR(
                optimizer, lambda step: warmed(step, self.warmup, 8)
            )
            session.watch(model, tensors="*", optimizer=optimizer)
            torch.manual_seed(seed)
            for step, (upright, labels) in enumerate(self.images(seed)):
                images = upright.transpose(1, 2) if self.across else upright
                if step == 2:
                    self._evaluate(model, images, labels)
                if self.clears:
                    clear(optimizer, self)
                noise = torch.randn(self.batch, _WIDTH)
                noise = noise.flip(0) if self.turned else noise
                for part in cut(self.parts, images, labels, noise):
                    self._learn(model, *part)
                self._bound(model)
                optimizer.step()
                schedule.step()

    @torch.no_grad()
    def _evaluate(self, model, images, labels):
        """The loss of a batch that is learnt from afterwards."""
        model.eval()
        logits, _ = model(images, None)
        anchorlib.anchor(functional.cross_entropy(logits, labels), "eval_loss")
        model.train(self.wakes)

    def _learn(self, model, images, labels, noise):
        """The gradients of one micro-batch."""
        logits, size = model(images, noise)
        losses = {"class_loss": self._cost(logits, labels), "jacobian_loss": self.penalty * size}
        losses = {name: loss / self.parts for name, loss in losses.items()}
        loss = sum(losses.values())
        for name, one in (*losses.items(), ("loss", loss)):
            anchorlib.anchor(one, name)
        if self.backward == "once":
            (loss * self.scale).backward()
        else:
            for one in losses.values():
                (one * self.scale).backward(retain_graph=True)

    def _cost(self, logits, labels):
        """The cross entropy to smoothed targets."""
        if self.costs == "torch":
            return functional.cross_entropy(logits, labels, label_smoothing=self.smooth)
        if self.costs == "margins":
            right = logits.gather(1, labels[:, None])[:, 0]
            return (logits.logsumexp(1) - right.lerp(logits.mean(1), self.smooth)).mean()
        chances = logits.log_softmax(1 if self.over == "classes" else 0)
        target = functional.one_hot(labels, 10) * (1 - self.smooth) + self.smooth / 10
        costs = -(target * chances).sum(1)
        return costs.sum() if self.summed else costs.mean()

    @torch.no_grad()
    def _bound(self, model):
        """Gradients, unscaled and clipped."""
        grads = [one.grad for one in model.parameters() if one.grad is not None]
        if self.scale != 1:
            for grad in grads:
                grad.div_(self.scale)
        if self.clips == "torch":
            nn.utils.clip_grad_norm_(model.parameters(), self.clip)
        else:
            length = torch.cat([grad.flatten() for grad in grads]).square().sum().sqrt()
            for grad in grads:
                grad.mul_((self.clip / (length + 1e-6)).clamp(max=1))


class Linear(nn.Linear):
    """A linear layer, torch's or by einsum."""

    def __init__(self, how, into: int, out: int) -> None:
        super().__init__(into, out)
        self.how = how

    def forward(self, x):
        """The product."""
        if self.how.linear == "einsum":
            return torch.einsum("ni,oi->no", x, self.weight) + self.bias
        return super().forward(x)


class Norm(nn.LayerNorm):
    """A layer norm, torch's or by its formula."""

    def __init__(self, how, width: int) -> None:
        super().__init__(width, how.norm_eps)
        self.how = how

    def forward(self, x):
        """x, normed."""
        if self.how.norming == "torch":
            return super().forward(x)
        wide = x - x.mean(-1, keepdim=True)
        spread = wide.square().mean(-1, keepdim=True)
        return wide / (spread + self.eps).sqrt() * self.weight + self.bias


class Cell(nn.Module):
    """The layer that is applied again and again."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.first, self.second = Linear(how, _WIDTH, _HIDDEN), Linear(how, _HIDDEN, _WIDTH)
        self.norm1, self.norm2, self.norm3 = (Norm(how, size) for size in (_HIDDEN, _WIDTH, _WIDTH))
        nn.init.normal_(self.first.weight, std=0.15)
        nn.init.normal_(self.second.weight, std=0.08)

    def forward(self, state, given):
        """The next state of a sample that was given."""
        hidden = self.norm1(self._act(self.first(state)))
        if self.how.idle:
            hidden = functional.dropout(hidden, 0.0, self.training)
        mixed = 0.3 * state + self.norm2(given + self.second(hidden))
        if self.how.last == "norm":
            return self.norm3(self._act(mixed))
        return self._act(self.norm3(mixed))

    def _act(self, x):
        return x.relu() if self.how.act == "relu" else (x + x.abs()) / 2


class Net(nn.Module):
    """Images are made to vectors, which hold the layer's fixed point where it is."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.enter = Linear(how, 64, _WIDTH)
        self.cell = Cell(how)
        self.drop = nn.Dropout(how.dropout)
        self.head = Linear(how, _WIDTH, 10)

    def forward(self, images, noise):
        """Logits, and the size of the layer's Jacobian along the noise, None without noise."""
        how, size = self.how, None
        given = self.enter(images.flatten(1))
        given = given.contiguous() if how.lies == "contiguous" else given
        given = given if how.shows else given.detach()
        with torch.no_grad():
            found = self._solved(given)
        state = self.cell(found, given)
        if noise is not None:
            still = state.detach().requires_grad_()
            again = self.cell(still, given)
            size = self._size(self.cell(still, given), still, noise)
            if how.hooks:
                state.register_hook(lambda grad: self._implicit(again, still, grad))
        anchorlib.anchor(state, "state")
        rest = (state - found).detach()
        anchorlib.anchor(rest.norm() / state.detach().norm(), "rest", grad=False)
        return self.head(self.drop(state)), size

    def _solved(self, given):
        """The fixed point, by Anderson's method."""
        points = [torch.zeros_like(given)]
        answers = [self.cell(points[0], given)]
        points.append(answers[0])
        answers.append(self.cell(points[1], given))
        for _ in range(self.how.forward):
            asked, told = (torch.stack(some[-_KEPT:], 1) for some in (points, answers))
            shares = self._shares(told - asked)
            points.append(anchorlib.anchor(self._mixed(shares, asked, told), "point", grad=False))
            answers.append(self.cell(points[-1], given))
        return points[-1]

    def _shares(self, misses):
        """The shares, one in all, by which the misses (sample, point, width) cancel best."""
        count = misses.shape[1]
        products = misses @ misses.transpose(1, 2) + self.how.ridge * torch.eye(count)
        if self.how.equations == "divided":
            shares = torch.linalg.solve(products, torch.ones(len(misses), count))
            return shares / shares.sum(1, keepdim=True)
        whole = functional.pad(products, (1, 0, 1, 0), value=1.0)
        whole[:, 0, 0] = 0
        right = functional.one_hot(torch.zeros(len(misses), dtype=torch.long), count + 1)
        return torch.linalg.solve(whole, right.to(whole.dtype))[:, 1:]

    def _mixed(self, shares, asked, told):
        mix = self.how.mix
        if self.how.mixing == "sum":
            told, asked = ((shares[..., None] * some).sum(1) for some in (told, asked))
            return mix * told + (1 - mix) * asked
        return torch.einsum("nk,nkw->nw", shares, asked.lerp(told, mix))

    def _size(self, again, still, noise):
        """The squares of what the Jacobian makes of the noise."""
        graphs = self.how.graphs
        (made,) = torch.autograd.grad(again, still, noise, retain_graph=True, create_graph=graphs)
        count = made.numel() if self.how.per == "numbers" else len(made)
        if self.how.sizes == "squares":
            return made.square().sum() / count
        return made.norm(dim=1).pow(2).div(count).sum()

    def _implicit(self, again, still, grad):
        """The gradient of the fixed point: what solves y = J y + grad."""
        if self.how.series == "summed":
            return self._summed(again, still, grad)
        found = grad
        for _ in range(self.how.back):
            (onto,) = torch.autograd.grad(again, still, found, retain_graph=True)
            found = onto + grad if self.how.given else onto
        return found

    def _summed(self, again, still, grad):
        """The same, as the sum of all that the Jacobian's powers make of the gradient."""
        terms = [grad]
        for _ in range(self.how.back):
            terms += torch.autograd.grad(again, still, terms[-1], retain_graph=True)
        return torch.stack(terms).sum(0)


_STATE = ("state@grad", "cell*@*grad")
_CLASS = ("class_loss@*", "loss@*", "output@grad", "head@grad")
_SIZE = ("jacobian_loss@*", "loss@*")
_POINT = ("point@value", "cell.first@value")
_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
_DETACHED = r"detach|gradients come back"
_LACKS = r"(lacks|alone|without).{0,60}Backward|Backward.{0,60}(lacks|alone)"
CASES = [
    Case(
        "eps of norms",
        "bug",
        {"norm_eps": 1e-2},
        ("cell.norm1@value", "cell.norm2@value"),
        r"\beps\b",
    ),
    Case(
        "norm before the activation",
        "bug",
        {"last": "act"},
        ("cell.norm3@value", "cell@value"),
        r"\b[Rr]elu|[Ll]ayer_?[Nn]orm",
    ),
    Case(
        "points and answers mixed the other way",
        "bug",
        {"mix": 0.2},
        _POINT,
        rf"\b[Mm]ul|\b[Ll]erp|{_TIMES}",
    ),
    Case(
        "equations too steady",
        "bug",
        {"ridge": 10.0},
        _POINT,
        r"[Ss]olve|\b[Aa]dd(Backward|\b)|\b[Mm]ul|\beye\b",
    ),
    Case(
        "image's vector detached",
        "bug",
        {"shows": False},
        ("enter@grad", "enter.*@grad", "cell@grad", "cell*@*grad"),
        _DETACHED,
    ),
    Case(
        "gradient of one application",
        "bug",
        {"hooks": False},
        _STATE,
        rf"\bhook|{_DETACHED}|{_TIMES}",
    ),
    Case(
        "head's gradient not added",
        "bug",
        {"given": False},
        _STATE,
        rf"\bhook|\b[Aa]dd(Backward|\b)|{_TIMES}",
    ),
    Case("softmax over samples", "bug", {"over": "samples"}, _CLASS, r"\bdim\b"),
    Case("costs summed", "bug", {"summed": True}, _CLASS, rf"\bMean|\bSum(Backward|\b)|{_TIMES}"),
    Case(
        "targets not smoothed",
        "bug",
        {"smooth": 0.0},
        _CLASS,
        rf"smooth|\bMul|\bAdd(Backward|\b)|{_GIVEN}",
    ),
    Case("Jacobian over samples", "bug", {"per": "samples"}, _SIZE, rf"\bDiv|{_TIMES}"),
    Case(
        "Jacobian not differentiable",
        "bug",
        {"graphs": False},
        ("jacobian_loss@grad", "cell*@*grad"),
        rf"{_DETACHED}|create_graph|second derivative|{_LACKS}",
    ),
    Case(
        "gradients not forgotten",
        "bug",
        {"clears": False},
        ("*@grad",),
        r"zero_grad|accumulat|forg[eo]t|step before|earlier steps?|previous|added to",
        step=1,
    ),
    Case(
        "still in eval mode",
        "bug",
        {"wakes": False},
        ("drop@value",),
        r"eval mode|train(ing)? mode|training (True|False)|\beval\b",
    ),
    Case("betas of GANs", "bug", {"betas": (0.5, 0.999)}, UPDATES, r"betas?"),
    Case("linear by einsum", "benign", {"linear": "einsum"}),
    Case("own layer norms", "benign", {"norming": "own"}),
    Case("bordered equations", "benign", {"equations": "bordered"}),
    Case("mixed before they are weighed", "benign", {"mixing": "lerp"}),
    Case("cost by torch", "benign", {"costs": "torch"}),
    Case("cost by margins", "benign", {"costs": "margins"}),
    Case("Jacobian by norms", "benign", {"sizes": "norms"}),
    Case("gradient as a series", "benign", {"series": "summed"}),
    Case("2 micro-batches", "benign", {"parts": 2}, reference={"dropout": 0.0}),
    Case("samples turned", "benign", {"turned": True}, reference={"dropout": 0.0}),
    Case("norm of gradients at once", "benign", {"clips": "own"}),
    Case("loss scaled, gradients unscaled", "benign", {"scale": 1000.0}),
    Case("other init", "data", {"init": 1}, ("*weight@value",)),
    Case("images on their sides", "data", {"across": True}, ("input*@value",)),
    Case("contiguous", "equal", {"lies": "contiguous"}),
    Case("dropout of nothing", "equal", {"idle": True}),
    Case("foreach Adam", "equal", {"implementation": "foreach"}),
    Case("died", "incomplete", {"ends_at": 3}),
]
