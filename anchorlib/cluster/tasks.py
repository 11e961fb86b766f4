"""Packs parts of a query into tasks, and answers a task on a worker."""

from __future__ import annotations

import platform
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final, Protocol, TypeVar

from anchorlib.errors import AnchorError, ClusterError

__all__ = ["Part", "SendablePart", "answered", "packed", "versions"]

Answer = TypeVar("Answer")
TASK_BYTES: Final = 256 << 20
"""How many bytes a task should read at least: each task costs the scheduler some milliseconds."""
GROWTH: Final = 10_000
"""After so many tasks their size doubles, so that a petabyte takes fewer than 100,000 tasks."""
PACKAGES: Final = ("numpy", "distributed")


class SendablePart(Protocol):
    """A part of a query as it is sent to a worker: small, pickled, openable by any process."""

    @property
    def pins(self) -> Sequence[OpenableRank]:
        """The ranks that the part reads."""
        ...

    def opened(self) -> Part:
        """Open the part in this process and return it."""
        ...


class Part(Protocol):
    """A part of a query, opened in the process that asks or in the worker that answers.

    weight: about how much work it is, in bytes to read.
    """

    @property
    def weight(self) -> int: ...

    def sendable(self) -> SendablePart:
        """Return the part in the form that is sent to another process, which opens it again."""
        ...


class OpenableRank(Hashable, Protocol):
    """Identifies a rank that a part reads, and opens it in the process that needs it."""

    def reader(self) -> Any:
        """Open the rank and return its reader; raise AnchorError where that fails."""
        ...


def packed(parts: Iterable[Any]) -> Iterator[list[SendablePart]]:
    """Pack parts into tasks, and yield the tasks in order.

    A task is a list of the parts as they are sent to a worker. A part's `sendable` is called only
    when its task is made, so few of them are in memory at a time.
    """
    task: list[SendablePart] = []
    weight = made = 0
    for part in parts:
        task.append(part.sendable())
        weight += part.weight
        if weight >= TASK_BYTES << made // GROWTH:
            yield task
            task, weight, made = [], 0, made + 1
    if task:
        yield task


def answered(
    function: Callable[[Any], Answer], parts: Sequence[SendablePart], ours: str
) -> tuple[list[Answer], dict[str, str]]:
    """Return the answer of `function` for each part, and the versions of this worker's packages.

    This runs on a worker. ours: the version of anchorlib in the process that asks. Raises
    ClusterError where this worker has another version or cannot open a rank, and the errors of
    `function`.
    """
    installed = versions()
    if installed["anchorlib"] != ours:
        raise ClusterError(
            f"the worker at {_here()} has anchorlib {installed['anchorlib']}, this process {ours}: "
            "their answers may differ; install the same version there"
        )
    try:
        for pin in dict.fromkeys(pin for part in parts for pin in part.pins):
            pin.reader()
    except AnchorError as error:
        raise ClusterError(
            f"the worker at {_here()} cannot open a run: {error}; workers open runs themselves, so "
            "give a store that they reach under the same name, and them the credentials for it"
        ) from None
    return [function(part.opened()) for part in parts], installed


def versions() -> dict[str, str]:
    """Return the versions, in this process, of Python and packages that an answer depends on."""
    # Imported here: the package defines its version only when all of it is imported.
    from anchorlib import __version__

    return {
        "anchorlib": __version__,
        "Python": platform.python_version(),
        **{name: _version(name) for name in PACKAGES},
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # importable from a worker's Python path, but not installed
        return "unknown"


def _here() -> str:
    from distributed import get_worker

    return str(get_worker().address)
