"""Settings of the optimizers that differ, at an update or at what is computed from one.

AdamW lr 0.001 | 0.0005 from step 10
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from anchorlib.diagnosis.causes import Frontier, HistoryDivergence, Role, partings_of
from anchorlib.names import escape

__all__ = ["OptimizerSettings"]

SHOWN = 3  # the most settings that are named


@dataclass(slots=True)
class OptimizerSettings:
    """Compares the settings of the two runs' optimizers, from their headers, step by step."""

    frontier: Frontier
    _partings: dict[int, list[HistoryDivergence]] = field(default_factory=dict)  # by rank

    def at(self, row: int) -> list[str]:
        """Return clauses on optimizer settings that differ up to a row's step; [] for none.

        The row must be one in which an update can show; other rows give []. Such a row is an
        `updated`, `delta` or `opt.*` record; or, after pass 0 of step 0, a parameter, or a value
        that was computed from recorded tensors and from parameters without records. An optimizer
        that calls a closure (LBFGS) shows its updates in the parameters of later passes.
        row: a row of A. At most SHOWN clauses are returned.
        """
        alignment = self.frontier.alignment
        tensor = alignment.a.tensors[alignment.a.tensor[row]]
        updated = tensor.kind in ("updated", "delta") or tensor.kind.startswith("opt.")
        parameter = (
            self.frontier.role[row] == Role.PARAMETER or self.frontier.only_parameters_missing[row]
        )
        shown = bool(parameter and (alignment.a.step[row] or alignment.a.pass_index[row]))
        if not updated and not shown:
            return []
        header_a, header_b = (t.header.get(tensor.rank, {}) for t in (alignment.a, alignment.b))
        step = int(alignment.a.step[row])
        differing = {
            name: HistoryDivergence(name, 0, header_a[name], header_b[name])
            for name in header_a
            if name.startswith("optimizer") and header_a[name] != header_b.get(name, header_a[name])
        }
        differing |= _switched(header_a, header_b)
        if tensor.rank not in self._partings:
            self._partings[tensor.rank] = partings_of(alignment, tensor.rank)
        schedules = self._partings[tensor.rank]
        differing |= {parting.name: parting for parting in schedules if parting.step <= step}
        told = dict.fromkeys(_setting(parting, header_a) for parting in differing.values())
        return list(told)[:SHOWN]


def _switched(
    header_a: Mapping[str, Any], header_b: Mapping[str, Any]
) -> dict[str, HistoryDivergence]:
    """Return the switches of optimizers that one run lists as on and the other does not list.

    The dict is keyed by the setting's name. A switch that a header does not list is off. A setting
    that is a word (such as `line_search_fn`) and that one run alone lists is a switch, too.
    """
    return {
        name: HistoryDivergence(name, 0, *_sides(header_a.get(name), header_b.get(name)))
        for name in header_a.keys() ^ header_b.keys()
        if name.startswith("optimizer")
        and name.partition(".")[0] in header_a.keys() & header_b.keys()
        and isinstance(one := header_a.get(name) or header_b.get(name), bool | str)
        and one
    }


def _sides(a: object, b: object) -> tuple[object, object]:
    """Return the values of a setting in A and in B, where one header may not list it.

    a, b: what the headers list, or None. In a switch (True or False) an unlisted side becomes
    False. Where a listed side is a word, an unlisted side stays None.
    """
    return (a, b) if isinstance(a, str) or isinstance(b, str) else (a is True, b is True)


def _setting(parting: HistoryDivergence, header: Mapping[str, Any]) -> str:
    """Return the clause on a setting that differs: "AdamW lr 0.001 | 0.0005 from step 10"."""
    optimizer, _, what = parting.name.partition(".")
    name = f"{header.get(optimizer, optimizer)} {what}" if what else "optimizer"
    since = f" from step {parting.step}" if parting.step else ""
    return escape(f"{name} {parting.a} | {parting.b}{since}")
