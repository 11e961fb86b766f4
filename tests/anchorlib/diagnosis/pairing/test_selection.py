"""Some tensors alone, by the names that A has for them."""

from __future__ import annotations

import numpy as np
import pytest

import anchorlib
from anchorlib.errors import UnknownTensorError
from anchorlib.store import Writer
from tests.anchorlib.store.records import record
from tests.writing import put

NAMES = ("fc1", "fc2", "head")


def written(folder, run, names, factor=1.0):
    with Writer.open(folder, run, 0) as writer:
        for number, name in enumerate(names):
            raw = np.random.default_rng(number).normal(size=64).astype("<f4")
            raw *= np.float32(factor if number else 1)
            put(writer, [record(name, 0, raw, order=number)])


@pytest.fixture
def store(tmp_path):
    written(tmp_path, "a", NAMES)
    written(tmp_path, "b", [f"student.{name}" for name in NAMES], 1 + 2.0**-22)
    written(tmp_path, "c", ["enc", "fc2", "dec"], 1 + 2.0**-22)
    return tmp_path


def test_tensors_are_selected_by_as_names_where_b_has_others(store):
    found = anchorlib.compare("a", "b", store=store, tensors=["fc1", "fc2"])
    assert [(one.a, one.b, one.how) for one in found.renamed] == [
        ("fc1", "student.fc1", "wrapper"),
        ("fc2", "student.fc2", "wrapper"),
    ]
    counts = found.counts
    assert (counts.matched, counts.identical, counts.only_a, counts.only_b) == (2, 1, 0, 0)


def test_a_map_holds_for_selected_tensors_too(store):
    names = {"fc1": "enc", "head": "dec"}
    found = anchorlib.compare("a", "c", store=store, tensors="head", names=names)
    assert [(one.a, one.b, one.how) for one in found.renamed] == [("head", "dec", "map")]
    assert (found.counts.matched, found.counts.differing, found.counts.only_b) == (1, 1, 0)


def test_what_nothing_in_b_stands_for_is_an_error(store):
    written(store, "d", ["x"])
    with pytest.raises(UnknownTensorError, match="in d"):
        anchorlib.compare("a", "d", store=store, tensors="head")
    with pytest.raises(UnknownTensorError, match="in a"):
        anchorlib.compare("a", "b", store=store, tensors="haed")
