"""Matches of names that spread from matched names to their neighbours in the two graphs.

Two free names (names without a match), one of A and one of B, are a candidate where they are
neighbours of the two names of a matched pair, and of equal kinship to these: both are parents,
parameters, children or users. Every such matched pair gives the candidate votes, and the best
candidate without a rival is matched. So a difference in one place of a graph costs the names around
it some votes, and does not prevent matches farther on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

from anchorlib.diagnosis.pairing.renaming.beginnings import RunNames
from anchorlib.diagnosis.pairing.renaming.name_graph import NameGraph, NameNode, colours, kinds_of
from anchorlib.diagnosis.pairing.renaming.names import Naming, Shapes

__all__ = ["HOW", "MatchPropagation"]

HOW = "operations"
NEAR = 3  # how far the neighbours reach whose likeness gives a candidate votes
MOSTLY = 0.6
"""The share of the possible votes that a candidate needs where its operations may differ."""
CROWD = 4096  # candidates of one matched pair; a pair with more of them gives no votes
SAME, OTHER = 2.0, 1.0
"""Votes of a matched pair whose operands stand at equal places, and at different places."""


@dataclass(slots=True)
class MatchPropagation:
    """The unmatched ("free") names of two graphs, and the votes for pairs of them.

    strict: whether two names fit only if they are computed from parameters of equal shapes, and by
        equal operations (both by none, for instance) or with at least one operation in common. If
        not strict, a pair needs the share MOSTLY of the possible votes instead.
    votes: (A's name, B's name) of each candidate -> its votes.
    around: for A and for B, what `_around` returns: keys of the neighbours of each name.
    free_a, free_b: free names -> their numbers in the order of execution.
    """

    naming: Naming
    a: NameGraph
    b: NameGraph
    strict: bool
    votes: dict[tuple[str, str], float] = field(default_factory=dict)
    around: tuple[list[dict[str, Hashable]], ...] = field(init=False)
    free_a: dict[str, int] = field(init=False)
    free_b: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        taken = set(self.naming.to_b.values())
        sides = (self.a, self.naming.a), (self.b, self.naming.b)
        self.around = tuple(_around(*side) for side in sides)
        self.free_a = {n: at for at, n in enumerate(self.a.nodes) if n not in self.naming.to_b}
        self.free_b = {n: at for at, n in enumerate(self.b.nodes) if n not in taken}

    def begin(self) -> None:
        """Give the votes of all matched pairs to their neighbours.

        A tensor may have a second name, as a container's output has. Where both names of a matched
        pair are second names, the first names of the two tensors are matched too, if they fit.
        """
        for name_a, name_b in list(self.naming.to_b.items()):
            first_a, first_b = self.a.again.get(name_a, ""), self.b.again.get(name_b, "")
            if first_a in self.free_a and first_b in self.free_b and self._fit(first_a, first_b):
                self.take(first_a, first_b)
            self._propose(name_a, name_b)

    def take(self, name_a: str, name_b: str) -> None:
        """Match an unmatched name of A with one of B, and give this match's votes to neighbours."""
        self.naming.match(name_a, name_b, HOW)
        del self.free_a[name_a], self.free_b[name_b]
        self._propose(name_a, name_b)

    def sides(self) -> tuple[RunNames, RunNames]:
        """Return the two runs with the matches so far, as `beginnings` takes them."""
        known = {two: two for two in self.naming.to_b.values()}
        return (
            RunNames(self.a, self.naming.a, self.naming.to_b, self.free_a),
            RunNames(self.b, self.naming.b, known, self.free_b),
        )

    def _propose(self, name_a: str, name_b: str) -> None:
        """Give votes of a matched pair to each pair of unmatched neighbours of equal kinship.

        No votes are given to names that do not fit, nor by a pair with more than CROWD candidates.
        """
        if name_a not in self.a.nodes or name_b not in self.b.nodes:
            return
        near_a, near_b = (
            _near(node, free)
            for node, free in (
                (self.a.nodes[name_a], self.free_a),
                (self.b.nodes[name_b], self.free_b),
            )
        )
        if len(near_a) * len(near_b) > CROWD:
            return
        for (kinship, next_a), numbers in near_a.items():
            for (other, next_b), places in near_b.items():
                if kinship == other and self._fit(next_a, next_b):
                    vote = OTHER if numbers.isdisjoint(places) else SAME
                    self.votes[next_a, next_b] = (
                        self.votes.get((next_a, next_b), self._alike(next_a, next_b)) + vote
                    )

    def _fit(self, name_a: str, name_b: str) -> bool:
        """Return whether a name of A and a name of B may be names of one tensor.

        They may if they have alike kinds and shapes, and both or neither are parameters. If
        `strict`, they must also be computed from parameters of equal shapes, and by like
        operations.
        """
        node_a, node_b = self.a.nodes[name_a], self.b.nodes[name_b]
        if node_a.parameter != node_b.parameter or not self.naming.alike(name_a, name_b):
            return False
        if not self.strict:
            return True
        return node_a.holds == node_b.holds and (
            node_a.ops == node_b.ops or not set(node_a.ops).isdisjoint(node_b.ops)
        )

    def _alike(self, name_a: str, name_b: str) -> float:
        """Return the votes that a candidate begins with, before those of matched neighbours.

        It gets one for each distance at which the neighbours look alike, and less than one in all
        for common operations, equal last parts of the names and equal names.
        """
        ops_a, ops_b = Counter(self.a.nodes[name_a].ops), Counter(self.b.nodes[name_b].ops)
        share = (ops_a & ops_b).total() / max((ops_a | ops_b).total(), 1)
        near = zip(*self.around, strict=True)
        around = sum(1 for mine, other in near if mine[name_a] == other[name_b])
        return (
            around + 0.4 * share + 0.4 * (_last(name_a) == _last(name_b)) + 0.1 * (name_a == name_b)
        )

    def spread(self) -> None:
        """Match candidates that have no rival, those with the largest share of votes first.

        If strict, `_first_of_ties` goes on where all candidates have rivals. If not strict, only
        candidates with at least the share MOSTLY of the possible votes are matched.
        """
        while True:
            self.votes = {
                pair: votes
                for pair, votes in self.votes.items()
                if pair[0] in self.free_a and pair[1] in self.free_b
            }
            best = self._best() or (self._first_of_ties() if self.strict else [])
            if not best:
                return
            for name_a, name_b in best:
                self.take(name_a, name_b)

    def _best(self) -> list[tuple[str, str]]:
        """Return the candidates without a rival that have the largest share of possible votes.

        A rival is another candidate that shares one name and has at least as many votes. [] where
        all have rivals; if not `strict`, also where that share is below MOSTLY.
        """
        ranked: tuple[dict[str, list[float]], dict[str, list[float]]] = ({}, {})
        for pair, votes in self.votes.items():
            for name, side in zip(pair, ranked, strict=True):
                side.setdefault(name, []).append(votes)
        rivals = [
            {name: sorted(votes)[-2:] for name, votes in side.items() if len(votes) > 1}
            for side in ranked
        ]
        shares: dict[tuple[str, str], float] = {}
        for pair, votes in self.votes.items():
            if all(
                name not in side or (side[name][0] < votes == side[name][1])
                for name, side in zip(pair, rivals, strict=True)
            ):
                shares[pair] = self._share(pair, votes)
        most = max(shares.values(), default=0.0)
        if not self.strict and most < MOSTLY:
            return []
        return [pair for pair, share in shares.items() if share >= most]

    def _share(self, pair: tuple[str, str], votes: float) -> float:
        """Return a candidate's votes as a share of the most that its neighbours could give."""
        sides = (self.a.nodes[pair[0]], self.b.nodes[pair[1]])
        most = max(
            len({(neighbour.kinship, neighbour.name) for neighbour in node.neighbours})
            for node in sides
        )
        return votes / (SAME * max(most, 1))

    def _first_of_ties(self) -> list[tuple[str, str]]:
        """Return, in a list, the first pair of names that can be matched in spite of ties; or [].

        A name's ties are the names of the other run that have most votes with it, in the order of
        execution. A name of A and the first of its ties are such a pair if that tie has equally
        many ties in A, of which the name is the first.
        """
        for name in sorted({pair[0] for pair in self.votes}, key=self.free_a.__getitem__):
            group_b = self._tied(name, 0)
            group_a = self._tied(group_b[0], 1)
            if len(group_a) == len(group_b) and name == group_a[0]:
                return [(name, group_b[0])]
        return []

    def _tied(self, name: str, side: int) -> list[str]:
        """Return the names of the other run that have most votes with a name, in execution order.

        side: the run of `name`, 0 for A, 1 for B.
        """
        votes_of = {pair[1 - side]: vote for pair, vote in self.votes.items() if pair[side] == name}
        most = max(votes_of.values())
        order = self.free_a if side else self.free_b
        return sorted(
            (rival for rival, vote in votes_of.items() if vote == most), key=order.__getitem__
        )


def _near(node: NameNode, free: Mapping[str, int]) -> dict[tuple[str, str], set[int]]:
    """Return a node's unmatched neighbours, as (kinship, name) -> their places among operands."""
    neighbours: dict[tuple[str, str], set[int]] = {}
    for neighbour in node.neighbours:
        if neighbour.name in free:
            neighbours.setdefault((neighbour.kinship, neighbour.name), set()).add(neighbour.number)
    return neighbours


def _around(graph: NameGraph, shapes: Shapes) -> list[dict[str, Hashable]]:
    """Return name -> colour, a key of the kinds and shapes of the name's neighbours.

    The list has a dict for each distance from 1 to NEAR, with the neighbours up to that distance.
    """
    return colours(graph, lambda name, node: (node.parameter, kinds_of(shapes, name)), {}, NEAR)[1:]


def _last(name: str) -> str:
    return name.rpartition(".")[2]
