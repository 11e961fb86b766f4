"""`start`, `graft` and `tensor_names`, which users call."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import nn

from anchorlib.capture.naming import named_members, state_keys, tensor_kinds
from anchorlib.capture.optimizers import unwrap_all
from anchorlib.capture.sessions.active import active_session, open_session
from anchorlib.capture.sessions.session import Session
from anchorlib.capture.sessions.settings import StartArguments, settings
from anchorlib.errors import SessionError
from anchorlib.modes import All, ModeSpec
from anchorlib.recorder import DrainPlace
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
    recorder: DrainPlace | None = None,
) -> Session:
    """Open and return the one active session of this process; it records from then on.

    Names in capitals are environment variables, which count where the argument is not given.

    run: the run's name; else ANCHOR_RUN, the job's id (torchrun, SLURM), or a time stamp.
    store: where the run is stored: a directory, or the grpc:// or grpcs:// URL of a collector or of
        several ("grpcs://a:50051,b:50051"); else ANCHOR_STORE, else "anchors".
    rank: the rank of this process; else RANK, SLURM_PROCID, or 0. ranks: the ranks that record; on
        others the session does nothing.
    tensors: selectors that limit what anchors record; else ANCHOR_TENSORS.
    mode: the mode of anchors that are given none.
    phases: the phases that are recorded, such as ("train",); else ANCHOR_PHASES, else all.
    steps: the steps that are recorded: a number, range(0, 3), or a list of them; else
        ANCHOR_STEPS (such as 0:3,10), else all. Steps that are left out cost next to nothing.
    first_step: the number of the first step.
    resume, overwrite: continue, or replace, this rank of a run that exists. A restart by torchrun,
        and a job that SLURM requeued, resume without being asked.
    attributes: JSON-able values that are stored with the run.
    on_full: what to do with a new record while the queue is full: "block" (default for a
        directory), "drop" (default for a collector) or "raise".
    queue_bytes: the most bytes of records that may wait in the queue.
    max_bytes: the most bytes of values that this run may take on disk; beyond them only summaries
        are kept.
    durability: whether records in the store survive the end of the "process", or a loss of "power".
    recorder: what writes records: a "process" beside this one (the default where Linux provides
        what that needs), or a "thread" of this one; else ANCHOR_RECORDER.

    Raises SessionError where a session is active already, RunExistsError where this rank of the run
    exists, RunBusyError where another process writes it, StoreError where the store cannot be
    written, RunNotFoundError where the run in ANCHOR_GRAFT does not exist; for a wrong argument
    ModeError, OptionError, InvalidNameError, or UnknownTensorError (no selector, in `tensors`).
    """
    arguments = StartArguments(**locals())  # the locals are exactly the arguments
    return open_session(settings(arguments))


def record_into(sink: Sink, run: str) -> Session:
    """Open and return the one active session of this process, whose records go only to `sink`.

    Every tensor that is anchored or watched is recorded, in all phases and steps.
    run: the run's name. Raises SessionError where a session is active already.
    """
    options = StartArguments(run, store="memory", tensors="*", on_full="block")
    return open_session(replace(settings(options), scope=ANYTHING, trace=None), sink)


@contextmanager
def graft(run: str | Run, steps: StepsSpec | None = None) -> Iterator[None]:
    """Return a context manager in which anchors of the active session get another run's values.

    Each tensor is recorded as this training computed it, and is then overwritten, bit for bit, with
    the record that `run` has of it: values, gradients, parameters and optimizer state. So a record
    that differs from `run` was computed differently here: it is an origin, at which a difference
    begins. `compare(run, this_run)` lists all origins.

    run: the name of a run in the session's store, a path, a URL, or a Run; the run must have kept
        its values (`mode=All()`). steps: the steps in which values are handed over: a number, a
        range, or a list of them; None: all steps.

    Only eager code is grafted. Tensors that cannot be handed over (elements that overlap, another
    shape, no record at these coordinates) are counted, logged at the end, and listed in the run's
    header.

    Raises SessionError where no session is active, where it is grafted already, or where `run` is
    the run that it records; OptionError for impossible `steps`; RunNotFoundError or StoreError
    where `run` does not exist or cannot be read.
    """
    from anchorlib.reading import open_run  # the store is loaded where it is read

    session = active_session()
    if session is None:
        raise SessionError("graft works inside a session, and none is active: call start first")
    opened = open_run(run, session.store) if isinstance(run, str) else run
    with session.grafting(opened, steps):
        yield


def tensor_names(model: nn.Module, optimizer: object = None, prefix: str = "") -> list[str]:
    """Return the selectors that `watch` accepts for `model`, before any step.

    There is one selector, `NAME@KIND`, for each kind of each tensor: the input, the module outputs
    in definition order, the parameters, and the buffers. `NAME@opt.*` stands for optimizer state
    that the first step will make.
    optimizer, prefix: those that `watch` will be given.
    Raises OptionError for an `optimizer` that is no optimizer.
    """
    parts = named_members(model, prefix)
    known = tensor_kinds(parts, state_keys(parts, unwrap_all(optimizer)), unknown_state="opt.*")
    return [f"{name}@{kind}" for name, kind in known]
