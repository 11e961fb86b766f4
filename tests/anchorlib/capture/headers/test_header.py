"""A run's header: the command without secrets, and what only training shows."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
from torch import nn

import anchorlib
from anchorlib.capture import active_session
from anchorlib.capture.headers import header
from anchorlib.capture.headers.header import _device, command, run_header
from anchorlib.capture.headers.hyperparameters import hyperparameters
from tests.recording import recording


@pytest.mark.parametrize(
    ("typed", "kept"),
    [
        (["python", "train.py", "--lr", "0.1"], ["python", "train.py", "--lr", "0.1"]),
        (["python", "-u", "-m", "pkg.train"], ["python", "-u", "-m", "pkg.train"]),
        (["python", "t.py", "--token", "abc"], ["python", "t.py", "--token", "***"]),
        (["python", "t.py", "-c", "a.yaml"], ["python", "t.py", "-c", "a.yaml"]),
    ],
)
def test_a_command_is_kept_as_it_was_typed_but_for_secrets(typed, kept):
    assert command(typed) == kept


@pytest.mark.parametrize("option", ["-c", "-Ic"])
def test_code_on_the_command_line_is_masked_whole(option):
    typed = ["python", "-u", option, "login('s3cret')", "--lr", "0.1"]
    assert command(typed, inline=True) == ["python", "-u", option, "***", "--lr", "0.1"]


@pytest.mark.parametrize(
    ("cuda", "accelerator", "told"),
    [
        (None, None, "cpu"),
        (None, torch.device("xpu"), "xpu"),
        (None, torch.device("mps", 0), "mps:0"),
        ("NVIDIA H200", torch.device("cuda", 0), "NVIDIA H200"),
    ],
)
def test_a_header_names_the_gpu_else_the_kind_of_accelerator(monkeypatch, cuda, accelerator, told):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda is not None)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: cuda)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: accelerator is not None)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: accelerator)
    assert _device() == told


def train(*, compiled=None, dtype=None, scaler=None):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = torch.compile(model, backend=compiled) if compiled else model
    session = active_session()
    assert session is not None
    session.watch(model, optimizer=optimizer)
    with torch.autocast("cpu", enabled=dtype is not None, dtype=dtype):
        loss = run(torch.ones(3, 4)).float().sum()
    (loss if scaler is None else scaler.scale(loss)).backward()
    optimizer.step() if scaler is None else scaler.step(optimizer)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "learned"),
    [
        ({}, {}),
        ({"compiled": "aot_eager"}, {"torch.backend": "aot_eager"}),
        ({"dtype": torch.bfloat16}, {"amp.autocast": "bfloat16"}),
        (
            {"compiled": "eager", "dtype": torch.float16},
            {"torch.backend": "eager", "amp.autocast": "float16"},
        ),
    ],
)
def test_the_header_learns_what_training_used(how, learned):
    with recording() as seen:
        train(**how)
    assert learnt(seen) == learned


@pytest.mark.parametrize("there", [True, False])
def test_the_header_learns_where_tensors_lie_on_machines_with_an_accelerator(monkeypatch, there):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: there)
    with recording() as seen:
        train()
    assert learnt(seen) == ({"tensors.device": "cpu"} if there else {})


def learnt(seen):
    """What the header learned of training, but for optimizers, modules, starts and histories."""
    return {
        key: value
        for key, value in seen.sink.entries.items()
        if key.partition(".")[0]
        not in ("history", "optimizer", "module", "modules", "starts", "steps")
    }


@pytest.mark.parametrize("enabled", [False, True])
def test_the_header_learns_of_a_grad_scaler_that_scales(enabled):
    with recording() as seen:
        train(scaler=torch.amp.GradScaler("cpu", enabled=enabled))
    assert learnt(seen) == ({"amp.grad_scaler": True} if enabled else {})


@pytest.mark.slow
def test_compare_tells_what_each_run_was_compiled_by(tmp_path):
    torch.manual_seed(0)
    for run, compiled in (("a", None), ("b", "aot_eager")):
        with anchorlib.start(run, store=tmp_path):
            train(compiled=compiled)
    assert anchorlib.open_run("a", tmp_path).header()["torch.backend"] == "eager"
    differences = anchorlib.compare("a", "b", store=tmp_path).to_dict()["config_diff"]
    assert differences == {"torch.backend": ["eager", "aot_eager"]}


def optimizer_of(groups, **options):
    return torch.optim.Adam(
        [{"params": [nn.Parameter(torch.zeros(1))], **group} for group in groups], **options
    )


def test_hyperparameters_are_told_once_where_groups_agree_and_one_by_one_where_not():
    told = hyperparameters(optimizer_of([{}, {"lr": 0.5}], lr=0.25, betas=(0.5, 0.75)))
    assert told["optimizer"] == "Adam"
    assert told["optimizer.groups"] == 2
    assert told["optimizer.lr"] == [0.25, 0.5]
    assert told["optimizer.betas"] == [0.5, 0.75]
    assert not {"optimizer.params", "optimizer.amsgrad", "optimizer.foreach"} & told.keys()
    assert json.loads(json.dumps(told)) == told


def test_a_learning_rate_that_is_a_tensor_is_told_as_a_number():
    told = hyperparameters(optimizer_of([{}], lr=torch.tensor(0.25), foreach=False), which=1)
    assert told["optimizer2"] == "Adam"
    assert told["optimizer2.lr"] == 0.25


def test_compare_tells_that_an_optimizer_was_set_otherwise(tmp_path):
    for run, rate in (("a", 0.25), ("b", 0.5)):
        torch.manual_seed(0)
        model = nn.Linear(2, 1)
        with anchorlib.start(run, store=tmp_path) as session:
            optimizer = torch.optim.SGD(model.parameters(), lr=rate)
            session.watch(model, optimizer=optimizer)
            session.watch(model, optimizer=optimizer)
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
    assert anchorlib.open_run("a", tmp_path).header()["optimizer"] == "SGD"
    differences = anchorlib.compare("a", "b", store=tmp_path).config_diff
    assert differences == {"optimizer.lr": (0.25, 0.5)}


def test_variables_that_libraries_of_arithmetic_read_are_told_and_no_others(monkeypatch):
    told = {
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8", "OMP_NUM_THREADS": "3", "MKL_CBWR": "AVX2",
        "NVIDIA_TF32_OVERRIDE": "0", "PYTORCH_JIT": "0", "TORCHINDUCTOR_FREEZING": "1",
    }  # fmt: skip
    untold = {"TORCH_HOME": "/x", "MY_OWN": "1", "HF_TOKEN": "hf_abcdefgh1J", "LD_PRELOAD": "a.so"}
    for name, value in (told | untold | {"TORCH_API_KEY": "hunter2"}).items():
        monkeypatch.setenv(name, value)
    header = run_header({})
    assert {f"env.{name}": value for name, value in told.items()}.items() <= header.items()
    assert not {f"env.{name}" for name in untold} & header.keys()
    assert header["env.TORCH_API_KEY"] == "***"


def test_a_switch_of_an_optimizer_that_is_off_reads_false(tmp_path):
    for name, amsgrad in (("a", False), ("b", True)):
        model = torch.nn.Linear(2, 2)
        optimizer = torch.optim.AdamW(model.parameters(), amsgrad=amsgrad)
        with anchorlib.start(name, store=tmp_path) as session:
            session.watch(model, optimizer=optimizer)
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert found.to_dict()["config_diff"]["optimizer.amsgrad"] == [False, True]


def test_the_commit_is_that_of_the_program_with_a_mark_where_files_differ(tmp_path, monkeypatch):
    told = getattr(header._git_commit, "__wrapped__", header._git_commit)  # tests ask git once
    script = tmp_path / "train.py"
    script.write_text("1\n")
    monkeypatch.setattr(sys, "argv", [str(script)])
    assert told() is None

    def git(*words):
        who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        done = subprocess.run(
            ["git", *who, *words], cwd=tmp_path, check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    git("init", "-q")
    git("add", "train.py")
    git("commit", "-qm", "The program")
    commit = git("rev-parse", "HEAD")
    assert told() == commit
    script.write_text("2\n")
    assert told() == f"{commit}+"
