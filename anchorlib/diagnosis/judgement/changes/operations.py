"""Operations between a record and its parents, and the words in which they are told."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from anchorlib.diagnosis.causes import made_otherwise
from anchorlib.diagnosis.judgement.changes.figures import follows
from anchorlib.names import escape
from anchorlib.record import Edges

__all__ = [
    "MOVING",
    "Operation",
    "about",
    "arguments",
    "computing",
    "nth",
    "other_number",
    "plainly",
    "rearranged",
    "several",
    "taken_otherwise",
    "unkept",
]

SHOWN = 3  # changes of one kind that are told
NTH = {2: "second", 3: "third", 4: "fourth"}

MOVING = re.compile(
    r"^(T|View|UnsafeView|ReshapeAlias|Reshape|Slice|Select|Transpose|Permute|Expand|Clone"
    r"|Unsqueeze|Squeeze|Split\w*|UnsafeSplit|Narrow|Unbind|Alias|Detach|AsStrided|Contiguous"
    r"|Flatten|Diagonal|Movedim|Swapdims)Backward\d*$"
)

ARRANGING = re.compile(
    r"^(Transpose|Permute|Flip|Roll|Movedim|Swapdims|Slice|Select|Narrow|Diagonal)Backward\d*$"
)
"""Operations that move bits, each of which leaves elements at another place, or some of them out.

Others that move bits only state another shape, and two programs may need another number of them."""
EXPAND = "ExpandBackward0"
UNKEPT = {
    "MaskedFill": "the value of MaskedFill",
    "Add": "what Add adds",
    "Sub": "what Sub subtracts",
    "Rsub": "what Rsub subtracts from",
}
"""Operations of which autograd does not keep an operand that needs no gradient."""
NUMBERS = ("MaskedFill", "Rsub")
"""Those that take the operand as a number, which is no input in a statement."""

FORMULA = frozenset(
    (
        "alpha",
        "approximate",
        "beta",
        "correction",
        "dropout_p",
        "eps",
        "exponent",
        "is_causal",
        "max",
        "min",
        "negative_slope",
        "other",
        "p",
        "reduction",
        "self",
        "threshold",
        "value",
    )
)
"""Arguments of operations that are part of what they compute."""
_ARGUMENT = re.compile(r"(\w+)=([^,()]+)")
_NUMBER = re.compile(r"(\w+)=(?:tensor\()?([^,()]+)")
"""The same, and numbers in tensors of the program's, which it may have computed."""
_OUTPUTS = re.compile(r"\boutputs=\(([\d, ]+)\)")
NEAR = 1e-6
"""Relative difference of two numbers that are one: two programs may compute it otherwise, and in
float32."""


class Operation(NamedTuple):
    """One operation: its node's name, and the scalars that it was told."""

    name: str
    arguments: str = ""


def computing(ops: Sequence[str]) -> tuple[str, ...]:
    """The operations that compute; all of them where every one only moves bits."""
    return tuple(op for op in ops if not MOVING.match(op)) or tuple(ops)


def arguments(a: Sequence[Operation], b: Sequence[Operation]) -> list[str]:
    """The arguments in which operations of one name differ, a clause for each pair of operations.

    The first operation of A that B does not have is paired with the first of B that A does not.
    """
    told = []
    for name in dict.fromkeys(one.name for one in a):
        one, two = (Counter(op.arguments for op in ops if op.name == name) for ops in (a, b))
        for left, right in zip((one - two).elements(), (two - one).elements(), strict=False):
            # Stores of earlier versions hold no arguments: then nothing is known of them.
            if left and right and (made := made_otherwise(f"{name}({left})", f"{name}({right})")):
                told.append(" | ".join(map(escape, _shorter(*made))) + follows(left, right))
    return list(dict.fromkeys(told))[:SHOWN]


def other_number(a: Sequence[Operation], b: Sequence[Operation], *, computed: bool = False) -> bool:
    """Whether both ran the same operations, of which exactly one was told another number or word.

    Then the formulas differ, however little their results do: a norm takes a factor out again.
    Where two operations were told otherwise, one may make up for the other.
    computed: whether numbers in tensors count too, which follow from what they are computed from.
    """
    if [one.name for one in a] != [one.name for one in b]:
        return False
    left, right = Counter(a) - Counter(b), Counter(b) - Counter(a)
    if left.total() != 1 or right.total() != 1:
        return False
    (one,), (two,) = left, right
    pattern = _NUMBER if computed else _ARGUMENT
    told = [dict(pattern.findall(side.arguments)) for side in (one, two)]
    names = [name for name in told[0] if told[0][name] != told[1].get(name)]
    if told[0].keys() != told[1].keys() or len(names) != 1 or names[0] not in FORMULA:
        return False
    return _is_other(*(side[names[0]] for side in told))


def _is_other(a: str, b: str) -> bool:
    """Whether two arguments differ by more than the rounding of one number in two programs."""
    try:
        one, two = float(a), float(b)
    except ValueError:
        return True
    if math.isinf(one) or math.isinf(two):
        return one != two
    return abs(one - two) > NEAR * max(abs(one), abs(two))


def about(change: str) -> str:
    """A change without the class or node that it is of: "approximate 'none' | 'tanh'"."""
    return change.partition(" ")[2]


def _shorter(a: str, b: str) -> tuple[str, str]:
    """Two texts with their numbers cut to six digits, unless the texts would then be equal."""
    one, two = (re.sub(r"\d+\.\d{6,}", _six_digits, text) for text in (a, b))
    return (one, two) if one.split()[-1:] != two.split()[-1:] else (a, b)


def _six_digits(number: re.Match[str]) -> str:
    return f"{float(number[0]):.6g}"


def plainly(name: str) -> str:
    """The name of an operation without autograd's ending: "Mul" for "MulBackward0"."""
    return escape(re.sub(r"Backward\d*$", "", name) or name)


def several(names: Counter[str]) -> str:
    """The names of the first few operations, as text."""
    shown = [plainly(name) for name in list(names)[:SHOWN]]
    return ", ".join(shown) + ", …" * (len(names) > SHOWN)


def nth(name: str, there: int, more: int) -> str:
    """The surplus of an operation in words, as "a second Mul".

    there: how many the run has. more: how many of them the other run lacks.
    """
    if more > 1:
        return f"{more} more {plainly(name)}" if there > more else f"{more} {plainly(name)}"
    if there > 1:
        return f"a {NTH.get(there, f'{there}th')} {plainly(name)}"
    plain = plainly(name)
    return f"{'an' if plain[:1] in 'AEIOU' else 'a'} {plain} that the other lacks"


def taken_otherwise(a: Edges, b: Edges, names: Mapping[str, str]) -> str:
    """Says that operations take the same operands in another order; "" where none does.

    One operation does, or two of them have exchanged records.
    a, b: statements with the same operations. names: A's names -> B's, where they differ.
    """
    exchanged: list[tuple[str, list[str], list[str]]] = []
    for at, op in enumerate(a.ops):
        one, two = (_taken(edges, at, own) for edges, own in ((a, names), (b, {})))
        if one != two and sorted(one) == sorted(two) and len(set(one)) > 1:
            sides = " | ".join(", ".join(map(escape, side)) for side in (one, two))
            return f"{plainly(op)} takes the same in another order: {sides}"
        if one != two and not MOVING.match(op):
            less, more = Counter(one) - Counter(two), Counter(two) - Counter(one)
            exchanged.append((op, sorted(less.elements()), sorted(more.elements())))
    return _exchanged_records(exchanged) or _outputs_otherwise(a, b)


def _exchanged_records(differing: Sequence[tuple[str, list[str], list[str]]]) -> str:
    """Says that two operations have swapped the records that they take; "" where none did.

    differing: operations, with the operands that each of them takes in A alone, and in B alone.
    """
    if len(differing) != 2:
        return ""
    (op, one, two), (last, three, four) = differing
    if one != four or two != three or any(text.endswith((")", "?")) for text in (*one, *two)):
        return ""
    sides = [", ".join(map(escape, side)) for side in (one, two)]
    both = f"{plainly(op)} takes {' | '.join(sides)}, {plainly(last)} {' | '.join(sides[::-1])}"
    return f"two operations have swapped what they take: {both}"


def _outputs_otherwise(a: Edges, b: Edges) -> str:
    """Says that operations take the outputs of those before them in another order; else ""."""
    if len(a.arguments) != len(b.arguments):
        return ""
    sides = [[_outputs(text) for text in edges.arguments] for edges in (a, b)]
    places = [at for at, (one, two) in enumerate(zip(*sides, strict=True)) if one != two]
    one, two = (Counter(re.findall(r"[1-9]\d*", " ".join(side))) for side in sides)
    if not places or one != two:
        return ""
    own = " | ".join(f"output {side[places[-1]]}" for side in sides)
    op = plainly(a.ops[places[-1]])
    return f"{op} takes outputs of one operation in another order: {own}"


def _outputs(arguments: str) -> str:
    found = _OUTPUTS.search(arguments)
    return found[1] if found else "0"


def rearranged(a: Edges, b: Edges) -> list[str]:
    """Says which operations that rearrange elements one statement alone has, all else being alike.

    Where there are none, that one statement alone repeats elements. [] where the operations that
    compute differ.
    """
    if computing(a.ops) != computing(b.ops):
        return []
    one, two = (Counter(op for op in edges.ops if ARRANGING.match(op)) for edges in (a, b))
    told = [f"B has {nth(name, two[name], count)}" for name, count in (two - one).items()]
    told += [f"A has {nth(name, one[name], count)}" for name, count in (one - two).items()]
    repeats = [edges.ops.count(EXPAND) for edges in (a, b)]
    if told or repeats[0] == repeats[1]:
        return told
    run, more = ("A", repeats[0]) if repeats[0] > repeats[1] else ("B", repeats[1])
    return [f"{run} has {nth(EXPAND, more, abs(repeats[0] - repeats[1]))} (a broadcast?)"]


def unkept(a: Edges, b: Edges) -> list[str]:
    """Names the operands that autograd does not keep, where all that it keeps is equal."""
    if a.ops != b.ops or a.inputs != b.inputs or a.arguments != b.arguments:
        return []
    found = dict.fromkeys(
        UNKEPT[plainly(op)]
        for op, sources in zip(a.ops, a.inputs, strict=False)
        if plainly(op) in UNKEPT and (0 in sources or plainly(op) in NUMBERS)
    )
    if not found:
        return []
    return [f"all that autograd keeps is equal: it does not keep {', nor '.join(found)}"]


def _taken(edges: Edges, at: int, names: Mapping[str, str]) -> list[str]:
    """The operands of an operation: records by their names in B, operations by name and number.

    Operations that only move bits are looked through: what they were given is the operand.
    """
    told = edges.inputs[at] if at < len(edges.inputs) else ()
    found = []
    for source in told:
        while source > 0 and MOVING.match(edges.ops[source]):
            before = edges.inputs[source] if source < len(edges.inputs) else ()
            if len(before) != 1:
                break
            (source,) = before  # noqa: PLW2901
        if source < 0:
            name = edges.parents[-source - 1].name
            found.append(names.get(name, name))
        else:
            found.append(f"{edges.ops[source]} ({source})" if source else "?")
    return found
