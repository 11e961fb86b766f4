"""What one call of `watch` chose: which tensors, in which modes."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from anchorlib.errors import UnknownTensorError
from anchorlib.modes import Mode
from anchorlib.names import matches, parse, select

__all__ = ["Choice"]

_NEEDS_OPTIMIZER = re.compile(r"@(grad|updated|delta|opt\..+)$|^(Accum|Final|UpdatedVar|Accl)")


class Choice:
    """Selectors and modes. Decides for names known beforehand and for those that come later.

    selectors: None for the default: every module output with its gradient, and every parameter's
        `grad` (with an optimizer; else `pass_grad`).
    known: every (name, kind) of the model that can be known before the first step.
    parameters: the names among them that are parameters.
    inputs: the name of the model's first input.

    Raises UnknownTensorError for a selector that matches nothing and cannot come to match later.
    """

    def __init__(
        self,
        selectors: Sequence[str] | None,
        modes: tuple[Mode, ...],
        known: Sequence[tuple[str, str]],
        parameters: Collection[str],
        inputs: str,
    ) -> None:
        self.modes = modes
        self._inputs = inputs
        self._known = {name for name, _ in known}
        self._late: dict[str, bool] = {}
        self._selectors = [parse(text) for text in selectors or ()]
        self._default = selectors is None
        if selectors is None:
            self._chosen = set(_by_default(known, parameters, inputs))
        else:
            self._chosen = {pair for text in selectors for pair in self._resolve(text, known)}

    def _resolve(self, text: str, known: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
        has_optimizer = any(kind == "updated" for _, kind in known)
        open_kinds = ("opt.*",) if has_optimizer else ()
        try:
            found = select([text], known, open_kinds=open_kinds, open_outputs=True)
        except UnknownTensorError as fault:
            if has_optimizer or not _NEEDS_OPTIMIZER.search(text):
                raise
            raise UnknownTensorError(f"{fault}; that kind needs watch(optimizer=...)") from None
        if not found:  # accepted for what only the first step can show: `opt.KEY`, `fc1:1`
            self._late[text] = False
        return found

    def wants(self, name: str, kind: str) -> bool:
        """Whether this choice records `kind` of `name`."""
        if (name, kind) in self._chosen:
            return True
        if name in self._known and not kind.startswith("opt."):
            return False
        if self._default:
            # A further output (`fc1:1`) goes with its module; optimizer state is asked for by name.
            return not kind.startswith("opt.") and name.partition(":")[0] != self._inputs
        wanted = False
        for selector in self._selectors:
            if matches(selector, name, kind):
                wanted = True
                if selector.text in self._late:
                    self._late[selector.text] = True
        return wanted

    def reaches_below(self, name: str) -> bool:
        """Whether a further output or input of `name` (`NAME:1`, `NAME:key`) may be wanted."""
        if self._default:
            return name != self._inputs
        return any(text.partition(":")[0] == name for text in self._late) or any(
            matches(selector, f"{name}:1", kind)
            for selector in self._selectors
            for kind in ("value", "grad")
        )

    @property
    def missing(self) -> list[str]:
        """Selectors that were accepted for what might come, and which nothing came to match."""
        return [text for text, came in self._late.items() if not came]


def _by_default(
    known: Sequence[tuple[str, str]], parameters: Collection[str], inputs: str
) -> list[tuple[str, str]]:
    consumed = {name for name, kind in known if kind == "grad"}
    chosen = []
    for name, kind in known:
        if name in parameters:
            default = kind == ("grad" if name in consumed else "pass_grad")
        else:  # buffers have no gradient: they are no module outputs
            default = name in consumed and name != inputs
        if default:
            chosen.append((name, kind))
    return chosen
