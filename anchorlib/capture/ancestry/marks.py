"""The marks by which a walk through autograd's graph recognizes anchored tensors and parameters.

The mark of an anchored tensor is an entry in the metadata of its autograd node, a dict that torch
keeps for anomaly mode. The mark is freed with the node, so that nothing here keeps a tensor or a
graph alive. A leaf has no lasting node, so its mark is a hook on the leaf.

A tensor without a graph is recognized by its memory (see `shared_storages`) or by the module that
returned it: a frozen layer, or one under `no_grad`, made its output from its arguments.
"""

from __future__ import annotations

from typing import Any, Final
from weakref import ref

import torch

from anchorlib.capture.counting import CallCoordinates
from anchorlib.capture.naming import NamedMembers
from anchorlib.capture.own_hooks import HookHandle, add_tensor_hook
from anchorlib.capture.tensors import Storages
from anchorlib.torch_private import hooks_are_known, hooks_of

__all__ = ["Mark", "Marks"]

_MARK: Final = "anchorlib"  # a key in a node's metadata

Mark = tuple[
    object, str, CallCoordinates
]  # token of the session's marks, the tensor's name, its coordinates


class Marks:
    """The marks by which one session recognizes anchored tensors; other sessions' are ignored."""

    def __init__(self) -> None:
        self._token = object()
        self._parameters: dict[int, tuple[ref[NamedMembers], str]] = {}  # by id
        self._storages = Storages()
        self._leaves: list[HookHandle] = []

    def know(self, parts: NamedMembers) -> None:
        """Learn a watched model's parameters by name, so that `parameter_name` knows them."""
        # The weak reference is to the parts: torch refuses to swap a tensor that has one.
        held = ref(parts)
        self._parameters |= {id(one): (held, name) for name, one in parts.parameters.items()}

    def parameter_name(self, leaf: object) -> str | None:
        """Return the name of the parameter `leaf`; None where `leaf` is in no watched model."""
        held, name = self._parameters.get(id(leaf), (None, ""))
        parts = None if held is None else held()
        return name if parts is not None and parts.parameters.get(name) is leaf else None

    def mark(self, x: torch.Tensor, node: Any, name: str, at: CallCoordinates) -> None:
        """Mark `x`, made by `node` (None for a leaf), as the tensor `name` observed at `at`.

        A tensor that needs no gradient gets no mark here: `mark_memory` notes its memory.
        """
        mark = (self._token, name, at)
        if node is not None:
            node.metadata[_key(x.output_nr)] = mark
        elif x.requires_grad and hooks_are_known:
            self._mark_leaf(x, mark)

    def mark_memory(self, x: torch.Tensor, *, name: str, at: CallCoordinates) -> None:
        """Note that the memory of `x` holds the tensor `name` observed at `at`.

        `mark_of_memory` then finds this mark for other tensors in that memory.
        """
        self._storages.note(x, (self._token, name, at))

    def mark_of(self, node: Any, number: int) -> Mark | None:
        """Return the mark of a node's output; None if that output was not anchored.

        A mark has the name and the coordinates of the anchored tensor.
        node: an autograd node. number: which of the node's outputs, from 0 on.
        """
        return self._ours(node.metadata.get(_key(number)))

    def mark_of_leaf(self, leaf: torch.Tensor) -> Mark | None:
        """Return the mark of `leaf` (anchored name and coordinates); None if it is not anchored."""
        return self._ours(next((hook.mark for hook in _leaf_marks(leaf)), None))

    def _ours(self, mark: Mark | None) -> Mark | None:
        return mark if mark is not None and mark[0] is self._token else None

    def mark_of_memory(self, x: torch.Tensor) -> tuple[Mark, str] | None:
        """Return the mark of the anchored tensor that has the memory of `x`; None if none has.

        A mark has the anchored tensor's name and coordinates. The second value says how `x` differs
        from the anchored tensor: "detach" or "view", or "" if it does not.
        """
        known = self._storages.anchored_tensor_of(x)
        return known if known is not None and known[0][0] is self._token else None

    def _mark_leaf(self, leaf: torch.Tensor, mark: Mark) -> None:
        for hook in _leaf_marks(leaf):
            hook.mark = mark
            return
        if len(self._leaves) >= 64:  # each batch that needs gradients is a new leaf
            self._leaves = [one for one in self._leaves if not one.is_gone]
        self._leaves.append(add_tensor_hook(leaf, _LeafMark(mark)))

    def close(self) -> None:
        """Remove the marks from leaves, which may outlive the session, and forget all memory."""
        for hung in self._leaves:
            hung.remove()
        self._leaves.clear()
        self._storages.clear()


class _LeafMark:
    """A tensor hook that changes no gradient and only marks a leaf as an anchored tensor."""

    __slots__ = ("mark",)

    # Lets torch save an anchored leaf, or send it to other processes, without a warning.
    __torch_unserializable__ = True

    def __init__(self, mark: Mark) -> None:
        self.mark = mark

    def __call__(self, gradient: torch.Tensor) -> torch.Tensor:
        # Compiled autograd would take None to mean that there is no gradient.
        return gradient


def _key(number: int) -> object:
    return (_MARK, number) if number else _MARK


def _leaf_marks(leaf: torch.Tensor) -> list[_LeafMark]:
    return [hook for hook in hooks_of(leaf).values() if isinstance(hook, _LeafMark)]
