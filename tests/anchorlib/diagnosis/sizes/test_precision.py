"""Sums are measured in what was summed, not in the wider type that they were summed in."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from anchorlib.diagnosis.pairing.join import align
from anchorlib.diagnosis.sizes.measurement import max_ulp, measure
from anchorlib.dtypes import DTYPES
from tests.anchorlib.diagnosis.tables import table
from tests.anchorlib.store.records import record

RAW = np.random.default_rng(0).normal(size=64)


def pair(stored, eps, *others, header=None):
    """A sum and the same, 64 eps of what was summed off; beside it records of other dtypes."""
    sides = []
    for factor in (1.0, 1.0 + 64 * eps):
        raw = (RAW * factor).astype(DTYPES[stored].storage)
        made = [record("w", 0, raw, kind="grad", mode="sum", dtype=stored)]
        for number, (name, dtype) in enumerate(others, 1):
            storage = np.zeros(4, DTYPES[dtype].storage)
            made.append(record(name, 0, storage, dtype=dtype, order=number))
        sides.append(replace(table(made), header={0: header or {}}))
    return align(*sides)


@pytest.mark.parametrize(
    ("stored", "others", "header", "observed"),
    [
        ("float64", [], None, "float32"),
        ("float64", [("w", "float64"), ("x", "float32"), ("y", "float32")], None, "float64"),
        ("float64", [("x", "float64")], None, "float64"),
        ("float64", [("x", "int64")], {"torch.default_dtype": "float64"}, "float64"),
        ("float32", [], None, "bfloat16"),
        ("float32", [("x", "float16")], None, "float16"),
        ("float32", [("x", "float32")], {"amp.autocast": "float16"}, "float16"),
    ],
)
def test_a_sum_is_measured_in_what_was_summed(stored, others, header, observed):
    eps = DTYPES[observed].eps
    found = pair(stored, eps, *others, header=header)
    told = measure(found, [0]).at(0)
    assert told.eps == eps
    assert told.error_eps == pytest.approx(64, rel=0.01)
    assert 64 <= max_ulp(found, 0) <= 130


def test_what_is_no_sum_is_measured_in_its_own_type():
    made = [record("w", 0, RAW * factor, dtype="float64") for factor in (1.0, 1.0 + 2.0**-40)]
    found = align(*(table([one]) for one in made))
    assert measure(found, [0]).at(0).eps == 2.0**-52
