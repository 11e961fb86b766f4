"""Accelerate: it wraps model, optimizer and data, calls backward, and accumulates."""

import hashlib

import torch
from accelerate import Accelerator
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def model_and_data():
    digits = load_digits()
    images = torch.tensor(digits.data[:160] / 16, dtype=torch.float32)
    loader = DataLoader(TensorDataset(images, torch.tensor(digits.target[:160])), batch_size=20)
    model = nn.Sequential()
    model.add_module("hidden", nn.Linear(64, 24))
    model.add_module("act", nn.GELU())
    model.add_module("out", nn.Linear(24, 10))
    return model, loader


def main():
    torch.manual_seed(4)
    accelerator = Accelerator(gradient_accumulation_steps=4, cpu=True)
    model, loader = model_and_data()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for number, (images, labels) in enumerate(loader):
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(images), labels)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        accelerator.print(f"batch {number}: loss {loss.item():.6f}")
    weights = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    print(hashlib.sha256(weights).hexdigest())


if __name__ == "__main__":
    main()
