"""Gradients of tensors that are inputs of compiled code.

dynamo registers a hook on a graph's input outside the graph, anew after each call of the graph. On
a leaf, which outlives the call, the hooks pile up: the newest acts, and removes the older hooks.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from anchorlib.capture.compiled import anchor_operators
from anchorlib.capture.compiled.programs import AnchorReference
from anchorlib.capture.dynamo_marks import skip_frames
from anchorlib.torch_private import current_node, hooks_of, leaf_of

__all__ = ["leaf_hook", "remove_older_copies", "see_input"]


@skip_frames
def leaf_hook(g: torch.Tensor, name: str, modes: str, program: int, site: int) -> torch.Tensor:
    """Observe the gradient `g` of a leaf, and return it.

    The hook that is registered on the leaf is a partial of this function with all arguments but
    `g`. These arguments identify the anchor: its name, its modes, the number of its graph's program
    (list of anchors), and its index there.
    """
    if torch.compiler.is_compiling():  # by compiled autograd
        anchor_operators.leaf(g, name, modes, program, site)
        return g
    observer = anchor_operators.current()
    given, leaf = remove_older_copies(leaf_hook, keep=observer is not None, name=name, modes=modes)
    if observer is not None:
        anchor = AnchorReference(**given) if given else AnchorReference(name, modes, program, site)
        observer.leaf_gradient(g, anchor, leaf)
    return g


@skip_frames
def see_input(g: torch.Tensor | None, name: str, modes: str) -> None:
    """Report to the session's observer what a hook on a non-leaf input of compiled code was given.

    g: the gradient of the input; None where no gradient reached the hook. name, modes: the name of
        the input's anchor, and the text of its modes.
    """
    observer = anchor_operators.current()
    if observer is not None:
        observer.see_from_outside(current_node(), (name, modes), g)


def remove_older_copies(
    hook: Callable[..., Any], *, keep: bool, **alike: object
) -> tuple[dict[str, Any], int]:
    """Remove the older copies of a hook from the leaf whose hooks run now.

    The copies are the partials of `hook` that were made with the keyword arguments `alike` (and
    perhaps others). keep: True keeps the newest copy, for another backward; False removes it too.
    Returns the keyword arguments of the newest copy (empty without copies), and the leaf's id (-1
    if no leaf's hooks run).
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
