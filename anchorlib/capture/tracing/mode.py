"""The mode through which torch shows each operation that it dispatches.

The operation itself is called once, with its own arguments, whatever happens to us before or after.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from anchorlib.capture.frames import IS_TOLD, natively
from anchorlib.capture.snapshot import dtype_name
from anchorlib.capture.tracing.arguments import Arguments, tensors_in
from anchorlib.capture.tracing.digests import digest_of
from anchorlib.capture.tracing.places import OURS, place_of
from anchorlib.capture.tracing.request import Digests
from anchorlib.capture.tracing.schemas import OpFacts, facts_of, higher_order_name
from anchorlib.capture.tracing.sights import Sight, Sights
from anchorlib.operations import OperandForm, OpForm, TracedOp

__all__ = ["OpMode"]

_graph_task = torch._C._current_graph_task_id  # noqa: SLF001  # torch has no public name for it
_node = torch._C._current_autograd_node  # noqa: SLF001
_tracing_state = torch._C._get_tracing_state  # noqa: SLF001
_PLAIN: Final = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
"""Classes whose operations are torch's own; those of any other class show what they run inside."""


class _Begun(NamedTuple):
    """An operation that is about to run."""

    facts: OpFacts
    sight: Sight
    arguments: Arguments
    pass_index: int
    inputs: tuple[OperandForm, ...]
    digests: bytes
    makers: list[int | None]
    source: str


class OpMode(TorchDispatchMode):
    """Notes each operation in `sights` while it is `live`.

    on_gap: is told why something was not traced; on_fault: of a fault of ours.
    """

    supports_higher_order_operators = True

    def __init__(
        self,
        sights: Sights,
        digests: Digests,
        on_gap: Callable[[str], None],
        on_fault: Callable[[Exception], None],
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self.live = True
        self._sights = sights
        self._inputs, self._outputs = digests == "both", digests != "none"
        self._on_gap, self._on_fault = on_gap, on_fault
        self._lock = threading.Lock()

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """torch.compile does as without this mode: else it would run compiled code eagerly."""
        return True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Where dynamo can be told by `natively` it need not be imported and asked at every call.
        return not IS_TOLD

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run the operation; note what it was."""
        kwargs = kwargs or {}
        if not self.live:
            return func(*args, **kwargs)
        if any(one not in _PLAIN for one in types):
            return NotImplemented  # what the class runs inside comes back here
        begun = self._begin(func, args, kwargs)
        out = func(*args, **kwargs)
        if begun is not None:
            self._end(begun, out)
        return out

    def _begin(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Begun | None:
        try:
            return self._begun(func, args, kwargs)
        except Exception as fault:  # noqa: BLE001  # inside a user's operation
            self._on_fault(fault)
            return None

    def _begun(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Begun | None:
        hidden = higher_order_name(func)
        if hidden is not None:
            self._on_gap(f"what {hidden} runs inside was not traced")
            return None
        facts = facts_of(func)
        if facts.silent or _tracing_state() is not None:
            return None
        backward = _graph_task() != -1
        sights = self._sights
        place = place_of(sys._getframe(3), sights.names.modules, backward=backward)  # noqa: SLF001
        if place is OURS:
            return None
        arguments = Arguments(facts.arguments, args, kwargs)
        tensors = [x for _, _, x in arguments.tensors]
        with self._lock:
            sight = sights.see(facts.name, place, _node() if backward else None, tensors)
            makers = [sights.makers.maker(x) for x in tensors]
            pass_index = sights.pass_index
        found = [
            digest_of(x) if self._inputs and not sights.is_blank(maker) else None
            for x, maker in zip(tensors, makers, strict=True)
        ]
        inputs = tuple(
            _form(name, x, digest)
            for (_, name, x), digest in zip(arguments.tensors, found, strict=True)
        )
        digests = b"".join(filter(None, found))
        source = "graph" if place.graph else "eager"
        return _Begun(facts, sight, arguments, pass_index, inputs, digests, makers, source)

    def _end(self, begun: _Begun, out: Any) -> None:
        try:
            self._note(begun, list(tensors_in(out)))
        except Exception as fault:  # noqa: BLE001  # inside a user's operation
            self._on_fault(fault)

    def _note(self, begun: _Begun, made: list[torch.Tensor]) -> None:
        facts, sight, arguments = begun.facts, begun.sight, begun.arguments
        mutates = tuple(
            place
            for place, (argument, _, _) in enumerate(arguments.tensors)
            if argument in facts.writes
        )
        named = [("out", x) for x in made]
        for place in mutates:  # what fused operations write they do not return
            _, name, x = arguments.tensors[place]
            if not any(x is one for one in made):
                named.append((name, x))
        digests = self._outputs and not facts.blank
        found = [digest_of(x) if digests else None for _, x in named]
        outputs = tuple(
            _form(name, x, digest) for (name, x), digest in zip(named, found, strict=True)
        )
        with self._lock:
            sights = self._sights
            index = len(sights.ops)
            form = OpForm(
                facts.name,
                sight.stage,
                sight.module,
                sight.seq,
                sight.node,
                sight.where,
                begun.inputs,
                outputs,
                arguments.text,
                tuple(None if maker is None else index - maker for maker in begun.makers),
                mutates,
                facts.view,
                begun.source,
            )
            told = begun.digests + b"".join(filter(None, found))
            sights.add(TracedOp(form, begun.pass_index, told, tuple(arguments.floats)), facts)
            for name, x in named:
                if name != "out" or not facts.view:
                    sights.makers.made(x, index)
                if sight.module and sight.stage in ("accumulate", "optimizer"):
                    sights.names.own(x, sight.module)


def _form(name: str, x: torch.Tensor, digest: bytes | None) -> OperandForm:
    stride = x.stride() if x.layout is torch.strided else ()
    return (name, dtype_name(x.dtype), tuple(x.shape), tuple(stride), digest is not None)


natively(OpMode.__torch_dispatch__)
