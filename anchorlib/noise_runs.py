"""Noise runs: a training command run again, from parameters changed by about a rounding error.

Each rerun finds ANCHOR_PERTURB=SEED:EPS in its environment, and the session that it opens records
the run RUN-noiseSEED, in place of an earlier run of that name (see
`anchorlib.capture.sessions.perturbing`). The drift of these runs from RUN is the drift that
rounding alone causes; `compare(..., noise=...)` judges other drifts by it.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from anchorlib.dtypes import DTYPES
from anchorlib.errors import OptionError
from anchorlib.names import escape, noise_name
from anchorlib.reading import Run, open_run
from anchorlib.reruns import header_of, made_run, rerun, store_of

__all__ = ["compare_line", "noise", "noise_line"]

# The types in which parameters are kept. The 8-bit types are left out: a run rounds to them on the
# way, and a change of their eps would hide every other drift.
_TYPES = ("float64", "float32", "float16", "bfloat16")
_MASK = "***"
_PLACEHOLDER = ("COMMAND…",)


class Recorded(Protocol):
    """What `noise_line` reads of a run: its name, its records' dtypes, and each rank's header."""

    @property
    def run(self) -> str: ...
    @property
    def dtypes(self) -> Sequence[str]: ...
    @property
    def header(self) -> Mapping[int, Mapping[str, Any]]: ...


def noise(
    command: Sequence[str] | None,
    run: str,
    runs: int = 3,
    store: str | Path | None = None,
    *,
    eps: str | float | None = None,
    output: Any = None,
) -> list[str]:
    """Run `command` again `runs` times, each time from slightly changed parameters; wait for all.

    The reruns have the seeds 1, 2, … and record the runs RUN-noise1, RUN-noise2, …; earlier runs of
    these names are replaced.

    command: words as for `subprocess.run`; None or empty: the command that recorded `run`.
    run: RUN, which the command recorded: a name, a path or a URL, as for `open_run`. It is not
        changed. The reruns are recorded into the same store.
    store: the store in which `run` is a name; None means ANCHOR_STORE, else "anchors".
    eps: the relative change of each parameter: a number, or the name of a floating-point type,
        whose eps is taken; None takes the coarsest of the float64, float32, float16 and bfloat16
        types that records of `run` have.
    output: where the command's standard output goes, as for `subprocess.run`.

    Returns the names of the recorded runs, in the order of their seeds.

    Raises RunNotFoundError where there is no run `run`; OptionError for an invalid `runs` or `eps`,
    or where `command` is not given and the recorded command cannot be run again; CommandError where
    a rerun fails, or does not record its run.
    """
    if runs < 1:
        raise OptionError(f"runs is a whole number from 1 on, not {runs}")
    _check_eps(eps)
    reference = open_run(run, store)
    words = list(command or ()) or _recorded_command(reference)
    size = coarsest(info.dtype for info in reference.tensors()) if eps is None else eps
    place = store_of(run, store)
    made = []
    for seed in range(1, runs + 1):
        perturbation = f"{seed}:{size}"
        variables = {
            "ANCHOR_RUN": reference.name,
            "ANCHOR_STORE": place,
            "ANCHOR_PERTURB": perturbation,
        }
        name = noise_name(reference.name, seed)
        previous = header_of(name, place)
        rerun(words, variables, output)
        made.append(made_run(name, place, {"perturbed": perturbation}, previous))
    return made


def noise_line(a: Recorded, b: Recorded | None = None, *, store: str | None = None) -> str:
    """Return the `anchor noise …` line that makes noise runs of `a`, to compare `a` with `b`.

    The line has --eps if `b` has a coarser dtype than `a`, and --store if `store` is given. It ends
    with the command that recorded `a`, or in COMMAND… if this command is not known or cannot be run
    again as it was recorded.

    b: None if `a` is not compared with a certain run.
    store: None for no --store in the line.
    """
    header = a.header[min(a.header)] if a.header else {}
    words = _PLACEHOLDER if _not_again(header) else header["command"]
    options = [] if store is None else ["--store", store]
    own = coarsest(a.dtypes)
    both = coarsest((*a.dtypes, *(b.dtypes if b is not None else ())))
    if both != own:
        options += ["--eps", both]
    shown = [word if word in _PLACEHOLDER else shlex.quote(word) for word in words]
    return escape(" ".join([shlex.join(["anchor", "noise", a.run, *options]), "--", *shown]))


def compare_line(a: str, noise: Sequence[str], *, store: str | None = None) -> str:
    """Return an `anchor compare …` line that compares run `a` with OTHER, for the user to fill in.

    noise: the names of the noise runs by which the comparison is judged.
    store: None for no --store in the line.
    """
    options = [] if store is None else ["--store", store]
    flags = [word for one in noise for word in ("--noise", one)]
    return escape(shlex.join(["anchor", "compare", a, "OTHER", *flags, *options]))


def coarsest(dtypes: Iterable[str]) -> str:
    """Return which of `dtypes` has the largest eps, that is, rounds most coarsely.

    Only float64, float32, float16 and bfloat16 count; without any of them, "float32" is returned.
    """
    kept = [name for name in set(dtypes) if name in _TYPES]
    return max(kept, key=lambda name: DTYPES[name].eps or 0.0, default="float32")


def _check_eps(eps: str | float | None) -> None:
    kind = DTYPES.get(str(eps))
    try:
        known = eps is None or (0 < float(eps) < 1 if kind is None else kind.eps is not None)
    except ValueError:
        known = False
    if not known:
        raise OptionError(
            f"eps is a number between 0 and 1, or a floating-point type as bfloat16, not {eps!r}"
        )


def _not_again(header: Mapping[str, Any]) -> str:
    """Return why the command in a run's header cannot be run again; "" if it can.

    The text is the end of a sentence whose subject is the command.
    """
    words = header.get("command")
    if not isinstance(words, list) or not words or not all(isinstance(w, str) for w in words):
        return "is not known"
    if any(_MASK in word for word in words):
        return "held a secret or code, which was not kept"
    if header.get("env.WORLD_SIZE", "1") != "1":
        return "was started by a launcher, which is not known"
    return ""


def _recorded_command(run: Run) -> list[str]:
    header = run.header()
    reason = _not_again(header)
    if reason:
        raise OptionError(
            f"the command that recorded {run.name} {reason}: give it, as in "
            f"`anchor noise {run.name} -- python train.py`"
        )
    return list(header["command"])
