"""An equivariant network of atoms that learns the energies of molecules and their forces."""

from __future__ import annotations

import copy
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

_WIDTH, _WAVES, _REACH = 12, 6, 3.5
_KINDS = "HCNO"
_ATOMS = (-0.5, -37.8, -54.6, -75.1)
"""What each kind of atom has of energy alone, in hartree."""
_SIZES = (0.37, 0.77, 0.75, 0.73)
"""Half of how far atoms stand from atoms of their kind, in ångström."""
_SHAPES = (
    "O 0 0 .119 H 0 .763 -.477 H 0 -.763 -.477",
    "N 0 0 .114 H 0 .939 -.267 H .813 -.469 -.267 H -.813 -.469 -.267",
    "C 0 0 0 H .629 .629 .629 H -.629 -.629 .629 H -.629 .629 -.629 H .629 -.629 -.629",
    "C 0 0 -.529 O 0 0 .677 H 0 .936 -1.124 H 0 -.936 -1.124",
    "C 0 0 -.5 N 0 0 .653 H 0 0 -1.566",
    "C 0 0 .601 C 0 0 -.601 H 0 0 1.665 H 0 0 -1.665",
    "C 0 0 0 O 0 0 1.16 O 0 0 -1.16",
    "O 0 .734 -.053 O 0 -.734 -.053 H .839 .881 .422 H -.839 -.881 .422",
)
"""Molecules: water, ammonia, methane, formaldehyde, hydrogen cyanide, acetylene and two oxides."""


@dataclass(frozen=True)
class Chemist(Workload):
    """Molecules whose atoms are moved a little; a Morse potential of pairs is the truth.

    envelope: how what is far loses its weight, as a "cosine" or not at all ("hard"). reach: of
        the envelope. basis: sines "divided" by distances, or not. sums: whether messages arrive
        at their "receivers" or at "senders". stays: whether updates are added. act: "silu" or
        "relu".
    pooled: whether a molecule has the "sum" of its atoms' energies or the "mean". shifts: whether
        atoms' own energies are added.
    pushes: the sign of what forces are of the energy's gradient. graphs: whether they are
        differentiable. force_weight: of their loss. each_atom: whether errors of energies are
        divided by how many atoms there are. forces: by the "gradient", by a "backward" that leaves
        gradients of parameters behind, or by the "edges".
    parts: micro-batches a step. all_decay: whether biases and embeddings decay too. clip: of
        gradients. keeps: how much of the moving average stays in a step.
    gathers, distance, cosine, sines, silu, packing, missed, backward, wholes, cloned, average:
        other ways to write the same mathematics.
    """

    batch: int = 8
    lr: float = 5e-3
    weight_decay: float = 0.1
    envelope: str = "cosine"
    reach: float = _REACH
    basis: str = "divided"
    sums: str = "receivers"
    stays: bool = True
    act: str = "silu"
    pooled: str = "sum"
    shifts: bool = True
    pushes: float = -1.0
    graphs: bool = True
    force_weight: float = 10.0
    each_atom: bool = True
    forces: str = "gradient"
    parts: int = 1
    all_decay: bool = False
    clip: float = 5.0
    keeps: float = 0.8
    gathers: str = "behind"
    distance: str = "norm"
    cosine: str = "torch"
    sines: str = "torch"
    silu: str = "torch"
    packing: str = "joined"
    missed: str = "torch"
    backward: str = "once"
    wholes: str = "sum"
    cloned: bool = False
    average: str = "lerp"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = _Net(self)
            average = copy.deepcopy(model).requires_grad_(False)
            optimizer = self.adam(self._groups(model))
            session.watch(model, tensors="*", optimizer=optimizer)
            session.watch(average, tensors="*", prefix="average")
            torch.manual_seed(seed)
            for batch in self._molecules(seed):
                clear(optimizer, self)
                for part in cut(self.parts, *batch):
                    self._learn(model, part)
                nn.utils.clip_grad_norm_(model.parameters(), self.clip)
                optimizer.step()
                self._follow(average, model)
                self._evaluate(average, batch)

    def _groups(self, model):
        """What decays, and what does not: biases and embeddings."""
        named = [
            (one.ndim > 1 and not name.startswith("kinds"), one)
            for name, one in model.named_parameters()
        ]
        still = self.weight_decay if self.all_decay else 0.0
        return [
            {
                "params": [one for deep, one in named if deep is decays],
                "weight_decay": self.weight_decay if decays else still,
            }
            for decays in (True, False)
        ]

    def _molecules(self, seed):
        """A batch a step: kinds, positions, forces, whether there are atoms, and energies."""
        dealing = torch.Generator().manual_seed(19 + 1000 * seed + self.order)
        kinds, places, real = _shapes()
        for step in range(self.steps):
            chosen = torch.randint(0, len(kinds), (self.batch,), generator=dealing)
            moved = torch.randn(self.batch, *places.shape[1:], generator=dealing) * 0.08
            if step == self.ends_at:
                raise EndedError
            if step == self.killed_at:
                os.kill(os.getpid(), signal.SIGKILL)
            moved = places[chosen] + moved.double()
            truth = _truth(kinds[chosen], moved, real[chosen])
            found, usual = (kinds[chosen], moved, *truth, real[chosen]), torch.get_default_dtype()
            found = [one.to(usual) if one.is_floating_point() else one for one in found]
            yield tuple(one.flip(0) for one in found) if self.turned else tuple(found)

    def _told(self, model, kinds, places, real):
        """Energies of molecules (molecule), and forces of atoms (atom, 3)."""
        molecules = real.nonzero()[:, 0]
        kinds, places = kinds[real], places[real].requires_grad_()
        given = places.clone() if self.cloned else places
        senders, receivers = _edges(places.detach(), molecules)
        arrows = given[senders] - given[receivers]
        energies = model(kinds, arrows, senders, receivers, molecules)
        if self.forces == "backward":
            energies.sum().backward(create_graph=True)
            slopes, places.grad = places.grad, None
        elif self.forces == "edges":
            pulls = self._slopes(energies, arrows)
            slopes = torch.zeros_like(places).index_add(0, senders, pulls)
            slopes = slopes.index_add(0, receivers, pulls, alpha=-1)
        else:
            slopes = self._slopes(energies, places)
        return energies, self.pushes * slopes

    def _slopes(self, energies, places):
        """The derivatives of all energies."""
        ones = None if self.wholes == "sum" else torch.ones_like(energies)
        energies = energies.sum() if self.wholes == "sum" else energies
        kept = {"retain_graph": True, "create_graph": self.graphs}
        return torch.autograd.grad(energies, places, ones, **kept)[0]

    def _learn(self, model, part):
        """The gradients of one micro-batch."""
        kinds, places, wanted_forces, wanted_energies, real = part
        energies, forces = self._told(model, kinds, places, real)
        anchorlib.anchor(energies, "energies")
        anchorlib.anchor(forces, "forces")
        anchorlib.anchor(wanted_energies, "wanted_energies", grad=False)
        counts = real.sum(1) if self.each_atom else 1
        energy = self._missed(energies / counts, wanted_energies / counts, self.batch)
        pushed = self._missed(forces, wanted_forces[real], 100)
        anchorlib.anchor(energy, "energy_loss")
        pushed = anchorlib.anchor(self.force_weight * pushed, "force_loss")
        anchorlib.anchor(energy + pushed, "loss")
        if self.backward == "once":
            (energy + pushed).backward()
        else:
            energy.backward(retain_graph=True)
            pushed.backward()

    def _missed(self, told, wanted, count):
        """The squares of errors as a part of so many, whatever the micro-batch holds."""
        if self.missed == "torch":
            return functional.mse_loss(told, wanted, reduction="sum") / count
        missed = (told - wanted).flatten()
        return missed @ missed / count

    @torch.no_grad()
    def _follow(self, average, model):
        """The moving average of the parameters."""
        for one, other in zip(average.parameters(), model.parameters(), strict=True):
            if self.average == "lerp":
                one.lerp_(other, 1 - self.keeps)
            else:
                one.mul_(self.keeps).add_(other, alpha=1 - self.keeps)

    def _evaluate(self, average, batch):
        """The error of the averaged net, with its forces."""
        kinds, places, _, wanted, real = batch
        energies, _ = self._told(average, kinds, places, real)
        with torch.no_grad():
            anchorlib.anchor(functional.l1_loss(energies, wanted), "eval_loss")


@cache
def _shapes() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Kinds of the molecules' atoms (molecule, atom), positions, and which atoms there are."""
    told = [shape.split() for shape in _SHAPES]
    most = max(len(one) for one in told) // 4
    kinds = torch.zeros(len(told), most, dtype=torch.long)
    places, real = torch.zeros(len(told), most, 3).double(), torch.zeros(len(told), most).bool()
    for at, words in enumerate(told):
        for atom in range(len(words) // 4):
            kind, *place = words[4 * atom : 4 * atom + 4]
            kinds[at, atom], real[at, atom] = _KINDS.index(kind), True
            places[at, atom] = torch.tensor([float(one) for one in place]).double()
    return kinds, places, real


def _truth(kinds, places, real):
    """The forces and the energies of molecules in a Morse potential of all pairs."""
    places = places.clone().requires_grad_()
    sizes = torch.tensor(_SIZES, dtype=torch.float64)[kinds]
    pairs = (real[:, :, None] & real[:, None]).triu(1)
    far = (places[:, :, None] - places[:, None])[pairs].norm(dim=-1)
    bent = 1 - torch.exp(-1.5 * (far - (sizes[:, :, None] + sizes[:, None])[pairs]))
    which = pairs.nonzero()[:, 0]
    energies = torch.zeros(len(kinds)).double().index_add(0, which, 0.2 * (bent.square() - 1))
    (slopes,) = torch.autograd.grad(energies.sum(), places)
    alone = (torch.tensor(_ATOMS, dtype=torch.float64)[kinds] * real).sum(1)
    return -slopes, energies.detach() + alone


def _edges(places, molecules):
    """Senders and receivers: all pairs of atoms of a molecule that are near each other."""
    near = torch.cdist(places.double(), places.double()) < _REACH
    near = near & (molecules[:, None] == molecules) & ~torch.eye(len(places), dtype=torch.bool)
    receivers, senders = near.nonzero().unbind(1)
    return senders, receivers


def _gathered(values, at, count):
    """Values, summed for each of so many places."""
    return values.new_zeros(count, *values.shape[1:]).index_add(0, at, values)


class _Act(nn.Module):
    """The activation."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how

    def forward(self, x):
        """x, bent."""
        if self.how.act == "relu":
            return functional.relu(x)
        return functional.silu(x) if self.how.silu == "torch" else x / (1 + torch.exp(-x))


class _Radial(nn.Module):
    """Sines of distances over distances, which vanish smoothly where edges end."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how

    def forward(self, far):
        """Waves (edge, wave) of distances (edge, 1), and their envelope."""
        how = self.how
        angle = far * (math.pi / _REACH)
        if how.sines == "torch":
            waves = torch.sin(torch.arange(1, _WAVES + 1) * angle)
        else:
            found = [torch.zeros_like(angle), angle.sin()]
            for _ in range(_WAVES - 1):
                found.append(2 * angle.cos() * found[-1] - found[-2])
            waves = torch.cat(found[1:], 1)
        waves = waves / far if how.basis == "divided" else waves
        if how.envelope == "hard":
            return waves, torch.ones_like(far)
        angle = far * (math.pi / how.reach)
        if how.cosine == "squared":
            return waves, (angle / 2).cos().square()
        return waves, 0.5 * (angle.cos() + 1)


class _Message(nn.Module):
    """What atoms tell the atoms around them: numbers, and vectors along edges."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how, self.act = how, _Act(how)
        self.first, self.second = nn.Linear(_WIDTH, _WIDTH), nn.Linear(_WIDTH, 3 * _WIDTH)
        self.filter = nn.Linear(_WAVES, 3 * _WIDTH)

    def forward(self, numbers, vectors, waves, ways, senders, receivers):
        """What is added to each atom's numbers (atom, channel) and vectors (atom, 3, channel)."""
        waves, envelope = waves
        filters = self.filter(waves) * envelope
        if self.how.gathers == "behind":
            told = self.second(self.act(self.first(numbers)))[senders]
        else:
            told = self.second(self.act(self.first(numbers[senders])))
        number, along, kept = (told * filters).chunk(3, 1)
        vector = along[:, None] * ways[..., None] + kept[:, None] * vectors[senders]
        into = receivers if self.how.sums == "receivers" else senders
        count = len(numbers)
        return _gathered(number, into, count), _gathered(vector, into, count)


class _Update(nn.Module):
    """What atoms make of their own numbers and vectors."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how, self.act = how, _Act(how)
        self.left, self.right = (nn.Linear(_WIDTH, _WIDTH, bias=False) for _ in range(2))
        self.first, self.second = nn.Linear(2 * _WIDTH, _WIDTH), nn.Linear(_WIDTH, 3 * _WIDTH)

    def forward(self, numbers, vectors):
        """What is added to both."""
        left, right = self.left(vectors), self.right(vectors)
        length = (right.square().sum(1) + 1e-4).sqrt()
        hidden = self.act(self.first(torch.cat((numbers, length), 1)))
        if self.how.packing == "joined":
            one, other, third = self.second(hidden).chunk(3, 1)
        else:
            parts = zip(self.second.weight.chunk(3), self.second.bias.chunk(3), strict=True)
            one, other, third = (functional.linear(hidden, *part) for part in parts)
        return one + other * (left * right).sum(1), third[:, None] * left


class _Net(nn.Module):
    """Energies of molecules of the kinds of their atoms and the arrows between them."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.kinds, self.radial = nn.Embedding(len(_KINDS), _WIDTH), _Radial(how)
        self.messages = nn.ModuleList(_Message(how) for _ in range(2))
        self.updates = nn.ModuleList(_Update(how) for _ in range(2))
        self.hidden, self.act, self.tell = (
            nn.Linear(_WIDTH, _WIDTH),
            _Act(how),
            nn.Linear(_WIDTH, 1),
        )
        self.register_buffer("alone", torch.tensor(_ATOMS))

    def forward(self, kinds, arrows, senders, receivers, molecules):
        """The energy of each molecule."""
        how = self.how
        if how.distance == "norm":
            far = torch.linalg.vector_norm(arrows, dim=1, keepdim=True)
        else:
            far = torch.einsum("ex,ex->e", arrows, arrows).sqrt()[:, None]
        ways, waves = arrows / far, self.radial(far)
        numbers = self.kinds(kinds)
        vectors = numbers.new_zeros(len(kinds), 3, _WIDTH)
        for message, update in zip(self.messages, self.updates, strict=True):
            told, moved = message(numbers, vectors, waves, ways, senders, receivers)
            numbers, vectors = numbers + told, vectors + moved
            told, moved = update(numbers, vectors)
            numbers = numbers + told if how.stays else told
            vectors = vectors + moved if how.stays else moved
        energies = self.tell(self.act(self.hidden(numbers)))[:, 0] * 0.5
        energies = energies + self.alone[kinds] if how.shifts else energies
        count = int(molecules[-1]) + 1
        found = _gathered(energies, molecules, count)
        return found / molecules.bincount(minlength=count) if how.pooled == "mean" else found


_LOSS = ("energy_loss@*", "loss@value", "energies@grad", "output@grad")
_FORCES = ("forces@*", "force_loss@*")
_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target|index) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
_ORDER = r"another order|arranged otherwise|places? on along"
"""Words that name elements or operands which change places."""
_DETACHED = r"detach|gradients come back"
CASES = [
    Case("no envelope", "bug", {"envelope": "hard"}, ("radial:1@value",), r"\bCos|\bones\b"),
    Case(
        "envelope ends too early",
        "bug",
        {"reach": 3.0},
        ("radial:1@value",),
        rf"\bMul|{_TIMES}|{_GIVEN}|\b[Cc]os",
    ),
    Case("waves not divided", "bug", {"basis": "whole"}, ("radial@value",), r"\bDiv"),
    Case(
        "messages summed at senders",
        "bug",
        {"sums": "senders"},
        ("messages.0@value", "messages.0:1@value"),
        rf"\b[Ii]ndex|{_ORDER}",
    ),
    Case(
        "updates not added",
        "bug",
        {"stays": False},
        ("messages.1.first@value", "messages.1:1@value", "messages.1@value"),
        r"\bAdd(Backward|\b)",
    ),
    Case("relu for silu", "bug", {"act": "relu"}, ("messages.0.act@value",), r"\brelu|\bsilu"),
    Case(
        "mean of atoms' energies",
        "bug",
        {"pooled": "mean"},
        ("output@value", "energies@value"),
        r"\bDiv|\bMean|\bcounts?\b|a factor of its own",
    ),
    Case(
        "atoms' own energies left out",
        "bug",
        {"shifts": False},
        ("output@value", "energies@value"),
        r"\bAdd(Backward|\b)|\balone\b",
    ),
    Case(
        "forces of the other sign",
        "bug",
        {"pushes": 1.0},
        _FORCES,
        r"\bNeg|\bMul|other sign|is -1(\.0)? times",
    ),
    Case("weight of forces", "bug", {"force_weight": 1.0}, _FORCES, rf"\bMul|{_TIMES}"),
    Case(
        "energies not divided by atoms",
        "bug",
        {"each_atom": False},
        _LOSS,
        rf"\bDiv|{_GIVEN}|a factor of its own",
    ),
    Case(
        "forces not differentiable",
        "bug",
        {"graphs": False},
        ("*@*grad",),
        rf"{_DETACHED}|create_graph|second derivative|(lacks|alone|without).{{0,60}}Backward",
    ),
    Case(
        "forces by a backward into parameters",
        "bug",
        {"forces": "backward"},
        ("*weight@*grad", "*bias@*grad"),
        r"zero_grad|accumulat|clear|added up|another backward|backward.{0,30}(twice|more|second)",
    ),
    Case("everything decays", "bug", {"all_decay": True}, UPDATES, r"weight_decay"),
    Case(
        "average moves faster",
        "bug",
        {"keeps": 0.5},
        ("average.*@value",),
        rf"\b[Ll]erp|\bMul|average|between steps|{_TIMES}",
    ),
    Case("messages made behind senders", "benign", {"gathers": "before"}),
    Case("squares of errors by a product", "benign", {"missed": "own"}),
    Case("distances by einsum", "benign", {"distance": "einsum"}),
    Case("envelope as a square", "benign", {"cosine": "squared"}),
    Case("sines by recurrence", "benign", {"sines": "recurrence"}),
    Case("silu by its formula", "benign", {"silu": "formula"}),
    Case("three layers for one", "benign", {"packing": "apart"}),
    Case("forces of edges", "benign", {"forces": "edges"}),
    Case("2 micro-batches", "benign", {"parts": 2}),
    Case("a backward for each loss", "benign", {"backward": "each"}),
    Case("molecules turned", "benign", {"turned": True}),
    Case("average by products", "benign", {"average": "products"}),
    Case("other init", "data", {"init": 1}, ("*weight@value",)),
    Case("other order", "data", {"order": 1}, ("input*@value",)),
    Case("energies with ones", "equal", {"wholes": "ones"}),
    Case("positions cloned", "equal", {"cloned": True}),
    Case("foreach optimizer", "equal", {"implementation": "foreach"}),
    Case("died", "incomplete", {"ends_at": 3}),
]
