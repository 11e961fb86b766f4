"""The memory, descriptors and threads of a process, read from outside while it lives."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Vitals:
    """The figures of a process at one moment; memory is the resident set, in bytes."""

    memory: int
    descriptors: int
    threads: int

    @classmethod
    def of(cls, pid: int) -> Vitals:
        process = Path(f"/proc/{pid}")
        status = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
        memory = int(status["VmRSS"].split()[0]) * 1024
        return cls(memory, len(list((process / "fd").iterdir())), int(status["Threads"]))


class Watch:
    """Looks at a process every `seconds` until the context is left."""

    def __init__(self, pid: int, seconds: float) -> None:
        self.first = Vitals.of(pid)
        self.seen: list[Vitals] = []
        self._pid = pid
        self._seconds = seconds
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(self._seconds):
            try:
                self.seen.append(Vitals.of(self._pid))
            except OSError:  # it ended, which whoever started it sees
                return

    def growth(self, what: str, warm: float) -> float:
        """The most that was seen behind the share `warm` of the time, by the most before."""
        figures = [getattr(one, what) for one in self.seen]
        cut = max(1, int(len(figures) * warm))
        return max(figures[cut:], default=0) / max(figures[:cut], default=1)
