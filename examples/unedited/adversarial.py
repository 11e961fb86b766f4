"""A GAN on real digits: two models, two optimizers, three backwards a step."""

import hashlib

import torch
from sklearn.datasets import load_digits
from torch import nn

NOISE = 8


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.main = nn.Sequential(nn.Linear(NOISE, 32), nn.ReLU(), nn.Linear(32, 64), nn.Sigmoid())

    def forward(self, noise):
        return self.main(noise)


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Linear(64, 32), nn.LeakyReLU(0.2))
        self.score = nn.Linear(32, 1)

    def forward(self, images):
        return self.score(self.features(images)).squeeze(1)


def main():
    torch.manual_seed(1)
    real_images = torch.tensor(load_digits().data / 16, dtype=torch.float32)
    netG, netD = Generator(), Discriminator()
    criterion = nn.BCEWithLogitsLoss()
    optimizerD = torch.optim.Adam(netD.parameters(), lr=0.002, betas=(0.5, 0.999))
    optimizerG = torch.optim.Adam(netG.parameters(), lr=0.002, betas=(0.5, 0.999))
    for step, real in enumerate(real_images.split(64)[:6]):
        ones, zeros = torch.ones(len(real)), torch.zeros(len(real))
        netD.zero_grad()
        errD_real = criterion(netD(real), ones)
        errD_real.backward()
        fake = netG(torch.randn(len(real), NOISE))
        errD_fake = criterion(netD(fake.detach()), zeros)
        errD_fake.backward()
        optimizerD.step()

        netG.zero_grad()
        errG = criterion(netD(fake), ones)
        errG.backward()
        optimizerG.step()
        print(f"step {step}: D {errD_real.item() + errD_fake.item():.6f}, G {errG.item():.6f}")
    digest = hashlib.sha256()
    for parameter in (*netG.parameters(), *netD.parameters()):
        digest.update(parameter.detach().numpy().tobytes())
    print(digest.hexdigest())


if __name__ == "__main__":
    main()
