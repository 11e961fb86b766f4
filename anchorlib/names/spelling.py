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
"""The most bytes that a tensor's name may have in UTF-8."""

_RUN_NAME_LETTERS = 64
_RUN_NAME = re.compile(rf"(?![.-])[A-Za-z0-9._-]{{1,{_RUN_NAME_LETTERS}}}")
_STORED_RUN_NAME = re.compile(rf"(?!\.)[A-Za-z0-9._-]{{1,{_RUN_NAME_LETTERS}}}")


def is_kind(text: str) -> bool:
    """Return whether `text` is a kind: one of `KINDS`, `opt.` and a key, or an operand's kind."""
    if text in KINDS or (text.startswith(OPTIMIZER_KIND) and len(text) > len(OPTIMIZER_KIND)):
        return True
    return is_operand_kind(text)


def is_operand_kind(text: str) -> bool:
    """Return whether `text` is the kind of an operand: what a traced operation took or made.

    `op.in.ARGUMENT` is an input, `op.out` and `op.out:1` are what the operation returned, and
    `op.out.ARGUMENT` is an input that the operation wrote to and did not return. Records of
    operands explain a difference; a comparison of two runs does not search them for one.
    """
    return text.startswith("op.") and _OPERAND_KIND.fullmatch(text) is not None


def join(name: str, kind: str) -> str:
    """Return the selector of one tensor, made of its name and kind: `fc2.bias@grad`."""
    return f"{name}@{kind}"


def splits(text: str) -> Iterator[tuple[str, str]]:
    """Yield every way to read `text` as (name, kind), the longest name first.

    There are several only where a name or an optimizer's key holds an `@` itself, and there is none
    where no `@` stands before a kind.
    """
    at = text.rfind("@")
    while at >= 0:
        if is_kind(text[at + 1 :]):
            yield text[:at], text[at + 1 :]
        at = text.rfind("@", 0, at)


def split(text: str) -> tuple[str, str | None]:
    """Split a selector into (name, kind); the kind is None where no `@` stands before a kind."""
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

    A run's name is `[A-Za-z0-9._-]{1,64}`. It begins neither with a dot, as hidden files do, nor
    with a dash, by which commands know an option. Raises InvalidNameError for any other name.
    """
    return _run_name(name, _RUN_NAME)


def check_stored_run_name(name: object) -> str:
    """Return `name` as a plain str if it can name a run that is stored already.

    The rule is that of new runs, but the first character may be a dash, as older versions allowed.
    Raises InvalidNameError for any other name.
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
    """Return the name of the rerun of `run` with perturbed parameters: `run1-noise3` for seed 3.

    A long run's name is cut, so that the result can name a run.
    """
    suffix = f"-noise{seed}"
    return f"{run[: _RUN_NAME_LETTERS - len(suffix)]}{suffix}"


def graft_name(run: str) -> str:
    """Return the name of a rerun whose watched tensors get the values of `run`: `run1-graft`.

    run: a run's name, path or URL; a long name is cut.
    """
    run = run.rstrip("/").rpartition("/")[2].removesuffix(".zarr")
    suffix = "-graft"
    return f"{run[: _RUN_NAME_LETTERS - len(suffix)]}{suffix}"
