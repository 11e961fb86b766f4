"""A copy of a run that is being written is a sound run, up to a commit of that time."""

from __future__ import annotations

import random
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from anchorlib.store import Writer
from tests.anchorlib.store.records import assert_holds, reader, record
from tests.cli.made import anchor
from tests.writing import put


def made(step: int) -> list:
    """The records of a step: of two forms, and of a shape of its own now and then."""
    values = np.random.default_rng(step)
    return [
        record("fc1", step, values.normal(size=40).astype("<f4"), order=3 * step),
        record("fc2", step, values.normal(size=(3, 4)), order=3 * step + 1, dtype="float64"),
        record("seq", step, values.normal(size=step % 5 + 1).astype("<f4"), order=3 * step + 2),
    ]


# With seed 32 a column of histograms is copied before all others, and the last row has none.
@pytest.mark.slow
@pytest.mark.parametrize("seed", [*range(8), 32])
def test_whatever_order_files_are_copied_in_the_copy_is_sound(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    source, target = tmp_path / "store", tmp_path / "backup"
    with Writer.open(source, "run1", 0) as writer:
        step = 0
        for step in range(10):
            put(writer, made(step))
        writer.publish()
        before = writer.committed
        within = sorted(source.rglob("*"))
        files = [path for path in within if "run1.zarr" in path.parts and path.is_file()]
        dice.shuffle(files)
        for path in files:
            if dice.random() < 0.3:
                step += 1
                put(writer, made(step))
            if dice.random() < 0.1:
                writer.publish()
            to = target / path.relative_to(source)
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, to)
    done = anchor("verify", "run1", "--store", target, "--json")
    assert (done.code, done.json["damaged"]) == (0, []), done
    assert done.json["records"] >= before
    (copied,) = done.json["copied"]
    assert copied["rank"] == 0
    (listed,) = anchor("runs", "--store", target, "--json").json
    assert listed["state"] == "copied"
    pulled = anchor("pull", "run1", "-t", "fc1", "--store", target, "--json")
    assert pulled.code == 0
    assert len(pulled.json["value"]) >= 10
    if seed < 4:
        restored = anchor("repair", "run1", "--as", "restored", "--store", target)
        assert restored.code == 0, restored
        with Writer.open(target, "restored", 0, resume=True) as again:
            assert again.attempt == 1
            put(again, made(1000))
        assert anchor("verify", "restored", "--store", target).code == 0


def test_a_run_that_was_left_by_a_dead_process_is_no_copy(tmp_path: Path) -> None:
    writer = Writer.open(tmp_path, "run1", 0)
    put(writer, made(0))
    writer.abandon()
    assert anchor("verify", "run1", "--store", tmp_path, "--json").json["copied"] == []
    assert anchor("runs", "--store", tmp_path, "--json").json[0]["state"] == "open"
    assert_holds(reader(tmp_path), made(0))


def test_damage_at_the_end_of_a_run_is_no_copy(tmp_path: Path) -> None:
    writer = Writer.open(tmp_path, "run1", 0)
    for step in range(3):
        put(writer, made(step))
    writer.abandon()
    (values,) = (tmp_path / "run1.zarr/rank0/forms/float32_40/value").glob("c.*")
    data = bytearray(values.read_bytes())
    data[2 * 160] ^= 1  # of the last record
    values.write_bytes(data)
    done = anchor("verify", "run1", "--store", tmp_path, "--json")
    assert (done.code, len(done.json["damaged"]), done.json["copied"]) == (1, 1, [])


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        "cp -a --sparse=always store backup",
        "mkdir backup && tar -cSf - -C store . | tar -xSf - -C backup",
        "rsync -aS store/ backup/",
    ],
    ids=["cp", "tar", "rsync"],
)
def test_the_commands_of_the_page_keep_holes_and_records(tmp_path: Path, command: str) -> None:
    if shutil.which(command.split()[0]) is None:
        pytest.skip(f"{command.split()[0]} is not installed")
    with Writer.open(tmp_path / "store", "run1", 0) as writer:
        put(writer, made(0))
        writer.publish()
        subprocess.run(command, shell=True, cwd=tmp_path, check=True)  # as on the page
    assert anchor("verify", "run1", "--store", tmp_path / "backup").code == 0
    sizes = [
        sum(path.stat().st_blocks for path in (tmp_path / name / "run1.zarr").rglob("*"))
        for name in ("store", "backup")
    ]
    assert sizes[1] <= 2 * sizes[0]
