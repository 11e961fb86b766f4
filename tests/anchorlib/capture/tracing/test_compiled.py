"""The operations of compiled code are told as those of eager code are."""

from __future__ import annotations

from collections import Counter

import torch
from functorch.compile import make_boxed_func
from torch._decomp import get_decompositions
from torch._dynamo.backends.common import aot_autograd

from anchorlib.operations import read_entries
from tests.anchorlib.capture.tracing.programs import Net, train
from tests.recording import recording


def one_step(call, model, **options):
    """The operations of one step with `call`, which was made of `model`."""
    with recording() as run:
        run.session.watch(model, tensors="*")
        run.session.trace(1, **options)
        call(torch.ones(4, 6)).sum().backward()
        run.session.step()
    return read_entries(run.sink.traced)


def backend(*decomposed):
    """An AOT backend that runs graphs as they are, after these decompositions."""

    def nothing(graph_module, _inputs):
        return make_boxed_func(graph_module.forward)

    table = get_decompositions(decomposed)
    return aot_autograd(fw_compiler=nothing, bw_compiler=nothing, decompositions=table)


def computed(ops, **where):
    return [
        op
        for op in ops
        if not op.view
        and op.op not in {"aten.detach.default", "aten._unsafe_view.default"}
        and all(getattr(op, key) == value for key, value in where.items())
    ]


def names(ops):
    return [op.op.split(".")[1] for op in ops]


def test_two_decomposition_tables_of_one_backend_differ_in_what_they_decompose():
    found = []
    for table in ((), (torch.ops.aten.tanh_backward,)):
        torch._dynamo.reset()
        model = Net()
        ops = one_step(torch.compile(model, backend=backend(*table)), model)
        found.append(computed(ops, stage="backward", module="tanh2"))
    whole, parts = found
    assert names(whole) == ["tanh_backward"]
    assert names(parts) in (["mul", "sub", "mul"], ["mul", "rsub", "mul"])
    assert [op.origin for op in whole] == [""]
    assert {op.origin for op in parts} == {"aten.tanh_backward.default"}
    assert parts[0].seq == whole[0].seq


DROPOUTS = {"empty_like", "bernoulli_", "div_", "mul", "native_dropout", "native_dropout_backward"}


def test_graphs_that_run_operation_by_operation_tell_what_eager_code_tells():
    eager, compiled = (train(how, traced=True)[1] for how in ("transformer", "aot_eager"))
    assert {op.source for op in compiled} == {"eager", "graph"}
    for stage in ("forward", "backward", "accumulate", "optimizer"):
        alike, other = (
            Counter((op.module, op.op) for op in computed(ops, stage=stage))
            for ops in (eager, compiled)
        )
        differing = (alike - other) | (other - alike)
        assert {name.split(".")[1] for _, name in differing} <= DROPOUTS
        assert not differing or stage in {"forward", "backward"}
