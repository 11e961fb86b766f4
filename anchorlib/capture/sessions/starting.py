"""`start` and `tensor_names`: the doors through which users come in."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import nn

from anchorlib.capture.naming import parts_of, state_keys, tensor_kinds
from anchorlib.capture.optimizers import unwrap_all
from anchorlib.capture.sessions.opening import active_session, open_session
from anchorlib.capture.sessions.session import Session
from anchorlib.capture.sessions.settings import Options, settings
from anchorlib.errors import SessionError
from anchorlib.modes import All, ModeSpec
from anchorlib.recorder import Place
from anchorlib.scope import ANYTHING, PhasesSpec, StepsSpec
from anchorlib.sinks import Durability, OnFull, Sink

if TYPE_CHECKING:
    from anchorlib.reading import Run

__all__ = ["graft", "record_into", "start", "tensor_names"]


def start(  # noqa: PLR0913  # the contract's arguments
    run: str | None = None,
    *,
    store: str | os.PathLike[str] | None = None,
    rank: int | None = None,
    ranks: Iterable[int] | None = None,
    tensors: Sequence[str] | str | None = None,
    mode: ModeSpec = All,
    phases: PhasesSpec | None = None,
    steps: StepsSpec | None = None,
    first_step: int = 0,
    resume: bool = False,
    overwrite: bool = False,
    attributes: Mapping[str, Any] | None = None,
    on_full: OnFull | None = None,
    queue_bytes: int = 256 * 2**20,
    max_bytes: int | None = None,
    durability: Durability = "process",
    recorder: Place | None = None,
) -> Session:
    """Open the one active session of this process; it records at once.

    run: its name; else ANCHOR_RUN, the job's id (torchrun, SLURM), or a time stamp.
    store: where runs live: a directory, or the grpc:// or grpcs:// URL of a collector or of
        several ("grpcs://a:50051,b:50051"); else ANCHOR_STORE, else "anchors".
    rank: else RANK, SLURM_PROCID, 0. ranks: on which ranks to record (others do nothing).
    tensors: selectors that limit what anchors record; else ANCHOR_TENSORS.
    mode: of anchors that name none.
    phases: the phases that are recorded, as ("train",); else ANCHOR_PHASES, else all.
    steps: the steps that are recorded: a number, range(0, 3), or a list of them; else
        ANCHOR_STEPS (0:3,10), else all. What is left out costs next to nothing.
    first_step: the number of the first step.
    resume, overwrite: continue, or replace, this rank of a run that exists. A restart by torchrun,
        and a job that SLURM requeued, resume by themselves.
    attributes: JSON-able, stored with the run.
    on_full: "block" (default for a directory), "drop" (default for a collector) or "raise".
    queue_bytes: bytes of records that may wait.
    max_bytes: bytes of values this run may take on disk; beyond them summaries alone are kept.
    durability: what reached the store survives the end of the "process", or of "power".
    recorder: where records are written: a "process" beside this one (default where Linux has what
        it needs), or a "thread"; else ANCHOR_RECORDER.

    Raises SessionError, RunExistsError, RunBusyError, StoreError, ModeError, OptionError,
    InvalidNameError.
    """
    return open_session(settings(Options(**locals())))  # nothing but the arguments


def record_into(sink: Sink, run: str) -> Session:
    """Open the one active session of this process, with its records going to `sink` alone.

    Raises SessionError.
    """
    options = Options(run, store="memory", tensors="*", on_full="block")
    return open_session(replace(settings(options), scope=ANYTHING, trace=None), sink)


@contextmanager
def graft(run: str | Run, steps: StepsSpec | None = None) -> Iterator[None]:
    """A context in which the active session's anchors are handed the values of another run.

    Each tensor is recorded as this training made it, and then holds what `run` had there, bit for
    bit: values, gradients, parameters and optimizer state. So whatever differs from `run` was made
    differently here, and is an origin of its own: `compare(run, this_run)` lists them all.

    run: its name in the session's store, a path, a URL, or a Run; its values must be kept
        (`mode=All()`). steps: those in which it happens: a number, a range, or a list of them;
        None: all.

    Eager code only. What cannot be handed over (a tensor whose elements overlap, another shape, no
    record there) is counted, logged at the end, and stands in the run's header.

    Raises SessionError where no session is active, or one is grafted already; RunNotFoundError,
    StoreError.
    """
    from anchorlib.reading import open_run  # the store is loaded where it is read

    session = active_session()
    if session is None:
        raise SessionError("graft hands values to a session's anchors: call start first")
    opened = open_run(run, session.store) if isinstance(run, str) else run
    with session.grafting(opened, steps):
        yield


def tensor_names(model: nn.Module, optimizer: object = None, prefix: str = "") -> list[str]:
    """The selectors that `watch` accepts for `model`, before any step.

    Inputs and module outputs in definition order, parameters, buffers, each with its kinds.
    `NAME@opt.*` stands for optimizer state that the first step will make.

    prefix: the one that `watch` is given: what the names begin with, and a dot.
    """
    parts = parts_of(model, prefix)
    known = tensor_kinds(parts, state_keys(parts, unwrap_all(optimizer)), unknown_state="opt.*")
    return [f"{name}@{kind}" for name, kind in known]
