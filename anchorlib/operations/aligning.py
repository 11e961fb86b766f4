"""Aligns the operations of two runs: finds those of one run alone, and those with other arguments.

    backward tanh2    A tanh_backward | B mul sub mul    equal bits go in, other bits come out
    forward gelu      A gelu | B gelu                    approximate none | tanh

Operations that make no bits of their own (views, copies) are left out, and so are the forwards that
activation checkpointing repeats. The other operations are grouped by rank, step, pass, stage
(forward, backward, optimizer and so on) and module, since a module is where people look for a
difference, and aligned by their names inside each group. An operation that one run has in a module
and the other run in a module inside that module has moved; that is no difference.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from anchorlib.operations.boundaries import Boundaries, Side
from anchorlib.operations.differences import OpAlignment, OpDifference
from anchorlib.operations.flow import Flow
from anchorlib.operations.moving import without_moved
from anchorlib.operations.op import Op, op_key
from anchorlib.operations.spelling import computes, is_alike, settings_of, subtraction
from anchorlib.operations.stretches import Group, Part, Stretch, blocks

__all__ = ["align_ops"]

_EAGER: Final = "eager"
_REPEATED: Final = "recompute"
_ONCE: Final = "optimizer"
"""The stage that runs once a step, not once a pass."""


def align_ops(
    a: Iterable[Op],
    b: Iterable[Op],
    *,
    names: Mapping[str, str] = MappingProxyType({}),
    step_offset: int = 0,
    partial: bool = False,
) -> OpAlignment | None:
    """Return the alignment of the operations in the steps that both runs traced.

    Returns None if no step was traced by both. If one run divides a step into more passes than the
    other, only the passes that both have are aligned. A module in which only one run has operations
    counts as a difference, but for two cases: if `partial` is true, and in a step in which a run
    has no operation of compiled code although it has some in another step (a compiled graph is read
    only in the step in which it is compiled).

    a, b: the traced operations of run A and of run B.
    names: run A's name of a module, by run B's name, where the two names differ.
    step_offset: step n of A is step n + step_offset of B.
    partial: whether the operations of some modules were not traced in a run.
    """
    every = list(a), list(b)
    one, two = _Grouped(every[0], {}, 0), _Grouped(every[1], names, step_offset)
    shared = one.passes.keys() & two.passes.keys()
    if not shared:
        return None
    flows = Flow(every[0]), Flow(every[1])
    signatures = flows[0].signature, flows[1].signature
    parts: list[Part] = []
    for group in dict.fromkeys([*one.groups, *two.groups]):
        x, y = one.groups.get(group, []), two.groups.get(group, [])
        passes = one.passes.get(group[:2], set()) & two.passes.get(group[:2], set())
        in_both = group.stage == _ONCE or group.pass_index in passes
        whole = not (partial or one.lacks(group) or two.lacks(group))
        if group[:2] in shared and in_both and ((x and y) or whole):
            parts += [(group, block) for block in blocks(x, y, signatures)]
    return _answer(without_moved(parts), flows, step_offset)


class _Grouped:
    """The operations of one run that make bits of their own, by the group they are aligned in.

    A group is a rank, step, pass, stage and module, as run A counts and names them.

    names: run A's name of a module, by this run's name, where the two differ.
    ahead: what is subtracted from a step of this run to get the step of run A.
    """

    def __init__(self, ops: Iterable[Op], names: Mapping[str, str], ahead: int) -> None:
        self.groups: dict[Group, list[Op]] = {}
        self.passes: defaultdict[tuple[int, int], set[int]] = defaultdict(set)
        self._compiled: set[tuple[int, int]] = set()
        for op in ops:
            if op.stage == _REPEATED or not computes(op):
                continue
            step, module = op.step - ahead, names.get(op.module, op.module)
            at = 0 if op.stage == _ONCE else op.pass_index
            self.passes[op.rank, step].add(at)
            if op.source != _EAGER:
                self._compiled.add((op.rank, step))
            group = Group(op.rank, step, at, op.stage, module)
            self.groups.setdefault(group, []).append(op)

    def lacks(self, group: Group) -> bool:
        """Return whether this run has compiled operations, but none in `group`'s rank and step.

        Then the operations of the group may have run without being traced.
        """
        return bool(self._compiled) and group[:2] not in self._compiled


def _answer(parts: Sequence[Part], flows: tuple[Flow, Flow], ahead: int) -> OpAlignment:
    pairs = [pair for _, block in parts if block.equal for pair in _pairs(block)]
    partners = {op_key(one): two for one, two in pairs}
    back = {op_key(two): one for one, two in pairs}
    bits = Boundaries(Side(flows[0], partners, ahead), Side(flows[1], back, -ahead))
    alone = [block for _, block in parts if not block.equal]
    return OpAlignment(
        matched=len(pairs),
        only_a=sum(len(block.a) for block in alone),
        only_b=sum(len(block.b) for block in alone),
        every=tuple(one for part in parts for one in _differences(part, bits)),
    )


def _pairs(block: Stretch) -> Iterator[tuple[Op, Op]]:
    return zip(block.a, block.b, strict=True)


def _differences(part: Part, bits: Boundaries) -> Iterator[OpDifference]:
    group, block = part
    if not block.equal:
        yield _difference(group, block.a, block.b, "", bits)
        return
    for one, two in _pairs(block):
        if arguments := _other_arguments(one, two):
            yield _difference(group, (one,), (two,), arguments, bits)


def _difference(
    group: Group, a: tuple[Op, ...], b: tuple[Op, ...], arguments: str, bits: Boundaries
) -> OpDifference:
    return OpDifference(
        stage=group.stage,
        module=group.module,
        a=a,
        b=b,
        arguments=arguments,
        inputs_equal=bits.inputs_equal(a, b),
        outputs_equal=bits.outputs_equal(a, b),
    )


def _other_arguments(one: Op, two: Op) -> str:
    """Return the arguments and output dtypes in which two operations differ, as text; "" for none.

    The text has the values of both: "approximate none | tanh". Where the two are different
    overloads of one operation, only the direction of a subtraction is compared: "1 - x | x - 1".
    """
    if one.op != two.op:
        # Two overloads (mul by a tensor, mul by a number) have other arguments, which are not
        # compared; only the direction of a subtraction is.
        sides = subtraction(one), subtraction(two)
        return (
            " | ".join(sides) if all(sides) and (sides[0][0] == "x") != (sides[1][0] == "x") else ""
        )
    a, b = settings_of(one), settings_of(two)
    names = [name for name in dict.fromkeys([*a, *b]) if not is_alike(a.get(name), b.get(name))]
    differences = [f"{name} {a.get(name, 'default')} | {b.get(name, 'default')}" for name in names]
    types = [tuple(operand.dtype for operand in op.outputs) for op in (one, two)]
    if types[0] != types[1] and "dtype" not in names:
        shown = (", ".join(dict.fromkeys(side)) for side in types)
        differences.append(f"dtype {' | '.join(shown)}")
    return ", ".join(differences)
