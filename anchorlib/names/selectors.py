r"""Selectors: which tensors a text names.

    fc2.bias            the tensor of that name, all its kinds
    fc2.bias@grad       one kind of it
    fc*@opt.*           * and ? are wild, in the kind too; no other characters are
    re:fc[12]@grad      a regular expression for the whole name; a kind may follow
    Gradient___fc2.bias PopTorch's spelling

A selector may be read in several of these ways: the first reading that matches a tensor counts. So
an exact name wins even if it contains a `*`, an `@grad`, a `re:` or a `Gradient___`. An `@` ends
the name only before a known kind, or before a pattern that a known kind matches.
"""

from __future__ import annotations

import functools
import logging
import re
import warnings
from collections.abc import Collection
from dataclasses import dataclass, replace

from anchorlib.errors import UnknownTensorError
from anchorlib.names.escaping import quoted
from anchorlib.names.spelling import KINDS, OPTIMIZER_KIND, join, split

__all__ = [
    "Reading",
    "Selector",
    "below",
    "matches",
    "parse",
    "parse_list",
    "poptorch_prefix",
    "tell",
]

_log = logging.getLogger("anchorlib")

_REGEX = "re:"
_GRADIENT = "Gradient___"
_POPTORCH = {
    _GRADIENT: "pass_grad",  # of an activation: grad
    "Accum___": "grad",
    "FinalReducedGradient___": "grad",
    "UpdatedVar___": "updated",
    "Accl1___": "opt.exp_avg",
    "Accl2___": "opt.exp_avg_sq",
    "Accl___": "opt.momentum_buffer",
}
_OPERAND_KINDS = ("op.in.x", "op.out", "op.out.x", "op.out:1")  # one of each spelling
_TRACED = "model."  # PopTorch's traced models put this before every name


@dataclass(frozen=True, slots=True)
class Reading:
    """One way to read a selector.

    name: the name as written; a tensor of exactly this name is matched before `pattern` is tried
        ("" for a regular expression, as no tensor has this name).
    pattern: matches whole names; None where the name has no wild character.
    kind: the kind, which may be wild; None for all kinds.
    activation: whether the reading also matches kind grad, for a tensor that has no pass_grad: true
        for `Gradient___NAME`, whose kind is pass_grad.
    notice: the warning for the user where this reading is the one that counts.
    """

    name: str
    pattern: re.Pattern[str] | None = None
    kind: str | None = None
    activation: bool = False
    notice: str = ""

    @classmethod
    def of(cls, name: str, kind: str | None = None) -> Reading:
        """Make the reading of a name or glob `name` and a kind; None stands for all kinds."""
        return cls(name, _wild(name) if _is_wild(name) else None, kind)

    @property
    def shown(self) -> str:
        """The selector without its kind, as an error message shows it: a name, glob or `re:…`."""
        return self.name or f"{_REGEX}{self.pattern.pattern if self.pattern else ''}"

    def has_name(self, name: str) -> bool:
        return name == self.name or (
            self.pattern is not None and self.pattern.fullmatch(name) is not None
        )

    def has_kind(self, kind: str, kinds: Collection[str] = ()) -> bool:
        """Return whether this reading matches `kind`, for a tensor that has the kinds `kinds`.

        If `activation` is set, kind grad matches unless `kinds` has pass_grad.

        kinds: all kinds of the tensor, as far as they are known.
        """
        if self.activation and kind == "grad":
            return "pass_grad" not in kinds
        return self.kind is None or _wild(self.kind).fullmatch(kind) is not None


@dataclass(frozen=True, slots=True)
class Selector:
    """A parsed selector: its text, and the ways to read it, in the order of trying."""

    text: str
    readings: tuple[Reading, ...]


def parse(text: str) -> Selector:
    """Parse the text of one selector, such as `fc*@grad`.

    Raises UnknownTensorError for a `re:` that is no regular expression, and for an empty text.
    """
    if not text:
        raise UnknownTensorError("a selector is empty: name a tensor, or say '*' for all there are")
    if text.startswith(_REGEX):
        return Selector(text, (_regex(text),))
    return Selector(text, (*_plain(text), *_poptorch(text)))


def parse_list(text: str) -> tuple[Selector, ...]:
    """Parse selectors that commas separate, as in an environment variable.

    Raises what `parse` raises, and UnknownTensorError where `text` has no selector.
    """
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise UnknownTensorError(f"{quoted(text)} has no selector in it")
    return tuple(parse(part) for part in parts)


def matches(selector: Selector, name: str, kind: str, kinds: Collection[str] = ()) -> bool:
    """Return whether `selector` matches the tensor `name`@`kind`, looked at by itself.

    Other tensors need not be known yet. So a tensor whose exact name the selector is does not keep
    the selector from matching further tensors as a pattern: use `select` where all tensors are
    known. The `notice` of the reading that matches is logged.

    kinds: the kinds that `name` has, where they are known. Without them `Gradient___X` matches
        both X@pass_grad and X@grad: the right one depends on whether X has a pass_grad.
    """
    if selector.text in (name, join(name, kind)):
        return True
    for reading in selector.readings:
        if reading.has_name(name) and reading.has_kind(kind, kinds):
            tell(reading.notice)
            return True
    return False


def below(text: str, prefix: str) -> str:
    """Return the selector `text` moved below a module: `fc*@grad` and `net` make `net.fc*@grad`.

    The returned selector matches the names that consist of `prefix`, a dot, and a name that the
    selector `text` matches.

    prefix: the path of the module.
    """
    lead = f"{prefix}."
    if text.startswith(_REGEX):
        expression, kind = split(text.removeprefix(_REGEX))
        inside = f"{_REGEX}{re.escape(lead)}(?:{expression})"
        return inside if kind is None else join(inside, kind)
    poptorch = poptorch_prefix(text)
    return f"{poptorch}{lead}{text.removeprefix(poptorch)}"


@functools.cache
def tell(notice: str) -> None:
    """Log `notice` as a warning, once a process for each text; "" logs nothing."""
    if notice:
        _log.warning("%s", notice)


def _regex(text: str) -> Reading:
    expression, kind = split(text.removeprefix(_REGEX))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "possible nested set": `[` twice is no error
            pattern = re.compile(expression)
    except (re.error, OverflowError, RecursionError) as error:
        raise UnknownTensorError(
            f"{quoted(text)} is no selector: {quoted(expression)} is not a regular expression "
            f"({error})"
        ) from None
    return Reading("", pattern, kind)


def _plain(text: str) -> list[Reading]:
    """Return the readings of `text` as a name or glob and, after its last `@`, a kind.

    Where that kind is a pattern, as in `fc2@*`, a second reading takes all of `text` for a name.
    """
    name, kind = split(text)
    if kind is not None:
        return [Reading.of(name, kind)]
    name, at, kind = text.rpartition("@")
    if at and _is_kind_pattern(kind):
        return [Reading.of(name, kind), Reading.of(text)]
    return [Reading.of(text)]


def _is_kind_pattern(text: str) -> bool:
    return _is_wild(text) and any(
        _wild(text).fullmatch(kind) for kind in (*KINDS, f"{OPTIMIZER_KIND}x", *_OPERAND_KINDS)
    )


def poptorch_prefix(text: str) -> str:
    """Return the prefix of a selector in PopTorch's spelling: `Gradient___` of `Gradient___fc2`.

    "" for a selector without one of PopTorch's prefixes.
    """
    prefix, bar, name = text.partition("___")
    return prefix + bar if name and prefix + bar in _POPTORCH else ""


def _poptorch(text: str) -> list[Reading]:
    prefix = poptorch_prefix(text)
    if not prefix:
        return []
    name = text.removeprefix(prefix)
    gradient = prefix == _GRADIENT
    readings = [replace(Reading.of(name, _POPTORCH[prefix]), activation=gradient)]
    untraced = name.removeprefix(_TRACED)
    if untraced and untraced != name:
        notice = (
            f"{quoted(text)} was read as {quoted(prefix + untraced)}: "
            f"only PopTorch's traced models put '{_TRACED}' before a name"
        )
        read_as = Reading.of(untraced, _POPTORCH[prefix])
        readings.append(replace(read_as, activation=gradient, notice=notice))
    return readings


def _is_wild(text: str) -> bool:
    return "*" in text or "?" in text


@functools.lru_cache(maxsize=1024)
def _wild(text: str) -> re.Pattern[str]:
    """Compile a glob, in which only `*` and `?` are wild, to a regular expression."""
    first, *rest = (
        "".join("." if character == "?" else re.escape(character) for character in part)
        for part in text.split("*")
    )
    if not rest:
        return re.compile(first, re.DOTALL)
    *middle, last = rest
    # A glob matches if it matches with the shortest run before each part. Atomic groups try no
    # others; without them a glob with many stars would take exponential time.
    groups = "".join(f"(?>.*?{part})" for part in middle if part)
    return re.compile(f"{first}{groups}.*{last}", re.DOTALL)
