"""Writing of the files that commands make: the complete file appears, or none."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, TypeVar

from anchorlib.errors import AnchorError, OptionError
from anchorlib.names import escape

__all__ = ["by_suffix", "written_text", "written_whole"]

T = TypeVar("T")


def by_suffix(path: Path, choices: Mapping[str, T], option: str = "-o") -> T:
    """Returns the value that `choices` has for the suffix of `path`.

    Raises OptionError, which lists the known suffixes, for any other suffix.

    choices: the values, keyed by suffix in lower case, such as ".csv".
    option: the option that gave the path, for the error.
    """
    try:
        return choices[path.suffix.lower()]
    except KeyError:
        raise OptionError(
            f"{option} {escape(str(path))}: the suffix says which format; choose "
            f"{', '.join(choices)}"
        ) from None


@contextlib.contextmanager
def written_whole(path: Path) -> Iterator[IO[bytes]]:
    """A context that yields a temporary open file, which replaces `path` when the context ends.

    If an error is raised in the context, an older file at `path` stays as it is, and the temporary
    file is removed. Raises OptionError where `path` cannot be written.
    """
    target = Path(os.path.realpath(path))  # a link is kept, and the file that it leads to replaced
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        with part.open("xb") as file:
            yield file
        part.replace(target)
    except AnchorError:  # an error of the store that is read; some of these are OSErrors, too
        raise
    except OSError as error:
        reason = error.strerror or str(error)
        if not target.parent.exists():
            reason = f"there is no folder {escape(str(target.parent))}; make it, or write elsewhere"
        raise OptionError(f"cannot write {escape(str(path))}: {reason}") from error
    finally:
        with contextlib.suppress(OSError):
            part.unlink()


@contextlib.contextmanager
def written_text(place: str) -> Iterator[IO[str]]:
    """A context that yields a text file in UTF-8, which replaces `place` when the context ends.

    For "-" as `place`, stdout is yielded. Line ends are written as they are, without conversion.
    Raises OptionError where the file cannot be written; an older file then stays as it is.
    """
    if place == "-":
        yield sys.stdout
        return
    with written_whole(Path(place)) as file:
        text = io.TextIOWrapper(file, encoding="utf-8", errors="backslashreplace", newline="")
        yield text
        text.flush()
        text.detach()
