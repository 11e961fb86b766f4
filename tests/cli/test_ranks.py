"""`anchor ranks`: ranks that leave their peers, as a command says it."""

from __future__ import annotations

import numpy as np
import pytest

from anchorlib.summary import SCANS
from tests.anchorlib.peers.jobs import as_drawn, job, only
from tests.cli.made import HOSTILE, anchor, make_run, record


def test_an_outlier_is_a_line_and_exit_code_1(tmp_path, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    job(tmp_path, range(8), change=only(4, 1, "w@value", 0))
    done = anchor("ranks", "run1", "--store", tmp_path)
    assert done.code == 1
    assert done.out.splitlines() == [
        "run1  ranks 0-7, 1 leaves its peers",
        "3 series replicated, held against each other bit for bit; 2 of each rank's own, by norm "
        "and NaN",
        "rank 4 first at step 1 in w@value: its bits are not those that 7 others agree on; "
        "2 records",
    ]


def test_the_json_has_the_place_and_the_peers(tmp_path):
    job(tmp_path, range(8), change=only(4, 1, "w@value", 0))
    done = anchor("ranks", "run1", "--store", tmp_path, "--json")
    assert done.code == 1
    assert {**done.json, "outliers": []} == {
        "schema_version": 1, "run": "run1", "ranks": [0, 1, 2, 3, 4, 5, 6, 7], "series": 5,
        "replicated": 3, "outliers": [], "missing": [], "ended_early": [],
    }  # fmt: skip
    assert done.json["outliers"] == [
        {
            "ranks": [4], "evidence": "digest", "step": 1, "pass_index": 0, "call": 0,
            "phase": "train", "name": "w", "kind": "value", "records": 2, "tensors": 1,
            "peers": [0, 1, 2, 3, 5, 6, 7], "ratio": None,
        }
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("ranks", "ends", "code", "last"),
    [
        (range(4), {}, 0, "nothing leaves its peers"),
        ([0, 1, 3], {}, 3, "missing: rank 2 recorded nothing"),
        (range(4), {2: 1, 3: 1}, 3, "ended early: ranks 2-3 at step 0, the run at step 2"),
        ([0], {}, 0, "one rank alone cannot be compared with peers"),
    ],
)
def test_what_is_said_where_no_rank_leaves_its_peers(tmp_path, ranks, ends, code, last):
    job(tmp_path, ranks, change=as_drawn, ends=ends)
    done = anchor("ranks", "run1", "--store", tmp_path)
    assert done.code == code
    assert done.out.splitlines()[-1].endswith(last)


def test_hostile_names_are_escaped_and_lines_wrapped(tmp_path, monkeypatch):
    for rank in range(3):
        values = [1.0, 2.0 + (rank == 1)]
        make_run(tmp_path, [record(HOSTILE, raw=np.float32(values))], rank=rank)
    monkeypatch.setenv("COLUMNS", "60")
    done = anchor("ranks", "run1", "--store", tmp_path)
    assert done.code == 1
    assert "\x1b" not in done.out
    assert "\u202e" not in done.out
    assert max(map(len, done.out.splitlines())) <= 60


def test_a_damaged_row_is_damage_and_no_rank_that_leaves_its_peers(tmp_path):
    job(tmp_path, range(4))
    column = tmp_path / "run1.zarr" / "rank2" / "records" / "digest_high" / "c.0"
    raw = bytearray(column.read_bytes())
    raw[3] ^= 1
    column.write_bytes(bytes(raw))
    done = anchor("ranks", "run1", "--store", tmp_path)
    assert done.code == 3
    assert "checksum" in done.err
    assert "rank 2" in done.err


def test_doctor_says_which_rank_leaves_its_peers(tmp_path, monkeypatch):
    monkeypatch.setattr(SCANS, "load", lambda: None)  # whether numba compiles here is not asked
    job(tmp_path, range(3), change=only(1, 1, "w@value", 0))
    done = anchor("doctor", "run1", "--store", tmp_path, "--json")
    (told,) = [one for one in done.json["findings"] if one["about"] == "ranks"]
    assert told["level"] == "beware"
    assert told["text"].startswith("rank 1 first at step 1 in w@value: its bits are not those")
    assert told["todo"] == "see `anchor ranks run1`"
