"""Blue ink becomes chalk and back: a CycleGAN of two domains of digits that are not paired."""

from __future__ import annotations

import itertools
import os
import random
import signal
from dataclasses import dataclass

import torch
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
    digits,
)
from tests.diagnosis.workloads.cycler_net import Buffer, CycleGAN, Pool

_SIZE, _LOADED = 16, 18
_INK = ((0.95, 0.93, 0.85), (0.1, 0.2, 0.6))
_CHALK = ((0.05, 0.25, 0.15), (0.9, 0.9, 0.95))
"""The colours of ground and stroke in each domain."""


@dataclass(frozen=True)
class Cycler(Workload):
    """Digits in ink and other digits in chalk are translated into each other.

    padding: of the residual blocks, "reflect" or "zero". norm: over each "instance" or the "batch".
    squashes: whether discriminators end with a sigmoid.
    plays_for: the label by which generators are judged. cycle, identity: the weights of the losses;
        that of identity is a share of the cycle's. weighs: whether identity has both factors.
    closes: whether a cycle's gradient reaches its first generator, "attached" or "detached".
    compares: the image of identity, its "own" or that of the "other" domain.
    pool: how many earlier translations are kept, 0: none.
    trains: whose parameters the second optimizer has, "both" discriminators' or the "first"'s.
    epoch: steps between two changes of the rate. stays, falls: epochs before and while it falls.
    parts: micro-batches a step. low: whether the nets run under autocast to bfloat16.
    norming, identities, judged, backward, layout, keeps, pooled: other ways to write the same
        mathematics.
    """

    steps: int = 5
    batch: int = 3
    lr: float = 2e-4
    betas: tuple[float, float] = (0.5, 0.999)
    weight_decay: float = 0.0
    decoupled: bool = False
    padding: str = "reflect"
    norm: str = "instance"
    squashes: bool = False
    plays_for: float = 1.0
    cycle: float = 10.0
    identity: float = 0.5
    weighs: bool = True
    closes: str = "attached"
    compares: str = "own"
    pool: int = 4
    trains: str = "both"
    epoch: int = 2
    stays: int = 1
    falls: int = 5
    parts: int = 1
    low: bool = False
    norming: str = "torch"
    identities: str = "apart"
    judged: str = "apart"
    backward: str = "once"
    layout: torch.memory_format = torch.contiguous_format
    keeps: str = "all"
    pooled: str = "list"

    @property
    def eps_of_noise(self) -> str:
        """What noise runs are perturbed by: the coarsest type that the training computes in."""
        return "bfloat16" if self.low else "float32"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            nets = CycleGAN(self).to(memory_format=self.layout)
            of_g = self.adam(itertools.chain(nets.g_ab.parameters(), nets.g_ba.parameters()))
            judges = [nets.d_a, nets.d_b] if self.trains == "both" else [nets.d_a]
            of_d = self.adam(itertools.chain(*(judge.parameters() for judge in judges)))
            schedules = [torch.optim.lr_scheduler.LambdaLR(one, self._rate) for one in (of_g, of_d)]
            session.watch(nets, tensors="*", optimizer=[of_g, of_d])
            torch.manual_seed(seed)
            chance = random.Random(seed)
            pool = Pool if self.pooled == "list" else Buffer
            pools = [pool(self.pool, chance) for _ in range(2)]
            for step, reals in enumerate(self._batches(seed)):
                self._judging(nets, False)
                clear(of_g, self)
                fakes = [self._generate(nets, *part) for part in cut(self.parts, *reals)]
                of_g.step()
                self._judging(nets, True)
                clear(of_d, self)
                for side, judge in enumerate((nets.d_a, nets.d_b)):
                    fake = pools[side].query(torch.cat([part[side] for part in fakes]))
                    self._judge(judge, reals[side], fake, f"d_{'ab'[side]}_loss")
                of_d.step()
                if (step + 1) % self.epoch == 0:
                    for schedule in schedules:
                        schedule.step()

    def _rate(self, epoch):
        """The factor of the learning rate, which stays and then falls to zero."""
        return 1 - max(0, epoch + 1 - self.stays) / (self.falls + 1)

    def _batches(self, seed):
        """Images of both domains, which know nothing of each other."""
        images = (digits()[0].to(torch.get_default_dtype()) + 1) / 2
        dealing = torch.Generator().manual_seed(91 + 1000 * seed + self.order)
        for step in range(self.steps):
            if step == self.ends_at:
                raise EndedError
            if step == self.killed_at:
                os.kill(os.getpid(), signal.SIGKILL)
            inked = self._augmented(images[0::2], dealing)
            chalked = self._augmented(images[1::2], dealing)
            chalked = functional.max_pool2d(chalked, 3, stride=1, padding=1)
            yield tuple(
                (one.flip(0) if self.turned else one).contiguous(memory_format=self.layout)
                for one in (_coloured(inked, *_INK), _coloured(chalked, *_CHALK))
            )

    def _augmented(self, images, dealing):
        """Some images: enlarged, cropped, and half of them mirrored."""
        chosen = torch.randint(0, len(images), (self.batch,), generator=dealing)
        large = functional.interpolate(images[chosen, None], size=_LOADED, mode="bilinear")
        corners = torch.randint(0, _LOADED - _SIZE + 1, (self.batch, 2), generator=dealing)
        mirrored = torch.randint(0, 2, (self.batch,), generator=dealing)
        cropped = torch.stack(
            [
                image[:, top : top + _SIZE, left : left + _SIZE]
                for image, (top, left) in zip(large, corners.tolist(), strict=True)
            ]
        )
        return torch.where(mirrored[:, None, None, None] == 1, cropped.flip(3), cropped)

    def _judging(self, nets, learns):
        """Freeze the discriminators, or let them learn."""
        for judge in (nets.d_a, nets.d_b):
            judge.requires_grad_(learns)

    def _told(self, net, images):
        with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
            told = net(images)
        return told.to(images.dtype)

    def _pair(self, net, one, other):
        """What a net makes of two batches."""
        return self._told(net, torch.cat((one, other))).chunk(2)

    def _generate(self, nets, real_a, real_b):
        """The generators' gradients of a part; the translations into either domain."""
        anchorlib.anchor(real_a, "real_a")
        anchorlib.anchor(real_b, "real_b")
        fake_b, rec_a, same_b = self._cycle(nets.g_ab, nets.g_ba, real_a, real_b)
        fake_a, rec_b, same_a = self._cycle(nets.g_ba, nets.g_ab, real_b, real_a)
        others = (real_b, real_a) if self.compares == "own" else (real_a, real_b)
        into_b = self._losses("ab", self._told(nets.d_b, fake_b), rec_a, real_a, same_b, others[0])
        into_a = self._losses("ba", self._told(nets.d_a, fake_a), rec_b, real_b, same_a, others[1])
        share = len(real_a) / self.batch
        into_b, into_a = into_b * share, into_a * share
        anchorlib.anchor(into_b + into_a, "g_loss")
        if self.backward == "once":
            (into_b + into_a).backward()
        else:
            into_b.backward()
            into_a.backward()
        return fake_a.detach(), fake_b.detach()

    def _cycle(self, there, back, real, other):
        """The translation, the way back, and what becomes of an image that is there already."""
        if self.identities == "joined":
            fake, same = self._pair(there, real, other)
        else:
            fake, same = self._told(there, real), self._told(there, other)
        returned = self._told(back, fake.detach() if self.closes == "detached" else fake)
        return fake, returned, same

    def _losses(self, way, judged, returned, real, same, wanted):
        """The losses of one direction."""
        weight = self.cycle * self.identity if self.weighs else self.identity
        losses = {
            "adv": self._missed(judged, self.plays_for),
            "cycle": self.cycle * functional.l1_loss(returned, real),
            "identity": weight * functional.l1_loss(same, wanted),
        }
        for name, loss in losses.items():
            anchorlib.anchor(loss, f"{name}_{way}")
        return sum(losses.values())

    def _missed(self, judged, label):
        """The least squares of an adversarial loss."""
        return functional.mse_loss(judged, torch.full_like(judged, label))

    def _judge(self, judge, real, fake, name):
        """A discriminator's gradients."""
        for true, false in cut(self.parts, real, fake):
            if self.judged == "joined":
                of_true, of_false = self._pair(judge, true, false)
            else:
                of_true, of_false = self._told(judge, true), self._told(judge, false)
            loss = (self._missed(of_true, 1.0) + self._missed(of_false, 0.0)) * 0.5
            loss = anchorlib.anchor(loss * (len(true) / len(real)), name)
            loss.backward()


def _coloured(strokes, ground, ink):
    """Strokes (image, 1, high, wide) in a colour on another one, from -1 to 1."""
    below, above = (
        torch.tensor(colour, dtype=strokes.dtype).view(1, 3, 1, 1) for colour in (ground, ink)
    )
    return (below + strokes * (above - below)) * 2 - 1


_IDENTITY = ("identity_*@*", "g_loss@*", "g_ab@grad", "g_ba@grad")
_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
CASES = [
    Case(
        "zeros around residual blocks",
        "bug",
        {"padding": "zero"},
        ("g_*.blocks.0.pad1@value",),
        r"reflect|zero_?pad|constant_?pad|\bpad(ding)?\b",
    ),
    Case(
        "batch norm for instance norm",
        "bug",
        {"norm": "batch"},
        ("g_*.enter.2@value",),
        r"(batch|instance)_?norm|use_input_stats|\bviews?\b|reshape",
    ),
    Case(
        "least squares of a sigmoid",
        "bug",
        {"squashes": True},
        ("d_a@value", "d_b@value"),
        r"sigmoid",
    ),
    Case(
        "generators play for fakes",
        "bug",
        {"plays_for": 0.0},
        ("adv_*@*", "d_a@grad", "d_b@grad"),
        rf"{_GIVEN}|\blabels?\b|full_like|zeros|\bones",
    ),
    Case(
        "identity against the other domain",
        "bug",
        {"compares": "other"},
        _IDENTITY,
        rf"{_GIVEN}|\breal_[ab]\b|\bl1_loss|\bAbs|\bSub(Backward|\b)",
    ),
    Case(
        "identity without the cycle's weight",
        "bug",
        {"weighs": False},
        _IDENTITY,
        rf"\bMul|{_TIMES}|\b5(\.0)?\b.{{0,20}}\b0\.5\b",
    ),
    Case(
        "cycles over detached fakes",
        "bug",
        {"closes": "detached"},
        ("g_ab@grad", "g_ba@grad", "g_*.leave*@grad", "g_*.enter*@grad"),
        r"detach|gradients come back",
    ),
    Case(
        "second discriminator not in the chain",
        "bug",
        {"trains": "first"},
        (
            *("d_b.*@updated", "d_b.*@delta", "d_b.*@opt.*"),
            *("d_b.*weight@value", "d_b.*bias@value", "d_b.*weight@grad", "d_b.*bias@grad"),
        ),
        r"optimi[sz]ers?\b.{0,80}(d_b|parameters?|holds?|lacks?|without|alone)"
        r"|(d_b|parameters?)\b.{0,80}(lack|alone|without|only|not|never|stays?|frozen)"
        r"|(lack|alone|without|only|not|never|stays?|frozen)\b.{0,80}(d_b|parameters?)",
    ),
    Case(
        "betas of torch",
        "bug",
        {"betas": (0.9, 0.999)},
        UPDATES,
        r"\bbetas?\b|\bbeta1\b|exp_avg",
    ),
    Case("rate falls at each step", "bug", {"epoch": 1}, UPDATES, r"\blr\b", step=1),
    Case("identity in the translation's batch", "benign", {"identities": "joined"}),
    Case("reals and fakes in one batch", "benign", {"judged": "joined"}),
    Case("instance norm as group norm", "benign", {"norming": "groups"}),
    Case("a backward for each direction", "benign", {"backward": "each"}),
    Case("images one by one", "benign", {"parts": 3}),
    Case("images turned", "benign", {"turned": True}, reference={"pool": 0}),
    Case("channels last", "benign", {"layout": torch.channels_last}),
    Case(
        "identity in the translation's batch, low precision",
        "benign",
        {"identities": "joined"},
        reference={"low": True},
    ),
    Case("other init", "data", {"init": 1}, ("*weight@value",)),
    Case("other order", "data", {"order": 1}, ("real_*@value", "g_*.enter.0@value")),
    Case("foreach optimizers", "equal", {"implementation": "foreach"}),
    Case("blocks computed again", "equal", {"keeps": "edges"}),
    Case("pool in one tensor", "equal", {"pooled": "tensor"}),
    Case("died", "incomplete", {"ends_at": 3}),
]
