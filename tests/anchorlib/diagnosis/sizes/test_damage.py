"""Values that are lost or changed on the disk: what is left is compared, and they are named."""

from __future__ import annotations

import json

import numpy as np
import pytest

import anchorlib
from anchorlib.store import Writer
from tests.anchorlib.store.records import record
from tests.cli.made import anchor
from tests.writing import put

RAW = np.random.default_rng(0).normal(size=(3, 2, 4000)).astype("<f4")


def written(folder, run, factor):
    """Two tensors at three steps; all but the first record are off by a factor."""
    with Writer.open(folder, run, 0) as writer:
        for step in range(3):
            for number, name in enumerate("xy"):
                raw = RAW[step, number, number:] * np.float32(factor if step or number else 1)
                order = 2 * step + number
                put(writer, [record(name, step, raw, kind="value", order=order)])


def flipped(place):
    """One byte of x at step 1."""
    data = bytearray(place.read_bytes())
    data[RAW[0, 0].nbytes * 3 // 2] ^= 0xFF
    place.write_bytes(data)


@pytest.fixture
def damaged(tmp_path, request):
    """Runs a, b and n; the values of x at step 1 are damaged in the one that is asked for."""
    for run, factor in zip("abn", (1, 1 + 2.0**-22, 1 + 2.0**-21), strict=True):
        written(tmp_path, run, factor)
    which, how = request.param
    places = sorted(tmp_path.glob(f"{which}*/rank0/forms/float32_4000/value/c*"))
    (flipped if how == "changed" else type(places[0]).unlink)(places[0])
    return tmp_path


@pytest.mark.parametrize(
    "damaged", [(w, h) for w in "ab" for h in ("changed", "lost")], indirect=True
)
def test_damaged_values_are_named_and_the_rest_is_compared(damaged):
    found = anchorlib.compare("a", "b", store=damaged)
    assert found.damaged
    assert all("the values of x@value at step" in line for line in found.damaged)
    assert any("x@value at step 1" in line for line in found.damaged)
    assert set(found.damaged[:3]) <= set(found.notes)
    by_name = {(p.place.name, p.place.step): p.measure for p in found.pairs() if not p.equal}
    assert by_name["y", 2].measured == "values"
    assert by_name["x", 1].measured == "summary"
    assert np.isnan(by_name["x", 1].share_differing)
    assert found.counts.differing == 5


@pytest.mark.slow
@pytest.mark.parametrize("damaged", [("b", "changed")], indirect=True)
def test_the_command_names_the_record_and_exits_with_3(damaged):
    done = anchor("compare", "a", "b", "--store", damaged, "--json")
    assert done.code == 3
    assert "damaged: b: the values of x@value at step" in done.err
    assert done.err.count("\n") == 1
    assert json.loads(done.out)["verdict"] == "suspect"


@pytest.mark.parametrize("damaged", [("n", "changed")], indirect=True)
def test_damaged_noise_judges_nothing(damaged):
    found = anchorlib.compare("a", "b", store=damaged, noise=["n"])
    assert any(line.startswith("n: the values of x@value at step 1") for line in found.damaged)
    scores = {(p.place.name, p.place.step): p.score for p in found.pairs() if not p.equal}
    assert scores["x", 1] is None
    assert scores["y", 1] == pytest.approx(0.5, rel=0.01)
