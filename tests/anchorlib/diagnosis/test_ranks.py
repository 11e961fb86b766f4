"""A comparison of many ranks says them folded, and on which of them anything differs."""

from __future__ import annotations

import pytest

import anchorlib
from tests.anchorlib.peers.jobs import as_drawn, flipped, job
from tests.cli.made import anchor


def on(*ranks):
    """Flips a bit of `x` on these ranks, from step 1 on."""

    def change(rank, step, name, values):
        return flipped(values, 3) if rank in ranks and step and name == "x@value" else values

    return change


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Of a run of twelve ranks; each test records another one beside it."""
    folder = tmp_path_factory.mktemp("ranks")
    job(folder, range(12), change=as_drawn)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("differing", "line", "told"),
    [
        ((), "ranks 0-11, none differs", ""),
        pytest.param((4,), "ranks 0-11, 1 differs (4)", "4", marks=pytest.mark.slow),
        ((1, 2, 7), "ranks 0-11, 3 differ (1, 2, 7)", "1-2,7"),
        pytest.param(
            range(9),
            "ranks 0-11, 9 differ (0, 1, 2, 3, 4, 5, 6, 7 and 1 more)",
            "0-8",
            marks=pytest.mark.slow,
        ),
        pytest.param(range(12), "ranks 0-11, all differ", "0-11", marks=pytest.mark.slow),
    ],
)
def test_ranks_are_folded_and_those_that_differ_named(store, differing, line, told):
    other = f"differs-on-{len(differing)}"
    job(store, range(12), change=on(*differing), run=other)
    said = anchor("compare", "run1", other, "--store", store)
    assert f"  {line}" in said.out.splitlines()
    found = anchorlib.compare("run1", other, store=store)
    assert found.to_dict()["ranks"] == {"compared": "0-11", "differing": told}
    assert len(found.origins) <= 1, "what many ranks have alike is one finding"


def test_of_one_rank_nothing_is_said_of_ranks(tmp_path):
    job(tmp_path, range(1))
    assert anchorlib.compare("run1", "run1", store=tmp_path).to_dict()["ranks"] is None
    assert "ranks" not in anchor("compare", "run1", "run1", "--store", tmp_path).out
