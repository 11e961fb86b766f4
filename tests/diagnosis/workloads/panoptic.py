"""Segments of a scene by queries: digits and the ground, matched to what the queries draw."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

import anchorlib
from tests.diagnosis.workloads.base import UPDATES, Case, Start, Workload, clear, digits
from tests.diagnosis.workloads.panoptic_net import CLASSES, QUERIES, Net

_HIGH, _WIDE = 16, 24
_WIDTHS = (16, 20, 24)
"""How wide scenes are before they are padded."""
_GROUND, _NOTHING = CLASSES - 1, CLASSES
_ALPHA = 0.25
_SHOWN = 8
"""Digits in the scenes that the evaluation sees."""


@dataclass(frozen=True)
class Panoptic(Workload):
    """Scenes of several widths show the ground and one or two digits, which stand before it.

    attends: the pixels that queries read, those "seen" or "all" with the padding. flows: whether
        the gradient of what queries read reaches the pixel decoder.
    likely: whether a query costs less the likelier it says the class. matched: the layer whose
        costs say which query is for which segment, its "own" or the "last" one for all.
    rare: the class that has the small weight of finding nothing. aligned: whether masks are
        enlarged with their corners aligned.
    class_weight, mask_weight, dice_weight: of the losses and of the costs.
    slow: the factor of the backbone's learning rate. warmup: steps of rising rate. clip, clips: of
        gradients, by the norm of "all" or of "each" parameter.
    wakes: whether the model is in training mode again after an evaluation.
    attention, keys, dots, grows, focal, dice, classes, sums, keeps: other ways to write the same
        mathematics.
    """

    steps: int = 5
    lr: float = 2e-3
    weight_decay: float = 0.05
    attends: str = "seen"
    flows: bool = True
    likely: bool = True
    matched: str = "own"
    rare: int = _NOTHING
    aligned: bool = False
    class_weight: float = 2.0
    mask_weight: float = 20.0
    dice_weight: float = 1.0
    slow: float = 0.1
    warmup: int = 2
    clip: float = 0.1
    clips: str = "all"
    wakes: bool = True
    attention: str = "own"
    keys: str = "summed"
    dots: str = "einsum"
    grows: str = "torch"
    focal: str = "own"
    dice: str = "complement"
    classes: str = "torch"
    sums: str = "at once"
    keeps: str = "all"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = Net(self)
            optimizer = self.adam(self._groups(model))
            schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, self._rate)
            session.watch(model, tensors="*", optimizer=optimizer)
            torch.manual_seed(seed)
            images, labels = digits()
            shown = self._scenes(images[:_SHOWN], labels[:_SHOWN])
            for step, (images, labels) in enumerate(self.images(seed)):
                scenes, padding, targets = self._scenes(images, labels)
                if step and step % 2 == 0:
                    self._evaluate(model, *shown)
                clear(optimizer, self)
                self._loss(*model(scenes, padding), targets).backward()
                self._bound(model)
                optimizer.step()
                schedule.step()

    def _groups(self, model):
        """Parameters by learning rate and decay: norms and embeddings do not decay."""
        still = (nn.BatchNorm2d, nn.GroupNorm, nn.LayerNorm, nn.Embedding)
        found = {}
        for name, module in model.named_modules():
            back = name.startswith("backbone")
            own = list(module.parameters(recurse=False))
            found.setdefault((back, isinstance(module, still)), []).extend(own)
        return [
            {
                "params": params,
                "lr": self.lr * (self.slow if back else 1.0),
                "weight_decay": 0.0 if flat else self.weight_decay,
            }
            for (back, flat), params in found.items()
            if params
        ]

    def _rate(self, step):
        """The factor of the learning rates, which rises, then falls as a polynomial."""
        return min((step + 1) / (self.warmup + 1), 1.0) * max(1 - step / 20, 0.0) ** 0.9

    def _scenes(self, images, labels):
        """Padded scenes of two digits at most, where they are padding, and their segments."""
        count = len(images) // 2
        scenes = torch.zeros(count, 1, _HIGH, _WIDE)
        padding = torch.ones(count, _HIGH, _WIDE, dtype=torch.bool)
        pairs = images.to(scenes.dtype).view(count, 2, 8, 8)
        targets = []
        for at, (pair, names) in enumerate(zip(pairs, labels.view(count, 2), strict=True)):
            wide = _WIDTHS[int(torch.randint(len(_WIDTHS), ()))]
            seen = names[: 1 if torch.rand(()) < 0.3 else 2]
            scene, masks = self._scene(pair, len(seen), wide)
            scenes[at, 0, :, :wide], padding[at, :, :wide] = scene, False
            masks = functional.pad(masks, (0, _WIDE - wide)).to(scenes.dtype)
            targets.append((torch.cat((seen, torch.tensor([_GROUND]))), masks))
        return scenes, padding, targets

    def _scene(self, pair, count, wide):
        """One scene, and a mask for each digit and for what they leave of the ground."""
        horizon = int(torch.randint(8, 13, ()))
        ground = torch.zeros(_HIGH, wide, dtype=torch.bool)
        ground[horizon:] = True
        scene = ground.to(pair.dtype) * 0.6 - 1
        masks = []
        for digit, left in zip(pair[:count], (0, wide // 2), strict=False):
            row = int(torch.randint(_HIGH - 7, ()))
            column = left + int(torch.randint(wide // 2 - 7, ()))
            mask = torch.zeros_like(ground)
            mask[row : row + 8, column : column + 8] = digit > -1
            scene[mask] = digit[digit > -1]
            masks.append(mask)
            ground = ground & ~mask
        return scene, torch.stack((*masks, ground))

    @torch.no_grad()
    def _evaluate(self, model, scenes, padding, _targets):
        """How much each pixel of scenes that are not learnt from is of each class."""
        model.eval()
        logits, masks = (told[-1] for told in model(scenes, padding))
        masks = self._grown(masks).sigmoid()
        chances = logits.softmax(-1)[..., :_NOTHING]
        anchorlib.anchor(torch.einsum("sqk,sqhw->skhw", chances, masks), "semantic")
        model.train(self.wakes)

    @torch.no_grad()
    def _costs(self, logits, masks, targets):
        """What it costs to give each query (scene, query) each segment of the batch."""
        labels = torch.cat([names for names, _ in targets])
        wanted = torch.cat([segments for _, segments in targets])[:, None]
        wanted = functional.interpolate(wanted, masks.shape[-2:], mode="nearest").flatten(1)
        chances = logits.flatten(0, 1).softmax(-1)[:, labels]
        told = masks.flatten(0, 1).flatten(1)
        drawn = told.sigmoid()
        inside = _ALPHA * (1 - drawn) ** 2 * functional.softplus(-told)
        outside = (1 - _ALPHA) * drawn**2 * functional.softplus(told)
        missed = (inside @ wanted.T + outside @ (1 - wanted).T) / wanted.shape[1]
        both = drawn.sum(1)[:, None] + wanted.sum(1)
        dice = 1 - (2 * drawn @ wanted.T + 1) / (both + 1)
        cost = self.mask_weight * missed + self.dice_weight * dice
        cost = cost - self.class_weight * (chances if self.likely else -chances)
        return cost.view(len(logits), QUERIES, -1)

    def _matches(self, costs, targets):
        """Which queries, and which of its own segments each is for, scene by scene."""
        from scipy.optimize import linear_sum_assignment  # a second of a processor

        blocks = costs.split([len(names) for names, _ in targets], -1)
        pairs = [linear_sum_assignment(block[at]) for at, block in enumerate(blocks)]
        return [tuple(torch.as_tensor(one) for one in pair) for pair in pairs]

    def _loss(self, logits, masks, targets):
        """The losses of all layers, of which those before the last are auxiliary."""
        layers = list(zip(logits, masks, strict=True))
        last = anchorlib.anchor(self._costs(*layers[-1], targets), "cost")
        costs = [
            last if self.matched == "last" else self._costs(*layer, targets)
            for layer in layers[:-1]
        ]
        losses = [
            self._layer(*layer, targets, self._matches(cost, targets))
            for layer, cost in zip(layers, (*costs, last), strict=True)
        ]
        parts = [torch.stack(part) for part in zip(*losses, strict=True)]
        for part, name in zip(parts, ("class_loss", "mask_loss", "dice_loss"), strict=True):
            anchorlib.anchor(part, name)
        weights = self.class_weight, self.mask_weight, self.dice_weight
        loss = sum(weight * part.sum() for weight, part in zip(weights, parts, strict=True))
        return anchorlib.anchor(loss, "loss")

    def _layer(self, logits, masks, targets, matches):
        """One layer's losses of classes, of pixels and of how masks overlap."""
        wanted = torch.full(logits.shape[:2], _NOTHING)
        for row, (names, _), (queries, chosen) in zip(wanted, targets, matches, strict=True):
            row[queries] = names[chosen]
        drawn = [told[queries] for told, (queries, _) in zip(masks, matches, strict=True)]
        segments = [masks[chosen] for (_, masks), (_, chosen) in zip(targets, matches, strict=True)]
        count = max(sum(map(len, segments)), 1)
        if self.sums == "at once":
            drawn, segments = [torch.cat(drawn)], [torch.cat(segments)]
        missed = overlaps = 0.0
        for told, segment in zip(drawn, segments, strict=True):
            given = self._grown(told).flatten(1), segment.flatten(1)
            missed = missed + self._missed(*given).mean(1).sum()
            overlaps = overlaps + self._dice(*given).sum()
        return self._named(logits, wanted), missed / count, overlaps / count

    def _named(self, logits, wanted):
        """The cross entropy of classes, where finding nothing counts little."""
        weights = torch.ones(CLASSES + 1)
        weights[self.rare] = 0.1
        if self.classes == "torch":
            return functional.cross_entropy(logits.transpose(1, 2), wanted, weights)
        costs = logits.logsumexp(-1) - logits.gather(-1, wanted[..., None])[..., 0]
        shares = weights[wanted] / weights[wanted].sum()
        return (shares * costs).sum()

    def _grown(self, masks):
        """Logits of masks (..., height, width), as large as the scene."""
        if self.grows == "torch":
            given = masks if masks.ndim == 4 else masks[:, None]
            size, corners = (_HIGH, _WIDE), self.aligned
            grown = functional.interpolate(given, size, mode="bilinear", align_corners=corners)
            return grown.view(*masks.shape[:-2], *size)
        return _doubling(masks.shape[-2]) @ masks @ _doubling(masks.shape[-1]).T

    def _missed(self, told, segment):
        """The focal loss of each pixel."""
        if self.focal == "own":
            missed = functional.binary_cross_entropy_with_logits(told, segment, reduction="none")
            chance = told.sigmoid()
            right = chance * segment + (1 - chance) * (1 - segment)
            alpha = _ALPHA * segment + (1 - _ALPHA) * (1 - segment)
            return alpha * missed * (1 - right) ** 2
        rightly = torch.where(segment > 0, told, -told)
        alpha = torch.where(segment > 0, _ALPHA, 1 - _ALPHA)
        return -alpha * torch.sigmoid(-rightly).square() * functional.logsigmoid(rightly)

    def _dice(self, told, segment):
        """By how much each mask and its segment fail to overlap."""
        drawn = told.sigmoid()
        shared = (drawn * segment).sum(1)
        both = drawn.sum(1) + segment.sum(1)
        if self.dice == "complement":
            return 1 - (2 * shared + 1) / (both + 1)
        return (both - 2 * shared) / (both + 1)

    def _bound(self, model):
        """Clip gradients."""
        if self.clips == "all":
            nn.utils.clip_grad_norm_(model.parameters(), self.clip)
        else:
            for parameter in model.parameters():
                nn.utils.clip_grad_norm_(parameter, self.clip)


def _doubling(size):
    """The matrix that doubles an axis as bilinear interpolation does."""
    place = ((torch.arange(2 * size) + 0.5) / 2 - 0.5).clamp(min=0)
    low = place.long()
    share = (place - low)[:, None]
    eye = torch.eye(size)
    return (1 - share) * eye[low] + share * eye[(low + 1).clamp(max=size - 1)]


_CLASS = ("class_loss@*", "output@grad", "classes@grad")
_MASK = ("mask_loss@*", "dice_loss@*", "output:1@grad")
_READ = ("decoder.0.cross@value", "decoder.0.cross.out*@value")
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
CASES = [
    Case(
        "padding attended",
        "bug",
        {"attends": "all"},
        _READ,
        r"\bmask|masked_?fill|\bwhere|-inf",
    ),
    Case(
        "what queries read is detached",
        "bug",
        {"flows": False},
        ("pixels@grad", "pixels.norms.1@*grad", "pixels.smooths.1*@*grad"),
        r"detach|gradients come back|\bconv\w* .{0,60}(lacks|alone)|(lacks|alone).{0,60}\bconv",
    ),
    Case(
        "unlikely classes cost less",
        "bug",
        {"likely": False},
        ("cost@value",),
        r"\b(Sub|Add)(Backward|\b)|\bNeg|\bMul|other sign|\balpha\b|is -[\d.]+ times A",
    ),
    Case(
        "all layers matched as the last",
        "bug",
        {"matched": "last"},
        (*_CLASS, *_MASK),
        rf"\bIndex|indices|another order|arranged otherwise|{_GIVEN}",
    ),
    Case(
        "small weight for the first class",
        "bug",
        {"rare": 0},
        _CLASS,
        rf"(nll|cross_entropy)\w* .{{0,40}}\bweight\b|{_GIVEN}",
    ),
    Case(
        "masks grow with corners aligned",
        "bug",
        {"aligned": True},
        _MASK,
        r"align_corners|bilinear|interpolate|upsample",
    ),
    Case(
        "each parameter clipped by itself",
        "bug",
        {"clips": "each"},
        ("*@grad",),
        r"\bclip|is [\d.e-]+ times A|a factor of its own",
    ),
    Case("backbone as fast as the rest", "bug", {"slow": 1.0}, UPDATES, r"\blr\b"),
    Case(
        "still in eval mode",
        "bug",
        {"wakes": False},
        ("backbone.norms.0@value", "backbone.norms.0.running*@*"),
        r"eval mode|train(ing)? mode|training (True|False)|\beval\b",
    ),
    Case("masks drawn channel by channel", "benign", {"dots": "channels"}),
    Case("masks doubled by matrices", "benign", {"grows": "matrices"}),
    Case("dice as one ratio", "benign", {"dice": "ratio"}),
    Case("focal loss by logsigmoid", "benign", {"focal": "logsigmoid"}),
    Case("mask losses scene by scene", "benign", {"sums": "scenes"}),
    Case("class weights by hand", "benign", {"classes": "own"}),
    Case("attention by torch", "benign", {"attention": "torch"}),
    Case("places projected apart", "benign", {"keys": "apart"}),
    Case("other init", "data", {"init": 1}, ("*weight@value",)),
    Case("other order", "data", {"order": 1}, ("input*@value",)),
    Case("again", "equal"),
    Case("zeros for none", "equal", {"set_to_none": False}),
    Case("decoder computed again", "equal", {"keeps": "edges"}),
    Case("died", "incomplete", {"ends_at": 3}),
]
