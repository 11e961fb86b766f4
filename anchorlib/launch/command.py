"""The command that `anchor run` runs: its environment, and how it replaces this process."""

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
from anchorlib.launch.ignoring_interpreters import why_unseen
from anchorlib.launch.request import LAUNCH, Request, is_rerun
from anchorlib.names import escape
from anchorlib.operations import traced_steps
from anchorlib.scope import scope

__all__ = ["Launch", "launch"]

_HOOK = str(Path(__file__).with_name("hook"))
_LAUNCHERS = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch")
_ENDED = ("SIGPIPE", "SIGXFSZ")  # Python ignores these signals, which other commands do not expect
# In a job, an existing run may come from another node, rank or attempt of the same job.
_JOB = ("SLURM_PROCID", "SLURM_JOB_ID", "RANK", "TORCHELASTIC_RUN_ID")
_NODES = re.compile(r"--(nnodes|node[_-]rank|num_machines|machine_rank)\b")


@dataclass(frozen=True, slots=True)
class Launch:
    """A command that is about to run.

    words: the command line.
    environment: all variables of the command's environment.
    unseen: why the command will run unobserved, a sentence for the user; "" where no reason is
        known.
    """

    words: tuple[str, ...]
    environment: Mapping[str, str]
    unseen: str = ""

    def begin(self) -> None:
        """Replace this process by the command, which keeps its process id, terminal and signals.

        Does not return. Raises CommandError where the command cannot be run.
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
    """Return a message: the command `name` cannot be run, why, and what to type for a script.

    fault: the error that running the command raised.
    """
    said = f"cannot run {escape(name)}: {fault.strerror or type(fault).__name__}"
    if name.endswith(".py") and Path(name).is_file():
        said += f"; a script follows its Python: anchor run -- python {escape(shlex.quote(name))}"
    return said


def launch(words: Sequence[str], request: Request, settings: Mapping[str, str]) -> Launch:
    """Return the command `words`, ready to be run and recorded as `request` says.

    A run without a name is named by the job's id (of Slurm or torchrun), or else by the script's
    name and the time; all processes of the command share that name. A store that is a directory is
    made, if it does not exist.

    words: the command line.
    settings: variables for the command's environment, besides those of this process: always
        ANCHOR_STORE; perhaps ANCHOR_STEPS, ANCHOR_PHASES, ANCHOR_TRACE.

    Raises RunExistsError where the directory has a run of the given name (which a job or a rerun
    may continue or replace), StoreError for a directory that cannot be made, and OptionError,
    InvalidNameError, ModeError or UnknownTensorError for settings or a request that no session
    accepts.
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
    """Raise RunExistsError if the run `name` exists in the directory `store`.

    Otherwise a training would run for hours unrecorded. Does nothing where `store` is a URL.
    """
    if "://" not in store and (Path(store) / f"{name}.zarr").exists():
        raise RunExistsError(
            f"run {name} exists in {escape(store)}: choose another --name, or remove that run"
        )


def _place(store: str) -> str:
    """Make the directory `store`, and return its absolute path; return a URL as it is.

    The path is absolute because the program may change its working directory. Raises StoreError
    where the directory cannot be made.
    """
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
    """Return the name of the script or module that a command line runs, for the run's name.

    Launchers such as torch.distributed.run are skipped. Where there is no script and no module, it
    is the name of the program.
    """
    for before, word in zip(("", *words), words, strict=False):
        if before == "-m" and word not in _LAUNCHERS:
            return word
        if word.endswith(".py"):
            return Path(word).stem
    return Path(words[0]).name
