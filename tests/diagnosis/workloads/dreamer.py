"""A world model of digits, seen row by row, with drawn latents, and a critic of its states."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

import anchorlib
from tests.diagnosis.workloads.base import UPDATES, Case, Start, Workload, clear
from tests.diagnosis.workloads.world import ACTIONS, BINS, GROUPS, KINDS, Critic, World


@dataclass(frozen=True)
class Dreamer(Workload):
    """An episode sees a digit's rows; of half of the digits, another one begins in the middle.

    acted: the action that leads to a row, the one "before" or the one of the "same" time.
    begins: what is emptied where an episode begins, "all", the "state" or "nothing".
    slow: what is taken from the update gate's logit. updates: what that gate is the share of, of
        what is "told" or of what is "kept". resets: whether the reset gate stands "inside" or
        "outside" of tanh. norm_eps: of the norms.
    uniform: the share of latents' chances that is uniform. latents: "drawn", or "soft" chances.
        through: how the gradient passes a draw, as the "difference" or the "sum" of terms, or
        "not" at all.
    balance: the weights of the prior's and of the posterior's divergence. free: what a divergence
        may be without a loss; frees: "each" one or their "mean". diverges: what it starts from,
        the "posterior" or the "prior". stops: which divergences hold one side fixed, "both" or
        "none".
    squeezes: whether rows are told as symmetric logarithms. rows: a row's loss, a "sum" or a "mean"
        of pixels. nearest: whether a number is one bin or two. reward: whether its head's gradient
        reaches states ("attached") or stops ("detached"). ends: whether the end is told for going
        on.
    gamma, lam: of returns. follows: what follows the last state, its "worth" or "nothing". judges:
        whose worth that is, of the "slow" critic or the "fast" one. alone: whether the critic's
        gradient stops at states. rate: how fast the slow critic follows.
    critic_lr, world_eps: of the optimizers. clips: gradients "apart" or "together".
    low: whether the models run under autocast to bfloat16.
    gating, moving, encoding, decoding, softmax, norm, silu, divergence, symlog, bins, returns,
        backward, scale: other ways to write the same mathematics.
    """

    steps: int = 4
    batch: int = 8
    lr: float = 4e-3
    weight_decay: float = 0.0
    decoupled: bool = False
    acted: str = "before"
    begins: str = "all"
    slow: float = 1.0
    updates: str = "told"
    resets: str = "inside"
    norm_eps: float = 1e-3
    uniform: float = 0.01
    latents: str = "drawn"
    through: str = "difference"
    balance: tuple[float, float] = (1.0, 0.1)
    free: float = 1.0
    frees: str = "each"
    diverges: str = "posterior"
    stops: str = "both"
    squeezes: bool = True
    rows: str = "sum"
    nearest: bool = False
    reward: str = "attached"
    ends: bool = False
    gamma: float = 0.9
    lam: float = 0.95
    follows: str = "worth"
    judges: str = "slow"
    alone: bool = True
    rate: float = 0.1
    critic_lr: float = 2e-3
    world_eps: float = 1e-8
    clips: str = "apart"
    low: bool = False
    gating: str = "together"
    moving: str = "sum"
    encoding: str = "at once"
    decoding: str = "at once"
    softmax: str = "torch"
    norm: str = "torch"
    silu: str = "torch"
    divergence: str = "own"
    symlog: str = "log1p"
    bins: str = "product"
    returns: str = "loop"
    backward: str = "once"
    scale: float = 1.0

    @property
    def eps_of_noise(self) -> str:
        """What noise runs are perturbed by: the coarsest type that the training computes in."""
        return "bfloat16" if self.low else "float32"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            world, critic = World(self), Critic(self)
            slow = copy.deepcopy(critic).requires_grad_(False)
            models = world, critic
            optimizers = (
                self.adam(world.parameters(), adam_eps=self.world_eps),
                self.adam(critic.parameters(), lr=self.critic_lr),
            )
            session.watch(world, tensors="*", optimizer=optimizers[0], prefix="world")
            session.watch(critic, tensors="*", optimizer=optimizers[1], prefix="critic")
            session.watch(slow, tensors="*@value", prefix="slow")
            torch.manual_seed(seed)
            for images, labels in self.images(seed):
                for optimizer in optimizers:
                    clear(optimizer, self)
                episode = self._episode(images, labels)
                self._back(self._losses(world, critic, slow, episode))
                self._move(models, optimizers)
                with torch.no_grad():
                    for kept, new in zip(slow.parameters(), critic.parameters(), strict=True):
                        kept.lerp_(new, self.rate)
                session.step()

    def _episode(self, images, labels):
        """Rows, actions, beginnings, rewards and noise, each of (time, sequence, ...)."""
        rows = images.transpose(0, 1)
        times = torch.arange(len(rows))[:, None]
        actions = functional.one_hot((labels + times) % ACTIONS, ACTIONS).to(rows.dtype)
        firsts = (times == 0) | ((times == 4) & (labels % 2 == 0))
        noise = torch.rand(*rows.shape[:2], GROUPS, KINDS).clamp(1e-6, 1 - 1e-6)
        noise = noise.flip(1) if self.turned else noise
        return rows, actions, firsts.to(rows.dtype), 4 * rows.mean(-1), -(-noise.log()).log()

    def _losses(self, world, critic, slow, episode):
        """The losses of the world and of the critic."""
        rows, actions, firsts, rewards, noise = episode
        with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
            *told, features = world(rows, actions, firsts, noise)
            worth = critic(features.detach() if self.alone else features)
            judged = worth.detach() if self.judges == "fast" else slow(features.detach())
        wide = critic.layers[1].weight.dtype
        seen, reward, goes_on, priors, posteriors = (part.to(wide) for part in told)
        square = (seen - (self._squeezed(rows) if self.squeezes else rows)).square()
        square = square.sum(-1) if self.rows == "sum" else square.mean(-1)
        last = torch.cat((firsts[1:], torch.zeros_like(firsts[:1])))
        goal = last if self.ends else 1 - last
        returns = self._returns(rewards, 1 - last, judged.to(wide))
        return {
            "row_loss": square.mean() / 2,
            "reward_loss": self._binned(reward, rewards).mean(),
            "end_loss": functional.binary_cross_entropy_with_logits(goes_on[..., 0], goal),
            "latent_loss": self._divergences(priors, posteriors),
            "critic_loss": self._binned(worth.to(wide)[:-1], returns).mean(),
        }

    def _divergences(self, priors, posteriors):
        """How far priors are from posteriors, moved more than the posteriors are."""
        first = self._divergence(
            posteriors.detach() if self.stops == "both" else posteriors, priors
        )
        second = self._divergence(posteriors, priors.detach() if self.stops == "both" else priors)
        if self.frees == "each":
            first, second = (one.clamp(min=self.free).mean() for one in (first, second))
        else:
            first, second = (one.mean().clamp(min=self.free) for one in (first, second))
        return self.balance[0] * first + self.balance[1] * second

    def _divergence(self, one, other):
        one, other = (one, other) if self.diverges == "posterior" else (other, one)
        if self.divergence == "torch":
            pair = (torch.distributions.Categorical(logits=x) for x in (one, other))
            return torch.distributions.kl_divergence(*pair).sum(-1)
        if self.divergence == "entropies":
            return ((one.exp() * one).sum(-1) - (one.exp() * other).sum(-1)).sum(-1)
        return (one.exp() * (one - other)).sum((-1, -2))

    def _squeezed(self, x):
        """The symmetric logarithm of x."""
        if self.symlog == "log1p":
            return x.sign() * x.abs().log1p()
        return torch.where(x < 0, -torch.log(1 - x), torch.log(1 + x))

    def _binned(self, logits, x):
        """The cross entropy of chances of bins with the two bins around a number."""
        edges = torch.linspace(-3, 3, BINS)
        place = ((self._squeezed(x) + 3) / (edges[1] - edges[0])).clamp(0, BINS - 1)
        place = place.round() if self.nearest else place
        below = place.floor().clamp(max=BINS - 2)
        share, below = place - below, below.long()
        logs = logits.log_softmax(-1)
        if self.bins == "gather":
            low, high = (logs.gather(-1, at[..., None])[..., 0] for at in (below, below + 1))
            return -((1 - share) * low + share * high)
        low, high = (functional.one_hot(at, BINS) for at in (below, below + 1))
        return -(((1 - share)[..., None] * low + share[..., None] * high) * logs).sum(-1)

    @torch.no_grad()
    def _returns(self, rewards, goes_on, judged):
        """What follows each state but the last one, of (time, sequence)."""
        squeezed = judged.softmax(-1) @ torch.linspace(-3, 3, BINS)
        worth = squeezed.sign() * squeezed.abs().expm1()
        worth[-1] = worth[-1] if self.follows == "worth" else 0.0
        factors, count = self.gamma * goes_on, len(rewards) - 1
        if self.returns == "loop":
            found, later = [], worth[-1]
            for at in reversed(range(count)):
                later = (1 - self.lam) * worth[at + 1] + self.lam * later
                later = rewards[at] + factors[at] * later
                found.append(later)
            return torch.stack(found[::-1])
        own = rewards[:-1] + (1 - self.lam) * factors[:-1] * worth[1:]
        own[-1] = rewards[-2] + factors[-2] * worth[-1]
        steps = self.lam * factors[:-1]
        found = []
        for at in range(count):
            weights = torch.cat((torch.ones_like(own[:1]), steps[at:-1].cumprod(0)))
            found.append((weights * own[at:]).sum(0))
        return torch.stack(found)

    def _back(self, losses):
        """All losses' gradients."""
        loss = sum(losses.values())
        for name, one in (*losses.items(), ("loss", loss)):
            anchorlib.anchor(one, name)
        if self.backward == "once":
            (loss * self.scale).backward()
        elif self.backward == "models":
            (loss - losses["critic_loss"]).backward(retain_graph=True)
            losses["critic_loss"].backward()
        else:
            for one in losses.values():
                one.backward(retain_graph=True)

    def _move(self, models, optimizers):
        """One step of both models, with gradients unscaled and clipped."""
        apart = [list(model.parameters()) for model in models]
        together = [one for part in apart for one in part]
        if self.scale != 1:
            for one in together:
                one.grad.div_(self.scale)
        for part in apart if self.clips == "apart" else [together]:
            nn.utils.clip_grad_norm_(part, 1.0)
        for optimizer in optimizers:
            optimizer.step()


_STATE = ("world.cell@value",)
_LATENTS = ("world.output:4@grad", "world.output:3@grad", "latent_loss@*")
_POSTERIOR = ("world.posterior*@value", "world.output:4@value", "world.output:3@value")
_CRITIC = ("critic_loss@*", "critic.output@grad")
_SOFT = {"low": True, "latents": "soft", "free": 0.0}
"""No draws and no thresholds, which rounding to bfloat16 would flip."""
_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
_ORDER = r"another order|arranged otherwise|places? on along"
"""Words that name elements or operands which change places."""
_DETACHED = r"detach|gradients come back"
CASES = [
    Case(
        "action of the same time",
        "bug",
        {"acted": "same"},
        ("world.cell.enter*@value",),
        rf"{_ORDER}|{_GIVEN}|shift|\bCat|\bslice",
    ),
    Case(
        "states not emptied",
        "bug",
        {"begins": "nothing"},
        ("world.cell*@value",),
        rf"\bMul|\bmask|{_GIVEN}",
    ),
    Case(
        "latents not emptied",
        "bug",
        {"begins": "state"},
        ("world.cell.enter*@value",),
        rf"\bMul|\bmask|{_GIVEN}",
    ),
    Case(
        "update gate not slow",
        "bug",
        {"slow": 0.0},
        _STATE,
        r"\bSub|\bAdd(Backward|\b)",
    ),
    Case(
        "update gate the other way",
        "bug",
        {"updates": "kept"},
        _STATE,
        rf"\bRsub|\bSub|\bMul|{_ORDER}",
    ),
    Case(
        "reset outside of tanh",
        "bug",
        {"resets": "outside"},
        _STATE,
        rf"tanh|\bMul|{_ORDER}",
    ),
    Case("epsilon of norms", "bug", {"norm_eps": 1e-5}, ("world.encoder*@value",), r"\beps\b"),
    Case(
        "no uniform share",
        "bug",
        {"uniform": 0.0},
        (*_POSTERIOR, "world.cell.enter*@value"),
        r"\bAdd(Backward|\b)|\bMul",
    ),
    Case(
        "draws without a gradient",
        "bug",
        {"through": "not"},
        ("world.posterior*@grad", "world.posterior*@*grad", "world.cell*@*grad"),
        rf"{_DETACHED}|\bAdd(Backward|\b)|\bSub|\bExp(Backward|\b)",
    ),
    Case(
        "balance exchanged",
        "bug",
        {"balance": (0.1, 1.0)},
        _LATENTS,
        rf"{_TIMES}|\bMul|{_ORDER}",
    ),
    Case("nothing held fixed", "bug", {"stops": "none"}, _LATENTS, rf"{_DETACHED}"),
    Case("free bits of the mean", "bug", {"frees": "mean"}, _LATENTS, rf"clamp|\bMean|{_ORDER}"),
    Case("no free bits", "bug", {"free": 0.0}, _LATENTS, r"clamp|\bmin\b"),
    Case(
        "divergence from the prior",
        "bug",
        {"diverges": "prior"},
        _LATENTS,
        rf"{_ORDER}|\bSub|\bExp(Backward|\b)|other sign",
    ),
    Case(
        "rows as they are",
        "bug",
        {"squeezes": False},
        ("row_loss@*", "world.output@grad"),
        rf"{_GIVEN}|log1p|\bSub",
    ),
    Case(
        "mean over pixels",
        "bug",
        {"rows": "mean"},
        ("row_loss@*", "world.output@grad"),
        rf"\bMean|\bSum(Backward|\b)|{_TIMES}",
    ),
    Case(
        "nearest bin",
        "bug",
        {"nearest": True},
        ("reward_loss@*", "critic_loss@*", "world.output:1@grad"),
        rf"{_GIVEN}|round|\bMul",
    ),
    Case(
        "reward detached",
        "bug",
        {"reward": "detached"},
        (
            "world.decoder*@grad",
            "world.goes_on*@grad",
            "world.posterior*@*grad",
            "world.output:5@grad",
            "world.cell*@*grad",
        ),
        rf"{_DETACHED}|reward.{{0,80}}alone|alone.{{0,80}}reward",
    ),
    Case(
        "end for going on",
        "bug",
        {"ends": True},
        ("end_loss@*", "world.output:2@grad"),
        rf"{_GIVEN}|\bRsub|binary_?cross",
    ),
    Case("gamma", "bug", {"gamma": 0.99}, _CRITIC, rf"gamma|{_GIVEN}|\bMul"),
    Case(
        "nothing behind the last state",
        "bug",
        {"follows": "nothing"},
        _CRITIC,
        rf"{_GIVEN}|\bMul",
    ),
    Case(
        "fast critic judges",
        "bug",
        {"judges": "fast"},
        (*_CRITIC, "slow.*@value"),
        rf"{_GIVEN}|\bMul",
    ),
    Case(
        "critic teaches the world",
        "bug",
        {"alone": False},
        (
            "world.output:5@grad",
            "world.decoder*@grad",
            "world.reward*@*grad",
            "world.posterior*@*grad",
            "world.cell*@*grad",
        ),
        rf"{_DETACHED}",
    ),
    Case(
        "slow critic faster",
        "bug",
        {"rate": 0.5},
        ("slow.*@value",),
        rf"{_TIMES}|lerp|moves? 0?\.\d+",
    ),
    Case("critic's learning rate", "bug", {"critic_lr": 4e-3}, UPDATES, r"\blr\b"),
    Case("epsilon of Adam", "bug", {"world_eps": 1e-5}, UPDATES, r"\beps\b"),
    Case("clipped together", "bug", {"clips": "together"}, ("*@grad",), rf"\bclips?\b|{_TIMES}"),
    Case("gates in two products", "benign", {"gating": "apart"}),
    Case("state moved by a difference", "benign", {"moving": "difference"}),
    Case("rows encoded one by one", "benign", {"encoding": "each"}),
    Case("rows decoded one by one", "benign", {"decoding": "each"}),
    Case("softmax by logsumexp", "benign", {"softmax": "logsumexp"}),
    Case("own norms", "benign", {"norm": "own"}),
    Case("own silu", "benign", {"silu": "own"}),
    Case("draw plus chances", "benign", {"through": "sum"}),
    Case("divergence by torch", "benign", {"divergence": "torch"}),
    Case("divergence of entropies", "benign", {"divergence": "entropies"}),
    Case("symmetric logarithm by cases", "benign", {"symlog": "where"}),
    Case("returns by products", "benign", {"returns": "products"}),
    Case("a backward for each loss", "benign", {"backward": "each"}),
    Case("gradients unscaled", "benign", {"scale": 1000.0}),
    Case("sequences turned", "benign", {"turned": True}),
    Case("fused Adam", "benign", {"implementation": "fused"}),
    Case("2 threads", "benign", {"threads": 2}),
    Case("gates in two products, low precision", "benign", {"gating": "apart"}, reference=_SOFT),
    Case("own norms, low precision", "benign", {"norm": "own"}, reference=_SOFT),
    Case("own silu, low precision", "benign", {"silu": "own"}, reference=_SOFT),
    Case("decoded one by one, low precision", "benign", {"decoding": "each"}, reference=_SOFT),
    Case("a difference, low precision", "benign", {"moving": "difference"}, reference=_SOFT),
    Case("each loss, low precision", "benign", {"backward": "each"}, reference=_SOFT),
    Case("other init", "data", {"init": 1}, ("*weight@value",)),
    Case("other order", "data", {"order": 1}, ("world.input*@value",)),
    Case("again", "equal"),
    Case("foreach optimizers", "equal", {"implementation": "foreach"}),
    Case("bins by gather", "equal", {"bins": "gather"}),
    Case("a backward for each model", "benign", {"backward": "models"}),
    Case("zeros for none", "equal", {"set_to_none": False}),
    Case("again, low precision", "equal", reference=_SOFT),
    Case("died", "incomplete", {"ends_at": 2}),
]
