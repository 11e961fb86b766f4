"""What autograd's nodes say of themselves, asked of their type.

The node of a custom `torch.autograd.Function` is the `ctx` that its forward and backward are given,
and users keep what they like on it: after `ctx.name = "gate"`, `node.name` is a text. So methods
are taken from the type of the node, never from the node. (`next_functions` and `metadata` need no
such care: torch refuses to set them, and nothing in a node's `__dict__` comes before them.)
"""

from __future__ import annotations

from typing import Any

__all__ = ["node_name"]


def node_name(node: Any) -> str:
    """The name of the operation: "AddmmBackward0"."""
    return str(type(node).name(node)).rpartition("::")[2]
