"""What two runs were configured to do differently, as far as their headers tell."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anchorlib.diagnosis.alignment import Alignment
from anchorlib.diagnosis.statements import compiled

__all__ = ["config_diff"]

PASSING = (
    "pid",
    "host",
    "time",
    "started",
    "env.SLURM_JOB_ID",
    "env.RANK",
    "env.LOCAL_RANK",
    "env.SLURM_PROCID",
    "imported.from",
)
"""What is another in every process, and changes no number."""


def config_diff(alignment: Alignment) -> dict[str, tuple[Any, Any]]:
    """The entries that differ, by name: (a's, b's), None where a run does not have one.

    Of several ranks the lowest that both have speaks.
    """
    a, b = alignment.a.header, alignment.b.header
    common = sorted(set(a) & set(b))
    one: Mapping[str, Any] = a[common[0] if common else min(a)] if a else {}
    two: Mapping[str, Any] = b[common[0] if common else min(b)] if b else {}
    names = list(dict.fromkeys([*one, *two]))
    return _engines(alignment) | {
        name: (one.get(name), two.get(name))
        for name in names
        if name not in PASSING and one.get(name) != two.get(name)
    }


def _engines(alignment: Alignment) -> dict[str, tuple[Any, Any]]:
    """Whether one run alone was compiled, as its autograd nodes tell."""
    told = [
        [edges for some in table.edges.values() for edges in some]
        for table in (alignment.a, alignment.b)
    ]
    if not all(told):
        return {}
    one, two = (
        "compiled" if any(compiled(edges.ops) for edges in some) else "eager" for some in told
    )
    return {} if one == two else {"torch.backend": (one, two)}
