"""Completion, by the protocol of the shells: they ask by environment variables, answers are lines.

bash cuts words at = : and @ before it asks, and replaces its own last word by an answer. A real
bash asks a process; the other questions are answered in this one.
"""

from __future__ import annotations

import io
import os
import pty
import re
import select
import subprocess
import threading
import time
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anchor_cli.arguments import complete
from anchor_cli.arguments.bash import Question
from anchor_cli.main import main
from anchor_server import Collector
from tests.cli.made import COMMAND, make_run, record

ANCHOR = Path(COMMAND[0]).with_name("anchor")


@pytest.fixture
def store(tmp_path):
    kinds = [("fc.bias", "grad"), ("fc.bias", "value"), ("fc.weight", "grad"), ("conv", "grad")]
    records = [record(name, kind) for name, kind in kinds]
    make_run(tmp_path, [*records, record("conv", mode="sum:window=10"), record(phase="eval")])
    return tmp_path


def ask(words: str, place: int | None = None, **env: str) -> list[str]:
    """What bash is answered; COMP_CWORD is the last of `words` (parted by blanks) or `place`."""
    return answered(
        _ANCHOR_COMPLETE="complete_bash",
        COMP_WORDS=words,
        COMP_CWORD=str(len(words.split(" ")) - 1 if place is None else place),
        **env,
    ).split()


def answered(**variables: str) -> str:
    """What `anchor` writes where a shell asks by these variables; it has nothing to complain of."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit):
            main([])
    assert err.getvalue() == ""
    return out.getvalue()


FC = ["fc.bias@grad", "fc.bias@value", "fc.weight@grad"]


def test_run_names_are_offered(store):
    make_run(store, [record()], run="other")
    assert ask("anchor names ru", ANCHOR_STORE=str(store)) == ["run1"]


def test_both_runs_of_a_comparison_and_its_noise_are_offered(store):
    make_run(store, [record()], run="run2")
    for words in ("anchor compare ru", "anchor compare run1 ru", "anchor compare a b --noise ru"):
        assert ask(words, ANCHOR_STORE=str(store)) == ["run1", "run2"], words
    words = "anchor compare run1 run2 --tensor fc."
    assert ask(words, ANCHOR_STORE=str(store)) == FC


@pytest.mark.parametrize(
    "words",
    [
        "anchor hist run1 --tensor fc.",
        "anchor hist run1 -t fc.",
        "anchor hist run1 --tensor=fc.",
        "anchor hist run1 --tensor = fc.",  # as bash itself asks it
        "anchor hist run1 --tensor 'fc.",
        "anchor hist run1 -t conv -t fc.",
        "anchor hist run1 --step :10 --as fp16 --tensor fc.",
        "anchor hist run1 --step : 10 --json --tensor fc.",
        "anchor pull run1 -o x.npz --tensor fc.",
        "anchor stats run1 --pass 0 --tensor fc.",
        "anchor names run1 conv fc.",
    ],
)
def test_selectors_are_offered_as_a_word_of_their_own_and_behind_an_equals_sign(store, words):
    assert ask(words, ANCHOR_STORE=str(store)) == FC
    assert ask(words.replace(" ", "\n"), words.count(" "), ANCHOR_STORE=str(store)) == FC


@pytest.mark.parametrize("command", ["hist", "pull", "stats"])
def test_the_store_on_the_line_goes_before_that_of_the_environment(store, command):
    nowhere = {"ANCHOR_STORE": str(store / "nowhere")}
    assert ask(f"anchor {command} run1 --store {store} --tensor fc.", **nowhere) == FC
    assert ask(f"anchor {command} --store={store} run1 --tensor fc.", **nowhere) == FC
    assert ask(f"anchor {command} {store}/run1.zarr --tensor fc.", **nowhere) == FC


@pytest.mark.parametrize(
    ("words", "place"),
    [
        ("anchor hist --tensor fc. run1 --store STORE", 3),
        ("anchor hist run1 --tensor fc. --store STORE", 4),
        ("anchor hist --tensor=fc. --store STORE run1", 2),
        ("anchor names run1 fc. --store STORE", 3),
    ],
)
def test_what_stands_behind_the_cursor_is_known(store, words, place):
    assert ask(words.replace("STORE", str(store)), place) == FC


def test_an_argument_behind_the_cursor_does_not_take_its_place(store):
    assert ask(f"anchor names ru conv --store {store}", 2) == ["run1"]


def test_the_only_run_need_not_be_named_yet(store):
    assert ask("anchor hist --tensor fc.", ANCHOR_STORE=str(store)) == FC
    make_run(store, [record()], run="other")
    assert ask("anchor hist --tensor fc.", ANCHOR_STORE=str(store)) == []


@pytest.mark.parametrize(
    ("words", "answers"),
    [
        ("anchor hist run1 --as e", ["e4m3", "e5m2"]),
        ("anchor hist run1 -t conv --mode ", ["all", "sum:window=10"]),
        ("anchor stats run1 -t conv --mode su", ["sum:window=10"]),
        ("anchor pull run1 --phase e", ["eval"]),
        ("anchor pull run1 --phase ", ["eval", "train"]),
    ],
)
def test_formats_modes_and_phases_are_offered(store, words, answers):
    assert ask(words, ANCHOR_STORE=str(store)) == answers


@pytest.mark.parametrize(
    ("words", "answers"),
    [
        ("anchor hist run1 -t fc.bias @ g", ["@grad"]),
        ("anchor hist run1 -t fc.bias @", ["@grad", "@value"]),
        ("anchor hist run1 --tensor = fc.bias @ g", ["@grad"]),
        ("anchor hist run1 --mode sum :", ["window=10"]),
        ("anchor hist run1 --mode sum : window =", ["10"]),
    ],
)
def test_bash_gets_what_takes_the_place_of_its_own_word(store, words, answers):
    assert ask(words, ANCHOR_STORE=str(store)) == answers


def test_a_collector_is_asked_too(store):
    with Collector(store, bind="127.0.0.1:0") as collector:
        host, port = collector.address.split(":")
        assert ask(f"anchor hist run1 --store grpc://{host}:{port} --tensor fc.") == FC
        assert ask(f"anchor hist grpc : //{host} : {port}/run1 --tensor fc.") == FC


@pytest.mark.parametrize(
    "words",
    [
        "anchor names x", "anchor hist nothing --tensor f", "anchor names grpc://x:1/ru",
        "anchor hist nothing --phase ", "anchor hist nothing --mode ", "anchor hist run1 'a b",
    ],
)  # fmt: skip
def test_an_error_offers_nothing_and_says_nothing(tmp_path, words):
    assert ask(words, ANCHOR_STORE=str(tmp_path / "nowhere")) == []


class Context:
    """What typer hands to a completion."""

    def __init__(self, **params):
        self.params, self.args = params, []


def test_a_name_that_a_shell_could_obey_is_not_offered():
    names = ["good", "go\nrm", "go\x1b[0m", "bad"]
    assert complete._NamedRun(Context()).offer(lambda _: names, "go") == ["good"]


def test_a_silent_collector_does_not_keep_the_shell_waiting(monkeypatch):
    monkeypatch.setattr(complete, "_PATIENCE", 0.05)
    waiting = threading.Event()
    assert complete._NamedRun(Context()).offer(lambda _: waiting.wait(10) and [], "") == []
    waiting.set()


@pytest.mark.slow
def test_imports_are_not_part_of_the_patience(store, monkeypatch):
    def slow(name):
        time.sleep(0.5)

    monkeypatch.setattr(complete, "import_module", slow)
    monkeypatch.setattr(complete, "_PATIENCE", 0.4)
    assert complete.selectors(Context(store=str(store), run="run1"), "fc.") == FC


@pytest.mark.parametrize("shell", ["zsh", "fish", "powershell"])
@pytest.mark.parametrize("words", ["--tensor fc.w", "--tensor=fc.w"])
def test_other_shells_are_answered_too(store, shell, words):
    line = f"anchor hist run1 {words}"
    variables = {
        "_ANCHOR_COMPLETE": f"complete_{shell}",
        "_TYPER_COMPLETE_ARGS": line,
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
        "_TYPER_COMPLETE_WORD_TO_COMPLETE": line.rpartition(" ")[2],
        "ANCHOR_STORE": str(store),
    }
    assert re.findall(r"[\w.]+@\w+", answered(**variables)) == ["fc.weight@grad"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_for_a_shell_is_shown(shell):
    assert "_ANCHOR_COMPLETE" in answered(_ANCHOR_COMPLETE=f"source_{shell}")


words = st.text("ab.*/1", min_size=1, max_size=6)


@given(st.lists(st.lists(words, min_size=1, max_size=4), min_size=1, max_size=4), st.data())
def test_words_are_put_together_as_they_were_typed(parts, data):
    signs = [data.draw(st.sampled_from(["=", ":", "@", "=:"])) for _ in parts]
    typed = [sign.join(pieces) for sign, pieces in zip(signs, parts, strict=True)]
    raw = [piece for word in typed for piece in re.split("([=:@]+)", word)]
    question = Question.of("\n".join(["anchor", "names", *raw]), len(raw) + 1)
    assert question.words == ["anchor", "names", *typed]
    replaced = typed[-1].removeprefix(question.kept)
    cut = len(parts[-1]) > 1
    assert replaced == ("@" if cut and signs[-1] == "@" else "") + parts[-1][-1]
    assert question.kept == "" or cut


@contextmanager
def typing(store):
    """An interactive bash that completes `anchor`; send it keys, get what it writes."""
    terminal, theirs = pty.openpty()
    env = {"PATH": f"{ANCHOR.parent}:{os.environ['PATH']}", "TERM": "dumb", "PS1": "$ "}
    process = subprocess.Popen(
        ["bash", "--norc", "--noprofile", "-i"],
        env={**env, "ANCHOR_STORE": str(store), "HOME": str(store)},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)

    def send(keys: str, until: str) -> str:
        os.write(terminal, keys.encode())
        seen, deadline = "", time.monotonic() + 30
        while until not in seen:
            assert time.monotonic() < deadline, seen
            if select.select([terminal], [], [], 0.1)[0]:
                seen += os.read(terminal, 1 << 16).decode()
        return seen

    try:
        send('eval "$(_ANCHOR_COMPLETE=source_bash anchor)"; echo re""ady\n', "ready\r\n")
        yield send
    finally:
        process.kill()
        process.wait(30)
        os.close(terminal)


FORGET = "\x15"  # the key by which bash forgets what was typed


@pytest.mark.slow
@pytest.mark.skipif(not ANCHOR.exists(), reason="needs the installed command")
def test_a_real_bash_completes_what_is_typed(store):
    with typing(store) as send:
        for typed, completed in (
            ("hist run1 --tensor fc.w", "eight@grad "),
            ("hist run1 --tensor=fc.w", "eight@grad "),
            ("hist run1 -t fc.bias@g", "rad "),
            ("hist run1 --mode s", "um:window=10 "),
            ("hist run1 --mode sum:w", "indow=10 "),
        ):
            seen = send(f"{FORGET}anchor {typed}\t", completed)
            assert seen.endswith(f"{typed}{completed}")
