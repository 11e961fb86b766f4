"""What values were computed from, kept in the catalogue."""

from __future__ import annotations

from dataclasses import replace

import pytest

from anchorlib.errors import StoreError
from anchorlib.record import Edges, Parent
from anchorlib.store import LocalLocation, RankReader, Writer
from anchorlib.store.format import Catalogue, encode
from anchorlib.store.format.edges import edges_line, read_edges

EDGES = Edges(
    *("h\n", "train", 1, 2, (3, 4), 5),
    parents=(Parent("x"), Parent("w", None), Parent("old", 1, 2, 3, "warmup")),
    ops=("AddBackward0", "MulBackward0"),
    inputs=((1, -1), (-2, -3, 0)),
    missing=("a leaf that is not anchored",),
    grad=False,
    arguments=("alpha=2", ""),
)


def stored(store):
    return list(RankReader(LocalLocation(store / "run1.zarr"), 0).catalogue.edges.values())


def test_edges_come_back_as_they_were_also_without_any_record(tmp_path):
    plain = Edges("x", "train", 0, 0, ())
    with Writer.open(tmp_path, "run1", 0) as writer:
        writer.edges([EDGES, plain])
        assert stored(tmp_path) == [EDGES, plain]
    assert stored(tmp_path) == [EDGES, plain]


def test_edges_that_are_told_again_are_kept_once_and_the_first_counts(tmp_path):
    with Writer.open(tmp_path, "run1", 0, writer_id=b"w" * 16) as writer:
        writer.edges([EDGES])
        size = writer._catalog.end
        writer.edges([EDGES, replace(EDGES, grad=True)])
        assert writer._catalog.end == size
        writer.abandon()
    with Writer.open(tmp_path, "run1", 0, writer_id=b"w" * 16) as writer:  # a new stream of it
        size = writer._catalog.end
        writer.edges([EDGES])
        assert writer._catalog.end == size
    assert stored(tmp_path) == [EDGES]


def test_each_attempt_states_its_own(tmp_path):
    for resume in (False, True):
        with Writer.open(tmp_path, "run1", 0, resume=resume) as writer:
            writer.edges([EDGES])
    assert [edges.attempt for edges in stored(tmp_path)] == [0, 1]


def test_a_line_that_is_no_statement_is_damage():
    line = edges_line(EDGES)
    assert read_edges(line) == EDGES
    with pytest.raises(ValueError, match="arguments of 2 operations"):
        read_edges({**line, "edges": {**line["edges"], "arguments": ["alpha=2"]}})
    del line["edges"]["parents"]
    with pytest.raises(StoreError, match="damaged"):
        Catalogue().apply([encode(line)])
