"""Statements of lineage (what a tensor was computed from) as lines of a rank's catalogue.

{"edges": {"name": "tanh1", "phase": "train", "pass": 0, "call": 0, "shape": [8, 4], "step": 0,
           "parents": [["fc1", 0, 0, null, ""]], "ops": ["TanhBackward0"], "inputs": [[-1]],
           "missing": [], "grad": true}, "attempt": 0}

A parent is [name, call, steps back, pass, phase], see `record.Parent`; `record.Edges` says what the
other fields mean. "arguments" has one text for each of the "ops"; it is left out where no operation
has arguments.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anchorlib.errors import StoreError
from anchorlib.record import Edges, Parent
from anchorlib.store.format.fields import flag, items, mapping, step, text, texts, whole

__all__ = ["EdgesKey", "check_stated", "edges_key", "edges_line", "read_edges"]

EdgesKey = tuple[int, str, str, int, int, tuple[int, ...], int]


def edges_key(edges: Edges) -> EdgesKey:
    """Return the key of a statement of lineage, that is, of what a value was computed from.

    The key is the attempt, name, phase, pass, call, shape and step of the value. In an attempt
    (what one writer records) only the first statement with a key counts.
    """
    return (
        edges.attempt,
        edges.name,
        edges.phase,
        edges.pass_index,
        edges.call,
        edges.shape,
        edges.step,
    )


def edges_line(edges: Edges) -> dict[str, Any]:
    """Return a statement of lineage (what a value was computed from) as a catalogue entry."""
    return {
        "edges": {
            "name": edges.name,
            "phase": edges.phase,
            "pass": edges.pass_index,
            "call": edges.call,
            "shape": edges.shape,
            "step": edges.step,
            "parents": [
                [one.name, one.call, one.steps_back, one.pass_index, one.phase]
                for one in edges.parents
            ],
            "ops": edges.ops,
            "inputs": edges.inputs,
            "missing": edges.missing,
            "grad": edges.grad,
            **({} if edges.arguments == () else {"arguments": edges.arguments}),
        },
        "attempt": edges.attempt,
    }


def read_edges(entry: Mapping[str, Any]) -> Edges:
    """Return the statement of lineage (what a value was computed from) in a catalogue entry.

    Raises KeyError, TypeError or ValueError for an entry that is no valid statement of lineage.
    """
    fields = mapping(entry["edges"])
    parents = tuple(_parent(*items(parent)) for parent in items(fields["parents"]))
    ops = texts(fields["ops"])
    arguments = texts(fields.get("arguments", ()))
    if arguments and len(arguments) != len(ops):
        raise ValueError(f"{len(arguments)} arguments of {len(ops)} operations")
    return Edges(
        name=text(fields["name"]),
        phase=text(fields["phase"]),
        pass_index=whole(fields["pass"]),
        call=whole(fields["call"]),
        shape=tuple(map(whole, items(fields["shape"]))),
        step=step(fields["step"]),
        parents=parents,
        ops=ops,
        inputs=tuple(
            tuple(whole(source, -len(parents), len(ops) - 1) for source in items(sources))
            for sources in items(fields["inputs"])
        ),
        missing=texts(fields["missing"]),
        grad=flag(fields["grad"]),
        attempt=whole(entry["attempt"]),
        arguments=arguments,
    )


def check_stated(edges: Edges) -> Edges:
    """Return `edges` unchanged if `read_edges` can parse the catalogue line made of it.

    Otherwise raise StoreError, because readers would take the line for damage. An example is a line
    with a symbolic size of torch in its shape.
    edges: a statement of lineage, that is, of what a value was computed from.
    """
    try:
        read_edges(edges_line(edges))
    except (ValueError, TypeError) as error:
        raise StoreError(f"its lineage is malformed: {error}") from None
    return edges


def _parent(
    name: Any, call: Any = 0, steps_back: Any = 0, pass_index: Any = None, phase: Any = ""
) -> Parent:
    return Parent(
        text(name),
        None if call is None else whole(call),
        whole(steps_back),
        None if pass_index is None else whole(pass_index),
        text(phase),
    )
