"""Files that commands write with -o: whole, or not at all."""

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
    """What the suffix of `path` stands for. Raises OptionError with the choices."""
    try:
        return choices[path.suffix.lower()]
    except KeyError:
        raise OptionError(
            f"{option} {escape(str(path))}: the suffix says which format; choose "
            f"{', '.join(choices)}"
        ) from None


@contextlib.contextmanager
def written_whole(path: Path) -> Iterator[IO[bytes]]:
    """An open file that takes the place of `path` once it is complete.

    What stood there before stays untouched if anything fails. Raises OptionError where the place
    cannot be written.
    """
    target = Path(os.path.realpath(path))  # a link keeps pointing where it does
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        with part.open("xb") as file:
            yield file
        part.replace(target)
    except AnchorError:  # of a store that was read meanwhile, which may be an OSError too
        raise
    except OSError as error:
        raise OptionError(f"cannot write {escape(str(path))}: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(OSError):
            part.unlink()


@contextlib.contextmanager
def written_text(place: str) -> Iterator[IO[str]]:
    """The same for text in UTF-8, whose line ends stay as they are; "-" is stdout."""
    if place == "-":
        yield sys.stdout
        return
    with written_whole(Path(place)) as file:
        text = io.TextIOWrapper(file, encoding="utf-8", errors="backslashreplace", newline="")
        yield text
        text.flush()
        text.detach()
