"""Runs of a few records each, with what makes joining them hard.

Names are hostile: dots, wrappers' segments, empty parts, one the prefix of another; the same place
is recorded in several modes, in several ranks and phases, and twice by one series.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from anchorlib.record import Record
from tests.anchorlib.store.records import record

MODES = ("all", "summary", "every_n:2", "final:window=3", "sum", "sum:window=3")

names = st.one_of(
    st.sampled_from(["fc", "fc.weight", "module.fc", "module", "_orig_mod.fc", "a.fc", "out:1"]),
    st.text("ab./@*\n\0é", min_size=1, max_size=4),
)


@st.composite
def records(draw: st.DrawFn, names: st.SearchStrategy[str] = names) -> list[Record]:
    """The records of one run, each with an order of its own; values are small whole numbers."""
    places = st.tuples(
        names,
        st.sampled_from(["value", "grad"]),
        st.sampled_from(MODES),
        st.integers(0, 1),  # rank
        st.sampled_from([0, 1, 2, 2**40]),  # step
        st.integers(0, 1),  # pass
        st.integers(0, 1),  # call
        st.sampled_from(["train", "test"]),
        st.integers(0, 3),  # what it says
    )
    drawn = draw(st.lists(places, max_size=12))
    return [place(number, *one) for number, one in enumerate(drawn)]


def place(number: int, *coordinates: Any) -> Record:
    """One drawn record."""
    name, kind, mode, rank, step, pass_index, call, phase, said = coordinates
    raw = np.full(2 + said % 2, said, "<f4")
    made = record(
        *(name, step, raw), kind=kind, mode=mode, order=number, pass_index=pass_index, call=call,
        phase=phase,
    )  # fmt: skip
    return replace(made, rank=rank)


def again(one: Record, **changes: Any) -> Record:
    """The same record but for what is given; coordinates too."""
    names = ("step", "pass_index", "phase", "call")
    own = {name: changes.pop(name) for name in names if name in changes}
    return replace(one, coordinates=replace(one.coordinates, **own), **changes)
