r"""Finds step, rank, name and kind of a tensor file: the rules of `anchor import`.

They go by the file's path and the keys inside the file.

A path is read without its suffix; its parts are the names between two "/". These rules find the
step: the first rule that fits the path counts, and in the path the first place where the rule fits.
A path that fits none belongs to step 0:

    step_12/fc1   iter-12/fc1   fc1.step12     a word step, iter or iteration, and a number
    epoch_3/fc1                                the word epoch, and a number
    12/fc1        00012.fc1     12_fc1         a number at the start of a part
    fc1_12        fc1.12                       a number at the end of the file's name

`pass_1` and `rank_1`, anywhere, are pass and rank. `grad`, `grads`, `gradient` or `gradients`, as a
part of the path, as a key, or at the start or end of either (`fc1.grad`, `fc1_grad_12`,
`grad_fc1`), make the tensor a gradient; all others are values. The rest of the path and the keys,
joined by dots, are the name: `step_12/encoder/fc1.pt` holds `encoder.fc1`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from anchorlib.errors import OptionError
from anchorlib.names import escape, is_kind, split

__all__ = ["DumpCoordinates", "Placing", "natural"]

_START, _END = r"(?:^|(?<=[/._\-]))", r"(?=$|[/._\-])"
_STEPS = [
    re.compile(
        rf"{_START}(?:global[_-]?)?(?:step|iter|iteration)[=_\-]?(\d+){_END}", re.IGNORECASE
    ),
    re.compile(rf"{_START}epoch[=_\-]?(\d+){_END}", re.IGNORECASE),
    re.compile(rf"(?:^|(?<=/))(\d+){_END}"),
    re.compile(r"(?<=[._\-])(\d+)$"),
]
_PASS = re.compile(rf"{_START}pass[=_\-]?(\d+){_END}", re.IGNORECASE)
_RANK = re.compile(rf"{_START}rank[=_\-]?(\d+){_END}", re.IGNORECASE)
_GRADIENT = re.compile(
    r"(?:^|(?<=[/.]))(?:grad(?:ient)?s?[_\-])|(?:[_\-]grad(?:ient)?s?)(?=$|[/.])", re.IGNORECASE
)
_GRADIENTS = ("grad", "grads", "gradient", "gradients")
_GROUPS = {"step", "name", "kind", "pass", "rank"}
_MOST = 2**62  # steps are kept in 64 bits
_NAMELESS = "tensor"


@dataclass(frozen=True, slots=True)
class DumpCoordinates:
    """Step, pass, rank, name and kind of the record in a tensor file, as its path says them.

    name: the name without the keys inside the file, which `of` adds.
    """

    step: int = 0
    pass_index: int = 0
    rank: int = 0
    name: str = ""
    kind: str = "value"

    def of(self, keys: Sequence[str]) -> DumpCoordinates:
        """Returns the coordinates of the tensor that the file has under these nested keys.

        The keys are appended to the name. They may also say the kind, as the key "grad" does.

        keys: the keys of the dicts and lists around the tensor, from the outside in.
        """
        inside = replace(self, name=".".join(filter(None, [self.name, *keys])))
        name, kind = split(inside.name)
        if kind is not None:
            return replace(self, name=name or _NAMELESS, kind=kind)
        kind, name = _kind_in(inside.name)
        kind = kind if self.kind == "value" else self.kind
        return replace(self, name=name or _NAMELESS, kind=kind)


class Placing:
    """Finds step, pass, rank, name and kind by a file's path.

    pattern: None applies the rules that this module's docstring lists. Else a regular expression
        that is searched in the path without suffix, with groups named step, pass, rank (numbers),
        name and kind. Without the group `name`, the name is the rest of the path, which the pattern
        did not match.

    Raises OptionError for an invalid pattern, or one without any of these groups.
    """

    def __init__(self, pattern: str | None = None) -> None:
        self._pattern = None if pattern is None else _compiled(pattern)

    def of_path(self, path: str) -> DumpCoordinates | None:
        """Returns the coordinates that a path says; None where the user's pattern does not match.

        Raises OptionError for a number or kind in the path that is invalid.

        path: the file's path relative to the imported folder, with "/", without suffix.
        """
        return _by_rule(path) if self._pattern is None else _by_pattern(path, self._pattern)


def natural(text: str) -> list[tuple[int, str]]:
    """Returns a sort key that compares the numbers in names as numbers: fc2 before fc10."""
    return [
        (int(part), "") if part.isdecimal() else (-1, part)
        for part in re.split(r"([0-9]+)", text)
        if part
    ]


def _by_rule(path: str) -> DumpCoordinates:
    pass_index, path = _number(_PASS, path)
    rank, path = _number(_RANK, path)
    step = None
    for pattern in _STEPS:
        if step is None:
            step, path = _number(pattern, path)
    return DumpCoordinates(step or 0, pass_index or 0, rank or 0, name=_dotted(path))


def _by_pattern(path: str, pattern: re.Pattern[str]) -> DumpCoordinates | None:
    match = pattern.search(path)
    if match is None:
        return None
    groups = match.groupdict()
    step, pass_index, rank = (
        _counted(groups.get(name) or "0", f"the {name} of {escape(path)}")
        for name in ("step", "pass", "rank")
    )
    rest = f"{path[: match.start()]}/{path[match.end() :]}"
    name = _dotted(groups["name"] or "" if "name" in groups else rest)
    kind = groups.get("kind") or "value"
    if kind.lower() in _GRADIENTS:
        kind = "grad"
    elif not is_kind(kind):
        raise OptionError(f"the kind of {escape(path)} is {escape(kind)}, which is none")
    return DumpCoordinates(step, pass_index, rank, name, kind)


def _number(pattern: re.Pattern[str], path: str) -> tuple[int | None, str]:
    """Searches a path for a number; returns the number, and the path without what was matched.

    Where the pattern does not match, the number is None, and the path is unchanged. Raises
    OptionError for a number that is too large.

    pattern: a regular expression whose first group is the number.
    """
    match = pattern.search(path)
    if match is None:
        return None, path
    rest = f"{path[: match.start()].rstrip('._-')}{_joint(path, match)}"
    return _counted(match[1], escape(path)), rest


def _joint(path: str, match: re.Match[str]) -> str:
    """Returns the text of a path behind a match, to be appended to the text before the match.

    Separators (. _ -) at the start of this text are removed. Where the match lies inside a name
    between two "/", with text of that name before and behind it, a dot is put in front.
    """
    after = path[match.end() :].lstrip("._-")
    before = path[: match.start()].rstrip("._-")
    inside = before and after and not before.endswith("/") and not after.startswith("/")
    return f".{after}" if inside else after


def _counted(text: str, what: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise OptionError(f"{what} is {escape(text)}, which is no number")
    number = int(text[:30])
    if number > _MOST:
        raise OptionError(f"{what}: {text[:30]} is too large a number")
    return number


def _dotted(path: str) -> str:
    return ".".join(part for part in (one.strip("._-") for one in path.split("/")) if part)


def _kind_in(name: str) -> tuple[str, str]:
    """Returns the kind that a dotted name says, and the name without the words that say so.

    The kind is "grad" where the name has a word that means a gradient, such as grad in "fc1.grad",
    else "value".
    """
    parts = name.split(".")
    kept = [part for part in parts if part.lower() not in _GRADIENTS]
    bare = [_GRADIENT.sub("", part) for part in kept]
    said = len(kept) < len(parts) or bare != kept
    return ("grad" if said else "value"), ".".join(filter(None, bare))


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise OptionError(f"--step-pattern {escape(pattern)} is no pattern: {error}") from None
    groups = set(compiled.groupindex)
    if not groups or not groups <= _GROUPS:
        raise OptionError(
            f"--step-pattern {escape(pattern)}: name its groups, as in "
            r"'(?P<name>.*)_(?P<step>\d+)'; they may be step, name, kind, pass and rank"
        )
    return compiled
