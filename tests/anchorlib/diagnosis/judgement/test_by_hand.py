"""What one run's program does to gradients after backward, where the other's backward does it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

import anchorlib
from tests.diagnosis.training import perturbed
from tests.once import Once


@dataclass(frozen=True)
class Training:
    """A net whose weights are masked, and drawn to where they began.

    masks: "after" backward, by a "hook" in it, or "never". drawn: by a term in the "loss", or by
    "hand". share: of that term. clip: the norm of the gradients. times: a number in the loss.
    doubled: the step in which hooks make gradients twice as large. looks: whether from step 2 on
    a backward pass of its own estimates how important each weight is.
    """

    masks: str = "after"
    drawn: str = "loss"
    share: float = 0.1
    clip: float = 1e9
    times: float = 1.0
    doubled: int | None = None
    looks: bool = False


def train(how: Training, name: str, store) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    weights = [one for one in model.parameters() if one.ndim == 2]
    masks = [(one.detach().abs() > 0.1).float() for one in weights]
    begun = [one.detach() + 0.3 for one in weights]
    factor = [1.0]
    for one, mask in zip(weights, masks, strict=True) if how.masks == "hook" else ():
        one.register_hook(lambda gradient, mask=mask: gradient * mask * factor[0])
    draw = torch.Generator().manual_seed(1)
    with anchorlib.start(name, store=store, recorder="thread") as session:
        session.watch(model, optimizer=optimizer, tensors="*")
        for step in range(4):
            if how.looks and step >= 2:
                optimizer.zero_grad()
                model(torch.randn(12, 6, generator=draw)).square().mean().backward()
            factor[0] = 2.0 if step == how.doubled else 1.0
            optimizer.zero_grad()
            loss = model(torch.randn(12, 6, generator=draw)).square().mean() * how.times
            if how.drawn == "loss":
                apart = zip(weights, begun, strict=True)
                drawn = sum((one - other).square().sum() for one, other in apart)
                (loss + how.share / 2 * drawn).backward()
            else:
                loss.backward()
                for one, other in zip(weights, begun, strict=True):
                    one.grad += how.share * (one.detach() - other)
            for one, mask in zip(weights, masks, strict=True) if how.masks == "after" else ():
                one.grad *= mask
            nn.utils.clip_grad_norm_(model.parameters(), how.clip)
            anchorlib.anchor(loss, "loss", grad=False)
            optimizer.step()


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    return Once(train, tmp_path_factory.mktemp("runs"))


@pytest.mark.parametrize("clip", [1e9, 0.05])
@pytest.mark.parametrize(
    ("one", "changes"),
    [
        (Training(), {"masks": "hook"}),
        (Training(masks="hook"), {"masks": "after"}),
        (Training(masks="never"), {"drawn": "hand"}),
    ],
    ids=["by a hook", "after it", "a term by hand"],
)
def test_gradients_that_are_made_equal_before_they_are_read_are_no_fault(one, changes, clip, once):
    one = replace(one, clip=clip)
    found = anchorlib.compare(once(one), once(replace(one, **changes)))
    assert found.verdict in ("expected", "suspect"), found
    assert any("before the optimizer reads them" in note for note in found.notes), found.notes


@pytest.mark.parametrize(
    ("one", "changes"),
    [
        (Training(), {"masks": "never"}),
        (Training(masks="hook"), {"masks": "never"}),
        (Training(masks="never"), {"drawn": "hand", "share": 0.11}),
        (Training(masks="never", clip=0.05), {"times": 10.0}),
    ],
    ids=["not masked", "no hook", "another share", "a number that clipping hides"],
)
def test_gradients_that_are_read_otherwise_are_a_fault(one, changes, once):
    found = anchorlib.compare(once(one), once(replace(one, **changes)))
    assert found.verdict == "unexpected", found


def test_a_fault_of_a_later_backward_is_named_there(once):
    found = anchorlib.compare(once(Training()), once(Training(masks="hook", doubled=2)))
    assert found.verdict == "unexpected", found
    fault = next(origin for origin in found.origins if origin.cls == "not_rounding")
    assert (fault.place.step, fault.place.kind) == (2, "pass_grad"), found


@pytest.mark.parametrize(("share", "verdict"), [(0.1, "expected"), (0.11, "unexpected")])
def test_steps_with_backward_passes_of_their_own_are_no_exception(share, verdict, tmp_path):
    one = Training(masks="never", looks=True)
    train(one, "a", tmp_path)
    for number in (1, 2, 3):
        with perturbed(f"{number}:float32"):
            train(one, "a", tmp_path)
    train(replace(one, drawn="hand", share=share), "b", tmp_path)
    noise = [f"a-noise{number}" for number in (1, 2, 3)]
    found = anchorlib.compare("a", "b", store=tmp_path, noise=noise)
    assert found.verdict == verdict, found
