"""Whatever a program states, the store's own reader takes what is written of it."""

from __future__ import annotations

import json
import warnings
from dataclasses import fields, replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from anchorlib.errors import AnchorError, StoreError
from anchorlib.record import Edges, Gap, Parent
from anchorlib.recorder.statement_json import edges_of, gaps_of, statement
from anchorlib.sinks import check_edges, statable
from anchorlib.store import LocalLocation, RankReader, Writer
from anchorlib.store.format import Catalogue, edges_line, encode, gap_line

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch's own, of nested tensors
    RAGGED = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)

SYMBOL = RAGGED.shape[1]
SOUND = Edges(
    *("h", "train", 1, 2, (3, 4), 5),
    parents=(Parent("x"), Parent("w", None)),
    ops=("AddBackward0",),
    inputs=((-1, -2),),
    arguments=("alpha=2",),
)
WHOLE = Gap("x", "value", "all", "nested", 1, 0, 3)

ODD = st.one_of(
    st.sampled_from([SYMBOL, True, None, b"x", "j1", "a\ud800", float("nan"), -1, (), ("",)]),
    st.integers(-(1 << 70), 1 << 70),
    st.floats(),
    st.text(max_size=4),
)
NUMBERS = st.sampled_from([SYMBOL, True, float("nan"), 2.5, 1 << 70, -(1 << 70), -1, 7])


def taken(line: bytes) -> Catalogue:
    """A catalogue that has read one line."""
    catalogue = Catalogue(checked=0)
    catalogue.apply([line.rstrip(b"\n")])
    return catalogue


def changed(edges: Edges, name: str, odd: object, *, inside: bool) -> Edges:
    """The statement with an odd value as a field, or in the list that the field is."""
    if name == "parents":
        odd = (replace(edges.parents[0], call=odd), edges.parents[1])
    elif inside and isinstance(getattr(edges, name), tuple):
        odd = ((odd,),) if name == "inputs" else (odd,)
    return replace(edges, **{name: odd})


@given(st.sampled_from([field.name for field in fields(Edges)]), ODD, st.booleans())
def test_lineage_that_is_admitted_is_read(name, odd, inside):
    try:
        edges = check_edges(changed(SOUND, name, odd, inside=inside))
    except AnchorError:
        return
    (passed,) = edges_of(json.loads(statement((), [edges], {})))
    assert list(taken(encode(edges_line(passed))).edges.values()) == [edges]


@pytest.mark.parametrize(
    "odd",
    [
        {"shape": (2, SYMBOL)},
        {"step": True},
        {"ops": ("a\ud800",)},
        {"inputs": ((9,),)},
        {"arguments": 0},
        {"arguments": None},
    ],
)
def test_malformed_lineage_is_refused_by_queue_and_writer(odd, tmp_path):
    bad = replace(SOUND, **odd)
    with pytest.raises(StoreError, match="malformed"):
        check_edges(bad)
    with Writer.open(tmp_path, "run1", 0) as writer:
        with pytest.raises(StoreError, match="malformed"):
            writer.edges([SOUND, bad])
        writer.edges([SOUND])
    reader = RankReader(LocalLocation(tmp_path / "run1.zarr"), 0)
    assert list(reader.catalogue.edges.values()) == [SOUND]


@given(st.sampled_from(["count", "first_step", "last_step"]), NUMBERS)
def test_a_gap_of_any_numbers_is_read(name, odd):
    (passed,) = gaps_of(json.loads(statement([statable(replace(WHOLE, **{name: odd}))], (), {})))
    assert list(taken(encode(gap_line(0, passed))).gaps.values()) == [passed]
