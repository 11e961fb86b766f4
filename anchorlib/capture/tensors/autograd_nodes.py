"""Facts about autograd's nodes, read through the type of the node.

The node of a custom `torch.autograd.Function` is the `ctx` of its forward and backward, on which
users may set any attribute: after `ctx.name = "gate"`, `node.name` is a text. So methods are looked
up on the type of the node, never on the node. (`next_functions` and `metadata` are safe: torch
refuses to set them, and nothing in a node's `__dict__` hides them.)
"""

from __future__ import annotations

from typing import Any

__all__ = ["node_name"]


def node_name(node: Any) -> str:
    """Return the name of an autograd node, such as "AddmmBackward0", without its namespace."""
    return str(type(node).name(node)).rpartition("::")[2]
