"""The tensors that one call of `watch` chose, and their modes."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeAlias

from anchorlib.capture.naming.optimizer_state import key_of
from anchorlib.capture.naming.structure import NamedMembers
from anchorlib.errors import OptionError, UnknownTensorError
from anchorlib.folds import idle
from anchorlib.modes import Mode
from anchorlib.names import below, join, matches, parse, select, split
from anchorlib.scope import ANYTHING, Scope

__all__ = ["Choice", "WatchArguments"]

_POPTORCH = re.compile(r"(Gradient|Accum|FinalReducedGradient|UpdatedVar|Accl[12]?)___")
_OF_MODELS = (
    "watch takes names of the model's modules, parameters and buffers; what anchor() marks needs "
    "no watch, it is recorded by itself"
)


Known: TypeAlias = "Sequence[tuple[str, str]]"


@dataclass(frozen=True, slots=True)
class WatchArguments:
    """The arguments of a call of `watch`.

    selectors: texts that name tensors, such as "fc1.bias@grad"; None for the default: every module
        output with its gradient, and every parameter's `grad` (`pass_grad` without an optimizer).
    modes: how each selected tensor is recorded. scope: the phases and steps that are recorded.
    """

    selectors: Sequence[str] | None
    modes: tuple[Mode, ...]
    scope: Scope = ANYTHING


class Choice:
    """Decides which tensors of one model a call of `watch` selects.

    asked: the arguments of the call of `watch`.
    known: every (name, kind) of the model that can be known before the first step. Tensors that
        only a step can show, such as optimizer state, are decided when they appear.
    parts: the named parts of the model.

    Raises UnknownTensorError for a selector that matches nothing and cannot match anything later,
    OptionError for a selector that is not text.
    """

    def __init__(
        self,
        asked: WatchArguments,
        known: Known,
        parts: NamedMembers,
    ) -> None:
        selectors = asked.selectors
        self.modes = asked.modes
        self.scope = asked.scope
        self._inputs = parts.input_name
        self._known = {name for name, _ in known}
        self._late: dict[str, bool] = {}
        self._default = selectors is None
        open_kinds = ("opt.*",) if any(kind == "updated" for _, kind in known) else ()
        texts = [_recorded_as(text, known, parts, open_kinds) for text in selectors or ()]
        self._selectors = [parse(text) for text in texts]
        if selectors is None:
            self._chosen = set(_by_default(known, parts.parameters, parts.input_name))
        else:
            self._chosen = {
                pair for text in texts for pair in self._resolve(text, known, parts, open_kinds)
            }

    def _resolve(
        self, text: str, known: Known, parts: NamedMembers, open_kinds: tuple[str, ...]
    ) -> list[tuple[str, str]]:
        try:
            pairs = select([text], known, open_kinds=open_kinds, open_outputs=True)
        except UnknownTensorError as fault:
            why = _why_not(text, parts, has_optimizer=bool(open_kinds))
            if not why and fault.suggested:
                raise
            why = why or _OF_MODELS
            raise UnknownTensorError(f"{fault}; {why}") from None
        if not pairs:  # accepted for tensors that only a step can show: `opt.KEY`, `fc1:1`
            self._late[text] = False
        return pairs

    def records_nothing(self, step: int, phase: str) -> bool:
        """Return whether this choice leaves out all observations made in `step` and `phase`."""
        return self.scope.records_nothing(step, phase) or all(
            idle(mode, step) for mode in self.modes
        )

    def wants(self, name: str, kind: str) -> bool:
        """Return whether this choice selects `kind` of the tensor `name`.

        Selectors in `missing` that match are no longer listed there.
        """
        if (name, kind) in self._chosen:
            return True
        if name in self._known and not kind.startswith("opt."):
            return False
        if self._default:
            # The default includes further outputs (`fc1:1`), but no inputs and no optimizer state.
            return not kind.startswith("opt.") and name.partition(":")[0] != self._inputs
        wanted = False
        for selector in self._selectors:
            if any(matches(selector, name, one) for one in (kind, key_of(kind))):
                wanted = True
                if selector.text in self._late:
                    self._late[selector.text] = True
        return wanted

    def reaches_below(self, name: str) -> bool:
        """Return whether this choice may select further tensors in the output or input `name`.

        They are called `NAME:1` or `NAME:key`, where the output or input holds several tensors.
        """
        if self._default:
            return name != self._inputs
        return any(text.partition(":")[0] == name for text in self._late) or any(
            matches(selector, f"{name}:1", kind)
            for selector in self._selectors
            for kind in ("value", "grad")
        )

    @property
    def names(self) -> set[str]:
        """The names of the tensors that this choice selects, as far as they are known.

        Further outputs of a module (`fc1:1`) are not listed: the module's name stands for them.
        """
        late = {split(text)[0].partition(":")[0] for text in self._late}
        return {name for name, _ in self._chosen} | late

    @property
    def missing(self) -> list[str]:
        """The selectors that have matched no tensor yet, but may match one that appears later."""
        return [text for text, came in self._late.items() if not came]


def _recorded_as(
    text: object, known: Known, parts: NamedMembers, open_kinds: tuple[str, ...]
) -> str:
    """Return the selector `text`, changed to the names under which tensors are recorded.

    A selector that matches nothing as it stands is tried with the model's prefix before it. If it
    matches nothing with the prefix either, it is returned without the prefix.

    known: the (name, kind) of tensors that it may match. parts: the named parts of the model.
        open_kinds: kinds that may appear only later, and so count as matching.

    Raises OptionError for a `text` that is no str.
    """
    if not isinstance(text, str):
        raise OptionError(f"a selector is text, as 'fc1.bias@grad', not {text!r}")
    whole = _renamed(text, parts)
    if not parts.prefix:
        return whole
    for candidate in (whole, _renamed(below(text, parts.prefix), parts)):
        with suppress(UnknownTensorError):
            select([candidate], known, open_kinds=open_kinds, open_outputs=True)
            return candidate
    return whole


def _renamed(text: str, parts: NamedMembers) -> str:
    """Return the selector `text`, in which a tied parameter or shared module has its first name.

    parts: the named parts of the model, which say the first names.
    """
    name, kind = split(text)
    first = parts.first_name(name)
    return text if first == name else join(first, kind) if kind else first


def _why_not(text: str, parts: NamedMembers, *, has_optimizer: bool) -> str:
    """Return a text on why a parameter lacks the kind for which the selector `text` asks.

    "" is returned if `text` names no parameter, or if no reason is known.

    parts: the named parts of the model. has_optimizer: whether `watch` was given an optimizer that
        holds parameters of the model.
    """
    poptorch = _POPTORCH.match(text)
    name = text[poptorch.end() :] if poptorch else split(text)[0]
    parameter = parts.parameters.get(name)
    if parameter is None:
        return ""
    if not parameter.requires_grad:
        return f"{name} does not require a gradient"
    return "" if has_optimizer else "that kind needs watch(optimizer=...)"


def _by_default(known: Known, parameters: Collection[str], inputs: str) -> list[tuple[str, str]]:
    consumed = {name for name, kind in known if kind == "grad"}
    chosen = []
    for name, kind in known:
        if name in parameters:
            default = kind == ("grad" if name in consumed else "pass_grad")
        else:  # `consumed` holds inputs and module outputs: buffers have no gradient
            default = name in consumed and name != inputs
        if default:
            chosen.append((name, kind))
    return chosen
