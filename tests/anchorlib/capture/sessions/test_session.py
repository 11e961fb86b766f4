"""Sessions: opening, naming, resuming, reading back, closing."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch
from torch import nn

import anchorlib
from anchorlib import All, EveryN, Final, ModeError, Sum, Summary
from tests.recording import trouble
from tests.warm import warm_python


@pytest.fixture
def store(tmp_path, monkeypatch):
    for name in list(os.environ):
        if name.startswith(("ANCHOR_", "TORCHELASTIC_", "SLURM_")) or name == "RANK":
            monkeypatch.delenv(name)
    monkeypatch.setenv("ANCHOR_RECORDER", "thread")
    return tmp_path / "anchors"


def record_ones(run, store, steps, **options):
    with anchorlib.start(run, store=store, **options) as session:
        for _ in range(steps):
            anchorlib.anchor(torch.ones(3), "x")
            session.step()
    return session


def test_a_session_records_into_a_run_that_open_run_reads(store):
    session = record_ones("run1", store, 3)
    run = anchorlib.open_run("run1", store)
    assert run["x@value"].values().tolist() == [[1, 1, 1]] * 3
    assert run["x@value"].columns["step"].tolist() == [0, 1, 2]
    assert run.state == "closed"
    assert session.counters == anchorlib.capture.Counters(records=3, bytes=36)


def test_the_default_store_is_anchors_in_the_working_directory(store, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    record_ones("run1", None, 1)
    assert (tmp_path / "anchors" / "run1.zarr").is_dir()


def test_a_second_session_is_refused_until_the_first_is_closed(store):
    with (
        anchorlib.start("run1", store=store),
        pytest.raises(anchorlib.SessionError, match="'run1' is active"),
    ):
        anchorlib.start("run2", store=store)
    anchorlib.start("run2", store=store).close()


def test_a_session_is_active_at_once_without_with(store):
    session = anchorlib.start("run1", store=store)
    anchorlib.anchor(torch.ones(1), "x")
    session.close()
    session.close()
    assert len(anchorlib.open_run("run1", store)["x@value"]) == 1
    with pytest.raises(anchorlib.SessionError, match="closed"):
        session.step()


def test_the_name_is_as_given_or_the_environments_or_the_jobs_or_a_time_stamp(store, monkeypatch):
    def name_of(run=None):
        session = anchorlib.start(run, store=store)
        session.close()
        return session.run

    assert re.fullmatch(r"\d{8}-\d{6}-\d{3}", name_of())
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    assert name_of() == "4711"
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "job/7")
    assert name_of() == "job-7"
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "--job")
    assert name_of() == "job"
    monkeypatch.setenv("ANCHOR_RUN", "from-env")
    assert name_of() == "from-env"
    assert name_of("given") == "given"


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "x" * 65, "sp ace", "../up"])
def test_a_run_name_that_cannot_be_one_is_a_value_error(store, name):
    with pytest.raises(ValueError, match="name a run") as caught:
        anchorlib.start(name, store=store)
    assert isinstance(caught.value, anchorlib.AnchorError)


def test_a_rank_that_exists_is_refused_unless_resumed_or_overwritten(store):
    record_ones("run1", store, 2)
    with pytest.raises(anchorlib.RunExistsError, match="resume"):
        anchorlib.start("run1", store=store)
    record_ones("run1", store, 1, rank=1)
    record_ones("run1", store, 5, overwrite=True)
    run = anchorlib.open_run("run1", store)
    assert len(run.series("x", rank=0)) == 5
    assert len(run.series("x", rank=1)) == 1


def test_a_resumed_run_is_the_next_attempt_and_goes_on_counting_its_order(store):
    record_ones("run1", store, 3)
    record_ones("run1", store, 2, resume=True, first_step=2)
    everything = anchorlib.open_run("run1", store).series("x", attempts=True)
    assert everything.columns["step"].tolist() == [0, 1, 2, 2, 3]
    assert everything.columns["attempt"].tolist() == [0, 0, 0, 1, 1]
    assert everything.columns["order"].tolist() == [0, 1, 2, 3, 4]
    seen = anchorlib.open_run("run1", store)["x@value"]
    assert seen.columns["step"].tolist() == [0, 1, 2, 3]
    assert seen.columns["attempt"].tolist() == [0, 0, 1, 1]


def test_a_restart_by_torchrun_resumes_by_itself(store, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "job")
    record_ones(None, store, 1)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    record_ones(None, store, 1)
    assert anchorlib.open_run("job", store).series("x", attempts=True).columns[
        "attempt"
    ].tolist() == [0, 1]


def test_a_job_that_slurm_requeued_resumes_by_itself(store, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    monkeypatch.setenv("SLURM_PROCID", "1")
    record_ones(None, store, 1)
    with pytest.raises(anchorlib.RunExistsError):
        record_ones(None, store, 1)
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    record_ones(None, store, 1)
    series = anchorlib.open_run("4711", store).series("x", rank=1, attempts=True)
    assert series.columns["attempt"].tolist() == [0, 1]


@pytest.mark.parametrize("told", ["9" * 5000, "²", "-1", "one"])
def test_a_count_of_restarts_that_is_none_is_no_restart(store, monkeypatch, told):
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", told)
    record_ones("run1", store, 1)
    with pytest.raises(anchorlib.RunExistsError):
        record_ones("run1", store, 1)


@pytest.mark.parametrize("name", ["first_step", "queue_bytes", "max_bytes"])
def test_a_number_that_no_file_could_hold_is_refused(store, name):
    with pytest.raises(anchorlib.OptionError, match=f"{name} is a whole number below 2"):
        anchorlib.start("run1", store=store, **{name: 1 << 63})


@pytest.mark.parametrize("attributes", [3, "rate", [("rate", 0.1)]])
def test_attributes_that_have_no_names_are_refused(store, attributes):
    with pytest.raises(anchorlib.OptionError, match="attributes is names and their values"):
        anchorlib.start("run1", store=store, attributes=attributes)


def test_windows_are_absolute_after_a_resume_too(store):
    for first, steps in ((0, 7), (7, 7)):
        with anchorlib.start("run1", store=store, resume=first > 0, first_step=first) as session:
            for _ in range(steps):
                anchorlib.anchor(torch.ones(1), "x", Sum(5))
                session.step()
    columns = anchorlib.open_run("run1", store)["x@value"].columns
    assert columns["step"].tolist() == [4, 6, 9, 13]
    assert columns["count"].tolist() == [5, 2, 3, 4]


def test_the_rank_comes_from_the_argument_the_launcher_or_is_zero(store, monkeypatch):
    record_ones("run1", store, 1)
    monkeypatch.setenv("SLURM_PROCID", "3")
    record_ones("run1", store, 1)
    monkeypatch.setenv("RANK", "2")
    record_ones("run1", store, 1)
    record_ones("run1", store, 1, rank=7)
    assert anchorlib.open_run("run1", store).ranks == [0, 2, 3, 7]


def test_other_ranks_record_nothing_and_leave_nothing(store, monkeypatch):
    session = record_ones("run1", store, 1, rank=1, ranks=[0, 2])
    assert session.counters.records == 0
    monkeypatch.setenv("ANCHOR_RANKS", "0,2")
    record_ones("run1", store, 1, rank=1)
    record_ones("run1", store, 1, rank=2)
    assert anchorlib.open_run("run1", store).ranks == [2]


def test_a_disabled_session_does_everything_but_record(store, monkeypatch):
    monkeypatch.setenv("ANCHOR_DISABLED", "1")
    model = nn.Linear(2, 2)
    with anchorlib.start("run1", store=store) as session:
        session.watch(model, tensors="*")
        model(torch.ones(1, 2)).sum().backward()
        session.step()
        session.flush()
        assert session.tensors() == []
    assert not store.exists()
    assert not model._forward_hooks


def test_the_environment_chooses_store_tensors_and_mode_of_full(store, monkeypatch):
    monkeypatch.setenv("ANCHOR_STORE", str(store))
    monkeypatch.setenv("ANCHOR_TENSORS", "a, b@value")
    with anchorlib.start("run1") as session:
        for name in "abc":
            anchorlib.anchor(torch.ones(1), name)
        assert [info.name for info in session.tensors()] == ["a", "b"]
    monkeypatch.setenv("ANCHOR_ON_FULL", "wait")
    with pytest.raises(anchorlib.OptionError, match="block, drop, raise"):
        anchorlib.start("run2")


@pytest.mark.parametrize(
    "options",
    [
        {"rank": -1},
        {"rank": "0"},
        {"first_step": -1},
        {"queue_bytes": 0},
        {"max_bytes": -5},
        {"max_bytes": 0},
        {"durability": "forever"},
        {"on_full": "wait"},
        {"mode": "every"},
        {"resume": True, "overwrite": True},
    ],
    ids=str,
)
def test_a_wrong_argument_is_refused_before_anything_is_made(store, options):
    with pytest.raises(ValueError, match=r"\w") as caught:
        anchorlib.start("run1", store=store, **options)
    assert isinstance(caught.value, anchorlib.AnchorError)
    assert not store.exists()
    anchorlib.start("run1", store=store).close()


@pytest.mark.parametrize("tensors", ["", ["a", ""]])
def test_an_empty_selector_is_refused_before_anything_is_made(store, tensors):
    with pytest.raises(anchorlib.UnknownTensorError, match="a selector is empty"):
        anchorlib.start("run1", store=store, tensors=tensors)
    assert not store.exists()


def test_an_empty_store_is_refused():
    with pytest.raises(anchorlib.OptionError, match="store is a directory"):
        anchorlib.start("run1", store="")


def test_a_store_of_an_unknown_scheme_is_refused(store):
    with pytest.raises(anchorlib.AnchorError, match="grpc://host:port"):
        anchorlib.start("run1", store="ftp://somewhere")


def test_a_store_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("hello")
    with pytest.raises(anchorlib.StoreError):
        anchorlib.start("run1", store=tmp_path / "file")


def test_tensors_lists_what_was_seen_in_execution_order(store):
    w = torch.ones(2, requires_grad=True)
    with anchorlib.start("run1", store=store) as session:
        for rows in (2, 3):
            h = w * torch.ones(rows, 1)
            anchorlib.anchor(h, "h")
            anchorlib.anchor(h.sum(), "s", Summary)
            h.sum().backward()
        seen = session.tensors()
    assert [(t.name, t.kind, t.mode, t.records, t.bytes) for t in seen] == [
        ("h", "value", "all", 2, 40),
        ("s", "value", "summary", 2, 0),
        ("h", "grad", "all", 2, 40),
    ]
    assert seen[0].shape == (None, 2)
    assert [t[:6] for t in map(_listed, seen)] == [
        t[:6] for t in map(_listed, anchorlib.open_run("run1", store).tensors())
    ]


def _listed(info):
    return info.name, info.kind, info.mode, info.dtype, info.shape, info.records


def test_latest_is_the_callers_own_copy_of_what_the_mode_emitted_last(store):
    with anchorlib.start("run1", store=store) as session:
        for value in range(1, 6):
            anchorlib.anchor(torch.full((2,), float(value)), "x", EveryN(2))
            session.step()
        mine = session.latest("x")
        assert mine.tolist() == [4.0, 4.0]
        mine[:] = 0
        assert session.latest("x").tolist() == [4.0, 4.0]
        with pytest.raises(anchorlib.UnknownTensorError, match="did you mean"):
            session.latest("y")
        with pytest.raises(anchorlib.UnknownTensorError):
            session.latest("x", "grad")


def test_latest_of_a_summary_says_that_values_were_not_kept(store):
    with anchorlib.start("run1", store=store, mode=Summary) as session:
        anchorlib.anchor(torch.ones(2), "x")
        with pytest.raises(anchorlib.ValuesNotKeptError):
            session.latest("x")


def test_after_a_flush_any_reader_sees_what_was_captured(store):
    zarr = pytest.importorskip("zarr")
    with anchorlib.start("run1", store=store) as session:
        for n in range(1, 4):
            anchorlib.anchor(torch.full((2,), float(n)), "x")
            session.flush()
            group = zarr.open_group(store / "run1.zarr", mode="r")
            assert group["rank0/forms/float32_2/value"][:].tolist() == [
                [float(k)] * 2 for k in range(1, n + 1)
            ]
            assert len(anchorlib.open_run("run1", store)["x@value"]) == n


def test_what_was_captured_is_in_the_store_soon_without_a_flush(store):
    import time

    with anchorlib.start("run1", store=store):
        anchorlib.anchor(torch.ones(2), "x")
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            try:
                found = len(anchorlib.open_run("run1", store)["x@value"])
            except anchorlib.AnchorError:
                found = 0
            if found:
                break
        assert found == 1


def test_attributes_and_a_header_are_stored_with_the_run(store):
    record_ones("run1", store, 1, attributes={"note": "first try", "lr": 0.1})
    header = anchorlib.open_run("run1", store).header()
    assert header["user.note"] == "first try"
    assert header["torch"] == torch.__version__
    assert header["torch.threads"] == torch.get_num_threads()


HEADER = """
python platform host pid command git.commit numpy torch torch.cuda torch.device torch.threads
torch.cpu_capability torch.default_dtype torch.deterministic torch.float32_matmul_precision
torch.cuda.matmul.fp32_precision torch.cudnn.deterministic torch.cudnn.benchmark
torch.cudnn.allow_tf32 torch.cudnn.conv.fp32_precision torch.autocast.cpu torch.initial_seed
torch.compile.emulate_precision_casts env.RANK env.WORLD_SIZE
"""


def test_the_header_tells_what_a_run_depends_on(store, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    torch.use_deterministic_algorithms(True)
    try:
        torch.manual_seed(7)
        with torch.autocast("cpu", torch.bfloat16):
            anchorlib.start("run1", store=store).close()
    finally:
        torch.use_deterministic_algorithms(False)
    header = anchorlib.open_run("run1", store).header()
    assert set(HEADER.split()) <= header.keys()
    assert header["torch.deterministic"] is True
    assert header["torch.initial_seed"] == 7
    assert header["torch.autocast.cpu"] == "bfloat16"
    assert (header["env.RANK"], header["env.WORLD_SIZE"]) == ("0", "1")


@pytest.mark.slow
def test_precisions_that_were_set_in_torchs_newer_way_are_no_trouble(store):
    program = """if True:
        import sys, torch, anchorlib
        torch.backends.fp32_precision = "tf32"
        torch.backends.cudnn.conv.fp32_precision = "ieee"
        anchorlib.start("run1", store=sys.argv[1]).close()
    """
    subprocess.run([warm_python(), "-c", program, str(store)], check=True)
    header = anchorlib.open_run("run1", store).header()
    assert header["torch.cuda.matmul.fp32_precision"] == "tf32"
    assert header["torch.cudnn.conv.fp32_precision"] == "ieee"
    assert header["torch.float32_matmul_precision"] is None


def test_an_exception_in_training_comes_through_and_the_run_is_closed(store):
    def train():
        with anchorlib.start("run1", store=store):
            anchorlib.anchor(torch.ones(2), "x", Sum("run"))
            anchorlib.anchor(torch.ones(3), "x", Sum("run"))
            anchorlib.anchor(torch.ones(2), "y")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train()
    run = anchorlib.open_run("run1", store)
    assert run.state == "closed"
    assert len(run["y@value"]) == 1


def test_close_raises_what_could_not_be_raised_inside_the_model(store):
    session = anchorlib.start("run1", store=store)
    anchorlib.anchor(torch.ones(2), "x", Sum("run"))
    anchorlib.anchor(torch.ones(3), "x", Sum("run"))
    anchorlib.anchor(torch.ones(2), "y")
    with pytest.raises(ModeError, match="shapes"):
        session.close()
    assert len(anchorlib.open_run("run1", store)["y@value"]) == 1


def test_what_was_skipped_is_a_gap_in_the_store(store):
    with anchorlib.start("run1", store=store) as session:
        anchorlib.anchor(torch.ones(2, device="meta"), "x")
        anchorlib.anchor(torch.ones(2), "y")
    (gap,) = anchorlib.open_run("run1", store).gaps()
    assert (gap.name, gap.reason, gap.count) == ("x", "meta", 1)
    assert session.counters.skipped == {"meta": 1}
    assert session.counters.gaps == 1


@pytest.mark.slow
def test_a_step_that_weighs_much_is_told_once(store, caplog):
    with anchorlib.start("run1", store=store, mode=Final("run")) as session:
        anchorlib.anchor(torch.zeros(17_000_000), "x", All)
        session.step()
        session.step()
    assert caplog.text.count("weighs 68 MB") == 1


def run_script(text, python=None, **env):
    script = textwrap.dedent(text)
    clean = {k: v for k, v in os.environ.items() if not k.startswith("ANCHOR_")}
    return subprocess.run(
        [python or warm_python(), "-W", "error", "-c", script],
        env={**clean, **env},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.slow
def test_with_anchor_run_set_the_first_anchor_starts_the_session(store):
    done = run_script(
        """
        import torch, anchorlib
        w = torch.ones(2, requires_grad=True)
        optimizer = torch.optim.SGD([w], lr=0.1)
        for _ in range(3):
            loss = anchorlib.anchor((w * w).sum(), "loss")
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        """,
        ANCHOR_RUN="auto",
        ANCHOR_STORE=str(store),
    )
    assert (done.returncode, trouble(done.stderr)) == (0, "")
    run = anchorlib.open_run("auto", store)
    assert run["loss@value"].columns["step"].tolist() == [0, 1, 2]
    assert run["loss@grad"].columns["step"].tolist() == [0, 1, 2]
    assert run.state == "closed"


@pytest.mark.slow
def test_an_auto_start_that_cannot_be_warns_and_trains_on(store):
    record_ones("auto", store, 1)
    done = run_script(
        """
        import torch, anchorlib
        for _ in range(3):
            anchorlib.anchor(torch.ones(1), "x")
        print("trained")
        """,
        ANCHOR_RUN="auto",
        ANCHOR_STORE=str(store),
    )
    assert done.returncode == 0
    assert done.stdout == "trained\n"
    assert done.stderr.count("nothing is recorded") == 1


NO_STORE = """
import errno, fcntl, os, sys, torch, anchorlib
from anchorlib.store.write import writer

def fail(*args, **kwargs):
    code = getattr(errno, sys.argv[1]) if sys.argv[1] in errno.errorcode.values() else 0
    raise OSError(code, os.strerror(code)) if code else ZeroDivisionError("a defect")

if sys.argv[1] == "ENOLCK":
    fcntl.flock = fail
else:
    writer.make_store = fail
"""


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["EROFS", "ENOLCK", "EACCES", "EIO", "defect"])
def test_a_store_that_cannot_be_is_one_warning_where_the_environment_asked(store, fault):
    done = run_script(
        f"""
        import sys; sys.argv[1:] = [{fault!r}]
        exec({NO_STORE!r})
        for _ in range(3):
            anchorlib.anchor(torch.ones(1), "x")
        print("trained")
        """,
        ANCHOR_RUN="auto",
        ANCHOR_STORE=str(store),
    )
    assert (done.returncode, done.stdout) == (0, "trained\n")
    assert done.stderr.count("nothing is recorded") == done.stderr.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "todo"),
    [("EROFS", "choose a store"), ("ENOLCK", "grants no locks"), ("EACCES", "choose a store")],
)
def test_a_store_that_cannot_be_is_one_line_where_start_was_called(store, fault, todo):
    done = run_script(
        f"""
        import sys; sys.argv[1:] = [{fault!r}]
        exec({NO_STORE!r})
        try:
            anchorlib.start("run1", store={str(store)!r})
        except OSError as told:
            print(isinstance(told, anchorlib.AnchorError), told)
        anchorlib.anchor(torch.ones(1), "x")
        """
    )
    assert (done.returncode, done.stderr, done.stdout.count("\n")) == (0, "", 1)
    assert done.stdout.startswith("True cannot open run 'run1' in ")
    assert todo in done.stdout


@pytest.mark.slow
def test_without_a_session_an_anchor_does_nothing(store):
    done = run_script(
        """
        import torch, anchorlib
        anchorlib.anchor("not even a tensor", "")
        print(torch.ones(1).sum().item())
        """,
        ANCHOR_STORE=str(store),
    )
    assert done.stdout == "1.0\n"
    assert not store.exists()


@pytest.mark.slow
def test_a_process_that_ends_without_closing_leaves_a_closed_run(store):
    done = run_script(
        """
        import torch, anchorlib
        session = anchorlib.start("run1")
        for _ in range(100):
            anchorlib.anchor(torch.ones(1000), "x")
            session.step()
        """,
        ANCHOR_STORE=str(store),
    )
    assert (done.returncode, trouble(done.stderr)) == (0, "")
    run = anchorlib.open_run("run1", store)
    assert run.state == "closed"
    assert len(run["x@value"]) == 100


@pytest.mark.slow
def test_a_killed_process_with_a_recorder_thread_loses_at_most_what_waited_in_its_queue(store):
    done = run_script(
        """
        import os, signal, torch, anchorlib
        session = anchorlib.start("run1", recorder="thread")
        for n in range(50):
            anchorlib.anchor(torch.full((100,), float(n)), "x")
            session.step()
        session.flush()
        anchorlib.anchor(torch.ones(100), "x")
        os.kill(os.getpid(), signal.SIGKILL)
        """,
        ANCHOR_STORE=str(store),
    )
    assert done.returncode == -9
    series = anchorlib.open_run("run1", store)["x@value"]
    assert len(series) in (50, 51)
    assert np.array_equal(series.values()[:50, 0], np.arange(50.0))


@pytest.mark.slow
def test_forked_data_loader_workers_record_nothing_and_do_not_hang(store):
    done = run_script(
        """
        import json, torch, anchorlib

        class Data(torch.utils.data.Dataset):
            def __len__(self):
                return 8
            def __getitem__(self, n):
                anchorlib.anchor(torch.ones(2), "inside")
                return torch.full((2,), float(n))

        if __name__ == "__main__":
            with anchorlib.start("run1") as session:
                loader = torch.utils.data.DataLoader(
                    Data(), num_workers=2, multiprocessing_context="fork"
                )
                for x in loader:
                    anchorlib.anchor(x, "outside")
                    session.step()
                print(json.dumps([t.name for t in session.tensors()]))
        """,
        ANCHOR_STORE=str(store),
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == ["outside"]


@pytest.mark.slow
def test_importing_anchorlib_imports_no_torch_zarr_or_grpc():
    done = run_script(
        """
        import sys, anchorlib, anchor_server, anchor_cli.main
        from anchorlib import All, open_run, log2_histogram
        log2_histogram([1.0, 2.0])
        print([m for m in ("torch",) if m in sys.modules])
        """,
        python=sys.executable,
    )
    assert done.stdout == "[]\n", done.stderr


@pytest.mark.slow
def test_the_bare_import_is_light():
    done = run_script(
        """
        import sys, anchorlib
        print([m for m in ("torch", "zarr", "grpc", "google.protobuf") if m in sys.modules])
        """,
        python=sys.executable,
    )
    assert done.stdout == "[]\n", done.stderr


@pytest.mark.parametrize("name", ["", "x" * 1025, 3])
def test_a_phase_has_a_name_like_any_other(store, name):
    with (
        anchorlib.start("run1", store=store) as session,
        pytest.raises(anchorlib.InvalidNameError),
        session.phase(name),
    ):
        pass
