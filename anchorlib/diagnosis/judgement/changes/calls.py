"""The forward calls whose operations made a record, and what both runs state of these calls.

A value is made by one call; a gradient comes back from each call that used its tensor. What a call
was computed from, and by which operations, stands in its edges (`anchorlib.record.Edges`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from anchorlib.diagnosis.causes import Frontier, Lineage, between, module_key
from anchorlib.diagnosis.judgement.changes.operations import MOVING, Operation
from anchorlib.diagnosis.pairing import Table, compiled, opaque, with_operations
from anchorlib.names import escape
from anchorlib.record import Edges, Parent

__all__ = ["Call", "Calls", "original_of", "recorded"]


class Call(NamedTuple):
    """The coordinates of a forward call, by which its stored edges are found in one run.

    Edges say from which records and by which operations the call's result was computed.
    """

    rank: int
    name: str
    step: int
    pass_index: int
    call: int
    phase: str
    attempt: int


@dataclass(slots=True)
class Calls:
    """Finds the calls that made a row of A's table and its partner in B, and their operations.

    names: A's names → B's, where they differ.
    known: every name that A uses, as B calls it, and every name that B uses.
    """

    frontier: Frontier
    names: dict[str, str] = field(init=False)
    known: tuple[set[str], set[str]] = field(init=False)
    _lineages: dict[tuple[int, int], Lineage] = field(default_factory=dict)

    def __post_init__(self) -> None:
        alignment = self.frontier.alignment
        self.names = {renaming.a: renaming.b for renaming in alignment.renamed}
        a, b = _names_of(alignment.a), _names_of(alignment.b)
        self.known = ({self.names.get(name, name) for name in a}, b)

    def kind(self, row: int) -> str:
        a = self.frontier.alignment.a
        kind: str = a.tensors[a.tensor[row]].kind
        return kind

    def operations(
        self, row: int, *, elsewhere: bool = False
    ) -> tuple[tuple[Operation, ...], tuple[Operation, ...]]:
        """Return the operations of A and of B between a row and its parents (its inputs).

        Operations that only move bits, such as views, are left out.
        row: a row of A.
        elsewhere: whether to take the operations of another call that has the tensor's name, where
            the edges of the row's own call name no operations (see `followed`).
        """
        both: tuple[list[Operation], list[Operation]] = ([], [])
        for calls in self.of(row):
            for run, call in enumerate(self.followed(calls) if elsewhere else calls):
                both[run].extend(self.between(run, call, row))
        a, b = (tuple(one for one in ops if not MOVING.match(one.name)) for ops in both)
        return a, b

    def made_of_alone(self, row: int) -> str:
        """Return, as text, the parents of a row's partner that only B seems to have.

        These are names of tensors that B recorded, none of whose records is paired with a record
        of A, and from which B computed the partner.
        row: a value of A. "" for other kinds, and where B has no such parent.
        """
        alignment = self.frontier.alignment
        if alignment.a.tensors[alignment.a.tensor[row]].kind != "value" or not len(
            alignment.only_b
        ):
            return ""
        b = alignment.b
        paired = {
            b.tensors[number].name for number in np.unique(b.tensor[alignment.b_row]).tolist()
        }
        only = {b.tensors[number].name for number in np.unique(b.tensor[alignment.only_b]).tolist()}
        statements = [self.edges(1, two) for _, two in self.of(row)]
        parents = dict.fromkeys(
            parent.name for edges in statements if edges for parent in edges.parents
        )
        return ", ".join(escape(name) for name in parents if name in only - paired)

    def of(self, row: int) -> Iterator[tuple[Call, Call]]:
        """Yield the forward calls whose operations made this row, as (call in A, call in B).

        A value was made by one call. A gradient comes back from each call that used its tensor, so
        that there may be several.
        row: a row of A.
        """
        alignment = self.frontier.alignment
        at = int(np.searchsorted(alignment.a_row, row))
        call_a = _call(alignment.a, row)
        call_b = _call(alignment.b, int(alignment.b_row[at]))
        if alignment.a.tensors[alignment.a.tensor[row]].kind == "value":
            yield call_a, call_b
            return
        for link in self.frontier.ancestry(row).parents:
            if link.saved or link.kind != "grad" or link.steps_back or link.call is None:
                continue
            later = link.pass_index - call_a.pass_index
            yield (
                call_a._replace(name=link.name, pass_index=link.pass_index, call=link.call),
                call_b._replace(
                    name=self.names.get(link.name, link.name),
                    pass_index=call_b.pass_index + later,
                    call=link.call,
                ),
            )

    def followed(self, calls: tuple[Call, Call]) -> tuple[Call, Call]:
        """Return `calls`, or other calls of the same name whose edges name operations in both runs.

        Under `no_grad`, the edges of a module's output name the module and no operations, and those
        of an anchored value name nothing. The first call of that name with gradients takes the
        place of such a call, as its edges name the operations. A copied model, such as an average
        of parameters, may have no call with gradients: then the original model's call is taken.
        `calls` is returned, too, where a run has no call with gradients.
        calls: the call in A and in B.
        """
        statements = [self.edges(run, call) for run, call in enumerate(calls)]
        if not any(map(_is_silent, statements)):
            return calls
        stated: list[Call] = []
        tables = (self.frontier.alignment.a, self.frontier.alignment.b)
        for table, call in zip(tables, calls, strict=True):
            edges = with_operations(table, call.rank, call.name)
            if edges is None and (original := original_of(table, call.rank, call.name)):
                edges = with_operations(table, call.rank, original)
            if edges is None:
                return calls
            stated.append(
                call._replace(
                    name=edges.name,
                    step=edges.step,
                    pass_index=edges.pass_index,
                    call=edges.call,
                    phase=edges.phase,
                    attempt=edges.attempt,
                )
            )
        return stated[0], stated[1]

    def between(self, run: int, call: Call, row: int) -> list[Operation]:
        """Return those operations of a call that lie between a row's tensor and the call's result.

        For a value, and for a tensor that is no parent of the result, these are all operations of
        the call. [] where the edges are missing, or state no single operations.
        run: 0 for A, 1 for B. call: a call of that run. row: a row of A.
        """
        edges = self.edges(run, call)
        if edges is None or compiled(edges.ops) or opaque(edges.ops):
            return []
        a = self.frontier.alignment.a
        own = a.tensors[a.tensor[row]]
        name = self.names.get(own.name, own.name) if run else own.name
        places: Sequence[int] = range(len(edges.ops))
        numbers = [n for n, parent in enumerate(edges.parents, 1) if parent.name == name]
        if own.kind != "value" and numbers:
            places = sorted({place for number in numbers for place in between(edges, number)})
        texts = edges.arguments or ("",) * len(edges.ops)
        return [Operation(edges.ops[place], texts[place]) for place in places]

    def edges(self, run: int, call: Call) -> Edges | None:
        """Return the stored edges of a call in A (0) or B (1); None where the run has none."""
        lineage = self._lineages.get((run, call.rank))
        if lineage is None:
            table = (self.frontier.alignment.a, self.frontier.alignment.b)[run]
            lineage = Lineage(table.edges.get(call.rank, ()))
            self._lineages[run, call.rank] = lineage
        return lineage.edges(
            call.name,
            step=call.step,
            pass_index=call.pass_index,
            call=call.call,
            phase=call.phase,
            attempt=call.attempt,
        )

    def is_handed_on(self, row: int, run: int) -> bool:
        """Return whether a run's edges say that a value is another record's tensor, renamed.

        row: a row of A. run: 0 for A, 1 for B. False for gradients.
        """
        if self.kind(row) != "value":
            return False
        statements = (self.edges(run, self.followed(calls)[run]) for calls in self.of(row))
        return any(
            edges and edges.parents and not (edges.ops or edges.missing) for edges in statements
        )

    def is_cut_elsewhere(self, row: int) -> bool:
        """Return whether a row has a parent in one run whose name the other run never uses.

        One run then has an anchor between two records, where the other run has none. The former
        states for two records the operations that the latter states for one, though both may
        compute alike.
        row: a row of A. Parameters do not count as parents here.
        """
        for calls in self.of(row):
            parents = [
                {parent.name for parent in recorded(edges)} if edges else set()
                for edges in (self.edges(run, call) for run, call in enumerate(calls))
            ]
            parents[0] = {self.names.get(name, name) for name in parents[0]}
            if parents[0] - self.known[1] or parents[1] - self.known[0]:
                return True
        return False


def recorded(edges: Edges) -> list[Parent]:
    """Return those parents in stored edges that are not parameters."""
    return [parent for parent in edges.parents if parent.call is not None]


def _names_of(table: Table) -> set[str]:
    """Return every name that a run uses, for its recorded tensors and in its stored edges."""
    statements = (edges for some in table.edges.values() for edges in some)
    return {tensor.name for tensor in table.tensors}.union(
        *({edges.name, *(parent.name for parent in edges.parents)} for edges in statements)
    )


def _is_silent(edges: Edges | None) -> bool:
    """Return whether edges name a module in place of operations, or neither operations nor parents.

    That is so under `no_grad`. False without edges.
    """
    return edges is not None and (opaque(edges.ops) or not (edges.ops or edges.parents))


def original_of(table: Table, rank: int, name: str) -> str:
    """Return what a tensor of a copied model is called in the model itself; "" if there is none.

    The copy was watched with a prefix, such as "average", and the header describes each of its
    modules as it describes the module of the model itself.
    name: the tensor's name in the copy, such as "average.fc1".
    """
    prefix, _, original = name.partition(".")
    header = table.header.get(rank, {})
    of_copy = module_key(f"{prefix}.")
    described = {
        key.removeprefix(of_copy): text for key, text in header.items() if key.startswith(of_copy)
    }
    copied = bool(described) and all(
        header.get(module_key(module)) == text for module, text in described.items()
    )
    return original if original and copied else ""


def _call(table: Table, row: int) -> Call:
    tensor = table.tensors[table.tensor[row]]
    return Call(
        rank=tensor.rank,
        name=tensor.name,
        step=int(table.step[row]),
        pass_index=int(table.pass_index[row]),
        call=int(table.call[row]),
        phase=table.phases[table.phase[row]],
        attempt=int(table.attempt[row]),
    )
