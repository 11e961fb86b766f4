"""`anchor run`: the command stays what it is, and what cannot be recorded is said in one line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import anchorlib
from tests.anchorlib.launch.launching import ANCHOR, PLAIN, Bench
from tests.warm import warm_python


def test_output_errors_and_exit_code_are_the_commands(typed):
    program = typed.program(
        "import sys\nprint(sys.argv[1:])\nprint('e', file=sys.stderr)\nsys.exit(7)"
    )
    done = typed.observed(program, "--name", "x", "--", "--lr", "0.1")
    assert (done.code, done.out, done.err) == (7, "['--name', 'x', '--', '--lr', '0.1']\n", "e\n")


def test_what_we_log_is_on_stderr_and_not_in_the_programs_own_log(warm):
    logs = "import logging, sys\nlogging.basicConfig(level=logging.INFO, stream=sys.stdout)\n"
    program = warm.program(logs + PLAIN + "\nlogging.info('mine')\n")
    done = warm.observed(program)
    assert done.out == warm.python(program).out
    weight, counted = done.err.splitlines()
    assert weight.startswith("anchor: a step of run run1 weighs ")
    assert counted.startswith("anchor: run run1: 3 steps ")


def test_a_step_of_a_megabyte_says_what_would_make_it_lighter_as_it_is_typed(warm):
    wide = PLAIN.replace("Linear(4, 8)", "Linear(4, 30_000)").replace("Linear(8,", "Linear(30_000,")
    done = warm.observed(warm.program(wide))
    weight, counted = done.err.splitlines()
    assert weight.startswith("anchor: a step of run run1 weighs ")
    assert "; lighter: --steps 0:100, --mode summary, --watch without " in weight
    assert counted.startswith("anchor: run run1: 3 steps ")


def test_a_program_that_changes_directory_is_recorded_where_it_began(warm):
    (warm.place / "elsewhere").mkdir()
    done = warm.observed(warm.program("import os\nos.chdir('elsewhere')\n" + PLAIN))
    assert warm.runs == ["run1"]
    assert done.err.endswith(", in anchors. See `anchor names run1`\n")
    assert not list((warm.place / "elsewhere").iterdir())


def test_a_store_that_cannot_be_is_refused_before_anything_runs(bench):
    (bench.place / "file").touch()
    program = bench.program("print('ran')")
    done = bench.anchor("run", "--store", "file/store", "--", sys.executable, program)
    assert (done.out, done.err.count("\n")) == ("", 1)
    assert done.err.startswith("anchor: cannot record into file/store: ")
    assert done.code != 0


def test_an_exception_leaves_its_traceback_and_a_closed_run(warm):
    done = warm.observed(warm.program(PLAIN + "\nraise RuntimeError('mine')"))
    assert done.code == 1
    assert "RuntimeError: mine" in done.err
    assert done.err.count("Traceback") == 1
    assert len(warm.run()["output@value"]) == 3
    assert json.loads(warm.anchor("runs", "--json").out)[0]["state"] == "closed"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_a_signal_ends_the_command_as_it_would_without_us(typed, number):
    program = typed.program(
        "import os, time\nprint(os.getpid(), flush=True)\nimport signal\n"
        "signal.signal(signal.SIGINT, signal.SIG_DFL)\ntime.sleep(60)"
    )
    words = [*ANCHOR, "run", "--", sys.executable, program]
    with subprocess.Popen(
        words, cwd=typed.place, env=typed.environment(), stdout=subprocess.PIPE, text=True
    ) as command:
        assert int(command.stdout.readline()) == command.pid  # it is the command
        time.sleep(0.2)
        command.send_signal(number)
        assert command.wait(30) == -number


def test_ctrl_c_reaches_the_program(typed):
    program = typed.program(
        "import time\ntry:\n    print('ready', flush=True)\n    time.sleep(60)\n"
        "except KeyboardInterrupt:\n    print('mine', flush=True)\n    raise SystemExit(3)"
    )
    words = [*ANCHOR, "run", "--", sys.executable, program]
    with subprocess.Popen(
        words, cwd=typed.place, env=typed.environment(), stdout=subprocess.PIPE, text=True
    ) as command:
        assert command.stdout.readline() == "ready\n"
        command.send_signal(signal.SIGINT)
        assert command.stdout.readline() == "mine\n"
        assert command.wait(30) == 3


def test_a_broken_pipe_ends_the_command_as_it_ends_others(typed):
    done = typed.anchor("run", "--", "sh", "-c", "yes | head -1")
    assert (done.code, done.out, done.err) == (0, "y\n", "")


def test_modules_and_scripts_with_a_shebang_are_recorded(warm, typed):
    package = warm.place / "pkg"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(PLAIN)
    for name, interpreter in (("fit", warm.interpreter), ("alone", typed.interpreter)):
        script = warm.place / name
        script.write_text(f"#!{interpreter}\n{PLAIN}")
        script.chmod(0o755)
    assert warm.observed("-m", "pkg", name="module").code == 0
    assert warm.anchor("run", "--name", "script", "--", "./fit").code == 0
    assert typed.anchor("run", "--name", "shell", "--", "sh", "-c", "./alone").code == 0
    assert warm.runs == ["module", "script", "shell"]


def test_a_run_that_nobody_names_has_the_scripts_name_and_the_time(warm):
    done = warm.observed(warm.program(PLAIN, "fit.py"), name=None)
    (name,) = warm.runs
    assert name.startswith("fit-20")
    assert f"`anchor names {name}`" in done.err


def test_the_command_that_is_recorded_makes_noise_runs(warm):
    warm.observed(warm.program(PLAIN), options=("--watch", "*@grad"))
    header = warm.run().header()
    assert header["command"][-6:] == [
        "run",
        "--watch",
        "*@grad",
        "--",
        warm.interpreter,
        "train.py",
    ]
    noise = warm.anchor("noise", "run1", "--runs", "1")
    assert noise.code == 0, noise.err
    assert warm.runs == ["run1", "run1-noise1"]
    compared = warm.anchor("compare", "run1", "run1", "--noise", "run1-noise1")
    assert compared.code == 0


def test_the_command_that_is_recorded_is_rerun_on_the_values_of_the_run(warm):
    program = warm.program(PLAIN)
    warm.observed(program, options=("--watch", "*"))
    line = ("run", "--watch", "*", "--", warm.interpreter, "train.py")
    grafted = warm.anchor("graft", "run1", "--", warm.interpreter, "-m", "anchor_cli", *line)
    assert grafted.code == 0, grafted.err
    assert warm.runs == ["run1", "run1-graft"]
    assert warm.run("run1-graft").header()["grafted"] == "run1"


def test_options_say_what_is_recorded(warm):
    options = ("--watch", "2@grad", "--watch", "*.bias@delta", "--mode", "summary")
    program = warm.program(PLAIN)
    done = warm.observed(program, options=(*options, "--steps", "1:3", "--phases", "train"))
    assert done.code == 0, done.err
    found = {(info.name, info.kind) for info in warm.run().tensors()}
    assert found == {("2", "grad"), ("0.bias", "delta"), ("2.bias", "delta"), ("loss", "value")}
    for info in warm.run().tensors():
        assert (info.mode, info.first_step, info.last_step) == ("summary", 1, 2)


def test_the_environment_names_what_is_watched(warm):
    program = warm.program(PLAIN)
    assert warm.observed(program, ANCHOR_WATCH="0@grad, 2.weight@delta").code == 0
    assert warm.names() == {"0", "2.weight", "loss"}


def test_a_selector_that_matches_nothing_is_told_once_and_the_others_record(warm):
    options = ("--watch", "3.bias@grad", "--watch", "2.bias@grad")
    done = warm.observed(warm.program(PLAIN), options=options)
    weight, unknown, last = sorted(done.err.splitlines())
    assert weight.startswith("anchor: a step of run run1 weighs ")
    assert unknown == "anchor: no tensor is named '3.bias@grad'; did you mean '2.bias@grad'?"
    assert last.startswith("anchor: run run1: ")
    assert warm.names() == {"2.bias", "loss"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--mode", "some"), "some"),
        (("--watch", "re:("), "re:("),
        (("--steps", "a:b"), "ANCHOR_STEPS"),
        (("--phases", ""), "--phases"),
        (("--phases", ","), "ANCHOR_PHASES (--phases of anchor run) names no phase"),
        (("--steps", " "), "--steps"),
        (("--trace", ""), "--trace"),
        (("--trace", "2:1"), "ANCHOR_TRACE"),
        (("--watch", ""), "selector"),
        (("--watch", "fc1", "--watch", ""), "selector"),
        (("--store", ""), "--store"),
        (("--name", "a/b"), "cannot name a run"),
        (("--name", "there"), "run there exists in anchors: choose another --name"),
    ],
)
def test_what_no_session_would_take_is_refused_before_anything_runs(bench, options, said):
    (bench.place / "anchors" / "there.zarr").mkdir(parents=True)
    done = bench.anchor("run", *options, "--", "echo", "ran")
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert done.err.startswith("anchor: ")
    assert said in done.err


@pytest.mark.parametrize("text", ["fc1,re:(", ",", " "])
def test_selectors_of_the_environment_are_checked(bench, text):
    done = bench.anchor("run", "--", "echo", "ran", ANCHOR_WATCH=text)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("anchor: ANCHOR_WATCH in the environment: ")
    assert done.err.count("\n") == 1


def test_a_program_whose_selectors_are_none_runs_and_is_told(bench):
    own = bench.program("import anchorlib\n" + PLAIN)
    done = bench.python(own, ANCHOR_WATCH="re:(")
    assert done.code == 0
    assert done.err.startswith("anchor: the program runs unobserved: ANCHOR_WATCH")
    assert bench.runs == []


@pytest.mark.parametrize(
    "text", ["[", "[]", "1", '{"process": "x"}', '{"watch": ["re:("]}', "[" * 9999]
)
def test_a_request_that_nobody_made_leaves_the_program_alone(warm, text):
    hook = Path(anchorlib.__file__).with_name("launch") / "hook"
    done = warm.python(warm.program(PLAIN), PYTHONPATH=str(hook), ANCHOR_LAUNCH=text)
    assert done.code == 0
    assert done.err.startswith("anchor: the program runs unobserved: ")
    assert done.err.count("\n") == 1
    assert warm.runs == []


def test_a_command_that_is_not_there_is_one_line(bench):
    done = bench.anchor("run", "--", "no-such-command")
    assert (done.code, done.out) == (2, "")
    assert done.err == "anchor: cannot run no-such-command: No such file or directory\n"


def test_a_script_without_its_python_is_told_what_to_type(bench):
    done = bench.anchor("run", "--", bench.program(PLAIN, "my train.py"))
    reason = "cannot run my train.py: No such file or directory"
    advice = "a script follows its Python: anchor run -- python 'my train.py'"
    assert (done.code, done.err) == (2, f"anchor: {reason}; {advice}\n")


def test_a_program_that_trains_nothing_is_told_so_if_it_uses_torch(typed):
    done = typed.observed("-c", "import torch")
    assert done.code == 0
    assert done.err.startswith("anchor: nothing was recorded: ")
    assert typed.observed("-c", "print(1)").err == ""


def test_a_process_without_torch_loads_nothing_of_ours(bench):
    code = (
        "import sys\n"
        "names = [n for n in sys.modules if n.split('.')[0] in ('anchorlib', 'numpy', 'torch')]\n"
        "print(names, [p for p in sys.path if 'launch' in p], 'json' in sys.modules)"
    )
    assert bench.observed("-c", code).out == bench.python("-c", code).out == "[] [] False\n"


def test_another_sitecustomize_runs_as_without_us(bench):
    (bench.place / "sitecustomize.py").write_text("import sys\nsys.theirs = __file__\n")
    code = "import sys, sitecustomize; print(sys.theirs == sitecustomize.__file__)"
    done = bench.observed("-c", code, PYTHONPATH=str(bench.place))
    assert (done.out, done.err) == ("True\n", "")


@pytest.mark.parametrize("option", ["-I", "-E", "-S", "-uE", "-Wignore"])
def test_a_python_that_cannot_be_observed_is_told_and_runs(bench, option):
    done = bench.observed(option, "-c", "print(1)")
    assert (done.code, done.out) == (0, "1\n")
    deaf = option != "-Wignore"
    assert done.err.count("ignores anchor run: the program runs unobserved\n") == deaf


def test_a_python_without_anchorlib_says_so_once_and_runs(bench):
    (bench.place / "torch.py").write_text("value = 5\n")  # what it would import
    code = (
        "import subprocess, sys\n"
        "sys.modules['anchorlib'] = None\n"  # as where it is not installed
        "import torch\n"
        "print(torch.value, torch.__spec__.loader.__class__.__name__, flush=True)\n"
        "subprocess.run([sys.executable, '-c', 'import sys; sys.modules[\"anchorlib\"] = None; "
        "import torch'])"
    )
    done = bench.observed("-c", code, PYTHONPATH=str(bench.place))
    assert (done.code, done.out) == (0, "5 SourceFileLoader\n")
    assert done.err.startswith(f"anchor: {sys.executable} cannot load anchorlib (")
    assert done.err.endswith("the program runs unobserved\n")
    assert done.err.count("\n") == 1


def test_a_session_of_the_programs_own_wins(warm):
    before = "import anchorlib\nanchorlib.start('theirs')\n" + PLAIN
    done = warm.observed(warm.program(before))
    assert done.code == 0
    ours, theirs = done.err.splitlines()
    assert ours.startswith("anchor: the program records run theirs itself: ")
    assert theirs.startswith("anchorlib: run theirs, rank 0: 3 steps, ended by SGD; 0 records")
    after = PLAIN.replace("for step", "import anchorlib\nanchorlib.start('later')\nfor step")
    done = warm.observed(warm.program(after), name="ours")
    assert done.code == 0
    ours, theirs = done.err.splitlines()
    assert ours.startswith("anchor: the program opens a session of its own, run later: ")
    assert ours.endswith("run ours ends with 0 records; `anchor rm ours` removes it")
    assert theirs.startswith("anchorlib: run later, rank 0: ")
    assert "later" in warm.runs


def test_a_session_of_the_same_name_takes_the_place_of_ours(warm):
    own = PLAIN.replace(
        "for step", "import anchorlib\nsession = anchorlib.start()\nsession.watch(model)\nfor step"
    )
    done = warm.observed(warm.program(own), name=None, ANCHOR_RUN="run1")
    assert done.code == 0, done.err
    assert len(warm.run()["output@value"]) == 3


def test_anchors_of_the_program_are_recorded_with_what_is_watched(warm):
    anchored = "import anchorlib\n" + PLAIN.replace(
        "    optimizer.zero_grad",
        "    anchorlib.anchor(loss * 2, 'double')\n    optimizer.zero_grad",
    )
    assert warm.observed(warm.program(anchored), name=None, ANCHOR_RUN="run1").code == 0
    assert {"double", "output", "loss"} <= warm.names()


def test_ANCHOR_DISABLED_leaves_the_program_alone(warm):  # noqa: N802  # the variable's name
    done = warm.observed(warm.program(PLAIN), ANCHOR_DISABLED="1")
    assert (done.code, done.err) == (0, "")
    assert warm.runs == []


def test_trainers_of_one_command_have_runs_of_their_own(warm):
    program = warm.program(PLAIN)
    both = f"{warm.interpreter} {program} && {warm.interpreter} {program}"
    done = warm.anchor("run", "--name", "run1", "--", "sh", "-c", both)
    assert done.code == 0
    assert warm.runs == ["run1", "run1-2"]
    assert "IDENTICAL" in warm.anchor("compare", "run1", "run1-2").out


RANKS = """
import os
import sys
import torch
import torch.distributed as dist
from torch import nn

def main(rank, place):
    # Kept: torch may wait for itself where a model is freed right after its last all-reduce.
    global model
    dist.init_process_group("gloo", init_method=f"file://{place}", rank=rank, world_size=2)
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(nn.Linear(3, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(2):
        optimizer.zero_grad()
        model(torch.full((2, 3), rank + 1.0)).sum().backward()
        optimizer.step()
    os.write(1, f"{model.module.weight.double().sum().item()!r}\\n".encode())  # in one piece
    dist.destroy_process_group()

if __name__ == "__main__":
    import torch.multiprocessing as mp
    mp.start_processes(main, args=(sys.argv[1],), nprocs=2, start_method=sys.argv[2])
"""


@pytest.mark.parametrize("method", [pytest.param("spawn", marks=pytest.mark.long), "fork"])
def test_processes_of_a_group_are_ranks_of_one_run(warm, method):
    done = warm.observed(warm.program(RANKS), warm.place / "meet", method)
    assert done.code == 0, done.err
    run = warm.run()
    assert run.ranks == [0, 1]
    assert warm.names() == {"output", "weight", "bias", "loss"}
    consumed = [run.series("weight", "grad", rank=rank).values().tolist() for rank in run.ranks]
    assert consumed[0] == consumed[1]  # DDP's average
    assert json.loads(warm.anchor("runs", "--json").out)[0]["state"] == "closed"


def test_torchrun_is_recorded_rank_by_rank(warm):
    program = warm.program(
        RANKS.replace('"gloo", init_method=f"file://{place}", rank=rank, world_size=2', '"gloo"')
        .partition("if __name__")[0] + "\nimport os\nmain(int(os.environ['RANK']), '')"
    )  # fmt: skip
    words = ["-m", "torch.distributed.run", "--nproc-per-node", "2", program]
    alone = warm.python(*words)
    done = warm.observed(*words)
    assert (done.code, done.out) == (0, alone.out), done.err
    run = warm.run()
    assert run.ranks == [0, 1]
    assert [len(run.series("weight", "grad", rank=rank)) for rank in run.ranks] == [2, 2]
    assert done.err.count("anchor: run run1: ") == 1


ACCELERATED = """
import os
import torch
from accelerate import Accelerator
from torch import nn

accelerator = Accelerator()
torch.manual_seed(accelerator.process_index)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer = accelerator.prepare(model, optimizer)
for step in range(3):
    loss = model(torch.randn(16, 4)).pow(2).mean()
    optimizer.zero_grad()
    accelerator.backward(loss)
    optimizer.step()
os.write(1, f"{next(model.parameters()).double().sum().item()!r}\\n".encode())  # in one piece
accelerator.end_training()
"""


@pytest.mark.parametrize("ranks", [1, 2])
def test_accelerate_launch_is_recorded_rank_by_rank(tmp_path, ranks):
    warm = Bench(tmp_path, warm_python("accelerate.commands.launch"))
    program = warm.program(ACCELERATED)
    # Several processes on a CPU: as on GPUs, of which the variable leaves none.
    options = ["--cpu"] if ranks == 1 else ["--multi_gpu"]
    options += ["--num_processes", ranks, "--num_machines", 1]
    options += ["--mixed_precision", "no", "--dynamo_backend", "no"]
    launch = ["-m", "accelerate.commands.launch", *options, program]
    done = warm.observed(*launch, options=("--watch", "*"), ACCELERATE_USE_CPU="true")
    assert (done.code, len(done.out.split())) == (0, ranks), done.err
    if ranks == 1:
        assert done.out == warm.python(program, ACCELERATE_USE_CPU="true").out
    assert {"0.weight", "2.bias", "output", "loss"} <= warm.names()
    run = warm.run()
    assert run.ranks == list(range(ranks))
    gradients = [run.series("2.bias", "grad", rank=rank) for rank in run.ranks]
    assert all(one.columns["step"].tolist() == [0, 1, 2] for one in gradients)
    assert all((one.values() == gradients[0].values()).all() for one in gradients)  # averaged
    assert sum(line.startswith("anchor: run run1: 3 steps") for line in done.said) == 1


FORKED = (
    PLAIN
    + """
import os
import multiprocessing as mp

def child():
    other = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.randn(16, 4)).sum().backward()
    other.step()

process = mp.get_context("fork").Process(target=child)
process.start()
process.join()
print(process.exitcode)
"""
)


def test_children_that_a_trainer_forks_are_left_alone(warm):
    done = warm.observed(warm.program(FORKED))
    assert done.out.endswith("\n0\n")
    assert warm.runs == ["run1"]
    assert len(warm.run()["output@value"]) == 3


@pytest.mark.skipif(sys.platform != "linux", reason="the recorder process is Linux's")
def test_a_trainer_that_is_killed_leaves_its_records(warm):
    killed = PLAIN.replace("print(repr", "import os; os.kill(os.getpid(), 9)\nprint(repr")
    done = warm.observed(warm.program(killed), ANCHOR_RECORDER="process")
    assert done.code == -signal.SIGKILL
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if Path(warm.place, "anchors", "run1.zarr").exists() and _recorded(warm) == 3:
            break
        time.sleep(0.2)
    assert _recorded(warm) == 3


def _recorded(bench):
    try:
        return len(bench.run()["2.bias@grad"])
    except (anchorlib.AnchorError, OSError):
        return 0


def test_no_variable_of_ours_is_left_for_programs_that_are_not_launched():
    assert "ANCHOR_LAUNCH" not in os.environ


def test_what_goes_wrong_in_looking_never_reaches_the_program(warm):
    broken = (
        "import torch, anchorlib.launch.auto_watcher as module\n"
        "def fails(*_): raise RuntimeError('of ours')\n"
        "module.AutoWatcher.constructed = module.AutoWatcher.wrapped = fails\n"
    )
    program = warm.program(broken + PLAIN + "torch.compile(model, backend='eager')\n")
    done = warm.observed(program)
    assert (done.code, done.out) == (0, warm.python(program).out)
    assert "anchor: a model is not observed: RuntimeError: of ours" in done.err
    assert "Traceback" not in done.err


def test_trace_records_the_operations_of_its_steps(warm):
    program = warm.program(PLAIN)
    done = warm.observed(program, options=["--trace", "1:2"])
    assert done.out == warm.python(program).out
    ops = warm.run().ops()
    assert {op.step for op in ops} == {1}
    assert {"forward", "backward", "accumulate", "optimizer"} == {op.stage for op in ops}
    assert [op.module for op in ops if op.op == "aten.tanh_backward.default"] == ["1"]


def test_a_trace_that_is_no_range_is_refused_before_anything_runs(bench):
    program = bench.program("print('ran')")
    done = bench.anchor("run", "--trace", "2", "--", sys.executable, program)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert "'0:2'" in done.err
