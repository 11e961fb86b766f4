"""Operations between a record and its parents, and clauses about how they differ in the two runs.

Operations are those of the edges that a run stores for a value (`anchorlib.record.Edges`): the
nodes of its autograd graph, in the order of backward, with arguments and inputs.
"""

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
    "multiplies_unrecorded",
    "nth",
    "other_number",
    "plainly",
    "rearranged",
    "several",
    "taken_otherwise",
    "unkept",
]

SHOWN = 3  # the most changes of one kind that are named
NTH = {2: "second", 3: "third", 4: "fourth"}

MOVING = re.compile(
    r"^(T|View|UnsafeView|ReshapeAlias|Reshape|Slice|Select|Transpose|Permute|Expand|Clone"
    r"|Unsqueeze|Squeeze|Split\w*|UnsafeSplit|Narrow|Unbind|Alias|Detach|AsStrided|Contiguous"
    r"|Flatten|Diagonal|Movedim|Swapdims)Backward\d*$"
)

ARRANGING = re.compile(
    r"^(Transpose|Permute|Flip|Roll|Movedim|Swapdims|Slice|Select|Narrow|Diagonal)Backward\d*$"
)
"""Operations that move bits, and put elements at other places or leave some of them out.

The other operations that move bits only state another shape. Two programs that compute the same may
have different numbers of them."""
EXPAND = "ExpandBackward0"
UNKEPT = {
    "MaskedFill": "the value of MaskedFill",
    "Add": "what Add adds",
    "Sub": "what Sub subtracts",
    "Rsub": "what Rsub subtracts from",
}
"""Operations of which autograd does not keep an operand that needs no gradient."""
NUMBERS = ("MaskedFill", "Rsub")
"""Operations of UNKEPT that take the operand as a number, which is no input in stored edges."""

RANDOM = ("Mul", "NativeDropout", "FusedDropout")
"""Beginnings of the operations that apply a random mask."""

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
"""Matches an argument and its value, also a number in a tensor that the program may have computed.

_ARGUMENT does not match such numbers in tensors."""
_OUTPUTS = re.compile(r"\boutputs=\(([\d, ]+)\)")
NEAR = 1e-6
"""The relative difference up to which two numbers are equal: two programs may compute a number by
different formulas, and in float32."""


class Operation(NamedTuple):
    """One operation: the name of its node, and its scalar arguments as text.

    arguments: such as "dim=1, keepdim=True"; "" where the run has stored none.
    """

    name: str
    arguments: str = ""


def computing(ops: Sequence[str]) -> tuple[str, ...]:
    """Return the operations that compute, without those that only move bits (views, transposes).

    All of them are returned where all only move bits.
    """
    return tuple(op for op in ops if not MOVING.match(op)) or tuple(ops)


def arguments(a: Sequence[Operation], b: Sequence[Operation]) -> list[str]:
    """Return clauses on the arguments in which operations of one name differ; [] for none.

    Of operations with one name, the first whose arguments only A has is paired with the first whose
    arguments only B has.
    """
    clauses = []
    for name in dict.fromkeys(op.name for op in a):
        arguments_a, arguments_b = (
            Counter(op.arguments for op in ops if op.name == name) for ops in (a, b)
        )
        for left, right in zip(
            (arguments_a - arguments_b).elements(),
            (arguments_b - arguments_a).elements(),
            strict=False,
        ):
            # Stores of earlier versions hold no arguments.
            if left and right and (made := made_otherwise(f"{name}({left})", f"{name}({right})")):
                clauses.append(" | ".join(map(escape, _shorter(*made))) + follows(left, right))
    return list(dict.fromkeys(clauses))[:SHOWN]


def other_number(a: Sequence[Operation], b: Sequence[Operation], *, computed: bool = False) -> bool:
    """Return whether the runs' operations are equal but for one number or word in one of them.

    The number or word must be an argument in FORMULA, and differ by more than rounding. Then the
    formulas differ, even if their results hardly do: a later norm may remove a factor. False where
    the arguments of two operations differ: one operation may make up for the other.
    computed: whether numbers in tensors count too, which the program may have computed.
    """
    if [op.name for op in a] != [op.name for op in b]:
        return False
    left, right = Counter(a) - Counter(b), Counter(b) - Counter(a)
    if left.total() != 1 or right.total() != 1:
        return False
    (op_a,), (op_b,) = left, right
    pattern = _NUMBER if computed else _ARGUMENT
    values = [dict(pattern.findall(side.arguments)) for side in (op_a, op_b)]
    names = [name for name in values[0] if values[0][name] != values[1].get(name)]
    if values[0].keys() != values[1].keys() or len(names) != 1 or names[0] not in FORMULA:
        return False
    return _is_other(*(side[names[0]] for side in values))


def _is_other(a: str, b: str) -> bool:
    """Return whether two arguments, as texts, differ; numbers must differ by more than NEAR.

    Two programs may compute one number by different formulas, so that it is rounded differently.
    """
    try:
        number_a, number_b = float(a), float(b)
    except ValueError:
        return True
    if math.isinf(number_a) or math.isinf(number_b):
        return number_a != number_b
    return abs(number_a - number_b) > NEAR * max(abs(number_a), abs(number_b))


def about(change: str) -> str:
    """Return a clause without its first word, the class or node, such as "eps 1e-05 | 0.01"."""
    return change.partition(" ")[2]


def _shorter(a: str, b: str) -> tuple[str, str]:
    """Return two texts, numbers cut to six digits; unchanged if their last words became equal."""
    short_a, short_b = (re.sub(r"\d+\.\d{6,}", _six_digits, text) for text in (a, b))
    return (short_a, short_b) if short_a.split()[-1:] != short_b.split()[-1:] else (a, b)


def _six_digits(number: re.Match[str]) -> str:
    return f"{float(number[0]):.6g}"


def plainly(name: str) -> str:
    """Return the name of an operation without autograd's ending: "Mul" for "MulBackward0"."""
    return escape(re.sub(r"Backward\d*$", "", name) or name)


def several(names: Counter[str]) -> str:
    """Return the names of the first three operations as text, with "…" where there are more."""
    shown = [plainly(name) for name in list(names)[:SHOWN]]
    return ", ".join(shown) + ", …" * (len(names) > SHOWN)


def nth(name: str, there: int, more: int) -> str:
    """Return words for the operations `name` that one run has more of, such as "a second Mul".

    there: how many this run has. more: by how many its number exceeds the other run's.
    """
    if more > 1:
        return f"{more} more {plainly(name)}" if there > more else f"{more} {plainly(name)}"
    if there > 1:
        return f"a {NTH.get(there, f'{there}th')} {plainly(name)}"
    plain = plainly(name)
    return f"{'an' if plain[:1] in 'AEIOU' else 'a'} {plain} that the other lacks"


def taken_otherwise(a: Edges, b: Edges, names: Mapping[str, str]) -> str:
    """Return a clause if operations take their operands in another order in B; else "".

    Either one operation takes its own operands in another order, or two operations have exchanged
    records, or operations take the outputs of one operation in another order.
    a, b: the edges of A and of B, with equal operations. names: A's names -> B's, where they
        differ.
    """
    exchanged: list[tuple[str, list[str], list[str]]] = []
    for at, op in enumerate(a.ops):
        operands_a, operands_b = (_taken(edges, at, own) for edges, own in ((a, names), (b, {})))
        if (
            operands_a != operands_b
            and sorted(operands_a) == sorted(operands_b)
            and len(set(operands_a)) > 1
        ):
            sides = " | ".join(", ".join(map(escape, side)) for side in (operands_a, operands_b))
            return f"{plainly(op)} takes the same in another order: {sides}"
        if operands_a != operands_b and not MOVING.match(op):
            less = Counter(operands_a) - Counter(operands_b)
            more = Counter(operands_b) - Counter(operands_a)
            exchanged.append((op, sorted(less.elements()), sorted(more.elements())))
    return _exchanged_records(exchanged) or _outputs_otherwise(a, b)


def _exchanged_records(differing: Sequence[tuple[str, list[str], list[str]]]) -> str:
    """Say that two operations have exchanged the records that they take, or "".

    differing: operations, with the operands that each of them takes in A alone, and in B alone.
    """
    if len(differing) != 2:
        return ""
    (op, in_a, in_b), (last, *swapped) = differing
    unnamed = any(text.endswith((")", "?")) for text in (*in_a, *in_b))
    if swapped != [in_b, in_a] or unnamed:
        return ""
    sides = [", ".join(map(escape, side)) for side in (in_a, in_b)]
    both = f"{plainly(op)} takes {' | '.join(sides)}, {plainly(last)} {' | '.join(sides[::-1])}"
    return f"two operations have swapped what they take: {both}"


def _outputs_otherwise(a: Edges, b: Edges) -> str:
    """Return a clause if operations take the outputs of one operation in another order; else "".

    a, b: the edges of A and of B, with equal operations.
    """
    if len(a.arguments) != len(b.arguments):
        return ""
    sides = [[_outputs(text) for text in edges.arguments] for edges in (a, b)]
    places = [
        at
        for at, (outputs_a, outputs_b) in enumerate(zip(*sides, strict=True))
        if outputs_a != outputs_b
    ]
    outputs_a, outputs_b = (Counter(re.findall(r"[1-9]\d*", " ".join(side))) for side in sides)
    if not places or outputs_a != outputs_b:
        return ""
    own = " | ".join(f"output {side[places[-1]]}" for side in sides)
    op = plainly(a.ops[places[-1]])
    return f"{op} takes outputs of one operation in another order: {own}"


def _outputs(arguments: str) -> str:
    match = _OUTPUTS.search(arguments)
    return match[1] if match else "0"


def rearranged(a: Edges, b: Edges) -> list[str]:
    """Return clauses on operations that rearrange elements and that one run ran more often.

    Where both runs ran each of these operations equally often, a clause says if one run expands
    tensors more often. [] where the runs do so equally often as well, and where the operations that
    compute differ.
    a, b: the edges of A and of B.
    """
    if computing(a.ops) != computing(b.ops):
        return []
    counts_a, counts_b = (
        Counter(op for op in edges.ops if ARRANGING.match(op)) for edges in (a, b)
    )
    clauses = [
        f"B has {nth(name, counts_b[name], count)}" for name, count in (counts_b - counts_a).items()
    ]
    clauses += [
        f"A has {nth(name, counts_a[name], count)}" for name, count in (counts_a - counts_b).items()
    ]
    repeats = [edges.ops.count(EXPAND) for edges in (a, b)]
    if clauses or repeats[0] == repeats[1]:
        return clauses
    run, more = ("A", repeats[0]) if repeats[0] > repeats[1] else ("B", repeats[1])
    return [f"{run} has {nth(EXPAND, more, abs(repeats[0] - repeats[1]))} (a broadcast?)"]


def unkept(a: Edges, b: Edges) -> list[str]:
    """Return a clause on operands that autograd does not keep, if all that it keeps is equal.

    a, b: the edges of A and of B. [] where anything in them differs, or where autograd keeps all
        operands.
    """
    if a.ops != b.ops or a.inputs != b.inputs or a.arguments != b.arguments:
        return []
    operands = dict.fromkeys(
        UNKEPT[plainly(op)]
        for op, sources in zip(a.ops, a.inputs, strict=False)
        if plainly(op) in UNKEPT and (0 in sources or plainly(op) in NUMBERS)
    )
    if not operands:
        return []
    return [f"all that autograd keeps is equal: it does not keep {', nor '.join(operands)}"]


def multiplies_unrecorded(edges: Edges) -> bool:
    """Return whether an operation multiplies by what no record holds, as dropout does by its mask.

    edges: the operations that made a value.
    """
    return any(
        op.startswith(RANDOM) and (0 in sources or not op.startswith("Mul"))
        for op, sources in zip(edges.ops, edges.inputs, strict=False)
    )


def _taken(edges: Edges, at: int, names: Mapping[str, str]) -> list[str]:
    """Return the operands of the operation at index `at`: records by B's names, else operations.

    Where an operand comes from an operation that only moves bits, the input of that operation is
    named instead. "?" stands for an operand that is neither a record nor an operation's result.
    """
    sources = edges.inputs[at] if at < len(edges.inputs) else ()
    operands = []
    for source in sources:
        while source > 0 and MOVING.match(edges.ops[source]):
            before = edges.inputs[source] if source < len(edges.inputs) else ()
            if len(before) != 1:
                break
            (source,) = before  # noqa: PLW2901
        if source < 0:
            name = edges.parents[-source - 1].name
            operands.append(names.get(name, name))
        else:
            operands.append(f"{edges.ops[source]} ({source})" if source else "?")
    return operands
