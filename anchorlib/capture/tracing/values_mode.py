"""ValuesMode: the dispatch mode of a trace that also records values of operations."""

from __future__ import annotations

from typing import Any

from anchorlib.capture.tracing.arguments import tensors_in
from anchorlib.capture.tracing.dispatch_mode import Begun, OpMode
from anchorlib.capture.tracing.value_recorder import ValueRecorder
from anchorlib.capture.tracing.value_selection import Called

__all__ = ["ValuesMode"]


class ValuesMode(OpMode):
    """An `OpMode` that shows each operation's tensors to a recorder of values.

    A trace that records no values uses the plain `OpMode`, so it pays nothing for this.
    """

    def __init__(self, value_recorder: ValueRecorder, *rest: Any) -> None:
        super().__init__(*rest)
        self._value_recorder = value_recorder

    def _begin(self, *called: Any) -> Begun | None:
        begun = super()._begin(*called)
        if begun is not None:
            given = zip(begun.arguments.names, begun.arguments.tensors, begun.makers, strict=True)
            written = [(name, x) for name, x, maker in given if not self._state.is_blank(maker)]
            names, tensors = [name for name, _ in written], [x for _, x in written]
            self._value_recorder.before(_called(begun), begun.pass_index, names, tensors)
        return begun

    def _note(self, begun: Begun, out: Any) -> None:
        super()._note(begun, out)
        if begun.facts.blank:
            return
        # The entry that was just added says which tensors the operation made, beyond those it
        # returned.
        names = [one[0] for one in self._state.ops[-1].form.outputs]
        given = dict(zip(begun.arguments.names, begun.arguments.tensors, strict=True))
        returned = tensors_in(out)
        made = [next(returned) if name == "out" else given[name] for name in names]
        self._value_recorder.after(_called(begun), names, made)


def _called(begun: Begun) -> Called:
    return Called(begun.facts.name, begun.context.origin, begun.context.module)
