"""`anchor export` to TensorBoard, W&B and MLflow: one content, read back by each of them."""

from __future__ import annotations

import json
import math
import os
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from anchor_cli.exports.export_source import ExportSource
from anchorlib.reading import open_run
from tests.cli.made import BIAS, HOSTILE, anchor, make_run, record, spawn

NORM = float(np.linalg.norm(BIAS))
NOWHERE = {"HTTPS_PROXY": "http://127.0.0.1:9", "HTTP_PROXY": "http://127.0.0.1:9"}
NEEDS = "needs the extra {0}: pip install 'anchorlib[{0}]'"


def scalar(value):
    return np.float32(value).reshape(())


@pytest.fixture
def store(tmp_path):
    """run1, and run2 that differs from it from step 1 on."""
    for run, factor in (("run1", 1), ("run2", 2)):
        records = [
            one
            for step in range(3)
            for one in (
                record("loss", "value", scalar(step), step=step, time_ns=10**9 * (step + 7)),
                record("fc2.bias", "grad", BIAS * (factor if step else 1), step=step),
            )
        ]
        make_run(tmp_path / "anchors", records, run)
    return tmp_path / "anchors"


def of_tensorboard(folder):
    """What was exported, and the verdict: {tag: {step: value}}, {tag: {step: bins}}, text."""
    found = EventAccumulator(str(folder), size_guidance=dict.fromkeys(("scalars", "histograms"), 0))
    found.Reload()
    tags = found.Tags()
    scalars = {tag: {one.step: one.value for one in found.Scalars(tag)} for tag in tags["scalars"]}
    bins = {
        tag: {one.step: dict(zip((int(e) - 1 for e in one.histogram_value.bucket_limit),
                                 one.histogram_value.bucket, strict=True))
              for one in found.Histograms(tag)}
        for tag in tags["histograms"]
    }  # fmt: skip
    texts = [one.tensor_proto.string_val[0].decode()
             for tag in tags["tensors"] for one in found.Tensors(tag)]  # fmt: skip
    return scalars, without_zeros(bins), "".join(texts)


def without_zeros(bins):
    return {
        tag: {step: {int(e): int(n) for e, n in one.items() if n} for step, one in steps.items()}
        for tag, steps in bins.items()
    }


def of_wandb(folder):
    """The same of an offline run, and its summary."""
    pytest.importorskip("wandb", reason=NEEDS.format("wandb"))
    scalars, bins, summary = {}, {}, {}
    for one in wandb_records(next(folder.glob("*.wandb"))):
        for item in one.summary.update:
            summary["/".join([item.key, *item.nested_key]).strip("/")] = json.loads(item.value_json)
        if not one.HasField("history"):
            continue
        row = {tuple(item.nested_key): json.loads(item.value_json) for item in one.history.item}
        step = row["_step",]
        for key, value in row.items():
            if key[0].startswith("_"):
                continue
            if len(key) == 1:
                scalars.setdefault(key[0], {})[step] = value
            elif key[1] == "values":
                pairs = zip(row[key[0], "bins"], value, strict=False)
                bins.setdefault(key[0], {})[step] = dict(pairs)
    return scalars, without_zeros(bins), summary


def wandb_records(path):
    """The records of a .wandb file: LevelDB's log, behind seven bytes of their own."""
    from wandb.proto import wandb_internal_pb2

    data, at, whole = path.read_bytes(), 7, b""
    while at < len(data):
        if (left := 32768 - at % 32768) < 7:
            at += left
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield wandb_internal_pb2.Record.FromString(whole)
            whole = b""


def of_mlflow(folder, run):
    """The same of a run of MLflow, and its tags."""
    pytest.importorskip("mlflow", reason=NEEDS.format("mlflow"))
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=str(folder))
    told = client.get_run(run)
    assert told.info.status == "FINISHED"
    scalars = {tag: {one.step: one.value for one in client.get_metric_history(run, tag)}
               for tag in told.data.metrics}  # fmt: skip
    bins = {}
    kept = Path(client.download_artifacts(run, ""))
    for file in kept.glob("histograms/*/*.jsonl"):
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        tag = str(file.relative_to(kept / "histograms").with_suffix(""))
        bins[tag] = {one["step"]: one["bins"] for one in lines}
    return scalars, without_zeros(bins), told.data.tags


def export(*arguments, **options):
    """Calls `anchor export` in a process that has the trackers loaded, which take seconds."""
    return spawn("export", *arguments, loaded=("mlflow", "wandb"), **options)


def exported(tmp_path, store, *options):
    """Exports run2 to all three; what each of them has."""
    pytest.importorskip("wandb", reason=NEEDS.format("wandb"))
    pytest.importorskip("mlflow", reason=NEEDS.format("mlflow"))
    places = ("--tensorboard", tmp_path / "tb", "--wandb", tmp_path / "wb", "--mlflow",
              tmp_path / "ml")  # fmt: skip
    command = ("run2", "--store", store, *places, "--json", *options)
    done = export(*command, env={**os.environ, **NOWHERE}, timeout=240)
    assert (done.returncode, done.stderr) == (0, "")
    said = json.loads(done.stdout)
    [offline], [run] = said["wandb_runs"], said["mlflow_runs"]
    assert Path(offline).parent == tmp_path / "wb" / "wandb"
    assert Path(offline).name.startswith("offline-run-")
    return said, (
        of_tensorboard(Path(said["tensorboard"])),
        of_wandb(Path(offline)),
        of_mlflow(tmp_path / "ml", run),
    )


@pytest.mark.slow
def test_all_three_have_the_same_numbers_norms_and_histograms(store, tmp_path):
    said, (board, weights, tracking) = exported(tmp_path, store)
    assert (said["scalars"], said["histograms"]) == (6, 3)
    expected = {
        "value/loss": {0: 0.0, 1: 1.0, 2: 2.0},
        "grad l2/fc2.bias": {0: NORM, 1: 2 * NORM, 2: 2 * NORM},
    }
    # BIAS is 0, 1/2, -1/4 and 3.
    twice = {-1: 1, 0: 1, 2: 1}
    bins = {"grad log2/fc2.bias": {0: {-2: 1, -1: 1, 1: 1}, 1: twice, 2: twice}}
    for scalars, histograms, _ in (board, weights, tracking):
        assert set(scalars) == set(expected)
        for tag, values in scalars.items():
            assert values == pytest.approx(expected[tag])
        assert histograms == bins
    assert board[2] == ""
    assert "anchor/verdict" not in weights[2]
    assert "anchor.verdict" not in tracking[2]


@pytest.mark.slow
def test_all_three_have_the_verdict_and_where_differences_grow(store, tmp_path):
    said, (board, weights, tracking) = exported(tmp_path, store, "--against", "run1")
    assert said["verdict"] == "unexpected"
    found = anchor("compare", "run1", "run2", "--store", store, "--json").json
    assert "UNEXPECTED" in board[2]
    assert found["sentence"] in board[2]
    for told, mark in ((weights[2], "anchor/{}"), (tracking[2], "anchor.{}")):
        assert told[mark.format("verdict")] == "unexpected"
        assert told[mark.format("against")] == "run1"
        assert told[mark.format("sentence")] == found["sentence"]
        assert int(told[mark.format("differing")]) == found["counts"]["differing"] == 2
    for scalars, _, _ in (board, weights, tracking):
        assert scalars["vs run1 differing/grad"] == {0: 0.0, 1: 1.0, 2: 1.0}
        assert scalars["vs run1 eps/grad"][2] > 1e6
    artifact = next((tmp_path / "ml").rglob("comparison.json"))
    assert json.loads(artifact.read_text())["verdict"] == "unexpected"


@pytest.mark.slow
def test_a_rank_is_a_run_of_its_own_and_what_is_not_finite_stays_so(tmp_path):
    pytest.importorskip("wandb", reason=NEEDS.format("wandb"))
    pytest.importorskip("mlflow", reason=NEEDS.format("mlflow"))
    values = [np.nan, -np.inf, 1.0]
    records = [record("loss", "value", scalar(v), step=step) for step, v in enumerate(values)]
    for rank in (0, 3):
        make_run(tmp_path, [*records, record(HOSTILE, "grad", BIAS)], rank=rank)
    places = ("--wandb", tmp_path / "wb", "--mlflow", tmp_path / "ml")
    done = export("run1", "--store", tmp_path, *places, "--json", timeout=240)
    assert (done.returncode, done.stderr) == (0, "")
    said = json.loads(done.stdout)
    assert (said["scalars"], said["histograms"]) == (8, 2)
    for offline, run in zip(said["wandb_runs"], said["mlflow_runs"], strict=True):
        for scalars, bins, _ in (of_wandb(Path(offline)), of_mlflow(tmp_path / "ml", run)):
            assert len(scalars) == 2
            found = [scalars["value/loss"][step] for step in range(3)]
            assert math.isnan(found[0])
            assert [float(one) for one in found[1:]] == [-math.inf, 1.0]
            [hostile] = bins
            assert hostile.isprintable()
    names = {one.run.display_name for offline in said["wandb_runs"]
             for one in wandb_records(next(Path(offline).glob("*.wandb"))) if one.HasField("run")
             }  # fmt: skip
    assert names == {"run1 rank 0", "run1 rank 3"}


def test_names_that_mlflow_cannot_have_stay_apart(tmp_path):
    from anchor_cli.exports.mlflow import _key

    names = ["a/b", "a.b", "a_b", "a:b", "../x", "..", "ü", "x" * 1000, f"{'x' * 999}y", HOSTILE]
    make_run(tmp_path, [record(name, "grad", BIAS) for name in names])
    run = ExportSource("run1", [open_run("run1", tmp_path).series(name, "grad") for name in names])
    keys = {_key(point) for point in run.points(0, lambda done, total: None)}
    assert len(keys) == 2 * len(names)
    for key in keys:
        group, _, name = key.partition("/")
        assert group in ("grad l2", "grad log2")
        assert name.strip("._") not in ("", "x" * 120)
        assert "/" not in name
        assert len(key) < 250
    assert "grad l2/a.b" in keys


def test_points_come_by_step_however_few_are_held_at_once(tmp_path, monkeypatch):
    records = [record(name, "grad", BIAS * step, step=step, pass_index=index)
               for step in range(12) for name in ("a", "b") for index in range(2)]  # fmt: skip
    make_run(tmp_path, records)
    run = open_run("run1", tmp_path)
    parts, ticks = ExportSource("run1", [run["a"], run["b"]]), []
    whole = list(parts.points(0, lambda *tick: ticks.append(tick)))
    monkeypatch.setattr("anchor_cli.exports.export_source._AT_ONCE", 1)
    assert list(parts.points(0, lambda *tick: ticks.append(tick))) == whole
    assert len(ticks) > 3
    steps = [point.step for point in whole]
    assert steps == sorted(steps)
    assert len({(point.tag, point.step) for point in whole}) == len(whole) == 48 + 44


@pytest.mark.parametrize("extra", ["wandb", "mlflow"])
def test_without_a_tracker_one_line_says_what_to_install(store, tmp_path, monkeypatch, extra):
    monkeypatch.setitem(sys.modules, extra, None)
    done = anchor("export", "run1", f"--{extra}", tmp_path / "x", "--store", store)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert f"pip install 'anchorlib[{extra}]'" in done.err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--csv", "x.csv", "--against", "run2"), "give --against with --tensorboard"),
        (("--tensorboard", "x", "--noise", "run2"), "give --against, too"),
        (("--tensorboard", "x", "--against", "run3"), "run3"),
    ],
)
def test_what_cannot_be_compared_is_one_line(store, options, said):
    done = anchor("export", "run1", *options, "--store", store)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert said in done.err


@pytest.mark.slow
@pytest.mark.parametrize("extra", ["wandb", "mlflow"])
def test_a_place_that_cannot_be_written_is_one_line(store, extra):
    pytest.importorskip(extra, reason=NEEDS.format(extra))
    done = export("run1", f"--{extra}", "/dev/null/x", "--store", store, timeout=240)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("anchor: cannot write /dev/null/x: ")


@pytest.mark.slow
@pytest.mark.parametrize("extra", ["wandb", "mlflow"])
def test_a_damaged_value_is_named_and_ends_an_export_with_3(store, tmp_path, extra):
    pytest.importorskip(extra, reason=NEEDS.format(extra))
    [chunk, *_] = sorted(store.glob("run1.zarr/rank0/forms/float32_4/value/c*"))
    data = bytearray(chunk.read_bytes())
    data[5] ^= 1
    chunk.write_bytes(data)
    done = export("run1", f"--{extra}", tmp_path / "x", "--store", store, timeout=240)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (3, "", 1)
    assert "fc2.bias@grad at step 0" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("uri", ["http://127.0.0.1:9", "nonsense://x"])
def test_a_tracking_uri_that_does_not_answer_is_one_line(store, uri):
    pytest.importorskip("mlflow", reason=NEEDS.format("mlflow"))
    done = export("run1", "--mlflow", uri, "--store", store, timeout=240)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith(f"anchor: cannot write {uri}: ")
