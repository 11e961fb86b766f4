"""One compiler backend with two tables of decompositions, so that two runs differ in operations.

Both runs go through AOT autograd; B's backend is told to take one operation apart. What the two
graphs run is seen operation by operation, since nothing compiles them further.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from functorch.compile import make_boxed_func
from torch import nn
from torch._decomp import get_decompositions
from torch._dynamo.backends.common import aot_autograd

from anchorlib.operations import Op, align_ops, read_entries
from tests.recording import recording

__all__ = ["DECOMPOSED", "Many", "exact", "traced"]

Tensor = torch.Tensor

LINEAR: Final = ("l1", "l2", "l3", "l4", "out")
DECOMPOSED: Final[dict[str, str | tuple[str, ...]]] = {
    "tanh_backward": "tanh",
    "sigmoid_backward": "sig",
    "gelu": "gelu",
    "gelu_backward": "gelu",
    "native_layer_norm": "ln",
    "native_layer_norm_backward": "ln",
    "silu": "silu",
    "silu_backward": "silu",
    "_softmax": "soft",
    "_softmax_backward_data": "soft",
    "addmm": LINEAR,
    "embedding_dense_backward": "emb",
    "elu": "elu",
    "elu_backward": "elu",
    "leaky_relu_backward": "lrelu",
    "softplus": "sp",
    "softplus_backward": "sp",
    "hardswish": "hs",
    "hardswish_backward": "hs",
}
"""An operation that has a decomposition, and the modules of `Many` that run it."""


class Many(nn.Module):
    """A module for each of them."""

    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(20, 16)
        self.l1, self.l2, self.l3, self.l4 = (nn.Linear(16, 16) for _ in range(4))
        self.ln, self.out = nn.LayerNorm(16), nn.Linear(16, 20)
        self.tanh, self.sig, self.gelu, self.silu = nn.Tanh(), nn.Sigmoid(), nn.GELU(), nn.SiLU()
        self.soft, self.elu, self.lrelu = nn.Softmax(-1), nn.ELU(), nn.LeakyReLU()
        self.sp, self.hs = nn.Softplus(), nn.Hardswish()

    def forward(self, x: Tensor) -> Tensor:
        """All of them, one after the other."""
        h = self.sig(self.l2(self.tanh(self.l1(self.emb(x)))))
        h = self.soft(self.l4(self.silu(self.ln(self.gelu(self.l3(h))))))
        made: Tensor = self.out(self.hs(self.sp(self.lrelu(self.elu(h)))))
        return made


def traced(*apart: str) -> list[Op]:
    """The operations of one step, compiled by a backend that takes these operations apart."""
    torch.compiler.reset()
    torch.manual_seed(0)
    net = Many()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    x = torch.randint(0, 20, (4, 6))
    with recording() as run:
        run.session.watch(net, tensors=(), optimizer=optimizer)
        run.session.trace(1)
        made = torch.compile(net, backend=_backend(*apart))(x)
        made.square().mean().backward()
        optimizer.step()
    return read_entries(run.sink.traced)


def _backend(*apart: str) -> Callable[..., Any]:
    def as_it_is(graph: Any, _: Any) -> Any:
        return make_boxed_func(graph.forward)

    table = get_decompositions([getattr(torch.ops.aten, name) for name in apart])
    made: Callable[..., Any] = aot_autograd(
        fw_compiler=as_it_is, bw_compiler=as_it_is, decompositions=table
    )
    return made


def exact(name: str, plain: Sequence[Op]) -> bool:
    """Whether compare finds that B decomposes this operation, in the modules that run it.

    A is said to run it there, B to run what it was decomposed to; and no other module is named.
    """
    found = align_ops(plain, traced(name))
    assert found is not None
    own = DECOMPOSED[name]
    named = any(name in one.only_a and one.decomposed_from == name for one in found.every)
    modules = {one.module for one in found.every}
    return named and modules == {*([own] if isinstance(own, str) else own)}
