"""Small models for transformers' Trainer, and how they are trained; imported when tests run."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

QUIET = {"use_cpu": True, "report_to": [], "disable_tqdm": True, "logging_strategy": "no"}
TINY = GPT2Config(
    vocab_size=11,
    n_positions=8,
    n_embd=4,
    n_layer=1,
    n_head=2,
    bos_token_id=None,
    eos_token_id=None,
)


class Net(nn.Module):
    """Two layers and a loss, as Trainer wants it."""

    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(4, 3)
        self.fc2 = nn.Linear(3, 1)

    def forward(self, x, labels=None):
        y = self.fc2(torch.tanh(self.fc1(x)))
        return {"loss": (y - labels).pow(2).mean(), "logits": y}


class Sums(Dataset):
    """`count` vectors, each with its sum as the label."""

    def __init__(self, count):
        self.x = torch.randn(count, 4, generator=torch.Generator().manual_seed(1))

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return {"x": self.x[index], "labels": self.x[index].sum(0, keepdim=True)}


class Words(Dataset):
    """Two sentences of numbers."""

    def __len__(self):
        return 2

    def __getitem__(self, index):
        words = (torch.arange(6) * (index + 2)) % TINY.vocab_size
        return {"input_ids": words, "labels": words}


class Failing(TrainerCallback):
    """An exception of the user's, after `steps` steps."""

    def __init__(self, steps):
        self.steps = steps

    def on_step_end(self, args, state, control, **_parts):
        if state.global_step == self.steps:
            raise ZeroDivisionError("of the user's")


def made():
    """A model that always begins alike."""
    torch.manual_seed(0)
    return Net()


def language_model():
    """A GPT-2 of one tiny block."""
    torch.manual_seed(0)
    return GPT2LMHeadModel(TINY)


def trainer(model, folder, callbacks=(), *, data=None, **options):
    """A Trainer of batches of two: 4 steps on vectors and their sums."""
    options = {"max_steps": 4, "save_strategy": "no", **QUIET, **options}
    batch = {"per_device_train_batch_size": 2, "per_device_eval_batch_size": 2}
    arguments = TrainingArguments(str(folder / "out"), learning_rate=0.1, **batch, **options)
    return Trainer(
        model,
        arguments,
        train_dataset=Sums(40) if data is None else data,
        eval_dataset=Sums(4) if data is None else data,
        callbacks=list(callbacks),
    )
