"""With noise runs, the first record that is further off than they are is named."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from anchorlib.diagnosis.comparison import Comparison
from anchorlib.diagnosis.investigation import compare_tables
from anchorlib.diagnosis.pairing.join import align
from anchorlib.record import Edges, Parent
from tests.anchorlib.diagnosis.tables import table
from tests.anchorlib.store.records import record

SIZE = 64
SIGNS = np.where(np.arange(SIZE) % 2, 1.0, -1.0)
NOISE = 1e-6


def run(errors: list[float], name: str = "a", size: int = SIZE) -> Any:
    """Records of a step, so far from one, in both directions."""
    raws = [(1 + error * SIGNS[:size]).astype("<f4") for error in errors]
    return table(
        [record(f"t{n}", 0, raw, order=n, kind="value") for n, raw in enumerate(raws)], run=name
    )


def compared(errors: list[float], **options: int) -> Comparison:
    noise = [run([NOISE * (n + 1)] * len(errors), f"noise{n}", **options) for n in range(2)]
    a, b = run([0.0] * len(errors), **options), run(errors, "b", **options)
    return compare_tables(align(a, b), noise)


def test_the_first_record_that_leaves_the_noise_is_named():
    found = compared([2e-6, 3e-6, 3e-4, 9e-3])
    told = found.to_dict()["leaves_noise"]
    assert (told["name"], told["step"], told["kind"]) == ("t2", 0, "value")
    assert told["score"] == pytest.approx(150, rel=0.1)
    assert "t2 at step 0, pass 0 is the first to leave the noise" in found.sentence
    assert found.verdict != "expected"


def test_what_stays_in_the_noise_leaves_it_nowhere():
    found = compared([2e-6, 3e-6, 4e-6])
    assert found.to_dict()["leaves_noise"] is None
    assert "leave the noise" not in found.sentence


def test_a_record_of_few_elements_is_not_judged_alone():
    assert compared([2e-6, 3e-4], size=SIZE - 1).leaves_noise is None


@pytest.mark.parametrize(("error", "cls"), [(1e-5, "rounding"), (1e-3, "not_rounding")])
def test_noise_that_covers_an_origin_lowers_its_class_and_none_else(error, cls):
    """84 and 8,400 eps, where the noise runs are 67 apart."""
    noise = [run([8e-6], "noise")]
    found = compare_tables(align(*made_of_equal(error)), noise)
    assert [one.cls for one in found.origins] == [cls]
    assert (found.verdict == "unexpected") == (cls == "not_rounding")


def made_of_equal(error: float) -> tuple[Any, Any]:
    """Two runs of one record, which is made of an input that both have."""
    edges = {
        0: [
            Edges(
                "t0", "train", 0, 0, (SIZE,), parents=(Parent("in"),), ops=("Mul",), inputs=((-1,),)
            )
        ]
    }
    pair = []
    for name, off in (("a", 0.0), ("b", error)):
        raws = [np.ones(SIZE, "<f4"), (1 + off * SIGNS).astype("<f4")]
        rows = [
            record(tensor, 0, raw, order=n, kind="value")
            for n, (tensor, raw) in enumerate(zip(("in", "t0"), raws, strict=True))
        ]
        pair.append(table(rows, run=name, edges=edges))
    return pair[0], pair[1]


def test_without_noise_runs_nothing_leaves_them():
    found = compare_tables(align(run([0.0]), run([0.5], "b")))
    assert found.to_dict()["leaves_noise"] is None
