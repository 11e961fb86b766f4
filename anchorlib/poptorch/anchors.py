"""Finds which tensor of a model the long name of a PopTorch anchor means, and how to record it.

An anchor is a tensor that a program asks for: its long name says which tensor is recorded, its
short name is the name by which the program fetches the records.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from torch import nn

from anchorlib.capture import tensor_names
from anchorlib.errors import UnknownTensorError
from anchorlib.modes import Mode
from anchorlib.names import join, matches, parse, quoted, select, split, suggest
from anchorlib.poptorch.enums import OutputMode
from anchorlib.poptorch.errors import Error, MisuseError, UnknownAnchorError
from anchorlib.poptorch.modes import Window, mode_for

__all__ = ["LOSS", "Anchor", "AnchorArguments", "ModelAnchors", "names_its_loss", "resolve"]

_log = logging.getLogger("anchorlib")

LOSS = "loss"
"""The name of a training model's loss, where no module has that name."""

_STATE_KINDS = ("opt.exp_avg", "opt.exp_avg_sq", "opt.momentum_buffer")


@dataclass(frozen=True, slots=True)
class AnchorArguments:
    """The arguments of one call of `Options.anchorTensor`, but for the short name.

    mode: None for the mode of the model's outputs.
    period: the return period (the n) of EveryN; 1 for any other mode.
    """

    long_name: str
    mode: OutputMode | None
    period: int


@dataclass(frozen=True, slots=True)
class Anchor:
    """One anchored tensor of one model: its name, its kind, and the mode that records it."""

    name: str
    kind: str
    mode: Mode

    @property
    def selector(self) -> str:
        """The anchor's selector, as `Session.watch` takes it."""
        return join(self.name, self.kind)


def names_its_loss(model: nn.Module) -> bool:
    """Return whether `loss` is the name of a tensor of `model`, such as a module's output.

    If it is not, the name means the loss from which a training model runs backward.
    """
    return any(split(text)[0] == LOSS for text in tensor_names(model))


def resolve(
    wanted: Mapping[str, AnchorArguments],
    model: nn.Module,
    optimizer: object,
    window: Window,
    default: tuple[OutputMode, int],
) -> dict[str, Anchor]:
    """Return the anchors of `model`, by short name, with the tensors that their long names mean.

    wanted: the arguments of `anchorTensor`, by short name.
    optimizer: the optimizer of a training model; None for an inference model.
    window: how many weight updates and micro-batches a call has.
    default: the mode and return period of anchors for which `anchorTensor` was given no mode.

    Raises UnknownAnchorError for a name that no tensor has, MisuseError for a name that several
    tensors have and for a return period that does not fit into a call.
    """
    known = [split(text) for text in tensor_names(model, optimizer)]
    pairs = [(name, kind) for name, kind in known if kind]
    if optimizer is not None and not names_its_loss(model):
        pairs += [(LOSS, "value"), (LOSS, "grad")]
    parameters = {name for name, kind in pairs if kind == "pass_grad"}
    anchors = {}
    for short, one in wanted.items():
        what = f"anchor {quoted(short)}"
        name, kind = _meant(one.long_name, pairs, parameters, what)
        mode, period = default if one.mode in (None, OutputMode.Default) else (one.mode, one.period)
        assert mode is not None
        per_update = name in parameters and kind != "pass_grad"
        anchors[short] = Anchor(
            name, kind, mode_for(mode, period, window, what=what, per_update=per_update)
        )
    return anchors


class ModelAnchors:
    """The anchors of one model, to whose options further anchors may be added at any time.

    wanted: the arguments of `anchorTensor`, by short name; `look` finds what is added later.
    default: the mode and return period of anchors for which `anchorTensor` was given no mode.

    Raises UnknownAnchorError or MisuseError for anchors in `wanted` that the model cannot have.
    """

    def __init__(
        self,
        wanted: Mapping[str, AnchorArguments],
        model: nn.Module,
        optimizer: object,
        window: Window,
        default: tuple[OutputMode, int],
    ) -> None:
        self._wanted = wanted
        self._model = model
        self._window = window
        self._default = default
        self._seen = dict(wanted)
        self._refused: dict[str, Error] = {}
        self.known = resolve(self._seen, model, optimizer, window, default)

    def look(self, optimizer: object) -> list[Anchor]:
        """Return the anchors that were added to the options, or changed there, since the last call.

        "The last call" is the last call of this method. An anchor that this model cannot have is
        left out and logged as a warning: the options may belong to another model too, and the
        training goes on.

        optimizer: the optimizer of a training model; None for an inference model.
        """
        came = {short: one for short, one in self._wanted.items() if self._seen.get(short) != one}
        self._seen.update(came)
        new = []
        for short, one in came.items():
            try:
                self.known |= resolve(
                    {short: one}, self._model, optimizer, self._window, self._default
                )
                new.append(self.known[short])
            except Error as fault:
                self._refused[short] = fault
                _log.warning("anchorlib: a model goes on without an anchor: %s", fault)
            else:
                self._refused.pop(short, None)
        return new

    def get(self, short: str) -> Anchor:
        """Return the anchor with the short name `short`.

        Raises MisuseError where no anchor has the name. For an anchor that this model cannot have,
        raises the error with which `look` refused it.
        """
        if short in self._refused:
            raise type(self._refused[short])(str(self._refused[short]))
        if short not in self.known:
            waits = short in self._wanted
            why = "; call the model" if waits else suggest(short, list(self.known))
            raise MisuseError(f"No tensor with name {quoted(short)} found{why}")
        return self.known[short]


def _meant(
    text: str, pairs: list[tuple[str, str]], parameters: Collection[str], what: str
) -> tuple[str, str]:
    try:
        pairs_meant = select([text], pairs, open_kinds=("opt.*",), open_outputs=True)
    except UnknownTensorError as fault:
        raise UnknownAnchorError(f"{what}: {fault}{_why_no_gradient(text, pairs)}") from None
    pairs_meant = pairs_meant or _to_come(text, parameters)
    if len({name for name, _ in pairs_meant}) != 1:
        names = ", ".join(sorted({quoted(name) for name, _ in pairs_meant})[:3])
        raise MisuseError(f"{what}: {quoted(text)} names several tensors ({names}, …), not one")
    kinds = [kind for _, kind in pairs_meant]
    return pairs_meant[0][0], "value" if "value" in kinds else kinds[0]


def _to_come(text: str, parameters: Collection[str]) -> list[tuple[str, str]]:
    """Return (name, kind) of each tensor that `text` may mean and that is not known before a step.

    These tensors are the optimizer's state and a module's outputs whose names contain ":".

    text: a selector; where it ends in a kind, the result is this one name and kind, unchecked.
    parameters: the names of all parameters, which are the tensors that have state.
    """
    selector = parse(text)
    name, kind = split(text)
    if kind:
        return [(name, kind)]
    plain = text.removeprefix("Gradient___")
    candidates = [(one, state) for one in sorted(parameters) for state in _STATE_KINDS]
    candidates += [(plain, "value" if plain == text else "grad")] if ":" in plain else []
    return [pair for pair in candidates if matches(selector, *pair)]


def _why_no_gradient(text: str, pairs: list[tuple[str, str]]) -> str:
    name = text.removeprefix("Gradient___")
    if name != text and any(name == one for one, _ in pairs):
        return f"; {quoted(name)} is there, but takes part in no backward"
    return ""
