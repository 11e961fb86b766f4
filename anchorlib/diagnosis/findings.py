"""Protocols of what the sections, counts and tables of an answer read of a `Comparison`.

`Comparison` has methods that show it. The functions that these methods call take the protocol
`Findings`, so that their modules need not import the module of `Comparison`, which imports them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from anchorlib.diagnosis.judgement import Growth, Losses, Origin
    from anchorlib.diagnosis.pairing import Alignment, Counts, RecordPlace, Renaming
    from anchorlib.diagnosis.rank_spans import Ranks
    from anchorlib.operations import OpAlignment

__all__ = ["Findings", "FirstDifference"]


class FirstDifference(Protocol):
    """Protocol of `Divergence`: the members that an answer shows."""

    @property
    def place(self) -> RecordPlace: ...
    @property
    def identical_before(self) -> int: ...


class Findings(Protocol):
    """Protocol of `Comparison`: the members that an answer shows."""

    @property
    def a(self) -> str: ...
    @property
    def b(self) -> str: ...
    @property
    def verdict(self) -> str: ...
    @property
    def sentence(self) -> str: ...
    @property
    def counts(self) -> Counts: ...
    @property
    def first(self) -> FirstDifference | None: ...
    @property
    def origins(self) -> Sequence[Origin]: ...
    @property
    def config_diff(self) -> Mapping[str, tuple[Any, Any]]: ...
    @property
    def growth(self) -> Sequence[Growth]: ...
    @property
    def losses(self) -> Losses | None: ...
    @property
    def renamed(self) -> Sequence[Renaming]: ...
    @property
    def notes(self) -> Sequence[str]: ...
    @property
    def reference(self) -> str | None: ...
    @property
    def ops(self) -> OpAlignment | None: ...
    @property
    def alignment(self) -> Alignment | None: ...
    @property
    def ranks(self) -> Ranks | None: ...
    def columns(self) -> Iterator[dict[str, list[Any]]]: ...
