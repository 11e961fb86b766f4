"""Modules that the runs call or use differently for equal work: in a loop, on other rows, in turn.

    torch.cat([wide(row) for row in x.split(1)])    wide(x)            as often, or at once
    message(h)[sources]                             message(h[sources])
    critic(fake), critic(real)                      critic(real), critic(fake)
    one.backward(); other.backward()                (one + other).backward()
    expert(x[chosen])                               expert(x[chosen.flip(0)])
    probabilities / probabilities.sum()             logits.softmax(-1)

Where the runs deal a batch in another order or in other parts, that is known, and what is computed
of the samples is compared with its own. Packed sequences alone cannot be: of other samples, their
rows are mixed otherwise.

The records of such calls have different shapes, or stand for different samples. They are two
quantities, so that their difference is no fault. Whether the work is equal shows in its results: in
the first step that differs, each gradient that an optimizer reads, each update, and all values
behind those calls are equal but for rounding. Where one of these results is not, or has no record
in both runs, nothing is excused. Rounding is that of the coarsest format that both runs went
through since they were equal: under autocast a float32 gradient is made of bfloat16 products.
Records that are computed from excused records are judged as if one run had no record of their
parents.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from anchorlib import dtypes
from anchorlib.diagnosis.judgement.origins.coarsest import coarsest_formats
from anchorlib.diagnosis.judgement.origins.intermediates import intermediates
from anchorlib.diagnosis.judgement.origins.other_uses import used_otherwise
from anchorlib.diagnosis.judgement.origins.packed import packed_sequences
from anchorlib.diagnosis.judgement.origins.row_order import in_another_order
from anchorlib.diagnosis.judgement.series import values
from anchorlib.diagnosis.pairing import Alignment, Table, parameters_of
from anchorlib.diagnosis.sizes import Measures, steady_elements_apart
from anchorlib.errors import StoreError
from anchorlib.names import escape, join

__all__ = ["LIMIT", "Cuts", "cuts", "equal_learning"]

Array = np.ndarray[Any, Any]
EPS32 = 2.0**-23
LIMIT = 32.0
"""The error in eps that several roundings in a row may make in a value or a gradient. Faults make
larger errors."""
LIMIT_LOW = 4.0
"""As LIMIT, for what went through types coarser than float32. Six programs under autocast made 1.7
eps at most by LSTMs by sample, dense experts, layers by time step; outputs of which
one third is 5 % too large made 7."""
SQUARES = 2.0
"""How many times as far as gradients the state of an optimizer is apart, which may hold squares."""
LATER = 1e-2
"""The relative error that a value of the next step may have, when parameters differ by roundings.
"""
SHARE = 0.01
"""The share of the largest norm of its kind against which a smaller gradient is judged: a gradient
may consist of rounding alone, as that of a bias before a norm, and is no sign of a fault then."""
MOST_ELEMENTS = 1 << 22
TAKEN = ("grad", "updated")
"""Kinds of records that an optimizer reads, and that it makes, of each parameter."""
_OUTPUT = re.compile(r":\d+(\.\d+)*$")
_ROOT = re.compile(r"(^|\.)(input|output)$")


@dataclass(frozen=True, slots=True)
class Cuts:
    """The pairs that differ because the two runs call modules differently for equal work.

    rows: A's rows of these pairs. modules: the names of the modules.
    """

    rows: Array
    modules: tuple[str, ...] = ()

    def without(self, alignment: Alignment) -> Alignment:
        """The alignment with these pairs counted as equal."""
        return replace(alignment, equal=alignment.equal | np.isin(alignment.a_row, self.rows))

    def lines(self) -> list[str]:
        """For people: which modules were not compared, as one sentence."""
        if not len(self.rows):
            return []
        shown = ", ".join(map(escape, self.modules[:3])) + ", …" * (len(self.modules) > 3)
        return [
            f"the runs call or use {shown} otherwise for the same work: {len(self.rows):,} records "
            "of that are not compared, and what is learned from them is the same but for rounding"
        ]


def cuts(alignment: Alignment, measures: Measures) -> Cuts:
    """The pairs of modules that the runs call differently, where all that is learned is equal."""
    none = Cuts(np.empty(0, np.int64))
    rows = alignment.a_row[measures.pair]
    if not len(rows):
        return none
    step = alignment.a.step[rows].min()
    first = _FirstStep(alignment, measures, int(step))
    modules = first.called_otherwise()
    if not modules or not first.same_learning(modules):
        modules |= first.intermediates()
        if not modules or not (first.same_learning(modules) and first.goes_on(modules)):
            return none
    within = first.within(modules)[alignment.a.tensor[rows]]
    return Cuts(rows[within], tuple(sorted(filter(None, modules))))


def equal_learning(alignment: Alignment, measures: Measures, step: int) -> bool:
    """Whether all records of the first step that differs, this one, are equal but for rounding.

    Both runs learn something in this step. Several roundings in a row count as rounding here.
    """
    return _FirstStep(alignment, measures, step).same_learning(set())


class _FirstStep:
    """The first step in which the two runs differ."""

    def __init__(self, alignment: Alignment, measures: Measures, step: int) -> None:
        self._alignment, self._measures = alignment, measures
        a, b = alignment.a, alignment.b
        self._rows = alignment.a_row[measures.pair]
        self._here = np.flatnonzero(a.step[self._rows] == step)
        self._steps = step, step + alignment.step_offset
        self._learnt = parameters_of(a)
        self._followed = {
            (tensor.name, tensor.rank) for tensor in a.tensors if tensor.kind == "grad"
        }
        _, first = np.unique(a.tensor[alignment.a_row], return_index=True)
        paired = a.tensor[alignment.a_row[first]], b.tensor[alignment.b_row[first]]
        self._partner = dict(zip(*(numbers.tolist() for numbers in paired), strict=True))
        self._rows_of = [
            _by_tensor(table, at) for table, at in zip((a, b), self._steps, strict=True)
        ]

    def within(self, modules: set[str]) -> Array:
        """For each tensor of A, whether calls of these modules make it; False for parameters."""
        return np.array(
            [
                (tensor.kind == "pass_grad" and "" in modules)
                or (
                    tensor.kind in ("value", "grad")
                    and tensor.name not in self._learnt
                    and (
                        _module(tensor.name) in modules or join(tensor.name, tensor.kind) in modules
                    )
                )
                for tensor in self._alignment.a.tensors
            ]
            or [False],
            bool,
        )

    def called_otherwise(self) -> set[str]:
        """The modules whose calls differ in shape, number, turn or the order of their rows.

        Besides, the gradients of values that the runs use otherwise, and "" where passes differ.
        """
        a, rows = self._alignment.a, self._rows[self._here]
        shapes = self._measures["measured"][self._here] == "shape"
        modules: set[str] = set()
        passes = self._passes(a, self._steps[0]) != self._passes(self._alignment.b, self._steps[1])
        passes |= self._in_turn()
        for number in np.unique(a.tensor[rows]).tolist():
            tensor, own = a.tensors[number], a.tensor[rows] == number
            if tensor.kind not in ("value", "grad") or tensor.name in self._learnt:
                continue
            phases = {a.phases[one] for one in a.phase[rows[own]].tolist()}
            calls_a, calls_b = self._calls(number, phases)
            if calls_a == calls_b or calls_a.total() != calls_b.total() or shapes[own].any():
                modules.add(_module(tensor.name))
            elif passes and (tensor.kind == "grad" or a.figures["numel"][rows[own]].max() == 1):
                modules.add(join(tensor.name, tensor.kind))
            elif self._in_another_order(number, own):
                modules.add(_module(tensor.name))
        modules |= self._packed()
        modules |= {join(name, "grad") for name in self._used_otherwise(modules)}
        return modules | ({""} if passes else set())

    def intermediates(self) -> set[str]:
        """The results inside the models that differ beyond rounding."""
        return intermediates(self._alignment, self._measures, self._here, self._learnt, LIMIT)

    def goes_on(self, modules: set[str]) -> bool:
        """Whether the next step begins as near as it should, in what no gradient shows.

        A state that is carried on, and a buffer, are read in the next step alone.
        """
        a = self._alignment.a
        then = np.flatnonzero(a.step[self._rows] == self._steps[0] + 1)
        rows = self._rows[then]
        kinds = np.array([tensor.kind for tensor in a.tensors])[a.tensor[rows]]
        learnt = np.array([tensor.name in self._learnt for tensor in a.tensors])[a.tensor[rows]]
        judged = (kinds == "value") & ~learnt & ~self.within(modules)[a.tensor[rows]]
        relative = (self._measures["error_eps"] * self._measures["eps"])[then][judged]
        return bool((relative <= LATER).all())

    def _packed(self) -> set[str]:
        """The records of packed sequences, whose rows stand for other samples in the other run."""
        a, b = self._alignment.a, self._alignment.b
        known = packed_sequences(a, self._steps[0]) | packed_sequences(b, self._steps[1])
        dealt = bool(self._alignment.merged) or self._alignment.reordered is not None
        return known if dealt or self._parts(a, known, 0) != self._parts(b, known, 1) else set()

    def _parts(self, table: Table, known: set[str], run: int) -> set[str]:
        """Which of these a run has: a program that sorts by itself packs without indices."""
        tensors = (table.tensors[number] for number in self._rows_of[run])
        return {join(tensor.name, tensor.kind) for tensor in tensors} & known

    def _in_another_order(self, number: int, own: Array) -> bool:
        """Whether records of a tensor hold the same rows in another order, and gradients follow."""
        name, rank = (self._alignment.a.tensors[number][at] for at in (0, 3))
        if (name, rank) not in self._followed:
            return False
        places = self._here[own]
        return all(
            in_another_order(
                self._alignment, int(self._measures.pair[place]), self._measures.at(place)
            )
            for place in places.tolist()
        )

    def _used_otherwise(self, modules: set[str]) -> set[str]:
        """The values that the runs use otherwise, and whose gradients differ beyond rounding."""
        a, here = self._alignment.a, self._here
        within = self.within(modules)
        far: defaultdict[int, set[str]] = defaultdict(set)
        for number, error in zip(
            a.tensor[self._rows[here]].tolist(),
            self._measures["error_eps"][here].tolist(),
            strict=True,
        ):
            tensor = a.tensors[number]
            gradient = tensor.kind == "grad" and tensor.name not in self._learnt
            if gradient and not within[number] and not error <= LIMIT:
                far[tensor.rank].add(tensor.name)
        return {
            name
            for rank, names in far.items()
            for name in used_otherwise(self._alignment, rank, names)
        }

    def _calls(self, number: int, phases: set[str]) -> tuple[Counter[bytes], Counter[bytes]]:
        """The bits of all calls of a tensor in the step and these phases, in A and in B."""
        sides = (self._alignment.a, self._alignment.b)
        bits_of_calls = []
        numbers = (number, self._partner[number])
        for table, own, rows in zip(sides, numbers, self._rows_of, strict=True):
            known = [row for row in rows[own] if table.phases[table.phase[row]] in phases]
            bits_of_calls.append(Counter(bits.tobytes() for bits in table.digest[known]))
        return bits_of_calls[0], bits_of_calls[1]

    def _passes(self, table: Table, step: int) -> int:
        """How many backward passes reach parameters in a step."""
        kinds = np.array([tensor.kind == "pass_grad" for tensor in table.tensors] or [False], bool)
        rows = np.flatnonzero(kinds[table.tensor] & (table.step == step))
        return len(
            set(zip(table.pass_index[rows].tolist(), table.call[rows].tolist(), strict=True))
        )

    def _in_turn(self) -> bool:
        """Whether the passes contribute otherwise to gradients whose sums over all passes agree."""
        a, b = self._alignment.a, self._alignment.b
        numbers = [
            number
            for number in np.unique(a.tensor[self._rows[self._here]]).tolist()
            if a.tensors[number].kind == "pass_grad"
        ]
        many = [number for number in numbers if len(self._rows_of[0].get(number, ())) > 1]
        if not many or many != numbers:
            return False
        for number in numbers:
            mine, other = (
                _added_up(table, rows.get(at, ()))
                for table, rows, at in zip(
                    (a, b), self._rows_of, (number, self._partner[number]), strict=True
                )
            )
            if mine is None or other is None or len(mine.total) != len(other.total):
                return False
            eps = float(dtypes.dtype(a.dtypes[a.dtype[self._rows_of[0][number][0]]]).eps or 0.0)
            if not np.linalg.norm(mine.total - other.total) <= LIMIT * eps * mine.size:
                return False
        return True

    def same_learning(self, modules: set[str]) -> bool:
        """Whether all gradients, updates and other values are equal but for rounding."""
        alignment, a = self._alignment, self._alignment.a
        if self._lack_partners() or not self._same_amount(modules):
            return False
        rows, here = self._rows[self._here], self._here
        kinds = np.array([one.kind for one in a.tensors])[a.tensor]
        judged = ~self.within(modules)[a.tensor[rows]] & (kinds[rows] != "delta")
        if (self._measures["nonfinite"][here][judged] > 0).any():
            return False
        eps = coarsest_formats(alignment, self._measures, here)[judged]
        with np.errstate(invalid="ignore"):  # all of a record whose norm is zero
            relative = self._measures["error_eps"] * self._measures["eps"]
            error = (relative * self._measures["norm"])[here][judged]
        own = a.figures["l2"][rows[judged]] * self._cancelling(rows[judged])
        limit = np.empty(len(error))
        matched = alignment.a_row[a.step[alignment.a_row] == self._steps[0]]
        for kind in np.unique(kinds[rows[judged]]).tolist():
            largest = float(a.figures["l2"][matched[kinds[matched] == kind]].max(initial=0.0))
            which = kinds[rows[judged]] == kind
            share = 0.0 if kind == "value" else SHARE * largest
            size = np.maximum(own[which], share)
            limit[which] = _times(kind, eps[which]) * eps[which] * size
            if kind == "updated":
                stored = self._measures["eps"][here][judged][which]
                limit[which] = self._limits_of_updates(
                    rows[judged][which], size, stored, eps[which]
                )
        beyond = np.flatnonzero(~(error <= limit))  # with errors that are not known
        pairs = self._measures.pair[here][judged][beyond]
        formats = eps[beyond].tolist()
        return all(map(self._is_shaken, pairs.tolist(), limit[beyond].tolist(), formats))

    def _cancelling(self, rows: Array) -> Array:
        """For each row, how many times as large as a bias's gradient the terms are that it sums.

        A sum rounds as its terms do, however much of them cancels, as before a batch norm. The sum
        of the sizes of n terms is √n times their norm at most. 1 for rows that are not of a
        parameter with one dimension, and where the terms are not known.
        """
        a = self._alignment.a
        sizes = {
            (tensor.name, tensor.rank, tensor.kind): a.figures["l2"][of_tensor].max()
            * math.sqrt(1 if tensor.name in self._learnt else a.figures["numel"][of_tensor].max())
            for number, of_tensor in self._rows_of[0].items()
            if (tensor := a.tensors[number]).kind in ("grad", "pass_grad")
        }
        times = np.ones(len(rows))
        for at, row in enumerate(rows.tolist()):
            name, kind, _, rank = a.tensors[a.tensor[row]]
            summed = kind in ("grad", "pass_grad") or kind.startswith("opt.")
            if not summed or name not in self._learnt or len(a.shapes[a.shape[row]]) != 1:
                continue
            terms = sizes.get((name.rpartition(".")[0], rank, "grad"), 0.0)
            total = sizes.get((name, rank, "pass_grad")) or sizes.get((name, rank, "grad"), 0.0)
            if total:
                times[at] = max(1.0, terms / total / math.sqrt(int(a.figures["numel"][row])))
        return times

    def _limits_of_updates(self, rows: Array, size: Array, stored: Array, eps: Array) -> Array:
        """How far updated parameters may be apart: as they are stored, and as their updates round.

        An update is small beside its parameter. The rounding of a coarse format, measured by the
        parameter, would cover an update of twice the size.
        """
        a = self._alignment.a
        deltas = {
            (tensor.name, tensor.rank): max(a.figures["l2"][own], default=0.0)
            for number, own in self._rows_of[0].items()
            if (tensor := a.tensors[number]).kind == "delta"
        }
        tensors = [a.tensors[number] for number in a.tensor[rows].tolist()]
        moved = np.array([deltas.get((one.name, one.rank), 0.0) for one in tensors])
        added = np.where(eps > EPS32, _times("delta", eps) * eps * moved, 0.0)
        limits: Array = _times("updated", stored) * stored * size + added
        return limits

    def _is_shaken(self, pair: int, limit: float, eps: float) -> bool:
        """Whether an update differs only in elements whose gradient is rounding in both runs.

        limit: how far the update may be apart. eps: that of the format that the gradient went
        through.
        """
        a = self._alignment.a
        row, row_b = int(self._alignment.a_row[pair]), int(self._alignment.b_row[pair])
        tensor = a.tensors[a.tensor[row]]
        if tensor.kind != "updated":
            return False
        gradients = [
            other
            for number, of in enumerate(a.tensors)
            if (of.name, of.rank, of.kind) == (tensor.name, tensor.rank, "grad")
            for other in self._rows_of[0].get(number, ())
        ]
        if len(gradients) != 1:
            return False
        alike = (LIMIT_LOW if eps > EPS32 else LIMIT) * eps
        steady = steady_elements_apart(self._alignment, gradients[0], row, row_b, alike)
        return steady * float(a.figures["l2"][row]) <= limit

    def _lack_partners(self) -> bool:
        """Whether one run alone has a gradient or an update in the step, or neither has any."""
        alignment = self._alignment
        for table, only, step in (
            (alignment.a, alignment.only_a, self._steps[0]),
            (alignment.b, alignment.only_b, self._steps[1]),
        ):
            taken = np.array(
                [tensor.kind in TAKEN and tensor.name in self._learnt for tensor in table.tensors]
                or [False],
                bool,
            )[table.tensor]
            if (taken[only] & (table.step[only] == step)).any():
                return True
            if not (taken & (table.step == step)).any():
                return True
        return False

    def _same_amount(self, modules: set[str]) -> bool:
        """Whether each model gives equally many elements in both runs, over all its calls."""
        for number, tensor in enumerate(self._alignment.a.tensors):
            root = _ROOT.search(_module(tensor.name)) and tensor.kind == "value"
            if not root or _module(tensor.name) not in modules or number not in self._partner:
                continue
            sides = (self._alignment.a, self._alignment.b)
            own = (number, self._partner[number])
            totals = {
                int(
                    table.figures["numel"][
                        (table.tensor == number_of_run) & (table.step == step)
                    ].sum()
                )
                for table, number_of_run, step in zip(sides, own, self._steps, strict=True)
            }
            if len(totals) > 1:
                return False
        return True


def _times(kind: str, eps: Array) -> Array:
    """How many eps several roundings in a row may make in records of a kind, by their format."""
    low = LIMIT_LOW * (SQUARES if kind.startswith("opt.") else 1.0)
    times: Array = np.where(eps > EPS32, low, LIMIT)
    return times


class _Sum(NamedTuple):
    """The sum of several records, and the norm of the largest of them."""

    total: Array
    size: float


def _added_up(table: Table, rows: Sequence[int]) -> _Sum | None:
    """The sum of records of one tensor; None where their values were not kept, or are too many."""
    if not rows or int(table.figures["numel"][list(rows)].sum()) > MOST_ELEMENTS:
        return None
    try:
        parts = [values(table, row) for row in rows]
    except StoreError:
        return None
    if any(part is None or len(part) != len(parts[0]) for part in parts):
        return None
    return _Sum(np.sum(parts, axis=0), max(float(np.linalg.norm(part)) for part in parts))


def _by_tensor(table: Table, step: int) -> Mapping[int, list[int]]:
    """The rows of each tensor in a step."""
    rows: defaultdict[int, list[int]] = defaultdict(list)
    for row in np.flatnonzero(table.step == step).tolist():
        rows[int(table.tensor[row])].append(row)
    return rows


def _module(name: str) -> str:
    return _OUTPUT.sub("", name)
