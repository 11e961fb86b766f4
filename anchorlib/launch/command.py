"""The command of `anchor run`: what is in its environment, and how this process becomes it."""

from __future__ import annotations

import os
import re
import shlex
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from anchorlib.errors import CommandError, RunExistsError, StoreError
from anchorlib.launch.interpreters import why_unseen
from anchorlib.launch.request import LAUNCH, Request, is_rerun
from anchorlib.names import escape
from anchorlib.operations import traced_steps
from anchorlib.scope import scope

__all__ = ["Launch", "launch"]

_HOOK = str(Path(__file__).with_name("hook"))
_LAUNCHERS = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch")
_ENDED = ("SIGPIPE", "SIGXFSZ")  # what Python ignores, and a command does not expect to be ignored
# A run that exists may be of another node, rank or attempt of this very job.
_JOB = ("SLURM_PROCID", "SLURM_JOB_ID", "RANK", "TORCHELASTIC_RUN_ID")
_NODES = re.compile(r"--(nnodes|node[_-]rank|num_machines|machine_rank)\b")


@dataclass(frozen=True, slots=True)
class Launch:
    """A command that is about to run, observed.

    words: the command. environment: its own. unseen: why it will run unobserved; mostly empty.
    """

    words: tuple[str, ...]
    environment: Mapping[str, str]
    unseen: str = ""

    def begin(self) -> None:
        """Become the command, with this process's number, terminal, signals and exit code.

        Raises CommandError where it cannot be run; else it does not return.
        """
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        for name in _ENDED:
            if hasattr(signal, name):
                signal.signal(getattr(signal, name), signal.SIG_DFL)
        try:
            os.execvpe(self.words[0], list(self.words), dict(self.environment))
        except OSError as fault:
            raise CommandError(_why_not(self.words[0], fault)) from None


def _why_not(name: str, fault: OSError) -> str:
    """Why the command `name` cannot be run, and what to type where it is a script of Python's."""
    said = f"cannot run {escape(name)}: {fault.strerror or type(fault).__name__}"
    if name.endswith(".py") and Path(name).is_file():
        said += f"; a script follows its Python: anchor run -- python {escape(shlex.quote(name))}"
    return said


def launch(words: Sequence[str], request: Request, settings: Mapping[str, str]) -> Launch:
    """What `anchor run` starts: the command `words`, recorded as `request` says.

    settings: what else the sessions of its processes find in their environment: ANCHOR_STORE
        always, ANCHOR_STEPS, ANCHOR_PHASES, ANCHOR_TRACE.
    A run that nobody names gets the script's name and the time, the same for all of its processes,
    unless a job's id names it.

    Raises RunExistsError, StoreError for a directory that cannot be made, OptionError for settings
    that no session takes, and what `Request.check` raises.
    """
    request.check()
    environment = {**os.environ, **settings}
    scope(environ=environment)
    traced_steps(environment)
    typed = environment["ANCHOR_STORE"]
    named = request.name or os.environ.get("ANCHOR_RUN")
    if named and not (is_rerun() or _of_a_job(words)):
        _must_be_new(named, typed)
    name = named or (None if _named_by_job() else _name_of(words))
    environment |= {
        "PYTHONPATH": os.pathsep.join(filter(None, [_HOOK, os.environ.get("PYTHONPATH")])),
        "ANCHOR_STORE": _place(typed),
        LAUNCH: replace(request, name=name, process=os.getpid(), store=typed).text(),
    }
    return Launch(tuple(words), environment, why_unseen(words))


def _must_be_new(name: str, store: str) -> None:
    """A training should not run for hours to find that nothing of it was kept."""
    if "://" not in store and (Path(store) / f"{name}.zarr").exists():
        raise RunExistsError(
            f"run {name} exists in {escape(store)}: choose another --name, or remove that run"
        )


def _place(store: str) -> str:
    """Where `store` is, wherever a program goes; a directory is there from now on."""
    if "://" in store:
        return store
    try:
        Path(store).mkdir(parents=True, exist_ok=True)
    except OSError as fault:
        raise StoreError(f"cannot record into {escape(store)}: {fault.strerror}") from None
    return str(Path(store).absolute())


def _of_a_job(words: Sequence[str]) -> bool:
    return any(map(os.environ.get, _JOB)) or any(map(_NODES.match, words))


def _named_by_job() -> bool:
    return any(map(os.environ.get, ("SLURM_JOB_ID", "TORCHELASTIC_RUN_ID")))


def _name_of(words: Sequence[str]) -> str:
    now = time.time()
    moment = time.strftime("%Y%m%d-%H%M%S", time.localtime(now)) + f"-{int(now * 1000) % 1000:03d}"
    script = re.sub(r"[^A-Za-z0-9._-]+", "-", _script(words)).strip(".-")[:40]
    return f"{script}-{moment}" if script else moment


def _script(words: Sequence[str]) -> str:
    """What runs, without the launcher before it: a file's name, or a module's."""
    for before, word in zip(("", *words), words, strict=False):
        if before == "-m" and word not in _LAUNCHERS:
            return word
        if word.endswith(".py"):
            return Path(word).stem
    return Path(words[0]).name
