"""Gradients of tensors that compiled code was given.

dynamo registers a hook on an input outside the graph, after each call of it. A leaf lives on: the
newest of its hooks acts, and takes the others off.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from anchorlib.capture.compiled import ops
from anchorlib.capture.compiled.programs import Spot
from anchorlib.capture.frames import natively
from anchorlib.torch_private import current_node, hooks_of, leaf_of

__all__ = ["leaf_hook", "newest", "see_input"]


@natively
def leaf_hook(g: torch.Tensor, name: str, modes: str, program: int, site: int) -> torch.Tensor:
    """A hook on a leaf, as a partial with all but the gradient."""
    if torch.compiler.is_compiling():  # by compiled autograd
        ops.leaf(g, name, modes, program, site)
        return g
    observer = ops.current()
    given, leaf = newest(leaf_hook, keep=observer is not None, name=name, modes=modes)
    if observer is not None:
        spot = Spot(**given) if given else Spot(name, modes, program, site)
        observer.leaf_gradient(g, spot, leaf)
    return g


@natively
def see_input(g: torch.Tensor | None, name: str, modes: str) -> None:
    """The hook of an input that is no leaf runs."""
    observer = ops.current()
    if observer is not None:
        observer.see_from_outside(current_node(), (name, modes), g)


def newest(hook: Callable[..., Any], *, keep: bool, **alike: object) -> tuple[dict[str, Any], int]:
    """What the newest partial of `hook` that is `alike` was made with; the others are removed.

    They are those of the leaf whose hooks run now; its id is given back too, -1 if there is none.
    keep: whether the newest stays, for a backward that runs once more.
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
