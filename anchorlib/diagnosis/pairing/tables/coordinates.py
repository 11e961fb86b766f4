"""The name, kind and coordinates by which one record of a table is known."""

from __future__ import annotations

from typing import NamedTuple

from anchorlib.diagnosis.pairing.tables.table import Table

__all__ = ["RecordPlace", "model_of_input", "place_at"]


class RecordPlace(NamedTuple):
    """Identifies a record by its name, kind and coordinates.

    The step is counted as the record's own run counts steps.
    """

    step: int
    pass_index: int
    call: int
    rank: int
    phase: str
    name: str
    kind: str


def place_at(table: Table, row: int) -> RecordPlace:
    """Return the name, kind and coordinates of the record in one row of a table."""
    tensor = table.tensors[table.tensor[row]]
    return RecordPlace(
        step=int(table.step[row]),
        pass_index=int(table.pass_index[row]),
        call=int(table.call[row]),
        rank=tensor.rank,
        phase=table.phases[table.phase[row]],
        name=tensor.name,
        kind=tensor.kind,
    )


def model_of_input(name: str) -> str:
    """Return `critic.input` for the names `critic.input` and `critic.input:1`; "" for no input."""
    model = name.partition(":")[0]
    return model if model.rpartition(".")[2] == "input" else ""
