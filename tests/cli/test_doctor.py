"""`anchor doctor`: what would be recorded, and what to beware of."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata

import numpy as np
import pytest

from anchor_cli.checkups import destinations, installation
from anchor_cli.checkups.installation import VARIABLES
from anchor_server import Collector
from anchorlib.record import Edges, Flag, Gap, Parent
from anchorlib.store import Writer
from anchorlib.summary import SCANS
from tests.anchorlib.spool.spooling import Written
from tests.cli.made import HOSTILE, anchor, make_run, record
from tests.scans import loaded_scans
from tests.writing import put


@pytest.fixture(autouse=True)
def bare(tmp_path, monkeypatch):
    """No variable but the test's own, no spool but the test's own."""
    for name in (*VARIABLES, *installation.LAUNCHERS, installation.EMULATE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(autouse=True)
def _nothing_is_compiled(monkeypatch):
    monkeypatch.setattr(SCANS, "load", lambda: None)


@pytest.fixture(autouse=True)
def _no_recorder_is_asked_for(monkeypatch):
    monkeypatch.delenv("ANCHOR_RECORDER")


def doctor(*arguments):
    """The exit code, and (level, about) -> the finding."""
    done = anchor("doctor", *arguments, "--json")
    found = {(one["level"], one["about"]): one for one in done.json["findings"]}
    return done.code, found


def levels(found, about):
    return [level for level, what in found if what == about]


def test_a_sound_place_is_all_ok_and_each_finding_is_one_line(tmp_path):
    make_run(tmp_path, [record()])
    done = anchor("doctor", "run1", "--store", tmp_path)
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert all(line.startswith("ok      ") for line in lines)
    text = done.out
    for part in (
        f"torch {metadata.version('torch')}", f"zarr {metadata.version('zarr')}",
        f"grpcio {metadata.version('grpcio')}", f"{tmp_path} holds 1 run", " free, of which",
        "run1: closed, 1 record of 1 tensor", "gaps: none", "values: all finite",
    ):  # fmt: skip
        assert part in text, part
    told = anchor("doctor", "run1", "--store", tmp_path, "--json").json
    assert (told["broken"], told["beware"], told["run"]) == (0, 0, "run1")
    assert len(told["findings"]) == len(lines)
    assert set(told["findings"][0]) == {"level", "about", "text", "todo"}


def test_it_writes_nothing_and_needs_no_store_yet(tmp_path):
    code, found = doctor("--store", tmp_path / "not" / "yet")
    assert code == 0
    assert "will be made" in found["ok", "store"]["text"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_it_loads_no_torch(tmp_path):
    make_run(tmp_path, [record()])
    code = (
        "import sys; from anchor_cli.main import main; from anchorlib.summary import SCANS\n"
        "SCANS.load = lambda: None  # another process compiles them, for seconds\n"
        f"assert main(['doctor', 'run1', '--store', {str(tmp_path)!r}]) == 0\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=60)


def test_another_torch_than_the_tested_one_is_told(tmp_path, monkeypatch):
    version = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: version(name).replace("2.13", "2.99"))
    _, found = doctor("--store", tmp_path)
    assert "2.99" in found["beware", "torch"]["text"]


def test_packages_that_are_missing_or_too_old_are_broken(tmp_path, monkeypatch):
    monkeypatch.setattr(
        metadata,
        "requires",
        lambda _: ["zarr>=99.1", "absent-thing>=1", "numpy>=2", "pandas>=99; extra == 'pandas'"],
    )
    code, found = doctor("--store", tmp_path)
    assert code == 1
    broken = {about: one["todo"] for (level, about), one in found.items() if level == "broken"}
    assert broken == {
        "zarr": "pip install 'zarr>=99.1'",
        "absent-thing": "pip install 'absent-thing>=1'",
    }


@pytest.mark.slow
def test_tokens_are_masked_wherever_they_may_stand(tmp_path, monkeypatch):
    monkeypatch.setenv("ANCHOR_TOKEN", "s3cret")
    monkeypatch.setenv("ANCHOR_TOKN", "s3cret")
    monkeypatch.setenv("ANCHOR_STORE", "grpc://me:s3cret@127.0.0.1:1")
    done = anchor("doctor")
    assert "s3cret" not in done.out + done.err
    assert "s3cret" not in anchor("doctor", "--json").out
    assert "ANCHOR_TOKEN=***" in done.out
    assert "beware  ANCHOR_TOKN: no such variable is read; did you mean 'ANCHOR_TOKEN" in done.out


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ANCHOR_ON_FULL", "explode"),
        ("ANCHOR_RECORDER", "tape"),
        ("ANCHOR_RANKS", "0,first"),
        ("ANCHOR_RANKS", ","),
        ("ANCHOR_TENSORS", "fc1,re:("),
        ("ANCHOR_TENSORS", ","),
        ("ANCHOR_WATCH", "fc1,re:("),
        ("ANCHOR_SPOOL_LIMIT", "plenty"),
        ("ANCHOR_STEPS", "3-5"),
        ("ANCHOR_PHASES", ","),
        ("ANCHOR_RUN", "a/b"),
        ("ANCHOR_RUN", "\x1b[31m"),
    ],
)
def test_a_variable_that_no_session_takes_is_broken(tmp_path, monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    code, found = doctor("--store", tmp_path)
    assert code == 1
    assert levels(found, name) == ["broken"]
    assert found["broken", name]["text"].isprintable()


def test_a_token_file_that_others_can_read_is_broken(tmp_path, monkeypatch):
    file = tmp_path / "token"
    file.write_text("s3cret")
    file.chmod(0o644)
    monkeypatch.setenv("ANCHOR_TOKEN_FILE", str(file))
    code, found = doctor("--store", tmp_path)
    assert code == 1
    assert "chmod 600" in found["broken", "credentials"]["text"]


def test_variables_that_change_what_is_recorded_are_told(tmp_path, monkeypatch):
    monkeypatch.setenv("ANCHOR_DISABLED", "1")
    monkeypatch.setenv("ANCHOR_PERTURB", "1")
    monkeypatch.setenv("ANCHOR_GRAFT", "run1")
    monkeypatch.setenv("RANK", "3")
    code, found = doctor("--store", tmp_path)
    assert code == 0
    assert levels(found, "ANCHOR_DISABLED") == levels(found, "ANCHOR_PERTURB") == ["beware"]
    assert levels(found, "ANCHOR_GRAFT") == ["beware"]
    assert "RANK=3" in found["ok", "environment"]["text"]


def test_a_store_that_cannot_be_is_broken(tmp_path, monkeypatch):
    file = tmp_path / "file"
    file.touch()
    make_run(tmp_path, [record()])
    for place in (file, tmp_path / "run1.zarr"):
        code, found = doctor("--store", place)
        assert (code, levels(found, "store")) == (1, ["broken"])
    monkeypatch.setattr(os, "access", lambda *_: False)
    code, found = doctor("--store", tmp_path)
    assert (code, levels(found, "store")) == (1, ["broken"])


@pytest.mark.parametrize(("free", "level", "code"), [(40, "broken", 1), (60, "beware", 0)])
def test_a_disk_that_is_nearly_full_is_told(tmp_path, monkeypatch, free, level, code):
    true = os.statvfs

    def nearly_full(path):
        parts = list(true(path))
        parts[1], parts[2], parts[4] = 1 << 20, 1000, free  # frsize, blocks, bavail
        return os.statvfs_result(parts)

    monkeypatch.setattr(destinations.os, "statvfs", nearly_full)
    done, found = doctor("--store", tmp_path)
    assert (done, levels(found, "disk")) == (code, [level])


def test_a_spool_that_nobody_delivers_is_told_with_the_line_that_does(tmp_path, monkeypatch):
    place = tmp_path / "spools"
    monkeypatch.setenv("ANCHOR_SPOOL", str(place))
    left = Written(place)
    left.put(range(20))
    _, found = doctor("--store", tmp_path)
    assert "alive" in found["ok", "spool"]["text"]
    left.die()
    code, found = doctor("--store", tmp_path)
    assert code == 0
    finding = found["beware", "spool"]
    assert "run1 rank 0" in finding["text"]
    line = finding["todo"].split("`")[1]
    assert line.startswith(f"anchor push {left.folder} --to ")
    done = anchor(*line.split()[1:-1], tmp_path / "store")
    assert done.code == 0
    _, found = doctor("--store", tmp_path)
    assert levels(found, "spool") == []


@pytest.mark.slow
def test_a_collector_is_asked_whether_it_is_well(tmp_path):
    with Collector(tmp_path, bind="127.0.0.1:0") as collector:
        make_run(tmp_path, [record()])
        place = f"grpc://{collector.address}"
        code, found = doctor("run1", "--store", place)
        assert code == 0
        assert "serves 1 run" in found["ok", "collector"]["text"]
        assert "remote sessions spool in" in found["ok", "spool"]["text"]
        assert ("ok", "run1") in found
        collector._health.say(serving=False)
        _, found = doctor("--store", place)
        assert levels(found, "collector") == ["beware"]
    code, found = doctor("run1", "--store", place)
    assert code == 1
    assert levels(found, "collector") == levels(found, "run1") == ["broken"]


def test_health_is_0_while_a_collector_serves_and_4_else(tmp_path):
    with Collector(tmp_path, bind="127.0.0.1:0") as collector:
        place = f"grpc://{collector.address}"
        done = anchor("doctor", "--health", place, "--json")
        assert (done.code, done.json["state"]) == (0, "SERVING")
        assert anchor("doctor", "--health", place).out.startswith(f"{place} serves")
        assert anchor("doctor", "--health", collector.address).out.startswith(f"{place} serves")
        assert anchor("doctor", "run1", "--health", place).code == 2
        collector._health.say(serving=False)
        done = anchor("doctor", "--health", place)
        assert (done.code, done.out) == (4, "")
        assert "says NOT_SERVING" in done.err
    assert anchor("doctor", "--health", place).code == 4
    assert anchor("doctor", "--health", collector.address).code == 4
    assert anchor("doctor", "--health", "127.0.0.1:0").code == 2
    assert (
        anchor("doctor", "--health", "nonsense").code == anchor("doctor", "--health", "").code == 2
    )


def test_a_run_without_a_record_is_not_called_sound(tmp_path):
    make_run(tmp_path, [])
    code, found = doctor("run1", "--store", tmp_path)
    assert (code, levels(found, "run1")) == (0, ["beware"])
    assert "0 records of 0 tensors" in found["beware", "run1"]["text"]


def test_an_unknown_run_is_exit_2(tmp_path):
    make_run(tmp_path, [record()])
    done = anchor("doctor", "run2", "--store", tmp_path)
    assert (done.code, done.out) == (2, "")
    assert "did you mean 'run1'" in done.err


def test_gaps_are_exit_3_each_with_reason_steps_and_what_to_do(tmp_path):
    gaps = [
        Gap("fc2.bias", "grad", "all", "queue full", 3, 1, 4),
        Gap(HOSTILE, "grad", "all", "max_bytes", 1, 7, 7),
    ]
    make_run(tmp_path, [record()], gaps=gaps)
    done = anchor("doctor", "run1", "--store", tmp_path)
    assert done.code == 3
    lines = [line for line in done.out.splitlines() if "gaps: " in line]
    assert "3 records of fc2.bias@grad missing or without values, steps 1-4 (queue" in lines[0]
    assert "queue_bytes=" in lines[0]
    assert "max_bytes=" in lines[1]
    assert all(line.isprintable() for line in done.out.splitlines())
    assert "tensors: " in done.out  # nothing at all came of the hostile one


def test_a_run_that_its_process_left_is_told_with_and_without_its_name(tmp_path):
    writer = Writer.open(tmp_path, "run1", 0)
    put(writer, [record()])
    assert doctor("run1", "--store", tmp_path)[1]["ok", "run1"]["text"].startswith("being written")
    assert ("beware", "open runs") not in doctor("--store", tmp_path)[1]
    writer.abandon()
    code, found = doctor("run1", "--store", tmp_path)
    assert code == 0
    assert "resume=True" in found["beware", "run1"]["todo"]
    assert found["beware", "open runs"]["text"].startswith("run1 left")


def test_the_first_record_that_is_not_finite_is_named(tmp_path):
    odd = np.array([np.nan, np.inf, 1], np.float32)
    make_run(
        tmp_path,
        [
            record(step=0),
            record(HOSTILE, raw=odd, step=2),
            record("fc1", raw=odd, step=3, flags=Flag.STEP_SKIPPED),
        ],
    )
    code, found = doctor("run1", "--store", tmp_path)
    assert code == 0
    text = found["beware", "values"]["text"]
    assert text.startswith("2 records with NaN or infinities, first ")
    assert "at step 2; 1 of them in steps that GradScaler skipped" in text
    assert text.isprintable()


@pytest.mark.parametrize(
    ("dtype", "op", "header", "level"),
    [
        ("bfloat16", "CompiledFunctionBackward", {}, ["beware"]),
        ("bfloat16", "CompiledFunctionBackward", {"emulate": True}, ["ok"]),
        ("bfloat16", "TanhBackward0", {}, []),
        ("float32", "CompiledFunctionBackward", {}, []),
        ("float32", "CompiledFunctionBackward", {"autocast": "float16"}, ["beware"]),
    ],
)
def test_compiled_low_precision_without_emulated_casts_is_told(tmp_path, dtype, op, header, level):
    names = {"emulate": "torch.compile.emulate_precision_casts", "autocast": "torch.autocast.cpu"}
    told = {names[key]: value for key, value in header.items()}
    raw = np.ones(2, np.uint16 if dtype == "bfloat16" else np.float32)
    with Writer.open(tmp_path, "run1", 0, header={"torch": "2.13.0+cpu", **told}) as writer:
        put(writer, [record("y", "value", raw, dtype=dtype)])
        writer.edges([Edges("y", "train", 0, 0, (2,), parents=(Parent("x"),), ops=(op,),
                            inputs=((-1,),))])  # fmt: skip
    _, found = doctor("run1", "--store", tmp_path)
    assert levels(found, "precision") == level
    if level == ["beware"]:
        assert installation.EMULATE in found["beware", "precision"]["todo"]


def test_broken_wins_over_gaps(tmp_path, monkeypatch):
    make_run(tmp_path, [record()], gaps=[Gap("x", "grad", "all", "queue full", 3, 1, 4)])
    monkeypatch.setenv("ANCHOR_ON_FULL", "explode")
    assert doctor("run1", "--store", tmp_path)[0] == 1


@pytest.mark.slow
def test_summaries_are_compiled_here_or_the_doctor_says_why_not(tmp_path, monkeypatch):
    monkeypatch.setattr(SCANS, "load", loaded_scans().load)
    _, found = doctor("--store", tmp_path)
    assert found["ok", "summaries"]["text"] == f"compiled by numba {metadata.version('numba')}"


def test_it_says_whether_summaries_are_compiled(tmp_path, monkeypatch):
    version = metadata.version("numba")
    _, found = doctor("--store", tmp_path)
    assert found["ok", "summaries"]["text"] == f"compiled by numba {version}"

    monkeypatch.setattr(SCANS, "load", lambda: "OSError: no \x1b[31mroom")
    code, found = doctor("--store", tmp_path)
    assert code == 0
    assert found["beware", "summaries"]["text"] == (
        f"by numpy, as numba {version} compiles nothing here (OSError: no \\x1b[31mroom)"
    )

    monkeypatch.setattr(installation, "_version", lambda name: None if name == "numba" else "9")
    _, found = doctor("--store", tmp_path)
    assert "anchorlib[fast]" in found["ok", "summaries"]["text"]
