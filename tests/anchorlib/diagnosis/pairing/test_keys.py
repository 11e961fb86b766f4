"""Columns become keys, and keys are joined, as dictionaries of tuples would do it."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from anchorlib.diagnosis.pairing.identity.keys import joined, occurrences, packed

far = st.sampled_from([0, 1, 2, -1, 2**40, -(2**63), 2**63 - 1])
rows = st.integers(1, 4).flatmap(lambda width: st.lists(st.tuples(*[far] * width), max_size=20))


def column(values: list[int]) -> np.ndarray:
    return np.array(values, np.int64)


@given(rows.filter(len))
def test_keys_are_equal_where_rows_are(made: list[tuple[int, ...]]) -> None:
    keys = packed([column(list(values)) for values in zip(*made, strict=True)]).tolist()
    assert len(set(keys)) == len(set(made)) == len(set(zip(keys, made, strict=True)))


@given(st.lists(far, unique=True), st.lists(far, unique=True))
def test_joining_keys_finds_what_both_have(a: list[int], b: list[int]) -> None:
    one, two = joined(column(a), column(b))
    wanted = [(n, b.index(key)) for n, key in enumerate(a) if key in b]
    assert list(zip(one.tolist(), two.tolist(), strict=True)) == wanted


@given(st.lists(far))
def test_occurrences_count_what_came_before(keys: list[int]) -> None:
    seen: Counter[int] = Counter()
    wanted = []
    for key in keys:
        wanted.append(seen[key])
        seen[key] += 1
    assert occurrences(column(keys)).tolist() == wanted
