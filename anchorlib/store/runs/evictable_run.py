"""A run of a directory that may leave it for its archive while it is read."""

from __future__ import annotations

from pathlib import Path

from anchorlib.store.locations import LocalLocation
from anchorlib.store.runs.archived_files import Elsewhere

__all__ = ["LastingRun"]


class LastingRun(LocalLocation):
    """A run's folder, and the run's archive from the moment on at which the folder is gone.

    A run that is evicted leaves by one rename, and its files are deleted after that. Whoever opened
    it before reads the same rows from the archive, as `Elsewhere` gives them out; a run that was
    removed for good has no note of an archive, and is not found any more.
    """

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        # The folder may be a link to another run, whose note is under its own name.
        real = self.root.resolve()
        self._folder = real
        self._archive = Elsewhere(real.parent)

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes | None:
        """See `Location.get`."""
        data = super().get(key, start, length)
        if data is not None or not self._is_gone:
            return data
        return self._archive.get(self._key(key), start, length)

    def read_into(self, key: str, start: int, out: memoryview) -> int | None:
        """See `read_into`."""
        done = super().read_into(key, start, out)
        if done is not None or not self._is_gone:
            return done
        data = self._archive.get(self._key(key), start, len(out))
        if data is not None:
            out[: len(data)] = data
        return None if data is None else len(data)

    def list(self, prefix: str) -> list[str]:
        """See `Location.list`."""
        names = super().list(prefix)
        # Names that were listed while the folder was deleted may be a part of the run's.
        return self._archive.list(self._key(prefix)) or names if self._is_gone else names

    def __reduce__(self) -> tuple[type[LastingRun], tuple[Path]]:
        """The run in another process opens its archive itself."""
        return LastingRun, (self.root,)

    @property
    def _is_gone(self) -> bool:
        return not self._folder.is_dir()

    def _key(self, inside: str) -> str:
        return f"{self._folder.name}/{inside}".rstrip("/")
