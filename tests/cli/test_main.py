"""The app as a whole: its surface, its exit codes, and one line for every error."""

from __future__ import annotations

import functools
import shlex
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import typer.main

from anchor_cli.commands import names
from anchor_cli.main import app
from anchor_server import Collector, ServerTLS, own_identity
from anchorlib.errors import CollectorError, MissingExtraError, UnknownTensorError
from tests.cli.made import COMMAND, anchor, environment, make_run, record, spawn

NARROWING = {"--step", "--pass", "--call", "--rank", "--phase", "--mode"}
SURFACE = {
    "serve": {
        "--store", "--bind", "--token-file", "--tls-cert", "--tls-key", "--self-signed",
        "--client-ca", "--insecure", "--durability", "--metrics-bind", "--log-format", "--json",
        "--max-streams", "--idle-timeout", "--max-run-size", "--access",
        "--max-run-inodes", "--max-runs", "--max-rate", "--read-only", "--check",
        "--archive", "--archive-after", "--keep-local", "--without-conditional-writes",
    },
    "token": {"name", "--rights", "--runs", "--access", "--json"},
    "compare": {
        "runs", "--noise", "--tensor", "-t", "--map", "--replay", "--ops",
        "--fail-on",
        "--csv", "--jsonl", "--html", "--junit", "--github",
        "--dask", "--store", "--json",
    },
    "ranks": {"run", "--tensor", "-t", "--store", "--json"},
    "report": {"runs", "--output", "-o", "--noise", "--store", "--json"},
    "ui": {"runs", "--bind", "--allow-host", "--insecure", "--store", "--json"},
    "verify": {"run", "--store", "--json"},
    "graft": {"run", "command", "--replay", "--fail-on", "--store", "--json"},
    "noise": {"run", "command", "--runs", "--eps", "--store", "--json"},
    "rm": {"runs", "--store", "--json"},
    "mv": {"old", "new", "--store", "--json"},
    "gc": {"--older-than", "--keep-last", "--max-size", "--dry-run", "--store", "--json"},
    "archive": {
        *("run", "--to", "--keep-local", "--dry-run", "--without-conditional-writes"),
        *("--store", "--json"),
    },
    "repair": {"run", "--as", "--drop-rank", "--dry-run", "--store", "--json"},
    "push": {"what", "--to", "--as", "--store", "--json"},
    "doctor": {"run", "--health", "--store", "--json"},
    "import": {"folder", "--run", "--step-pattern", "--overwrite", "--store", "--json"},
    "run": {"command", "--name", "--watch", "--mode", "--steps", "--phases", "--trace", "--store"},
    "ops": {"run", "--grep", "--stage", "--module", "--step", "--store", "--json"},
    "graph": {
        "run", "--output", "-o", "--against", "--stage", "--module", "--step", "--rank", "--store",
        "--json",
    },
    "runs": {"--store", "--json"},
    "status": {"where", "--archives", "--store", "--json"},
    "names": {"run", "selector", "--tree", "--store", "--json"},
    "tail": {"run", "selector", "--last", "-n", "--interval", "--store", "--json"},
    "export": {
        "run", "--tensorboard", "--wandb", "--mlflow", "--against", "--noise", "--csv", "--parquet",
        "--zarr", "--tensor", "-t", *NARROWING,
        "--store", "--json",
    },
    "pull": {"run", "--tensor", "-t", "--output", "-o", *NARROWING, "--store", "--json"},
    "hist": {
        "run", "--tensor", "-t", "--as", "--scale", "--output", "-o", *NARROWING, "--dask",
        "--store", "--json",
    },
    "stats": {"run", "--tensor", "-t", *NARROWING, "--all", "--dask", "--store", "--json"},
}  # fmt: skip


@functools.cache
def commands():
    return typer.main.get_command(app).commands


@pytest.fixture
def store(tmp_path):
    make_run(tmp_path, [record(step=step) for step in range(3)])
    return tmp_path


def test_the_commands_and_options_are_these():
    found = {
        name: {option for parameter in command.params for option in parameter.opts}
        for name, command in commands().items()
    }
    assert found == SURFACE


@pytest.mark.parametrize("command", SURFACE)
def test_every_help_has_an_example_that_parses(command):
    parsed = commands()[command]
    lines = [line.strip() for line in (parsed.epilog or "").splitlines()]
    examples = [line.partition(" | ")[0] for line in lines if line.startswith("anchor ")]
    assert examples
    for example in examples:
        program, name, *arguments = shlex.split(example)
        assert (program, name) == ("anchor", command)
        parsed.make_context(command, arguments)


@pytest.mark.parametrize("command", [None, *SURFACE])
def test_help_is_plain_text_with_its_examples_unwrapped(command):
    done = anchor(*filter(None, [command]), "--help")
    assert done.code == 0
    assert done.err == ""
    assert done.out.isascii()
    assert "\n    anchor " in done.out


@pytest.mark.slow
def test_help_loads_no_heavy_module():
    heavy = ("numpy", "zarr", "grpc", "torch", "matplotlib", "rich")
    code = (
        "import sys; from anchor_cli.main import main\n"
        "for arguments in (['--help'], ['hist', '--help'], ['serve', '--help'], ['--version']):\n"
        "    assert main(arguments) == 0\n"
        f"print([name for name in {heavy!r} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stderr == "[]\n"


@pytest.mark.parametrize(
    "command", [["names", "run1"], ["hist", "run1", "-t", "fc2.bias"], ["runs"]]
)
@pytest.mark.slow
def test_answers_load_neither_torch_nor_zarr_nor_grpc(store, command):
    code = (
        "import sys; from anchor_cli.main import main\n"
        f"assert main([*{command!r}, '--store', {str(store)!r}]) == 0\n"
        "print([m for m in ('torch', 'zarr', 'grpc') if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stderr == "[]\n"


def test_anchor_alone_shows_its_help_and_counts_as_wrong_usage():
    done = anchor()
    assert done.code == 2
    assert done.out == ""
    assert "Commands:" in done.err


def test_version_is_the_packages():
    import anchorlib

    done = anchor("--version")
    assert (done.code, done.out) == (0, f"anchor {anchorlib.__version__}\n")


def test_the_installed_command_is_main():
    project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["scripts"] == {"anchor": "anchor_cli.main:main"}


LONG = "9" * 5000
"""A number of more digits than Python reads."""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["names"], "missing argument 'RUN'; see `anchor names --help`"),
        (["hist", "run1"], "missing option '--tensor' / '-t'; see `anchor hist --help`"),
        (["nmaes"], "no such command 'nmaes'; did you mean 'names'? See `anchor --help`"),
        (
            ["compare", "run1", "run1", "--fail-on", "x"],
            "'--fail-on': 'x' is not one of 'suspect', 'unexpected'; see `anchor compare --help`",
        ),
        (["names", "run1", "--jsno"], "no such option: --jsno"),
        (["names", "--store"], "requires an argument; see `anchor names --help`"),
        (
            ["stats", "run1", "-t", "fc2.bias", "--pass", "-1"],
            "--pass '-1': give one number, 0 or more",
        ),
        (["stats", "run1", "-t", "fc2.bias", "--pass", "x"], "--pass 'x': give one number, 0 or"),
        (["pull", "run1", "-t", "fc2.bias", "--call", "1:2"], "as in --call 0"),
        (["hist", "run1", "-t", "fc2.bias", "--rank", ""], "--rank '': give one number"),
        (["hist", "run1", "-t", "x", "--as", "fp16", "--scale", "x"], "--scale 'x': give a num"),
        (["hist", "run1", "-t", "x", "--as", "fp16", "--scale", "-1"], "a scale is a positive"),
        (["stats", "run1", "-t", "fc2.bias", "--step", "5:3"], "--step 5:3 selects nothing"),
        (["stats", "run1", "-t", "fc2.bias", "--step", "x"], "--step 'x': give a step"),
        (["stats", "run1", "-t", "fc2.bias", "--step", "7"], "fc2.bias has no record at --step"),
        (["stats", "run1", "-t", "fc2.bias", "--phase", "eval"], "are of steps 0-2, phase train"),
        (["stats", "run1", "-t", "fc2.bias", "--pass", "9"], "are of steps 0-2, pass 0"),
        (["stats", "run1", "-t", "fc2.bias", "--call", LONG], f"--call '{LONG[:80]}"),
        (["stats", "run1", "-t", "fc2.bias", "--step", f"-{LONG}:"], "--step '-999"),
        (["run", "--steps", f"0:{LONG}", "--", "true"], "ANCHOR_STEPS (--steps of anchor run)"),
        (["serve", "--check", "--bind", f"127.0.0.1:{LONG}"], "is no address to listen on"),
        (["serve", "--check", "--bind", "[::1:0"], "'[::1:0' is no address to listen on"),
        (["serve", "--check", "--insecure", "--bind", "a..b:0"], "cannot listen on a..b:0"),
        (["stats", "run1", "-t", "fc2.bias", "--rank", "1"], "rank 1 recorded nothing in run1"),
        (["stats", "run1", "-t", "fc2.bias", "--mode", "sum"], "was recorded in mode sum"),
        (["stats", "run1", "-t", "fc2.bias", "--mode", "smu"], "unknown mode 'smu'"),
        (["names", "rnu1"], "no run 'rnu1'"),
        (["names", "run1", "fc2.bais"], "did you mean 'fc2.bias'?"),
        (["names", "run1", "--store", "nowhere"], "no store at nowhere"),
        (["names", "run1", "--store", ""], "it is empty; see `anchor names --help`"),
        (["serve", "--store", ""], "it is empty; see `anchor serve --help`"),
        (["names", "run1", ""], "a selector is empty"),
        (["names", "run1", "--store", "ftp://host"], "ftp:// cannot be read"),
        (["hist", "run1", "-t", "fc2.bias", "--as", "fp17"], "'fp17' (choices: fp16, bf16"),
        (["hist", "run1", "-t", "fc2.bias", "--scale", "2"], "--scale multiplies"),
        (["hist", "run1", "-t", "fc2.bias", "-o", "x.gif"], "choose .png, .html, .csv, .json"),
        (["pull", "run1", "-t", "fc2.bias", "-o", "x"], "choose .npz, .npy, .csv, .pt"),
    ],
)
def test_wrong_input_is_one_line_and_exit_2(store, arguments, said):
    where = [] if "--store" in arguments else ["--store", store]
    done = anchor(*arguments, *where)
    assert done.code == 2
    assert done.out == ""
    assert done.err.count("\n") == 1
    assert done.err.startswith("anchor: ")
    assert said in done.err


@pytest.mark.slow
def test_a_collector_that_is_not_there_is_exit_4_and_says_which():
    done = spawn("names", "run1", "--store", "grpc://127.0.0.1:1")
    assert done.returncode == 4
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "grpc://127.0.0.1:1" in done.stderr


@pytest.mark.parametrize("url", ["grpc://127.0.0.1", "grpc://127.0.0.1/", "grpc://127.0.0.1//"])
def test_a_url_without_a_run_says_how_one_is_written(url):
    done = anchor("names", url)
    said = "anchor: grpc://127.0.0.1 names no run: write grpc://127.0.0.1/run1\n"
    assert (done.code, done.err) == (2, said)


@pytest.mark.slow
def test_a_plain_client_on_a_tls_port_is_told_of_grpcs(store):
    pytest.importorskip("cryptography")
    identity = own_identity(store, "127.0.0.1")
    tls = ServerTLS(identity.cert_file, identity.key_file)
    with Collector(store, bind="127.0.0.1:0", tls=tls) as collector:
        done = spawn("names", "run1", "--store", f"grpc://{collector.address}")
        assert (done.returncode, done.stderr.count("\n")) == (4, 1)
        assert f"grpcs://{collector.address}" in done.stderr
        trusted = environment(ANCHOR_CA_FILE=str(identity.cert_file))
        done = spawn("names", "run1", "--store", f"grpcs://{collector.address}", env=trusted)
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UnknownTensorError("no tensor"), 2),
        (MissingExtraError("a PNG needs matplotlib"), 2),
        (CollectorError("refused"), 4),
        (KeyboardInterrupt(), 130),
    ],
)
def test_errors_have_their_exit_codes(store, monkeypatch, error, code):
    def fail(*_):
        raise error

    monkeypatch.setattr(names, "_entry", fail)
    done = anchor("names", "run1", "--store", store, "--json")
    assert done.code == code
    assert done.err == ("" if code == 130 else f"anchor: {error}\n")


def test_a_defect_is_one_line_with_its_own_exit_code(store, monkeypatch):
    def fail(*_):
        raise RuntimeError("of our own\nmaking")

    monkeypatch.setattr(names, "_entry", fail)
    monkeypatch.delenv("ANCHOR_DEBUG", raising=False)
    done = anchor("names", "run1", "--store", store, "--json")
    assert done.code == 70
    assert done.err.count("\n") == 1
    assert done.err.startswith("anchor: internal error: RuntimeError: of our own\\nmaking")
    assert "ANCHOR_DEBUG=1" in done.err


def test_a_defect_shows_its_traceback_on_request(store, monkeypatch):
    monkeypatch.setattr(names, "_entry", lambda *_: 1 // 0)
    monkeypatch.setenv("ANCHOR_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        anchor("names", "run1", "--store", store, "--json")


@pytest.mark.slow
def test_the_store_comes_from_the_environment_unless_given(store):
    done = spawn("names", "run1", env=environment(ANCHOR_STORE=str(store)))
    assert done.returncode == 0
    assert "fc2.bias" in done.stdout
    done = spawn("names", "run1", "--store", "nowhere", env=environment(ANCHOR_STORE=str(store)))
    assert done.returncode == 2


@pytest.mark.slow
def test_the_store_is_called_anchors_by_default(tmp_path):
    make_run(tmp_path / "anchors", [record()])
    assert spawn("names", "run1", cwd=tmp_path).returncode == 0


def test_a_run_may_be_given_by_its_path(store):
    by_path = anchor("names", store / "run1.zarr", "--json")
    assert by_path.json == anchor("names", "run1", "--store", store, "--json").json


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["--help"], ["stats", "run1", "-t", "fc2.bias"]])
def test_a_closed_pipe_ends_quietly(tmp_path, arguments):
    make_run(tmp_path, [record(step=step) for step in range(2000)])
    shell = subprocess.run(
        ["bash", "-c", '"$@" | head -n 1; exit ${PIPESTATUS[0]}', "bash", *COMMAND, *arguments],
        env=environment(ANCHOR_STORE=str(tmp_path)),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (shell.returncode, shell.stderr) == (0, "")
    assert shell.stdout.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_is_gone_before_the_first_byte_is_no_error(store, unbuffered):
    process = subprocess.Popen(
        [*COMMAND, "names", "run1", "--store", str(store)],
        env=environment(PYTHONUNBUFFERED=unbuffered),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    process.stdout.close()
    assert process.wait(60) == 0
    assert process.stderr.read() == b""
    process.stderr.close()


@pytest.mark.slow
def test_a_closed_stdout_is_no_error(store):
    shell = ["bash", "-c", '"$@" >&-', "bash", *COMMAND, "names", "run1", "--store", str(store)]
    done = subprocess.run(shell, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_behind_stdout_is_one_line(store, unbuffered):
    with Path("/dev/full").open("w") as full:
        done = spawn(
            *("names", "run1", "--store", store),
            capture_output=False, stdout=full, stderr=subprocess.PIPE,
            env=environment(PYTHONUNBUFFERED=unbuffered),
        )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr == "anchor: cannot write /dev/full: No space left on device\n"


@pytest.mark.slow
def test_ctrl_c_ends_a_command_with_130_and_no_word(store):
    code = (
        "import sys, time; from anchor_cli import main; from anchor_cli.commands import names\n"
        "def slow(*_): sys.stderr.write('here\\n'); sys.stderr.flush(); time.sleep(60)\n"
        "names._entry = slow\n"
        f"sys.exit(main.main(['names', 'run1', '--json', '--store', {str(store)!r}]))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr.readline() == "here\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        assert process.stdout.read() + process.stderr.read() == ""


@pytest.mark.slow
def test_what_the_library_logs_is_a_line_like_any_other(store):
    done = spawn("names", "run1", "Gradient___model.fc2.bias", "--store", store)
    assert done.returncode == 0
    assert done.stderr.startswith("anchor: ")
    assert "fc2.bias" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("command", sorted(commands()))
def test_the_usage_of_a_command_has_each_bracket_once(command):
    usage = anchor(command, "--help").out.partition("\n\n")[0]
    assert "[[" not in usage
    assert "......" not in usage
