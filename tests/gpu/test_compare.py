"""The same trainings on a CPU and on a GPU, by other kernels of it: `make gpu` runs these."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn
from torch.nn import functional

import anchorlib
from tests.diagnosis.training import perturbed
from tests.diagnosis.workloads.base import digits
from tests.once import Once

if not torch.cuda.is_available():
    pytest.skip("there is no GPU of CUDA here", allow_module_level=True)

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]  # torch's own, of its compiler
NOISE = (1, 2, 3)


@dataclass(frozen=True)
class Training:
    """A net that learns digits in five steps.

    eps: of its first norm. form: of the optimizer ("foreach" or "fused"). by_hand: attention
    without torch's kernel. last: channels-last layout. parts: micro-batches a step.
    """

    net: str
    device: str = "cuda"
    low: bool = False
    compiled: bool = False
    form: str = "foreach"
    by_hand: bool = False
    last: bool = False
    parts: int = 1
    eps: float = 1e-5
    approximate: str = "none"
    clears: bool = True


class Images(nn.Module):
    def __init__(self, how: Training) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16, eps=how.eps)
        self.conv2, self.norm2 = nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32)
        self.head = nn.Linear(128, 10)

    def forward(self, x):
        x = torch.relu(self.norm1(self.conv1(x[:, None])))
        x = torch.relu(self.norm2(self.conv2(x)))
        return self.head(functional.adaptive_avg_pool2d(x, 2).flatten(1))


class Rows(nn.Module):
    def __init__(self, how: Training) -> None:
        super().__init__()
        self.rnn, self.head = nn.LSTM(8, 32, 2, batch_first=True), nn.Linear(32, 10)

    def forward(self, x):
        return self.head(self.rnn(x)[0][:, -1])


class Attentive(nn.Module):
    def __init__(self, how: Training) -> None:
        super().__init__()
        self.enter, self.norm = nn.Linear(8, 32), nn.LayerNorm(32, eps=how.eps)
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)
        self.up, self.act, self.down = (
            nn.Linear(32, 64),
            nn.GELU(how.approximate),
            nn.Linear(64, 32),
        )
        self.head, self.by_hand = nn.Linear(32, 10), how.by_hand

    def forward(self, x):
        x = self.enter(x)
        heads = self.qkv(self.norm(x)).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4)
        x = x + self.out(self.attended(*heads).transpose(1, 2).flatten(2))
        return self.head((x + self.down(self.act(self.up(x)))).mean(1))

    def attended(self, q, k, v):
        if not self.by_hand:
            return functional.scaled_dot_product_attention(q, k, v)
        return (q @ k.transpose(-2, -1) / 8**0.5).softmax(-1) @ v


NETS = {"images": Images, "rows": Rows, "attentive": Attentive}


def train(how: Training, name: str, store) -> None:
    torch.manual_seed(0)
    model = NETS[how.net](how).to(how.device)
    model = model.to(memory_format=torch.channels_last) if how.last else model
    run = torch.compile(model) if how.compiled else model
    optimizer = torch.optim.AdamW(
        model.parameters(), 3e-3, foreach=how.form == "foreach", fused=how.form == "fused"
    )
    images, labels = digits()
    draw = torch.Generator().manual_seed(1)
    with anchorlib.start(name, store=store) as session:
        session.watch(model, optimizer=optimizer, tensors="*")
        for _ in range(5):
            chosen = torch.randint(0, len(images), (16,), generator=draw)
            if how.clears:
                optimizer.zero_grad()
            for x, y in zip(
                images[chosen].to(how.device).chunk(how.parts),
                labels[chosen].to(how.device).chunk(how.parts),
                strict=True,
            ):
                with torch.autocast(how.device, torch.bfloat16, enabled=how.low):
                    loss = functional.cross_entropy(run(x), y)
                anchorlib.anchor(loss, "loss")
                (loss / how.parts).backward()
            optimizer.step()


def noise_of(one: Training, store) -> list[anchorlib.Run]:
    for number in NOISE:
        with perturbed(f"{number}:{'bfloat16' if one.low else 'float32'}"):
            train(one, "a", store)
    return [anchorlib.open_run(f"a-noise{number}", store) for number in NOISE]


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    return Once(train, tmp_path_factory.mktemp("runs"))


BENIGN = [
    *((Training(net, device="cpu"), {"device": "cuda"}) for net in NETS),
    *(
        (Training(net, device="cpu", low=True), {"device": "cuda"})
        for net in ("images", "attentive")
    ),
    *(
        (Training(net, low=low), {"compiled": True})
        for net in ("images", "attentive")
        for low in (False, True)
    ),
    *((Training(net), {"form": "fused"}) for net in NETS),
    *((Training("images", low=low), {"last": True}) for low in (False, True)),
    *((Training("attentive", low=low), {"by_hand": True}) for low in (False, True)),
    *((Training(net), {"parts": 2}) for net in ("rows", "attentive")),
]
BUGS = [
    (Training("images", device="cpu"), {"device": "cuda", "eps": 1e-3}, "eps 1e-05 | 0.001"),
    (Training("attentive", device="cpu"), {"device": "cuda", "eps": 1e-3}, "eps 1e-05 | 0.001"),
    (Training("attentive"), {"compiled": True, "eps": 1e-3}, "eps 1e-05 | 0.001"),
    (Training("attentive", device="cpu"), {"device": "cuda", "approximate": "tanh"}, "tanh"),
    (Training("rows", device="cpu"), {"device": "cuda", "clears": False}, "zero_grad"),
]


@pytest.mark.parametrize(("one", "changes"), BENIGN, ids=str)
def test_other_kernels_are_rounding(one, changes, once, tmp_path):
    found = anchorlib.compare(once(one), once(replace(one, **changes)))
    assert found.verdict in ("identical", "expected", "suspect"), found
    noise = noise_of(one, tmp_path)
    found = anchorlib.compare(once(one), once(replace(one, **changes)), noise=noise)
    assert found.verdict in ("identical", "expected"), found


@pytest.mark.parametrize(("one", "changes", "words"), BUGS, ids=str)
def test_a_fault_beside_other_kernels_is_found(one, changes, words, once):
    found = anchorlib.compare(once(one), once(replace(one, **changes)))
    assert found.verdict == "unexpected", found
    assert words in "\n".join((found.sentence, repr(found))), found
