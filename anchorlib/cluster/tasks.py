"""Parts of a question packed into tasks, and what a worker does with one."""

from __future__ import annotations

import platform
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final, Protocol, TypeVar

from anchorlib.errors import AnchorError, ClusterError

__all__ = ["Far", "Near", "answered", "packed", "versions"]

Answer = TypeVar("Answer")
TASK_BYTES: Final = 256 << 20
"""A task costs the scheduler some milliseconds: it should read so much, where there is so much."""
GROWTH: Final = 10_000
"""Tasks after which tasks become twice as large: of a petabyte there are still below 100,000."""
PACKAGES: Final = ("numpy", "distributed")


class Far(Protocol):
    """A part as it travels: small, pickled, and the same wherever it is opened."""

    @property
    def pins(self) -> Sequence[Pin]:
        """The ranks that it reads."""
        ...

    def near(self) -> Near:
        """The part, opened in this process."""
        ...


class Near(Protocol):
    """A part of a question, as the process has it that asks, or that answers.

    weight: about how much work it is, in bytes that are read.
    """

    @property
    def weight(self) -> int: ...

    def far(self) -> Far:
        """It, for another process."""
        ...


class Pin(Hashable, Protocol):
    """A rank that is opened by the process that needs it."""

    def reader(self) -> Any:
        """Opens it; raises AnchorError."""
        ...


def packed(parts: Iterable[Any]) -> Iterator[list[Far]]:
    """The parts, each a Near, in tasks, in order; each part is told when its task is made."""
    task: list[Far] = []
    weight = made = 0
    for part in parts:
        task.append(part.far())
        weight += part.weight
        if weight >= TASK_BYTES << made // GROWTH:
            yield task
            task, weight, made = [], 0, made + 1
    if task:
        yield task


def answered(
    function: Callable[[Any], Answer], parts: Sequence[Far], ours: str
) -> tuple[list[Answer], dict[str, str]]:
    """What `function` says of each part, and the versions of what computed it.

    ours: the version of anchorlib that asks.
    Raises ClusterError where this worker cannot answer, and what `function` raises.
    """
    found = versions()
    if found["anchorlib"] != ours:
        raise ClusterError(
            f"the worker at {_here()} has anchorlib {found['anchorlib']}, this process {ours}: "
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
    return [function(part.near()) for part in parts], found


def versions() -> dict[str, str]:
    """The versions in this process of what an answer depends on."""
    # Here, not above: the package names its version where it is complete.
    from anchorlib import __version__

    return {
        "anchorlib": __version__,
        "Python": platform.python_version(),
        **{name: _version(name) for name in PACKAGES},
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # beside the Python path of a worker, but not installed
        return "unknown"


def _here() -> str:
    from distributed import get_worker

    return str(get_worker().address)
