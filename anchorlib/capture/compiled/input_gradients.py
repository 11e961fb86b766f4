"""Gradients of tensors that are inputs of compiled code.

dynamo registers a hook on an input outside the graph, again after each call of the graph. On a
leaf, which outlives the call, the hooks pile up: the newest acts, and removes the others.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from anchorlib.capture.compiled import anchor_operators
from anchorlib.capture.compiled.programs import Spot
from anchorlib.capture.dynamo_marks import natively
from anchorlib.torch_private import current_node, hooks_of, leaf_of

__all__ = ["leaf_hook", "newest", "see_input"]


@natively
def leaf_hook(g: torch.Tensor, name: str, modes: str, program: int, site: int) -> torch.Tensor:
    """Observe the gradient of a leaf; hung on it as a partial with every argument but `g`."""
    if torch.compiler.is_compiling():  # by compiled autograd
        anchor_operators.leaf(g, name, modes, program, site)
        return g
    observer = anchor_operators.current()
    given, leaf = newest(leaf_hook, keep=observer is not None, name=name, modes=modes)
    if observer is not None:
        spot = Spot(**given) if given else Spot(name, modes, program, site)
        observer.leaf_gradient(g, spot, leaf)
    return g


@natively
def see_input(g: torch.Tensor | None, name: str, modes: str) -> None:
    """Tell the observer what the gradient hook of an input that is no leaf was given."""
    observer = anchor_operators.current()
    if observer is not None:
        observer.see_from_outside(current_node(), (name, modes), g)


def newest(hook: Callable[..., Any], *, keep: bool, **alike: object) -> tuple[dict[str, Any], int]:
    """Remove older copies of a hook from the leaf whose hooks run now.

    The copies are the partials of `hook` whose keywords include `alike`. Returns the keywords of
    the newest copy, and the leaf's id (-1 if no leaf's hooks run). keep: whether the newest copy
    stays, for another backward.
    """
    leaf = leaf_of(current_node())
    hooks = {} if leaf is None else hooks_of(leaf)
    ours = [
        key
        for key, one in hooks.items()
        if isinstance(one, partial) and one.func is hook and alike.items() <= one.keywords.items()
    ]
    given = dict(hooks[ours[-1]].keywords) if ours else {}
    for key in ours[: -1 if keep else None]:
        del hooks[key]
    return given, -1 if leaf is None else id(leaf)
