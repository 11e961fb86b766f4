"""A location of an archived run that stays readable when the run's directory is removed."""

from __future__ import annotations

from pathlib import Path

from anchorlib.store.locations import LocalLocation
from anchorlib.store.runs.archived_files import ArchivedRuns

__all__ = ["EvictableRun"]


class EvictableRun(LocalLocation):
    """A run's folder, read from the run's archive as soon as the folder is gone.

    Evicting a run (removing its files here, because it is archived) renames its folder out of the
    store, then deletes the files. A reader that opened the run before goes on with the same rows
    from the archive, through `ArchivedRuns`. A run that was removed for good has no note of an
    archive, and is not found any more.
    """

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        # The folder may be a link to another run, whose note is under its own name.
        real = self.root.resolve()
        self._folder = real
        self._archive = ArchivedRuns(real.parent)

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes | None:
        """Return up to `length` bytes of the file at `key` from `start` on; None for no file."""
        data = super().get(key, start, length)
        if data is not None or not self._is_gone:
            return data
        return self._archive.get(self._key(key), start, length)

    def read_into(self, key: str, start: int, out: memoryview) -> int | None:
        """Fill `out` with bytes of the file at `key` from `start` on.

        Return how many bytes were written into `out`: fewer than it has room for where the file
        ends before. None where there is no file.
        """
        done = super().read_into(key, start, out)
        if done is not None or not self._is_gone:
            return done
        data = self._archive.get(self._key(key), start, len(out))
        if data is not None:
            out[: len(data)] = data
        return None if data is None else len(data)

    def list(self, prefix: str) -> list[str]:
        """Return the names in a folder ("" is the root), sorted; names of folders end in "/".

        [] where there is no such folder.
        """
        names = super().list(prefix)
        # Names that were listed while the folder was deleted may be a part of the run's.
        return self._archive.list(self._key(prefix)) or names if self._is_gone else names

    def __reduce__(self) -> tuple[type[EvictableRun], tuple[Path]]:
        """Pickle the path alone: in another process the run opens its archive by itself."""
        return EvictableRun, (self.root,)

    @property
    def _is_gone(self) -> bool:
        return not self._folder.is_dir()

    def _key(self, inside: str) -> str:
        return f"{self._folder.name}/{inside}".rstrip("/")
