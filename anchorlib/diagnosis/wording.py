"""The sentence that answers a comparison, put together of clauses."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from anchorlib.amounts import figure
from anchorlib.diagnosis.causes import MODULE, made_otherwise
from anchorlib.diagnosis.comparison import Divergence
from anchorlib.diagnosis.judgement import (
    BAD,
    Completeness,
    Drift,
    Leaving,
    Losses,
    Origin,
    computing,
)
from anchorlib.diagnosis.pairing import RecordPlace
from anchorlib.names import escape, join

__all__ = ["SentenceContext", "sentence"]

MODULES = 3  # how many modules are named
ROUNDABLE = 1000.0  # eps: a larger error of unrelated tensors is given as a share of the norm


class SentenceContext(NamedTuple):
    """What the sentence of a comparison says besides the place where the runs part.

    benign: differences that are not differences of values, a clause for each sort.
    losses: the steps at which the losses part; None without losses.
    drift: the drift compared to that of the noise runs; None without noise runs.
    leaving: the first record in which B is farther from A than noise runs are; None without one.
    complete: whether the runs are complete, and what they lack.
    ends: whether the only differences are in scalars from which nothing else was computed.
    eval_since: for A and for B, the step from which the run was in eval mode while the other run
        trained; None where it was not.
    preceding: why the first record that differs is not the first origin; "" where it is.
    merged: records that were merged for the comparison, a clause for each sort.
    drawn: the first step that began with another random state in B; None without one.
    config: header entries that differ, name -> the values of A and of B.
    partial: a clause on gradients that differ as one run recorded only a part; "" without any.
    unused: whether values differ on which no loss depends.
    """

    benign: Sequence[str]
    losses: Losses | None
    drift: Drift | None
    leaving: Leaving | None
    complete: Completeness
    ends: bool = False
    eval_since: tuple[int | None, int | None] = (None, None)
    preceding: str = ""
    merged: Sequence[str] = ()
    drawn: int | None = None
    config: Mapping[str, tuple[Any, Any]] = MappingProxyType({})
    partial: str = ""
    unused: bool = False

    @property
    def modes(self) -> list[str]:
        """Clauses that say which run went over to eval mode, and at which step; [] if none did."""
        since = zip("AB", self.eval_since, strict=True)
        return [f"{run} runs in eval mode from step {at}" for run, at in since if at is not None]


def sentence(
    answer: str,
    matched: int,
    first: Divergence | None,
    origins: Sequence[Origin],
    context: SentenceContext,
) -> str:
    """Return the answer of a comparison in one sentence for people.

    answer: the verdict. matched: how many records both runs have.
    first: the first pair that differs in a value; None where no pair does.
    origins: the records where the runs part, in the order in which the answer lists them.
    context: whatever else the sentence mentions.
    """
    lacking = _upper(context.complete.why)
    if answer == "incomparable":
        return "The runs have no record in common."
    if answer == "identical":
        equal = f"The runs are bit-identical in all {matched:,} records that both have"
        identical = "; but ".join(filter(None, (equal, *context.modes, lacking)))
        return "; ".join((identical, *context.merged)) + "."
    if first is None:
        value = "value on which a loss depends" if context.unused else "value"
        equal = f"No {value} differs{f' but {context.partial}' * bool(context.partial)}"
        parts = [equal, *context.benign, *context.modes, lacking, *context.merged]
        return "; ".join(filter(None, parts)) + "."
    parts = [f"The runs part at {_begin(first, origins)}"]
    if context.preceding:
        parts.append(f"{_name(first.place)}, which differs before it, {context.preceding}")
    parts += context.modes
    bad = next((origin for origin in origins if origin.cls in BAD), None)
    if bad is not None and bad is not origins[0]:
        parts.append(f"at {_what(bad)}")
    if context.ends:
        parts += ["nothing that differs follows from it: the gradients of its step are equal"]
    if not (origins and origins[0].changed):
        parts += [_modules(context.config)]
    parts += [_drawn(context.drawn, first.place.step)]
    parts += [_loss(context.losses, first.place.step), _noise(context, answer), lacking]
    parts += context.merged
    return "; ".join(part for part in parts if part) + "."


def _modules(config: Mapping[str, tuple[Any, Any]]) -> str:
    """Return a clause on modules that B made with other arguments than A; "" without any.

    config: the header entries that differ between the runs, name -> the values of A and of B.
    """
    made = {
        name.removeprefix(MODULE): " | ".join(differing)
        for name, pair in config.items()
        if name.startswith(MODULE) and (differing := made_otherwise(*pair)) is not None
    }
    shown = ", ".join(f"{escape(name)}: {escape(differing)}" for name, differing in made.items())
    if len(made) > MODULES:
        return f"{len(made)} modules were made otherwise"
    return f"the modules were made otherwise ({shown})" if made else ""


def _drawn(step: int | None, first: int) -> str:
    """Return a clause that says from which step on B drew other random numbers.

    "" where no random state differs, or only later than in the step after `first`. The step after
    `first` still counts since states are recorded where steps begin: what a step draws shows in the
    state of the next step.
    step: the first step that began with another random state; None without one.
    first: the step at which the runs part.
    """
    # The random state is recorded where a step begins: draws inside a step show in the next one.
    if step is None or step > first + 1:
        return ""
    return f"B drew other random numbers from step {step} on"


def _upper(why: str) -> str:
    """Return the clauses on what the runs lack, with "A" and "B" for "a" and "b".

    why: the clauses, which name the runs "a" and "b".
    """
    return re.sub(r"(^|; |, )([ab])(?= )", lambda match: match[1] + match[2].upper(), why)


def _begin(first: Divergence, origins: Sequence[Origin]) -> str:
    if origins:
        return _what(origins[0])
    return f"{_where(first.place)}: {_name(first.place)} differs, and nothing recorded says why"


def _where(place: RecordPlace) -> str:
    rank = f", rank {place.rank}" if place.rank else ""
    phase = f", phase {escape(place.phase)}" if place.phase != "train" else ""
    return f"step {place.step}, pass {place.pass_index}{phase}{rank}"


def _name(place: RecordPlace) -> str:
    name = escape(place.name)
    words = {
        "value": name,
        "grad": f"the gradient of {name}",
        "pass_grad": f"the gradient of {name}",
        "updated": f"the update of {name}",
        "delta": f"the update of {name}",
    }
    return words.get(place.kind, escape(join(place.name, place.kind)))


def _what(origin: Origin) -> str:
    place, size = origin.place, _size(origin)
    head = f"{_where(place)}: {_name(place)}"
    if origin.cls == "starts_unequal":
        return (
            f"{head} differs by {size} before anything was computed from it: {_joined(origin.why)}"
        )
    if origin.cls == "window_start":
        return f"{head} already differs by {size} where the records begin: {_joined(origin.why)}"
    shown = computing(origin.ops)
    ops = f" ({escape(', '.join(shown[:3]))}{', …' * (len(shown) > 3)})" * bool(shown)
    made_of = "it was computed from" if origin.parents else "recorded before it"
    both = " that both recorded" * origin.orphaned
    equal = f"everything{both} {'of what ' * origin.orphaned}{made_of} is bit-identical"
    if origin.leap:
        return f"{head}{ops} differs by {size}, {_joined(origin.why)}: more than rounding"
    changed = f" ({', '.join(map(_joined, origin.changed))})" * bool(origin.changed)
    if origin.cls == "nonfinite":
        return f"{head}{ops} holds NaN or infinity in one run alone{changed}"
    if origin.cls == "rounding" and origin.measure.nonfinite:
        return f"{head}{ops} differs in what is NaN or infinity: {_joined(origin.why)}"
    words = {
        "rounding": "rounding",
        "not_rounding": "more than rounding",
        "nondeterministic": "an operation that is not deterministic",
    }
    why = f" ({_joined(origin.why)})" if origin.why and origin.cls == "not_rounding" else changed
    return f"{head}{ops} differs by {size} while {equal}: {words[origin.cls]}{why}"


def _joined(why: str) -> str:
    """Return reasons with commas for semicolons: semicolons divide the parts of the sentence."""
    return why.replace("; ", ", ")


def _size(origin: Origin) -> str:
    measure = origin.measure
    if measure.unrelated and measure.error_eps > ROUNDABLE:
        return f"{measure.error_eps * measure.eps:.0%} of its norm"
    if np.isfinite(measure.error_eps):
        return f"{figure(measure.error_eps)} eps"
    if np.isfinite(measure.share_differing):
        return f"{measure.share_differing:.2%} of its elements"
    return "its shape" if measure.measured == "shape" else "an unknown amount"


def _loss(losses: Losses | None, step: int) -> str:
    if losses is None:
        return ""
    if losses.first_bit is None:
        return "the losses are the same"
    if (lost := losses.first_without_number()) is not None:
        at, run, what = lost
        return f"the loss of {run} is {what} at step {at}"
    if losses.above_1e3 is None:
        return f"the losses differ from step {losses.first_bit} on, by less than 0.001"
    later = losses.above_1e3 - step
    if later <= 0:
        return f"the losses are 0.001 apart from step {losses.above_1e3} on"
    return f"the losses are 0.001 apart {later} step{'s' * (later != 1)} later"


def _noise(context: SentenceContext, answer: str) -> str:
    drift, leaving = context.drift, context.leaving
    if leaving is not None:
        where = f"{_name(leaving.place)} at {_where(leaving.place)}"
        return f"{where} is the first to leave the noise, {figure(leaving.score)} times as far off"
    if drift is None:
        return ""
    if drift.covered is None:
        return "the noise runs say nothing of it"
    if drift.covered:
        return "the noise runs drift as far" if answer == "expected" else ""
    where = f"{drift.kind} at step {drift.step}" if drift.step >= 0 else drift.kind
    return f"the drift is {figure(drift.worst)} times that of the noise runs ({where})"
