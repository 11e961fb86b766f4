"""Which name of one run stands for which name of the other.

The user's map comes first; then equal names, names that differ by the segments of wrappers, and
names that have a prefix in one run. Names that are still free, that is, without a match, are then
matched by `likeness` (equal bits) and `positions` (equal places among the operations). Equal names
of tensors with different shapes or operations are matched after that: the `0` of a model is not the
`0` of `Sequential(model)`, which is the whole model, but its `0.0`. At last comes a guess
(`likeness`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from anchorlib.diagnosis.pairing.alignment import Renaming

__all__ = ["Made", "Naming", "Shapes", "by_name"]

WRAPPERS = frozenset(
    {"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_forward_module"}
)
"""Path segments that wrappers add: DDP, torch.compile, FSDP, checkpointing, DeepSpeed."""

PREFIXES = 20  # the most that are looked for: each watched model may have another

Shapes = Mapping[str, Mapping[str, tuple[int, ...]]]
"""For each name and kind, the shape of its first record; names in order of execution."""

Made = Mapping[str, Sequence[str]]
"""For each name the operations that made it; names of which they are unknown are left out."""


@dataclass(slots=True)
class Naming:
    """The names of two runs, matched one to one; names without a match are called free.

    a, b: all names of the two runs, each with the shape of every kind.
    to_b: the matches, A's name -> B's. renamed: the matches of names that are not equal.
    """

    a: Shapes
    b: Shapes
    to_b: dict[str, str] = field(default_factory=dict)
    renamed: list[Renaming] = field(default_factory=list)
    _taken: set[str] = field(default_factory=set)

    @property
    def left_a(self) -> list[str]:
        """A's names without a match, in A's order of execution."""
        return [name for name in self.a if name not in self.to_b]

    @property
    def left_b(self) -> list[str]:
        """B's names without a match, in B's order of execution."""
        return [name for name in self.b if name not in self._taken]

    def match(self, a: str, b: str, how: str = "") -> None:
        """Match A's name `a` with B's name `b`, neither of which has a match yet.

        how: how the match was found, one of the words of `Renaming.how`.
        """
        self.to_b[a] = b
        self._taken.add(b)
        if a != b:
            self.renamed.append(Renaming(a, b, how))

    def match_all(self, pairs: Iterable[tuple[str, str]], how: str) -> None:
        """Match the names of each pair (A's name, B's name) that shares no name with another pair.

        All names must be without a match. how: how the matches were found, one of the words of
        `Renaming.how`.
        """
        pairs = list(dict.fromkeys(pairs))
        of_a = Counter(a for a, _ in pairs)
        of_b = Counter(b for _, b in pairs)
        for a, b in pairs:
            if of_a[a] == of_b[b] == 1:
                self.match(a, b, how)

    def match_equal(self) -> None:
        """Match equal names that are still without a match, whatever was recorded of them."""
        free = set(self.left_b)
        for name in self.left_a:
            if name in free:
                self.match(name, name)

    def alike(self, a: str, b: str) -> bool:
        """Return whether two names have common kinds, and equal shapes in all of these."""
        kinds_a, kinds_b = self.a[a], self.b[b]
        shared = kinds_a.keys() & kinds_b.keys()
        return bool(shared) and all(kinds_a[kind] == kinds_b[kind] for kind in shared)


def by_name(
    a: Shapes,
    b: Shapes,
    names: Mapping[str, str],
    made: tuple[Made, Made] = ({}, {}),
) -> Naming:
    """Match the names of two runs as far as the user's map and the spelling of names allow.

    Equal names stay without a match where shapes or operations show two different tensors.
    names: the user's map, A's name -> B's.
    made: the operations that made A's names, and B's.
    """
    naming = Naming(a, b)
    # Where the map gives several names of A the same name of B, the last of them holds.
    said = {two: one for one, two in names.items() if one in a and two in b}
    for two, one in said.items():
        naming.match(one, two, "map")
    equal = [name for name in naming.left_a if name in b and name not in said]
    doubtful = {name for name in equal if not (naming.alike(name, name) and _made(name, *made))}
    for name in equal:
        if name not in doubtful:
            naming.match(name, name)
    _match_wrapped(naming)
    _match_prefixed(naming)
    return naming


def _made(name: str, made_a: Made, made_b: Made) -> bool:
    """Return whether the operations that made a name in the two runs may be those of one tensor.

    True where a run does not know the operations, where they are equal in both runs, or where the
    runs have at least one of them in common.
    """
    if name not in made_a or name not in made_b:
        return True
    return made_a[name] == made_b[name] or bool(set(made_a[name]) & set(made_b[name]))


def _match_wrapped(naming: Naming) -> None:
    """Match names that are equal without the segments that wrappers add (see WRAPPERS)."""
    bare: dict[str, list[str]] = {}
    for name in naming.left_b:
        bare.setdefault(_bare(name), []).append(name)
    pairs = [(name, other) for name in naming.left_a for other in bare.get(_bare(name), ())]
    naming.match_all([pair for pair in pairs if pair[0] != pair[1]], "wrapper")


def _match_prefixed(naming: Naming) -> None:
    """Match names that have a prefix in one run alone, one prefix after the other.

    At most PREFIXES prefixes are looked for.
    """
    for _ in range(PREFIXES):
        longer = _prefix(naming, naming.left_a, naming.left_b)
        if not longer:
            turned = _prefix(naming, naming.left_b, naming.left_a, turned=True)
            longer = [(a, b) for b, a in turned]
        if not longer:
            return
        for a, b in longer:
            naming.match(a, b, "wrapper")


def _prefix(
    naming: Naming, long: list[str], short: list[str], *, turned: bool = False
) -> list[tuple[str, str]]:
    """Return the pairs (name in `long`, name in `short`) that differ by the most frequent prefix.

    `long` are unmatched names of one run, with the prefix; `short` are those of the other run.
    [] where another prefix fits more than half of the names in `short` that this prefix pairs, or
    where the prefix has a single pair though `short` has more names. A prefix is not considered if
    it stands before more names that are equal in both runs than it would pair: then it belongs to
    both runs, as where a model and its average are recorded in both.
    turned: whether `long` holds B's names.
    """
    ends = {_bare(name): name for name in short}
    votes: dict[str, list[tuple[str, str]]] = {}
    for name in long:
        parts = _bare(name).split(".")
        for cut in range(1, len(parts)):
            other = ends.get(".".join(parts[cut:]))
            pair = (other, name) if turned else (name, other)
            if other is not None and naming.alike(*map(str, pair)):
                votes.setdefault(".".join(parts[:cut]), []).append((name, other))
    shared = {prefix: _in_both(naming, prefix) for prefix in votes}
    own = [pairs for prefix, pairs in votes.items() if shared[prefix] <= len(pairs)]
    ranked = sorted(own, key=len, reverse=True)
    if not ranked:
        return []
    best = ranked[0]
    wanted = {other for _, other in best}
    rivals = (len(wanted & {other for _, other in votes}) for votes in ranked[1:])
    # With a student and a teacher of equal shapes, it is not known which of them `short` names.
    contested = max(rivals, default=0) * 2 > len(best)
    seldom = len(best) < 2 and len(best) < len(short)
    return [] if contested or seldom else best


def _in_both(naming: Naming, prefix: str) -> int:
    """Return how many names with this prefix are matched with an equal name of the other run."""
    equal = (a for a, b in naming.to_b.items() if a == b)
    return sum(_bare(name).startswith(f"{prefix}.") for name in equal)


def _bare(name: str) -> str:
    """Return a name without the segments that wrappers add (see WRAPPERS)."""
    kept = [part for part in name.split(".") if part not in WRAPPERS]
    return ".".join(kept) if kept else name
