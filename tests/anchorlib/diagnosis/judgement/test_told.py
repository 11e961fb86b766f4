"""What B does otherwise is told of programs that call, read, step and cut gradients otherwise."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn
from torch.nn import functional

import anchorlib
from anchorlib.diagnosis.judgement.changes.figures import follows
from tests.once import Once

ROWS, WIDE, BATCH = 11, 8, 40


@dataclass(frozen=True)
class Training:
    """Two small models, of which one values what the other makes of rows of a table.

    unknown: the row that is read in place of some. shifted: by how many rows all others are.
    swapped: whether keys and values change places. asks: who says what is worth how much, the
    "copy", "both" or the "model", which does so with gradients where it `follows`.
    detached: whether no gradient goes to keys. clears: gradients, between passes. steps: whether
    the second optimizer does. clip: of the gradients' norm. scale: of what a model is given.
    discount: of what is worth something. ends: whether some rows are worth nothing.
    """

    unknown: int = ROWS - 1
    shifted: int = 0
    swapped: bool = False
    asks: str = "copy"
    follows: bool = False
    detached: bool = False
    clears: bool = False
    steps: bool = True
    clip: float = 0.5
    scale: float = 1.0
    discount: float = 0.9
    ends: bool = True


class Net(nn.Module):
    def __init__(self, how: Training) -> None:
        super().__init__()
        self.how, self.table = how, nn.Embedding(ROWS, WIDE)
        self.q, self.k, self.v = (nn.Linear(WIDE, WIDE) for _ in range(3))

    def forward(self, rows):
        how = self.how
        rows = (rows + how.shifted).masked_fill(rows == 0, how.unknown)
        x = self.table(rows)
        q, k, v = self.q(x), self.k(x), self.v(x)
        k = k.detach() if how.detached else k
        k, v = (v, k) if how.swapped else (k, v)
        return (q @ k.T).softmax(1) @ v


class Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(WIDE, 1)

    def forward(self, x):
        return self.fc(x)[:, 0]


def train(how: Training, name: str, store) -> None:
    torch.manual_seed(0)
    model, head, copy = Net(how), Head(), Head()
    of_model, of_head = (
        torch.optim.Adam(m.parameters(), 1e-2, foreach=False) for m in (model, head)
    )
    with anchorlib.start(name, store=store, recorder="thread") as session:
        session.watch(model, tensors="*", optimizer=of_model, prefix="net")
        session.watch(head, tensors="*", optimizer=of_head, prefix="head")
        session.watch(copy, tensors="*", prefix="copy")
        draw = torch.Generator().manual_seed(2)
        for _ in range(2):
            of_model.zero_grad()
            of_head.zero_grad()
            for _ in range(2):
                if how.clears:
                    of_model.zero_grad()
                rows = torch.randint(0, ROWS - 2, (BATCH,), generator=draw)
                made = model(rows)
                told = head(made)
                given = how.scale * torch.randn(BATCH, WIDE, generator=draw)
                with torch.set_grad_enabled(how.follows):
                    worth = (head if how.asks == "model" else copy)(given)
                    if how.asks == "both":
                        worth = torch.minimum(worth, head(given))
                    worth = how.discount * worth * (rows % 3 != 0 if how.ends else 1.0) + 0.1 * rows
                loss = functional.smooth_l1_loss(told, worth)
                anchorlib.anchor(loss, "loss").backward()
            nn.utils.clip_grad_norm_(model.parameters(), how.clip, foreach=False)
            of_model.step()
            if how.steps:
                of_head.step()
            session.step()


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    return Once(train, tmp_path_factory.mktemp("runs"))


def told(found) -> str:
    return "; ".join([found.sentence, *(origin.why for origin in found.origins)])


PLAIN = Training()
OWN = Training(asks="model")
FAULTS = {
    "row": (PLAIN, {"unknown": 0}, "reads row 10 of net.table.weight in A, row 0 in B, in "),
    "shift": (PLAIN, {"shifted": 1}, "each 1 further on"),
    "swap": (PLAIN, {"swapped": True}, "swapped what they take: Mm takes net.v | net.k, Mm net.k"),
    "copy not asked": (PLAIN, {"asks": "model"}, "copy.output is called in A alone, head.output"),
    "model asked too": (PLAIN, {"asks": "both"}, "head.output is called once in A, 2 times in B"),
    "gradients through": (
        OWN,
        {"follows": True},
        "from 2 calls of head.fc, which A also calls with",
    ),
    "detach": (PLAIN, {"detached": True}, "in A alone gradients come back to net.k: B detaches it"),
    "cleared": (PLAIN, {"clears": True}, "zero_grad? B's gradient lacks the first 1 pass of its"),
    "discount": (
        PLAIN,
        {"discount": 0.8},
        "target is A's minus 0.1 times an element of each row of",
    ),
    "ends": (
        PLAIN,
        {"ends": False},
        "target is A's plus 0.9 times an element of each row of copy.",
    ),
    "no step": (PLAIN, {"steps": False}, "its optimizer did not step in B"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_a_program_does_otherwise_is_told(fault, once):
    one, changes, words = FAULTS[fault]
    found = anchorlib.compare(once(one), once(replace(one, **changes)))
    assert found.verdict == "unexpected", found
    assert words in told(found)
    turned = anchorlib.compare(once(replace(one, **changes)), once(one))
    assert turned.verdict == "unexpected", turned


CONTROLS = {
    "another clip is no cleared gradient": (PLAIN, {"clip": 0.1}),
    "other data are no other call": (PLAIN, {"scale": 2.0}),
}
CLAIMS = (
    "times an element",
    "reads row",
    "reads other",
    "swapped",
    "called",
    "detach",
    "zero_grad",
    "did not step",
)


@pytest.mark.parametrize("control", CONTROLS)
def test_none_of_it_is_told_of_another_difference(control, once):
    one, changes = CONTROLS[control]
    found = anchorlib.compare(once(one), once(replace(one, **changes)))
    assert found.verdict != "identical"
    assert [claim for claim in CLAIMS if claim in told(found)] == []


def described(x: torch.Tensor) -> str:
    mean, spread = float(x.mean()), float(x.std(correction=0))
    mean = 0.0 if abs(mean) < 1e-3 * spread else mean
    return f"mat1=({x.numel()} of mean {mean:.3g}, std {spread:.3g}, first {float(x[0]):.3g})"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (torch.square, ", the square of A's"),
        (torch.sqrt, ", the square root of A's"),
        (lambda x: 3 * x, ", 3 times A's"),
        (lambda x: -x, ", -1 times A's"),
        (lambda x: x + 2, ", A's plus 2"),
    ],
)
def test_how_an_operand_follows_from_the_others_figures_is_told(change, said):
    x = torch.rand(200, generator=torch.Generator().manual_seed(3)) + 0.1
    assert follows(described(x), described(change(x))) == said


@pytest.mark.parametrize(
    "change",
    [lambda x: x.flip(0), lambda x: x**3, lambda x: x * 1.001, torch.exp, lambda x: x[:-1] * 2],
    ids=["flip", "cube", "rounding", "exp", "shorter"],
)
def test_an_operand_that_follows_by_no_formula_is_said_to_follow_by_none(change):
    x = torch.rand(200, generator=torch.Generator().manual_seed(3)) + 0.1
    assert follows(described(x), described(change(x))) == ""
    both = ", ".join([described(x), described(x).replace("mat1", "mat2")])
    assert follows(both, both.replace("first", "last")) == ""


class Normed(nn.Module):
    """Two norms, of which a program may call the first one twice: at the start both do the same."""

    def __init__(self, again: bool) -> None:
        super().__init__()
        self.again = again
        self.first, self.second, self.out = nn.LayerNorm(8), nn.LayerNorm(8), nn.Linear(8, 4)

    def forward(self, x):
        h = self.first(x).tanh()
        return self.out((self.first if self.again else self.second)(h))


@pytest.mark.parametrize("parts", [1, 2])
def test_a_module_that_is_called_in_place_of_another_is_told_at_its_parameters_gradient(
    tmp_path, parts
):
    for run, again in (("a", False), ("b", True)):
        torch.manual_seed(0)
        model = Normed(again)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with anchorlib.start(run, store=tmp_path, recorder="thread") as session:
            session.watch(model, optimizer=optimizer)
            for _ in range(2):
                optimizer.zero_grad()
                for _ in range(parts):
                    model(torch.randn(16, 8)).square().mean().backward()
                optimizer.step()
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert found.verdict == "unexpected"
    assert "first is called once in A, 2 times in B" in found.sentence
