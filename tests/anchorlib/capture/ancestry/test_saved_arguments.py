"""What operations were told is read once a site, and nothing of the user's is touched for it."""

from __future__ import annotations

import weakref

import pytest
import torch
import xxhash
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

import anchorlib
from anchorlib.capture.ancestry import saved_arguments, walk
from tests.recording import recording
from tests.waiting import until_collected

anchor = anchorlib.anchor


def leaf(*shape):
    return torch.ones(*(shape or (4, 4))).requires_grad_()


def told(y):
    return saved_arguments.arguments(y.grad_fn)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda x: functional.gelu(x, approximate="tanh"), "approximate='tanh'"),
        (lambda x: x.std(-1), "correction=1, dim=(-1), keepdim=False"),
        (lambda x: x * 0.125, "other=0.125"),
        (lambda x: x * 2.0, "other=2"),
        (lambda x: x / -3, "other=-3"),
        (lambda x: x.softmax(-1), "dim=-1"),
        (lambda x: functional.elu(x, 0.5), "alpha=0.5, input_scale=1, scale=1"),
        (lambda x: torch.add(x, x, alpha=2), "alpha=2"),
        (
            lambda x: functional.mse_loss(x, torch.zeros(4, 4)),
            "reduction=mean, target=(16 of mean 0, std 0, first 0)",
        ),
        (
            lambda x: functional.group_norm(x[..., None], 2, eps=0.5),
            "eps=0.5, group=2",
        ),
        pytest.param(lambda x: x.mean(), "", id="shapes"),
        pytest.param(lambda x: x.tanh(), "", id="nothing"),
    ],
)
def test_scalars_are_told_and_shapes_are_not(made, said):
    assert told(made(leaf())) == said


def test_of_a_view_that_torch_negates_when_it_is_read_nothing_is_told():
    z = torch.complex(torch.rand(4, 4), torch.rand(4, 4))
    assert z.conj().imag.is_neg()
    assert told(leaf() * z.imag).startswith("other=(16 of mean ")
    assert told(leaf() * z.conj().imag) == ""
    assert told(leaf() * z.conj().imag[0, 0]) == ""


def test_a_number_in_a_tensor_of_the_users_is_told():
    assert told(leaf() * torch.tensor(3.5)) == "other=tensor(3.5)"
    assert told(torch.tensor(3.0) * leaf()) == "self=tensor(3)"
    assert told(leaf() * torch.tensor(3)) == "other=3"


def test_a_small_factor_that_autograd_does_not_follow_is_told_by_mean_and_spread():
    factor = torch.tensor([1.0, -1.0, 3.0, -3.0])
    assert told(leaf() * factor) == "other=(4 of mean 0, std 2.24)"
    assert told(leaf() / (factor + 4)) == "other=(4 of mean 4, std 2.24)"
    assert told(leaf() * factor.expand(4, 4)) == "other=(16 of mean 0, std 2.24)"
    assert told(leaf() * (factor * (1 + 1e-6))) == told(leaf() * factor)


def test_other_tensors_of_the_users_are_not_told():
    assert told(leaf() * torch.tensor(3.0, dtype=torch.float64, requires_grad=True)) == ""
    assert told(leaf() * leaf()) == ""
    assert told(leaf() * torch.ones(4, 4).bfloat16()) == ""
    assert told(leaf(200, 200) * torch.ones(200, 200)) == ""  # it is large
    assert told(leaf() @ torch.ones(4, 4).requires_grad_()) == ""
    assert told(leaf().tanh()) == ""  # what the operation made


def test_an_operand_that_autograd_does_not_follow_is_told_with_its_first_element():
    one, two = torch.tensor([[0.0, 1.0], [3.0, 4.0]]), torch.tensor([[3.0, 4.0], [0.0, 1.0]])
    assert told(leaf(2, 2) @ one) == "mat2=(4 of mean 2, std 1.58, first 0)"
    assert told(leaf(2, 2) @ two) == "mat2=(4 of mean 2, std 1.58, first 3)"
    assert told(leaf(2, 2) @ (two * (1 + 1e-6))) == told(leaf(2, 2) @ two)


INDEX = torch.tensor([0, 3, 1, 1])
READ = {
    "rows": (lambda x, i: x[i], "indices"),
    "columns": (lambda x, i: x[:, i], "indices"),
    "select": (lambda x, i: x.index_select(0, i), "index"),
    "gather": (lambda x, i: x.gather(1, i[:, None]), "index"),
    "index_add": (lambda x, i: x.index_add(0, i, x), "index"),
    "scatter_add": (lambda x, i: x.scatter_add(0, i[:, None].expand(4, 4), x), "index"),
    "embedding": (lambda x, i: functional.embedding(i, x), "indices"),
    "cross entropy": (functional.cross_entropy, "target"),
}


@pytest.mark.parametrize("one", READ)
def test_where_a_tensor_is_read_or_added_to_is_told_by_count_bounds_and_digest(one):
    made, name = READ[one]
    digest = xxhash.xxh3_128_hexdigest(INDEX.numpy().tobytes())[:8]
    assert f"{name}=(4 from 0 to 3, {digest})" in told(made(leaf(), INDEX))
    assert digest in told(made(leaf(), INDEX.clone()))
    assert digest not in told(made(leaf(), INDEX.roll(1)))


def test_indices_of_several_axes_are_told_each_and_none_where_one_is_not_cheap():
    assert told(leaf()[INDEX, INDEX.roll(1)]).count("from 0 to 3") == 2
    assert told(leaf()[torch.zeros(1 << 14, dtype=torch.int64)]) == ""
    scattered = INDEX.repeat_interleave(2)[::2]
    assert told(leaf()[INDEX, scattered]) == told(leaf()[INDEX, INDEX])
    assert told(leaf()[torch.zeros(0, dtype=torch.int64)]) == ""


def test_weights_of_classes_and_expanded_targets_are_told():
    loss = functional.binary_cross_entropy_with_logits
    weighed = told(loss(leaf(4), torch.ones(4), pos_weight=torch.tensor(3.0)))
    assert "pos_weight=tensor(3)" in weighed
    target = torch.tensor([1.0, -1.0, 3.0, -3.0])
    assert "target=(4 of mean 0, std 2.24" in told(
        functional.huber_loss(leaf(4, 4), target.expand(4, 4))
    )
    assert "target" not in told(functional.huber_loss(leaf(4), leaf(4)))


def test_an_added_mask_is_told_by_what_it_leaves_out():
    q = torch.ones(1, 1, 4, 4)
    mask = torch.ones(4, 4).tril().bool()
    told_of_mask = told(functional.scaled_dot_product_attention(q.requires_grad_(), q, q, mask))
    assert "attn_mask=6 of 16 are -inf (" in told_of_mask


def test_which_output_of_an_operation_is_taken_is_told():
    one, two = leaf().chunk(2)
    assert told(one.tanh()) == ""
    assert told(two.tanh()) == "outputs=(1)"
    assert told(one * two) == "outputs=(0, 1)"


def test_a_small_mask_is_told_by_its_digest():
    mask = torch.ones(4, 4).triu(1).bool()
    said = told(leaf().masked_fill(mask, 0.0))
    assert said.startswith("mask=6 of 16 (")
    assert said == told(leaf().masked_fill(mask.clone(), 0.0))
    other = mask.roll(1, 0)
    assert said != told(leaf().masked_fill(other, 0.0))
    assert told(torch.where(mask, leaf(), 0.0)) == said.replace("mask", "condition")
    assert told(leaf(300, 300).masked_fill(torch.ones(300, 300, dtype=torch.bool), 0.0)) == ""
    turned = told(leaf().masked_fill(mask.T, 0.0))
    assert turned == told(leaf().masked_fill(mask.T.contiguous(), 0.0)) != said


def test_a_mask_that_is_a_view_is_told_by_its_own_elements():
    masks = torch.zeros(2, 4, 4, dtype=torch.bool)
    masks[1, 0] = True
    first, second = (told(leaf().masked_fill(mask, 0)) for mask in masks)
    assert "0 of 16" in first
    assert "4 of 16" in second


def test_looking_at_a_mask_leaves_a_lazy_clone_lazy():
    mask = torch.ones(4, 4, dtype=torch.bool)
    lazy = torch._lazy_clone(mask)
    y = leaf().masked_fill(lazy, 0.0)
    before = torch._C._is_cow_tensor(lazy)
    told(y)
    assert torch._C._is_cow_tensor(lazy) == before


def test_no_hook_of_the_users_runs_and_no_operation_is_made():
    class Seen(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    def unpack(x):
        seen.append("unpack")
        return x

    seen = []
    with saved_tensors_hooks(lambda x: x, unpack):
        y = functional.gelu(leaf() * torch.ones(4, 4))
        z = leaf() * 3
        leaf_of_factor = leaf() * torch.ones(4, 4)
    with Seen():
        assert told(y) == "approximate='none'"
        assert told(z) == "other=3"
        assert told(leaf_of_factor) == "other=(16 of mean 1, std 0)"
    assert seen == []


@pytest.mark.slow
def test_nothing_that_was_saved_is_kept_alive_and_backward_goes_on_as_before():
    kept = torch.ones(4, 4)
    gone = weakref.ref(kept)
    y = leaf() * kept
    assert told(y) == "other=(16 of mean 1, std 0)"
    y.sum().backward()
    assert told(y) == ""  # freed by backward
    del kept, y
    until_collected([gone])


def test_what_a_custom_function_keeps_is_no_argument_of_torchs():
    class Rude(torch.autograd.Function):
        _saved_of_the_class = property(lambda _: pytest.fail("asked"))

        @staticmethod
        def forward(ctx, x):
            ctx._saved_eps = 3
            return x * 2

    assert told(Rude.apply(leaf())) == ""


def test_a_long_list_and_a_long_text_stay_short():
    assert len(told(leaf(*[1] * 12).sum(tuple(range(12))))) < saved_arguments._MOST_TEXT


def test_each_operation_has_its_own_and_sites_are_read_in_two_steps_alone(monkeypatch):
    read = []

    def counting(node):
        read.append(node)
        return saved_arguments.arguments(node)

    monkeypatch.setattr(walk, "arguments", counting)
    model = nn.Linear(4, 4)
    with recording() as run:
        run.session.watch(model, tensors="*")
        for _ in range(6):
            anchor(functional.gelu(model(torch.ones(4, 4)) * 0.5), "h").sum().backward()
            run.session.step()
    edges = next(one for one in run.sink.lineage if one.name == "h")
    assert edges.ops == ("GeluBackward0", "MulBackward0")
    assert edges.arguments == ("approximate='none'", "other=0.5")
    assert sum(one.name == "h" for one in run.sink.lineage) == 1
    of_h = [node for node in read if type(node).__name__ == "GeluBackward0"]
    assert len(of_h) == 2


def test_operations_without_any_are_told_as_before():
    with recording() as run:
        anchor(leaf().tanh(), "h")
    assert run.sink.lineage[-1].arguments == ()
