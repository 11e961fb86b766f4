"""Where the configurations of two runs differ, as far as the runs' headers state them.

A header holds what a run depends on besides its tensors: versions, modules, optimizers, seeds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from anchorlib.diagnosis.causes.histories import HISTORY, partings
from anchorlib.diagnosis.causes.overflows import AUTOCAST
from anchorlib.diagnosis.causes.starting_values import STARTS, starting_values
from anchorlib.diagnosis.pairing import Alignment, Table, compiled

__all__ = [
    "MODULE",
    "config_diff",
    "from_outside",
    "made_otherwise",
    "mode_since",
    "module_key",
    "other_values",
]

PASSING = (
    "pid",
    "host",
    "time",
    "started",
    "env.SLURM_JOB_ID",
    "env.RANK",
    "env.LOCAL_RANK",
    "env.SLURM_PROCID",
    "imported.from",
    "grafted.handed_over",
    "grafted.not_handed_over",
    "grad.from_outside",
)
"""Header entries that differ from process to process, and change no computed number."""

TREE = "modules"
"""The header entry that holds one digest of the names and classes of all modules."""

MOST_ALONE = 20  # modules of one run alone that are named

FORMULA = frozenset(
    (
        "eps",
        "approximate",
        "p",
        "negative_slope",
        "alpha",
        "beta",
        "lambd",
        "threshold",
        "min_val",
        "max_val",
        "lower",
        "upper",
        "mode",
        "padding_mode",
        "ceil_mode",
        "count_include_pad",
    )
)
"""Arguments of torch's modules that are part of what they compute."""

MODULE = "module."
"""The prefix of entries that say what a module was made with."""


def config_diff(alignment: Alignment) -> dict[str, tuple[Any, Any]]:
    """Return the header entries that differ, by name: (A's, B's), None where a run lacks the entry.

    The headers compared are those of the lowest rank that both runs have, or, where they share no
    rank, of the lowest rank of each run. Schedules are compared on all ranks that both have.
    """
    a, b = alignment.a.header, alignment.b.header
    common = sorted(set(a) & set(b))
    header_a: Mapping[str, Any] = a[common[0] if common else min(a)] if a else {}
    header_b: Mapping[str, Any] = b[common[0] if common else min(b)] if b else {}
    names = list(dict.fromkeys([*header_a, *header_b]))
    entries = _engines(alignment) | {
        name: _both(name, header_a, header_b)
        for name in names
        if name not in PASSING
        and name != STARTS
        and not name.startswith(HISTORY)
        and header_a.get(name) != header_b.get(name)
        and (not name.startswith(MODULE) or (name in header_a and name in header_b))
    }
    lowest = common[0] if common else 0
    entries |= starting_values(alignment).entries(lowest)
    for part in partings(alignment):
        if part.name not in entries:
            there = f" on rank {part.rank}" if part.rank != lowest else ""
            entries[f"{part.name}{there} from step {part.step}"] = (part.a, part.b)
    return entries | _trees(header_a, header_b)


def _trees(header_a: Mapping[str, Any], header_b: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the modules that one run alone has, as header entries: name -> (A's text, B's).

    Only the first twenty are returned. Empty unless both runs state the digest of all modules;
    empty, too, where both runs have equal modules under different names.
    """
    if TREE not in header_a or TREE not in header_b or header_a[TREE] == header_b[TREE]:
        return {}
    own, other = (
        {name: text for name, text in header.items() if name.startswith(MODULE)}
        for header in (header_a, header_b)
    )
    if Counter(map(str, own.values())) == Counter(map(str, other.values())):
        return {}
    alone = [name for name in {**own, **other} if (name in own) != (name in other)]
    return {name: (own.get(name), other.get(name)) for name in alone[:MOST_ALONE]}


def from_outside(table: Table) -> set[str]:
    """Return the names of tensors whose gradients a run saw only outside of its compiled code.

    Such a gradient may lack a part that was used inside the compiled code. table: the run's.
    """
    lists_of_names = [header.get("grad.from_outside") for header in table.header.values()]
    return {name for names in lists_of_names if isinstance(names, list) for name in map(str, names)}


def mode_since(header: Mapping[str, Any], name: str) -> int | None:
    """Return the step from which a layer was in eval mode while its model trained; None if never.

    header: the run's header. name: the layer's name.
    """
    step = header.get(f"eval.{name}")
    return step if isinstance(step, int) else None


def _both(name: str, header_a: Mapping[str, Any], header_b: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return one header entry of both runs, with defaults for what a run does not state.

    An optimizer's switch that a run does not list is off, and an optimizer whose groups are not
    counted has one group. Where a run states no type for autocast, autocast is off.
    """
    pair = (header_a.get(name), header_b.get(name))
    optimizer, _, what = name.partition(".")
    if name == AUTOCAST:
        stated = name in header_a and name in header_b
        return (pair[0] or "off", pair[1] or "off") if stated else pair
    both = optimizer.startswith("optimizer") and optimizer in header_a and optimizer in header_b
    unlisted = False if True in pair else 1 if what == "groups" else None
    return (pair[0] or unlisted, pair[1] or unlisted) if both and unlisted is not None else pair


def module_key(name: str) -> str:
    """Return the name of the header entry that says with which arguments a module was made."""
    return f"{MODULE}{name}"


def made_otherwise(a: object, b: object) -> tuple[str, str] | None:
    """Return how the descriptions of two modules differ; None if they are equal, or one is missing.

    a, b: descriptions, such as "LayerNorm((32,), eps=1e-05)". The answer is a text for A and a
        text for B. For modules of one class, the two texts hold only the arguments that differ:
        ("LayerNorm eps 1e-05", "0.01").
    """
    if not (isinstance(a, str) and isinstance(b, str)) or a == b:
        return None
    (class_a, args_a), (class_b, args_b) = _parted(a), _parted(b)
    if class_a != class_b:
        return a, b
    left = [one for one in args_a if one not in args_b]
    right = [one for one in args_b if one not in args_a]
    if not left and not right:
        return a, b
    if [one.partition("=")[:2] for one in left] == [one.partition("=")[:2] for one in right]:
        left = [one.replace("=", " ", 1) for one in left]
        right = [one.partition("=")[2] or one for one in right]
    return f"{class_a} {', '.join(left) or 'without it'}", ", ".join(right) or "without it"


def other_values(a: object, b: object) -> bool:
    """Return whether two modules of one class differ in an argument that changes their formula.

    a, b: descriptions, such as "LayerNorm((32,), eps=1e-05)". Only arguments in FORMULA count:
        an argument of a user's own class (`chunk=64`, `way='unfold'`) may state how the class
        computes, and leave the formula unchanged.
    """
    if not (isinstance(a, str) and isinstance(b, str)) or a == b:
        return False
    (class_a, args_a), (class_b, args_b) = _parted(a), _parted(b)
    names = [
        [one.partition("=")[0] for one in args if one not in others]
        for args, others in ((args_a, args_b), (args_b, args_a))
    ]
    of_one_form = class_a == class_b and names[0] == names[1]
    return of_one_form and bool(FORMULA.intersection(names[0]))


def _parted(text: str) -> tuple[str, list[str]]:
    """Split a module's description into class name and arguments.

    Commas inside brackets do not split.
    """
    name, _, rest = text.partition("(")
    args, depth = [""], 0
    for char in rest.removesuffix(")"):
        depth += (char in "([{") - (char in ")]}")
        if char == "," and depth <= 0:
            args.append("")
        else:
            args[-1] += char
    return name, [one.strip() for one in args if one.strip()]


def _engines(alignment: Alignment) -> dict[str, tuple[Any, Any]]:
    """Return {"torch.backend": (A's, B's)} where one run alone was compiled, else an empty dict.

    The two texts are "compiled" and "eager". Whether code was compiled shows in the names of the
    autograd nodes; the dict is also empty where a run has stored none.
    """
    statements = [
        [edges for of_rank in table.edges.values() for edges in of_rank]
        for table in (alignment.a, alignment.b)
    ]
    if not all(statements):
        return {}
    backend_a, backend_b = (
        "compiled" if any(compiled(edges.ops) for edges in own) else "eager" for own in statements
    )
    return {} if backend_a == backend_b else {"torch.backend": (backend_a, backend_b)}
