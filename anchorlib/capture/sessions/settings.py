"""The settings of a session: from arguments, else from the environment, else defaults."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast, get_args

from anchorlib.capture.eager import VARIABLE as GRAFT
from anchorlib.capture.sessions.perturbing import Perturbation, perturbation
from anchorlib.errors import AnchorError, OptionError
from anchorlib.modes import All, Mode, ModeSpec, parse_modes
from anchorlib.names import (
    Selector,
    check_run_name,
    graft_name,
    matches,
    parse,
    parse_list,
    quoted,
)
from anchorlib.operations import traced_steps
from anchorlib.recorder import DrainPlace, default_place
from anchorlib.scope import ANYTHING, PhasesSpec, Scope, StepsSpec, scope
from anchorlib.sinks import QUEUE_BYTES, Durability, OnFull, RunOptions
from anchorlib.store import DEFAULT_STORE

__all__ = ["Settings", "StartArguments", "settings"]

_RESTARTS = ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")  # torchrun; a requeued job
_COUNT = re.compile(r"\d{1,9}", re.ASCII)


@dataclass(frozen=True, slots=True)
class StartArguments:
    """The arguments of `start`, unchecked; `start` documents what they mean."""

    run: str | None = None
    store: str | os.PathLike[str] | None = None
    rank: int | None = None
    ranks: Iterable[int] | None = None
    tensors: Sequence[str] | str | None = None
    mode: ModeSpec = All
    phases: PhasesSpec | None = None
    steps: StepsSpec | None = None
    first_step: int = 0
    resume: bool = False
    overwrite: bool = False
    attributes: Mapping[str, Any] | None = None
    on_full: OnFull | None = None
    queue_bytes: int = QUEUE_BYTES
    max_bytes: int | None = None
    durability: Durability = "process"
    recorder: DrainPlace | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of one session, checked.

    kept: the options that the session's sink (what writes or sends records) needs. recording:
        False where this rank is not to record, or recording is disabled. selectors: what anchors
        record; None for all tensors. recorder: where the sink works, "process" or "thread". scope:
        the phases and steps that are recorded. graft: the run that ANCHOR_GRAFT names, or None.
        prints_messages: whether this rank prints messages about the run, as only the lowest of the
        recording ranks does. trace: the steps that the environment asks to trace, or None. matched:
        the selectors that have matched a tensor.
    """

    kept: RunOptions
    store: str
    recording: bool
    selectors: tuple[Selector, ...] | None
    modes: tuple[Mode, ...]
    first_step: int
    attributes: Mapping[str, Any]
    recorder: DrainPlace
    scope: Scope = ANYTHING
    perturbation: Perturbation | None = None
    graft: str | None = None
    prints_messages: bool = True
    trace: range | None = None
    matched: set[str] = field(default_factory=set, compare=False)

    @property
    def run(self) -> str:
        """The run's name."""
        return self.kept.run

    @property
    def rank(self) -> int:
        """The rank of this process in the run."""
        return self.kept.rank

    @property
    def on_full(self) -> OnFull:
        """What is done with a new record while the queue is full: "block", "drop" or "raise"."""
        return self.kept.on_full

    @property
    def queue_bytes(self) -> int:
        """The most bytes of records that may wait in the queue."""
        return self.kept.queue_bytes

    @property
    def perturbs(self) -> Perturbation | None:
        """How to perturb parameters; None if no perturbation was asked for, or the run is resumed.

        Parameters of a resumed run were perturbed when the run began.
        """
        return None if self.kept.resume else self.perturbation

    @property
    def unmatched(self) -> list[str]:
        """The selectors of the session that have matched no tensor so far, as texts."""
        return [one.text for one in self.selectors or () if one.text not in self.matched]

    def wants(self, name: str, kind: str, kinds: Sequence[str] = ()) -> bool:
        """Return whether the session's selectors select `kind` of the tensor `name`.

        The selectors that match are noted, and are not in `unmatched` any more.

        kinds: the kinds that `name` can have, in order; empty if not known. PopTorch's selector
            `Gradient___X` means one of them.
        """
        if self.selectors is None:
            return True
        matching = [one.text for one in self.selectors if matches(one, name, kind, kinds=kinds)]
        self.matched.update(matching)
        return bool(matching)


def settings(asked: StartArguments) -> Settings:
    """Return the settings for the arguments of `start`, checked.

    What an argument leaves open is read from the environment, or has a default.
    Raises OptionError, ModeError or InvalidNameError for a wrong argument, and UnknownTensorError
    for a text in `tensors` that is no selector.
    """
    env = os.environ
    rank = _rank(asked.rank)
    place = _place(asked.store)
    if asked.resume and asked.overwrite:
        raise OptionError("start(resume=True, overwrite=True): choose one of them")
    run = asked.run if asked.run is not None else env.get("ANCHOR_RUN") or _job_name()
    name, resume, overwrite = check_run_name(run), asked.resume, asked.overwrite
    noise = perturbation()
    if noise is not None:  # replaces an earlier noise run, whatever the script asks for its run
        name, resume = noise.takes(name, place, resume=resume)
        overwrite = not (resume or _restarted())
    grafted = env.get(GRAFT) or None
    if grafted is not None:
        name, resume = graft_name(grafted), False
        overwrite = not _restarted()
    ranks = _ranks(asked.ranks)
    return Settings(
        RunOptions(
            run=name,
            rank=rank,
            resume=resume or (not overwrite and _restarted()),
            overwrite=overwrite,
            on_full=_on_full(asked.on_full, "drop" if "://" in place else "block"),
            queue_bytes=_whole("queue_bytes", asked.queue_bytes, 1),
            max_bytes=None if asked.max_bytes is None else _room(asked.max_bytes),
            durability=_choice("durability", asked.durability, Durability),
            restart=_restart_count(),
        ),
        store=place,
        recording=(ranks is None or rank in ranks) and env.get("ANCHOR_DISABLED", "0") in ("", "0"),
        selectors=_selectors(asked.tensors),
        modes=parse_modes(asked.mode),
        first_step=_whole("first_step", asked.first_step, 0),
        attributes=_attributes(asked.attributes),
        recorder=_recorder(asked.recorder),
        scope=scope(asked.phases, asked.steps, environ=env),
        perturbation=noise,
        graft=grafted,
        prints_messages=rank == min(ranks or {0}),
        trace=traced_steps(env),
    )


def _on_full(given: str | None, default: OnFull) -> OnFull:
    variable = os.environ.get("ANCHOR_ON_FULL")
    if given is None and variable:
        return cast(OnFull, _choice("ANCHOR_ON_FULL in the environment", variable, OnFull))
    return cast(OnFull, _choice("on_full", default if given is None else given, OnFull))


def _recorder(given: DrainPlace | None) -> DrainPlace:
    variable = os.environ.get("ANCHOR_RECORDER")
    if given is None and variable:
        return cast(DrainPlace, _choice("ANCHOR_RECORDER in the environment", variable, DrainPlace))
    return (
        default_place()
        if given is None
        else cast(DrainPlace, _choice("recorder", given, DrainPlace))
    )


def _place(store: object) -> str:
    if store is None:
        return os.environ.get("ANCHOR_STORE") or DEFAULT_STORE
    if not isinstance(store, str | os.PathLike) or not os.fspath(store):
        raise OptionError(f"store is a directory or a collector's URL, not {store!r}")
    return str(os.fspath(store))


def _rank(rank: int | None) -> int:
    if rank is not None:
        return _whole("rank", rank, 0)
    for variable in ("RANK", "SLURM_PROCID"):
        if os.environ.get(variable):
            return _parsed(variable, os.environ[variable])
    return 0


def _ranks(ranks: Iterable[int] | None) -> set[int] | None:
    """Return the ranks that record, from `ranks` or else from ANCHOR_RANKS; None: all ranks."""
    if ranks is not None:
        return set(ranks)
    text = os.environ.get("ANCHOR_RANKS")
    if not text:
        return None
    named = {_parsed("ANCHOR_RANKS", part) for part in text.split(",") if part.strip()}
    if not named:
        raise OptionError(f"ANCHOR_RANKS={text!r} in the environment names no rank")
    return named


def _selectors(tensors: object) -> tuple[Selector, ...] | None:
    if tensors is None:
        return _selectors_of_environment()
    texts = [tensors] if isinstance(tensors, str) else tensors
    if not isinstance(texts, Sequence) or not all(isinstance(text, str) for text in texts):
        raise OptionError(f"tensors is a list of selectors, as ['fc1.bias@grad'], not {tensors!r}")
    return tuple(parse(text) for text in texts)


def _selectors_of_environment() -> tuple[Selector, ...] | None:
    text = os.environ.get("ANCHOR_TENSORS")
    if not text:
        return None
    try:
        return parse_list(text)
    except AnchorError as fault:
        raise OptionError(f"ANCHOR_TENSORS in the environment: {fault}") from None


def _job_name() -> str:
    """Return the id of the torchrun or SLURM job of this process, else a time stamp."""
    job = os.environ.get("TORCHELASTIC_RUN_ID")
    if job == "none":  # torchrun's own default: every such job on the machine has that id
        job = f"torchrun-{os.getppid()}"
    job = job or os.environ.get("SLURM_JOB_ID")
    if job:
        return re.sub(r"[^A-Za-z0-9._-]", "-", job)[:64].lstrip(".-") or "job"
    now = time.time()
    return time.strftime("%Y%m%d-%H%M%S", time.localtime(now)) + f"-{int(now * 1000) % 1000:03d}"


def _restarted() -> bool:
    """Return whether torchrun or SLURM has restarted this job, so that it may go on with a run."""
    return (_restart_count() or 0) > 0


def _restart_count() -> int | None:
    """Return how often torchrun or SLURM has restarted this job.

    None is returned where the environment has neither's count.
    """
    variables = [os.environ.get(name, "") for name in _RESTARTS]
    counts = [int(one) for one in variables if _COUNT.fullmatch(one)]
    return max(counts, default=None)


def _whole(name: str, value: object, least: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise OptionError(f"{name} is a whole number from {least} on, not {value!r}")
    if value >= 1 << 63:
        raise OptionError(f"{name} is a whole number below 2**63, not {quoted(hex(value))}")
    return value


def _attributes(attributes: object) -> dict[str, Any]:
    if attributes is None:
        return {}
    if not isinstance(attributes, Mapping):
        raise OptionError(
            "attributes is names and their values, as {'rate': 0.1}, "
            f"not {quoted(repr(attributes))}"
        )
    return dict(attributes)


def _room(max_bytes: object) -> int:
    if max_bytes == 0:
        raise OptionError("max_bytes=0 keeps no values: say mode=Summary, or None for no limit")
    return _whole("max_bytes", max_bytes, 1)


def _parsed(name: str, text: str) -> int:
    try:
        return _whole(name, int(text), 0)
    except ValueError:
        raise OptionError(f"{name}={text!r} in the environment is not a rank") from None


def _choice(name: str, value: Any, choices: Any) -> Any:
    allowed = get_args(choices)
    if value not in allowed:
        raise OptionError(f"{name} is one of {', '.join(allowed)}, not {value!r}")
    return value
