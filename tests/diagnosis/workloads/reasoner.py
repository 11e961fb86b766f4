"""Group-relative policy optimisation of a small transformer that answers sums."""

from __future__ import annotations

import copy
import os
import signal
from dataclasses import dataclass

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
    warmed,
)
from tests.diagnosis.workloads.causal import Causal

_PLUS, _EQUALS, _END, _PAD, _NAMES = 10, 11, 12, 13, 14
_ASKED, _ANSWERED = 5, 5
"""Tokens of a prompt and of what follows it, with their padding."""


@dataclass(frozen=True)
class Reasoner(Workload):
    """Answers were drawn before; each batch of them is learnt from several times.

    places: tokens are numbered without padding ("there") or with it ("all"). hides: whether padding
        is not attended to. norm_eps: of the norms.
    shifted: whether logits are those before each token. heat: what they are divided by.
    groups: what rewards are compared within, a prompt's "own" answers or "all" of the batch.
    divides: whether by their spread too.
    renews: whether old log-probabilities are computed for each epoch. follows: whether the
        reference becomes the policy after each step. bounds: of ratios. bound: the "lower" of both
        products counts or the "higher".
    masked: whether what follows an answer's end is left out. over: losses are a mean over
        "sequences" of their means, or over all "tokens".
    divergence: to the reference: "forward", "backward" or by the "plain" difference. beta: its
        weight. clears: gradients, for each "step" or each "batch". clip: of gradients. clips:
        "before" the optimizer's step or "after" it. warmup: steps of rising rate.
    parts: micro-batches a step. epochs: steps that learn from the same answers.
    low: whether the nets run under autocast to bfloat16.
    norming, attention, chances, quotient, surrogate, spread, means, kl: other ways to write the
        same mathematics.
    """

    batch: int = 4
    group: int = 4
    lr: float = 2e-2
    weight_decay: float = 0.0
    places: str = "there"
    hides: bool = True
    norm_eps: float = 1e-6
    shifted: bool = True
    heat: float = 0.8
    groups: str = "own"
    divides: bool = True
    renews: bool = False
    follows: bool = False
    bounds: tuple[float, float] = (0.8, 1.2)
    bound: str = "lower"
    masked: bool = True
    over: str = "sequences"
    divergence: str = "forward"
    beta: float = 0.1
    clears: str = "step"
    clip: float = 0.5
    clips: str = "before"
    warmup: int = 2
    parts: int = 1
    epochs: int = 2
    low: bool = False
    norming: str = "torch"
    attention: str = "own"
    chances: str = "log_softmax"
    quotient: str = "difference"
    surrogate: str = "minimum"
    spread: str = "torch"
    means: str = "quotient"
    kl: str = "exp"

    @property
    def eps_of_noise(self) -> str:
        """What noise runs are perturbed by: the coarsest type that the training computes in."""
        return "bfloat16" if self.low else "float32"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = Causal(self, _NAMES)
            reference = copy.deepcopy(model).requires_grad_(False).eval()
            optimizer = self.adam(model.parameters())
            schedule = torch.optim.lr_scheduler.LambdaLR(
                optimizer, lambda step: warmed(step, self.warmup, 8)
            )
            session.watch(model, tensors="*", optimizer=optimizer)
            session.watch(reference, tensors="*", prefix="reference")
            for step, (epoch, batch) in enumerate(self._batches(seed)):
                self._may_end(step)
                tokens, counts, rewards = batch
                if epoch == 0:
                    advantages = anchorlib.anchor(self._advantages(rewards), "advantages")
                if epoch == 0 or self.renews:
                    old = self._before(model, tokens)
                referred = anchorlib.anchor(self._before(reference, tokens), "referred")
                if epoch == 0 or self.clears == "step":
                    clear(optimizer, self)
                known = tokens, counts, advantages, old, referred
                for part in cut(self.parts, *known):
                    self._learn(model, *part)
                self._step(model, optimizer)
                schedule.step()
                if self.follows:
                    reference.load_state_dict(model.state_dict())

    def _batches(self, seed):
        """Prompts with answers, which tokens of answers count, and rewards, epoch by epoch."""
        dealing = torch.Generator().manual_seed(31 + 1000 * seed + self.order)
        for _ in range(self.steps // self.epochs):
            count = self.batch * self.group
            terms = torch.randint(0, 20, (self.batch,), generator=dealing)
            others = torch.randint(0, 10, (self.batch,), generator=dealing)
            sums = (terms + others).repeat_interleave(self.group)
            prompts = torch.stack([_prompt(*one) for one in zip(terms, others, strict=True)])
            answers = torch.randint(0, 10, (count, _ANSWERED), generator=dealing)
            ends = torch.randint(1, _ANSWERED, (count, 1), generator=dealing)
            at = torch.arange(_ANSWERED)
            answers = answers.masked_fill(at == ends, _END).masked_fill(at > ends, _PAD)
            told = torch.where(ends[:, 0] > 1, 10 * answers[:, 0] + answers[:, 1], answers[:, 0])
            rewards = -(told - sums).abs() / 20.0 - 0.15 * ends[:, 0]
            tokens = torch.cat((prompts.repeat_interleave(self.group, 0), answers), 1)
            found = tokens, at <= ends, rewards
            for epoch in range(self.epochs):
                yield epoch, [one.flip(0) for one in found] if self.turned else found

    def _may_end(self, step):
        if step == self.ends_at:
            raise EndedError
        if step == self.killed_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def _advantages(self, rewards):
        """Rewards less the mean of their group, as multiples of the group's spread."""
        grouped = rewards.view(-1, self.group if self.groups == "own" else len(rewards))
        moved = grouped - grouped.mean(1, keepdim=True)
        if self.spread == "torch":
            spread = grouped.std(1, keepdim=True)
        else:
            spread = (moved.square().sum(1, keepdim=True) / (grouped.shape[1] - 1)).sqrt()
        return (moved / (spread + 1e-4) if self.divides else moved).flatten()

    def _chances(self, model, tokens):
        """The log-probability of each token of the answers."""
        with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
            logits = model(tokens, tokens != _PAD)
        logits = logits.to(model.norm.weight.dtype)
        logits = logits[:, _ASKED - 1 : -1] if self.shifted else logits[:, _ASKED:]
        logits, wanted = logits / self.heat, tokens[:, _ASKED:]
        if self.chances == "cross_entropy":
            missed = functional.cross_entropy(logits.transpose(1, 2), wanted, reduction="none")
            return -missed
        if self.chances == "logsumexp":
            told = logits.gather(2, wanted[..., None])[..., 0]
            return told - logits.logsumexp(2)
        return logits.log_softmax(2).gather(2, wanted[..., None])[..., 0]

    @torch.no_grad()
    def _before(self, model, tokens):
        return self._chances(model, tokens)

    def _learn(self, model, *known):
        """The gradients of some answers."""
        tokens, counts, advantages, old, referred = known
        told = anchorlib.anchor(self._chances(model, tokens), "chances")
        ratio = (told - old).exp() if self.quotient == "difference" else told.exp() / old.exp()
        ratio = anchorlib.anchor(ratio, "ratio")
        missed = anchorlib.anchor(self._surrogate(ratio, advantages[:, None]), "surrogate")
        far = anchorlib.anchor(self._far(told, referred), "kl")
        policy, kl = (self._mean(one, counts) / self.parts for one in (missed, far))
        loss = policy + self.beta * kl
        for one, name in ((policy, "policy_loss"), (kl, "kl_loss"), (loss, "loss")):
            anchorlib.anchor(one, name)
        loss.backward()

    def _surrogate(self, ratio, advantages):
        """What is to be made small: ratios times advantages, as far as ratios are bounded."""
        bounded = ratio.clamp(*self.bounds)
        if self.surrogate == "maximum":
            return torch.maximum(-advantages * ratio, -advantages * bounded)
        choose = torch.minimum if self.bound == "lower" else torch.maximum
        return -choose(ratio * advantages, bounded * advantages)

    def _far(self, told, referred):
        """How far the policy is from the reference, token by token."""
        apart = told - referred if self.divergence == "backward" else referred - told
        if self.divergence == "plain":
            return -apart
        return apart.expm1() - apart if self.kl == "expm1" else apart.exp() - apart - 1

    def _mean(self, losses, counts):
        """The mean over answers of the mean over their tokens."""
        counts = (counts if self.masked else torch.ones_like(counts)).to(losses.dtype)
        if self.means == "where":
            return (torch.where(counts > 0, losses, 0.0).sum(1) / counts.sum(1)).mean()
        if self.over == "tokens":
            return (losses * counts).sum() / counts.sum()
        if self.means == "weights":
            weights = counts / counts.sum(1, keepdim=True) / len(counts)
            return weights.flatten() @ losses.flatten()
        return ((losses * counts).sum(1) / counts.sum(1)).mean()

    def _step(self, model, optimizer):
        if self.clips == "before":
            nn.utils.clip_grad_norm_(model.parameters(), self.clip)
        optimizer.step()
        if self.clips == "after":
            nn.utils.clip_grad_norm_(model.parameters(), self.clip)


def _prompt(term, other):
    """The tokens of a sum, with padding before them."""
    tokens = [*map(int, str(term.item())), _PLUS, other.item(), _EQUALS]
    return torch.tensor([_PAD] * (_ASKED - len(tokens)) + tokens)


_LOSS = ("policy_loss@*", "kl_loss@*", "loss@*", "surrogate@grad", "kl@grad")
_POLICY = ("surrogate@value", "policy_loss@*", "ratio@grad")
_KL = ("kl@value", "kl_loss@*")
_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
_ORDER = r"another order|arranged otherwise|places? on along"
"""Words that name elements or operands which change places."""
CASES = [
    Case(
        "advantages not divided",
        "bug",
        {"divides": False},
        ("advantages@value",),
        rf"\bDiv|\bstd\b|{_TIMES}|a factor of its own",
        step=0,
    ),
    Case(
        "advantages of the whole batch",
        "bug",
        {"groups": "all"},
        ("advantages@value",),
        r"\bdim\b|\bMean|\bstd\b|\bView|reshape|\bSub|\bDiv",
        step=0,
    ),
    Case(
        "what follows the end counts",
        "bug",
        {"masked": False},
        _LOSS,
        rf"\bmask|\bMul|\bDiv|{_GIVEN}|\bzeros?\b",
        step=0,
    ),
    Case(
        "log-probabilities one further",
        "bug",
        {"shifted": False},
        ("chances@value", "referred@value"),
        rf"\b[Ss]lice|\bindex|\bgather|{_ORDER}|{_GIVEN}",
        step=0,
    ),
    Case(
        "temperature left out",
        "bug",
        {"heat": 1.0},
        ("chances@value", "referred@value"),
        rf"\bDiv|{_TIMES}|{_GIVEN}",
        step=0,
    ),
    Case(
        "old log-probabilities of each epoch",
        "bug",
        {"renews": True},
        ("ratio@value",),
        rf"\bSub(Backward|\b)|\b[Ee]xp(Backward|\b)|{_GIVEN}|detach|\bones\b|every element",
        step=1,
    ),
    Case(
        "reference follows",
        "bug",
        {"follows": True},
        ("reference.*@value", "referred@value"),
        r"reference|frozen|copy|load_state_dict|changes?\b|moves?\b",
        step=1,
    ),
    Case(
        "divergence the other way",
        "bug",
        {"divergence": "backward"},
        (*_KL, "chances@grad"),
        rf"\bSub(Backward|\b)|\bRsub|{_ORDER}|other sign|{_GIVEN}|\bNeg|\b[Ee]xp(Backward|\b)",
    ),
    Case(
        "divergence by the plain difference",
        "bug",
        {"divergence": "plain"},
        (*_KL, "chances@grad"),
        r"\b[Ee]xp(Backward|\b)|\bSub(Backward|\b)|\bNeg",
        step=0,
    ),
    Case(
        "bounds of ratios too narrow",
        "bug",
        {"bounds": (0.98, 1.02)},
        _POLICY,
        r"\bclamp|\bclip|\bmin\b|\bmax\b",
        step=1,
    ),
    Case(
        "higher product for the lower",
        "bug",
        {"bound": "higher"},
        _POLICY,
        r"\b[Mm]inimum|\b[Mm]aximum|\bmin\b|\bmax\b",
        step=1,
    ),
    Case(
        "divergence is rewarded",
        "bug",
        {"beta": -0.1},
        ("loss@value", "kl_loss@grad", "kl@grad"),
        rf"\bMul|\bSub(Backward|\b)|other sign|{_TIMES}|\bAdd(Backward|\b)|\balpha\b",
        step=0,
    ),
    Case(
        "gradients cleared for each batch",
        "bug",
        {"clears": "batch"},
        ("*@grad",),
        r"zero_grad|accumul|cleared|zeroed|left over|not reset|added to",
        step=1,
    ),
    Case(
        "mean over all tokens",
        "bug",
        {"over": "tokens"},
        _LOSS,
        r"\bMean|\bSum|\bDiv",
        step=0,
    ),
    Case(
        "places count padding",
        "bug",
        {"places": "all"},
        ("places@value", "reference.places@value"),
        rf"\bindices\b|\bindex|\bclamp|{_GIVEN}|{_ORDER}",
        step=0,
    ),
    Case(
        "padding is attended to",
        "bug",
        {"hides": False},
        ("blocks.0.attention*@value", "reference.blocks.0.attention*@value"),
        r"masked_?fill|\bmask|\bwhere",
        step=0,
    ),
    Case(
        "gradients clipped after the step",
        "bug",
        {"clips": "after"},
        ("*@grad", *UPDATES),
        rf"\bclip|{_TIMES}",
        step=0,
    ),
    Case("no warm-up", "bug", {"warmup": 0}, UPDATES, r"\blr\b", step=0),
    Case("log-probabilities by logsumexp", "benign", {"chances": "logsumexp"}),
    Case("log-probabilities by cross entropy", "benign", {"chances": "cross_entropy"}),
    Case("ratio of probabilities", "benign", {"quotient": "probabilities"}),
    Case("divergence by expm1", "benign", {"kl": "expm1"}),
    Case("spread written out", "benign", {"spread": "own"}),
    Case("means by weights", "benign", {"means": "weights"}),
    Case("a micro-batch for each prompt", "benign", {"parts": 4}),
    Case("attention by torch", "benign", {"attention": "torch"}),
    Case("own norms", "benign", {"norming": "own"}),
    Case("batch turned", "benign", {"turned": True}),
    Case(
        "log-probabilities by logsumexp, low precision",
        "benign",
        {"chances": "logsumexp"},
        reference={"low": True},
    ),
    Case(
        "attention by torch, low precision",
        "benign",
        {"attention": "torch"},
        reference={"low": True, "epochs": 1},
    ),
    Case("other init", "data", {"init": 1}, ("*weight@value",)),
    Case("other order", "data", {"order": 1}, ("input*@value", "advantages@value")),
    Case("means by where", "equal", {"means": "where"}),
    Case("maximum of what is turned", "equal", {"surrogate": "maximum"}),
    Case("zeros for none", "equal", {"set_to_none": False}),
    Case("died", "incomplete", {"ends_at": 3}),
]
