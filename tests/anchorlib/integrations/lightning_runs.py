"""Small LightningModules and how they are fitted; imported by tests when they run."""

from __future__ import annotations

import lightning.pytorch as pl
import torch
from lightning.pytorch.plugins.precision import MixedPrecision
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import anchorlib

PLAIN = {
    "logger": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "accelerator": "cpu",
    "num_sanity_val_steps": 0,
}


class Net(pl.LightningModule):
    """Two layers; its own forward is never called."""

    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(4, 3)
        self.fc2 = nn.Linear(3, 1)

    def loss(self, x):
        loss = self.fc2(torch.tanh(self.fc1(x))).float().pow(2).mean()
        return anchorlib.anchor(loss, "loss")

    def training_step(self, batch, _index):
        return self.loss(batch[0])

    def validation_step(self, batch, _index):
        self.loss(batch[0])

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.1)


class Silent(Net):
    """The same without an anchor in it."""

    def loss(self, x):
        return self.fc2(torch.tanh(self.fc1(x))).pow(2).mean()


class Forward(Net):
    """The same, called as users do: `self(x)`."""

    def forward(self, x):
        return self.loss(x)

    def training_step(self, batch, _index):
        return self(batch[0])

    validation_step = training_step


class Gan(pl.LightningModule):
    """Two optimizers, stepped by hand in the order of `order`, in every `every`-th batch."""

    def __init__(self, order="dg", every=1):
        super().__init__()
        self.automatic_optimization = False
        self.g, self.d = nn.Linear(4, 2), nn.Linear(2, 1)
        self.order, self.every = order, every

    def training_step(self, batch, index):
        optimizers = dict(zip("gd", self.optimizers(), strict=True))
        for one in self.order:
            score = anchorlib.anchor(self.d(self.g(batch[0])), "score")
            self.manual_backward(score.mean() if one == "g" else score.pow(2).mean())
            if (index + 1) % self.every == 0:
                optimizers[one].step()
                self.zero_grad()

    def configure_optimizers(self):
        return [torch.optim.SGD(one.parameters(), lr=0.1) for one in (self.g, self.d)]


def made(kind=Net, *arguments):
    """A model that always begins alike."""
    torch.manual_seed(0)
    return kind(*arguments)


def batches(count):
    data = torch.randn(2 * count, 4, generator=torch.Generator().manual_seed(1))
    return DataLoader(TensorDataset(data), batch_size=2)


def fit(model, callbacks=(), *, train=6, validate=0, ckpt_path=None, package=pl, **options):
    """Fit `model` on `train` batches, validating on `validate`; the trainer."""
    options = {**PLAIN, "max_epochs": 1, "enable_checkpointing": False, **options}
    trainer = package.Trainer(callbacks=list(callbacks), **options)
    validation = batches(validate) if validate else None
    trainer.fit(model, batches(train), validation, ckpt_path=ckpt_path)
    return trainer


def half_precision(scale):
    """float16 with a GradScaler, on a CPU; its scale does not grow within a test."""
    return MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=scale))
