"""A traced training computes what an untraced one does, bit for bit; each operation has a line."""

from __future__ import annotations

import pytest
import torch

from tests.anchorlib.capture.tracing.programs import SITUATIONS, train

pytestmark = pytest.mark.slow


def assert_lines(ops):
    """Each operation says which line made it, all of them of the program."""
    assert [(op.stage, op.op, op.node) for op in ops if not op.where] == []
    assert {op.where.partition(":")[0] for op in ops} == {"programs.py"}


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # inductor's own
@pytest.mark.parametrize(
    "situation",
    [
        pytest.param(name, marks=[pytest.mark.long] * (", bfloat16" in name or name == "aot_eager"))
        for name in SITUATIONS
    ],
)
def test_a_traced_training_has_the_bits_of_an_untraced_one(situation):
    plain, _, _ = train(situation, traced=False)
    traced, ops, run = train(situation, traced=True)
    assert all(torch.equal(a, b) for a, b in zip(plain, traced, strict=True))
    assert {op.step for op in ops} == {0, 1}
    assert_lines(ops)
    assert torch._C._len_torch_dispatch_stack() == 0
    told = {reason for reason in run.session.counters.skipped if "operation" in reason}
    assert not told, "also compiled code is traced"
