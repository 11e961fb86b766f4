"""The tensors that selectors match, where all tensors are known, and the error where none does."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable

from anchorlib.errors import UnknownTensorError
from anchorlib.names.escaping import escape, quoted
from anchorlib.names.selectors import Reading, Selector, parse, poptorch_prefix, tell
from anchorlib.names.spelling import is_kind, join, split, splits
from anchorlib.names.suggestions import near, one_of

__all__ = ["select"]

_KINDS_SHOWN = 8


def select(
    texts: Iterable[str],
    tensors: Iterable[tuple[str, str]],
    *,
    open_kinds: Collection[str] = (),
    open_outputs: bool = False,
    where: str = "",
) -> list[tuple[str, str]]:
    """Return the (name, kind) pairs that the selectors match, in the order of `tensors`, each once.

    texts: the selectors. tensors: the (name, kind) of all known tensors.
    open_kinds: globs of kinds that a tensor may get later, such as `opt.*` before the first step: a
        selector for such a kind need only match the name of a known tensor.
    open_outputs: whether a module may turn out to have further outputs (`fc1:1`, `fc1:key`). Then a
        selector for such an output need only match the name of a known module.
    where: where the tensors were searched, which the error's text says: " in run1".

    Raises UnknownTensorError, with suggestions, for the first selector that matches nothing.
    """
    known = _Known(tensors)
    selected: set[int] = set()
    for text in texts:
        places = known.exact(text)
        if not places:
            selector = parse(text)
            places = known.read(selector)
            if not places and not known.may_come(selector, open_kinds, outputs=open_outputs):
                raise _unknown(selector, known, where)
        selected.update(places)
    return [known.pairs[place] for place in sorted(selected)]


class _Known:
    """The known tensors, indexed by name.

    pairs: (name, kind) of each tensor once, in the order given.
    kinds: name → kind → the index of this tensor in `pairs`.
    """

    def __init__(self, tensors: Iterable[tuple[str, str]]) -> None:
        self.pairs = list(dict.fromkeys(tensors))
        self.kinds: dict[str, dict[str, int]] = {}
        for place, (name, kind) in enumerate(self.pairs):
            self.kinds.setdefault(name, {})[kind] = place

    def exact(self, text: str) -> list[int]:
        if text in self.kinds:
            return list(self.kinds[text].values())
        for name, kind in splits(text):
            if kind in self.kinds.get(name, ()):
                return [self.kinds[name][kind]]
        return []

    def read(self, selector: Selector) -> list[int]:
        """Return the indices in `pairs` of the tensors that `selector` matches; empty if none.

        A selector has several readings: only the first one that matches any tensor counts, and its
        `notice` is logged.
        """
        for reading in selector.readings:
            places = [
                place
                for name in self.names(reading)
                for kind, place in self.kinds[name].items()
                if reading.has_kind(kind, self.kinds[name])
            ]
            if places:
                tell(reading.notice)
                return places
        return []

    def names(self, reading: Reading) -> list[str]:
        """Return the names of the known tensors that `reading` matches, whatever its kind says.

        reading: one way to read a selector.
        """
        if reading.name in self.kinds:
            return [reading.name]
        if reading.pattern is None:
            return []
        return list(filter(reading.pattern.fullmatch, self.kinds))

    def may_come(self, selector: Selector, kinds: Collection[str], *, outputs: bool) -> bool:
        return any(
            self._kind_may_come(reading, kinds) or (outputs and self._output_may_come(reading))
            for reading in selector.readings
        )

    def _kind_may_come(self, reading: Reading, kinds: Collection[str]) -> bool:
        wanted = reading.kind
        if not wanted or not any(Reading("", kind=kind).has_kind(wanted) for kind in kinds):
            return False
        return bool(self.names(reading))

    def _output_may_come(self, reading: Reading) -> bool:
        module, _, output = reading.name.partition(":")
        return bool(output and self.read(parse(module)))


def _unknown(selector: Selector, known: _Known, where: str) -> UnknownTensorError:
    wild = any(reading.pattern for reading in selector.readings)
    sentence = f"no tensor {'matches' if wild else 'is named'} {quoted(selector.text)}{where}"
    meant, instead = _hint(selector, known)
    error = UnknownTensorError(
        f"{sentence}; {f'did you mean {one_of(meant)}?' if meant else instead}"
    )
    error.suggested = bool(meant)
    return error


def _hint(selector: Selector, known: _Known) -> tuple[list[str], str]:
    """Return (selectors that may have been meant, the end of the error's text if there are none).

    selector: a selector that matches no known tensor.
    """
    for reading in (*selector.readings, *_misspelt_kind(selector.text)):
        names = known.names(reading)
        if names:
            return _other_kind(reading, [kind for name in names for kind in known.kinds[name]])
    meant = (
        _without_name(selector.text, known)
        or _as_prefix(selector.text, known)
        or _as_regex(selector, known)
        or near(selector.text, _nameable(selector.text, known))
    )
    count = len(known.kinds)
    none = f"none of the {count} tensors has a similar name" if count else "there are no tensors"
    return meant, none


def _misspelt_kind(text: str) -> list[Reading]:
    name, at, kind = text.rpartition("@")
    return [Reading.of(name, kind)] if at else []


def _other_kind(reading: Reading, kinds: Iterable[str]) -> tuple[list[str], str]:
    kinds = list(dict.fromkeys(kinds))
    meant = [join(reading.shown, kind) for kind in near(reading.kind or "", kinds)]
    more = ", …" if len(kinds) > _KINDS_SHOWN else ""
    listed = ", ".join(map(escape, kinds[:_KINDS_SHOWN]))
    return meant, f"the kinds of {quoted(reading.shown)} are {listed}{more}"


def _without_name(text: str, known: _Known) -> list[str]:
    """Return [`*@grad`] as a suggestion where `text` is a kind alone: `@grad` or `grad`.

    The list is empty for any other text, and where no known tensor has the kind.
    """
    selector = join("*", text.removeprefix("@"))
    return [selector] if is_kind(text.removeprefix("@")) and known.read(parse(selector)) else []


def _as_prefix(text: str, known: _Known) -> list[str]:
    """Return [`fc.*`] as a suggestion where `text`, `fc`, begins the names of known tensors.

    A kind in `text` is kept: `fc@grad` becomes `fc.*@grad`. The list is empty where no known tensor
    would match.
    """
    name, kind = split(text)
    inside = join(f"{name}.*", kind) if kind else f"{name}.*"
    starts = any(there.startswith(f"{name}.") for there in known.kinds)
    return [inside] if starts and known.read(parse(inside)) else []


def _as_regex(selector: Selector, known: _Known) -> list[str]:
    """Return suggestions for a selector that is a regular expression; [] if there are none.

    A text without the prefix `re:`, such as `fc[12]`, is suggested with this prefix if it would
    then match a tensor. For a text with the prefix, the suggestions are up to three names of which
    the expression matches only a part.
    """
    if selector.text.startswith("re:"):
        (reading,) = selector.readings
        parts = filter(reading.pattern.search, known.kinds) if reading.pattern else ()
        return list(itertools.islice(parts, 3))
    try:
        candidate = parse(f"re:{selector.text}")
    except UnknownTensorError:
        return []
    return [candidate.text] if known.read(candidate) else []


def _nameable(text: str, known: _Known) -> Iterable[str]:
    """Return selectors of all known tensors, spelt as `text` is, so that `text` can be compared.

    They have PopTorch's prefix where `text` has one, a kind (`fc2.bias@grad`) where `text` has an
    `@`, and are plain names otherwise.
    """
    if poptorch := poptorch_prefix(text):
        return (f"{poptorch}{name}" for name in known.kinds)
    if "@" in text:
        return (join(name, kind) for name, kind in known.pairs)
    return known.kinds
