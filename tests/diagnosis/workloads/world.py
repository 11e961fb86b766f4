"""The models of a dreamer: a world that goes on by itself, and a critic of its states."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

PIXELS, ACTIONS, GROUPS, KINDS, STATE, BINS = 8, 3, 4, 4, 24, 13
LATENT = GROUPS * KINDS


class Norm(nn.LayerNorm):
    """A layer norm, torch's or by its formula."""

    way = "torch"

    def forward(self, x):
        """x, normed."""
        if self.way == "torch":
            return super().forward(x)
        wide = x.to(self.weight.dtype)
        missed = wide - wide.mean(-1, keepdim=True)
        spread = missed.square().mean(-1, keepdim=True)
        return (missed / (spread + self.eps).sqrt() * self.weight + self.bias).to(x.dtype)


class Act(nn.Module):
    """x sigmoid(x), in one of two ways."""

    way = "torch"

    def forward(self, x):
        """The activation."""
        return functional.silu(x) if self.way == "torch" else x / (1 + torch.exp(-x))


def layer(before: int, behind: int, eps: float = 1e-3) -> nn.Sequential:
    """A linear layer, a norm and an activation."""
    return nn.Sequential(nn.Linear(before, behind, bias=False), Norm(behind, eps=eps), Act())


class Cell(nn.Module):
    """A recurrent cell whose gates are normed."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.enter = layer(LATENT + ACTIONS, STATE, how.norm_eps)
        self.gates = nn.Linear(2 * STATE, 3 * STATE, bias=False)
        self.norm = Norm(3 * STATE, eps=how.norm_eps)

    def forward(self, state, given):
        """The next state, of the one before and of latents and actions."""
        how = self.how
        both = torch.cat((self.enter(given), state), -1)
        if how.gating == "together":
            gates = self.gates(both)
        else:
            one, other = self.gates.weight.split(STATE, 1)
            gates = functional.linear(both[..., :STATE], one) + functional.linear(state, other)
        reset, told, update = self.norm(gates).chunk(3, -1)
        if how.resets == "inside":
            told = torch.tanh(reset.sigmoid() * told)
        else:
            told = reset.sigmoid() * torch.tanh(told)
        update = (update - how.slow).sigmoid()
        update = update if how.updates == "told" else 1 - update
        if how.moving == "sum":
            return update * told + (1 - update) * state
        return state + update * (told - state)


class World(nn.Module):
    """What is seen becomes latents; latents and actions become states; states tell what is seen."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.encoder, self.cell = layer(PIXELS, STATE, how.norm_eps), Cell(how)
        self.prior = nn.Sequential(layer(STATE, STATE), nn.Linear(STATE, LATENT))
        self.posterior = nn.Sequential(layer(2 * STATE, STATE), nn.Linear(STATE, LATENT))
        self.decoder = nn.Sequential(layer(STATE + LATENT, STATE), nn.Linear(STATE, PIXELS))
        self.reward, self.goes_on = nn.Linear(STATE + LATENT, BINS), nn.Linear(STATE + LATENT, 1)
        with torch.no_grad():
            for head in (self.prior[1], self.posterior[1]):
                head.weight.mul_(3.0)
        written(self, how)

    def forward(self, rows, actions, firsts, noise):
        """Rows, rewards and going on as they are told, both latents' logits, and states.

        All have (time, sequence) first; firsts are 1 where an episode begins.
        """
        how = self.how
        if how.encoding == "at once":
            seen = self.encoder(rows)
        else:
            seen = torch.stack([self.encoder(row) for row in rows])
        if how.acted == "before":
            actions = torch.cat((torch.zeros_like(actions[:1]), actions[:-1]))
        state, latent = seen.new_zeros(rows.shape[1], STATE), seen.new_zeros(rows.shape[1], LATENT)
        found = []
        for at in range(len(rows)):
            kept = 1 - firsts[at, :, None]
            state = state * kept if how.begins in ("all", "state") else state
            latent = latent * kept if how.begins == "all" else latent
            state = self.cell(state, torch.cat((latent, actions[at] * kept), -1))
            prior = self._mixed(self.prior(state))
            posterior = self._mixed(self.posterior(torch.cat((state, seen[at]), -1)))
            latent = self._latent(posterior, noise[at]).flatten(1)
            found.append((prior, posterior, torch.cat((state.to(latent.dtype), latent), -1)))
        priors, posteriors, features = (torch.stack(parts) for parts in zip(*found, strict=True))
        if how.decoding == "at once":
            told = self.decoder(features)
        else:
            told = torch.stack([self.decoder(one) for one in features])
        known = features.detach() if how.reward == "detached" else features
        return told, self.reward(known), self.goes_on(features), priors, posteriors, features

    def _mixed(self, logits):
        """Logarithms of the kinds' chances, a hundredth of them uniform."""
        logits = logits.to(self.reward.weight.dtype).unflatten(-1, (GROUPS, KINDS))
        if self.how.softmax == "logsumexp":
            logits = logits - logits.logsumexp(-1, keepdim=True)
            chances = logits.exp()
        else:
            chances = logits.softmax(-1)
        if not self.how.uniform:
            return chances.log()
        return torch.log((1 - self.how.uniform) * chances + self.how.uniform / KINDS)

    def _latent(self, logs, noise):
        """A kind for each group, whose gradient is that of its chances."""
        how = self.how
        if how.latents == "soft":
            return (logs + noise).softmax(-1)
        drawn = functional.one_hot((logs + noise).argmax(-1), KINDS).to(logs.dtype)
        if how.through == "not":
            return drawn
        chances = logs.exp()
        if how.through == "sum":
            return drawn + chances - chances.detach()
        return drawn + (chances - chances.detach())


class Critic(nn.Module):
    """The worth of a state, as chances of bins."""

    def __init__(self, how) -> None:
        super().__init__()
        self.layers = nn.Sequential(layer(STATE + LATENT, STATE), nn.Linear(STATE, BINS))
        written(self, how)

    def forward(self, features):
        """The bins' logits."""
        return self.layers(features)


def written(model: nn.Module, how) -> None:
    """Let the norms and activations of a model compute as they are told to."""
    for module in model.modules():
        if isinstance(module, Norm):
            module.way = how.norm
        if isinstance(module, Act):
            module.way = how.silu
