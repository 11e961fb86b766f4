"""What a name may be, what a kind is, and how the two are written.

fc2.bias@grad
──name── kind
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from anchorlib.errors import InvalidNameError
from anchorlib.names.escaping import quoted

__all__ = [
    "KINDS",
    "MAX_NAME_BYTES",
    "OPTIMIZER_KIND",
    "check_name",
    "check_run_name",
    "check_stored_run_name",
    "graft_name",
    "is_kind",
    "is_operand_kind",
    "join",
    "noise_name",
    "split",
    "splits",
]

KINDS = ("value", "grad", "pass_grad", "updated", "delta")
"""The kinds with a fixed name; `opt.KEY` names one entry of an optimizer's state."""

OPTIMIZER_KIND = "opt."

_OPERAND_KIND = re.compile(r"op\.(in\..+|out([.:].+)?)", re.DOTALL)

MAX_NAME_BYTES = 1024
"""Bytes a tensor's name may have in UTF-8."""

_RUN_NAME_LETTERS = 64
_RUN_NAME = re.compile(rf"(?![.-])[A-Za-z0-9._-]{{1,{_RUN_NAME_LETTERS}}}")
_STORED_RUN_NAME = re.compile(rf"(?!\.)[A-Za-z0-9._-]{{1,{_RUN_NAME_LETTERS}}}")


def is_kind(text: str) -> bool:
    """Whether `text` is a kind: one of `KINDS`, `opt.` followed by a key, or an operand's."""
    if text in KINDS or (text.startswith(OPTIMIZER_KIND) and len(text) > len(OPTIMIZER_KIND)):
        return True
    return is_operand_kind(text)


def is_operand_kind(text: str) -> bool:
    """Whether `text` is the kind of a tensor that a traced operation took or made.

    `op.in.ARGUMENT` is an input, `op.out` and `op.out:1` are what the operation returned, and
    `op.out.ARGUMENT` is an input that it wrote and did not return. Such records explain a
    difference and are none of the tensors that two runs are compared by.
    """
    return text.startswith("op.") and _OPERAND_KIND.fullmatch(text) is not None


def join(name: str, kind: str) -> str:
    """The selector of one tensor: `fc2.bias@grad`."""
    return f"{name}@{kind}"


def splits(text: str) -> Iterator[tuple[str, str]]:
    """Every way to read `text` as name and kind, the longest name first.

    There is more than one only where a name or an optimizer's key holds an `@` itself.
    """
    at = text.rfind("@")
    while at >= 0:
        if is_kind(text[at + 1 :]):
            yield text[:at], text[at + 1 :]
        at = text.rfind("@", 0, at)


def split(text: str) -> tuple[str, str | None]:
    """Name and kind of a selector; the kind is None where no `@` stands before a known kind."""
    return next(splits(text), (text, None))


def check_name(name: object) -> str:
    """Return `name` as a plain str if it can name a tensor.

    A name is any str of 1 to 1,024 bytes in UTF-8, control characters included.
    Raises InvalidNameError otherwise (an unpaired surrogate has no UTF-8).
    """
    if not isinstance(name, str):
        raise InvalidNameError(f"a tensor's name is a str, not {type(name).__name__}")
    try:
        size = len(name.encode())
    except UnicodeEncodeError as error:
        raise InvalidNameError(
            f"a tensor's name is text that UTF-8 can write; {quoted(name)} has an unpaired "
            f"surrogate at position {error.start}"
        ) from None
    if not 0 < size <= MAX_NAME_BYTES:
        raise InvalidNameError(
            f"a tensor's name has 1 to {MAX_NAME_BYTES} bytes in UTF-8; {quoted(name)} has {size}"
        )
    # A subclass of str, as an Enum or numpy's str_, would be shown by its own __str__ later.
    return str.__str__(name)


def check_run_name(name: object) -> str:
    """Return `name` as a plain str if it can name a new run.

    It is `[A-Za-z0-9._-]{1,64}`, and neither a dot (hidden files) nor a dash (a command would take
    it for an option) comes first. Raises InvalidNameError otherwise.
    """
    return _run_name(name, _RUN_NAME)


def check_stored_run_name(name: object) -> str:
    """Return `name` as a plain str if it can name a run that is stored already.

    Older versions allowed a dash as the first character. Raises InvalidNameError otherwise.
    """
    return _run_name(name, _STORED_RUN_NAME)


def _run_name(name: object, rule: re.Pattern[str]) -> str:
    if not isinstance(name, str):
        raise InvalidNameError(f"a run's name is a str, not {type(name).__name__}")
    if not rule.fullmatch(name):
        raise InvalidNameError(
            f"{quoted(name)} cannot name a run: use 1 to 64 of the letters A-Z and a-z, digits, "
            "'.', '_' and '-', with no dot and no dash first"
        )
    return str.__str__(name)


def noise_name(run: str, seed: int) -> str:
    """The name of a perturbed rerun of `run`: `run1-noise3`; a long run's name is cut."""
    suffix = f"-noise{seed}"
    return f"{run[: _RUN_NAME_LETTERS - len(suffix)]}{suffix}"


def graft_name(run: str) -> str:
    """The name of a rerun whose anchors return the values of `run`: `run1-graft`.

    run: a run's name, path or URL; a long name is cut.
    """
    run = run.rstrip("/").rpartition("/")[2].removesuffix(".zarr")
    suffix = "-graft"
    return f"{run[: _RUN_NAME_LETTERS - len(suffix)]}{suffix}"
