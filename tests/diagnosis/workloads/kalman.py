"""A Kalman filter whose parts are learnt, and a net that makes observations of rows of pixels."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import anchorlib

_PIXELS, _WIDTH = 8, 16
STATE, SEEN = 4, 2
"""Numbers of a state (places, then speeds), and of an observation."""


def lower(raw, least, bent=functional.softplus):
    """Lower triangular factors whose diagonals are positive, of square matrices."""
    return raw.tril(-1) + torch.diag_embed(bent(raw.diagonal(dim1=-2, dim2=-1)) + least)


class Linear(nn.Linear):
    """A linear layer, torch's or by einsum."""

    way = "torch"

    def forward(self, x):
        """The layer's output."""
        if self.way == "einsum":
            return torch.einsum("...i,oi->...o", x, self.weight) + self.bias
        return super().forward(x)


class Sensor(nn.Module):
    """What rows of pixels tell of the place, and the covariance of the noise in it."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.body = nn.Sequential(
            OrderedDict(
                lift=Linear(_PIXELS, _WIDTH), norm=nn.LayerNorm(_WIDTH, eps=1e-5), act=nn.Tanh()
            )
        )
        self.head = Linear(_WIDTH, SEEN + SEEN * SEEN)
        self.body.lift.way = self.head.way = how.linear

    def forward(self, rows):
        """Observations (sample, time, 2) and covariances (sample, time, 2, 2)."""
        how = self.how
        with torch.autocast("cpu", torch.bfloat16, enabled=how.low):
            if how.keeps == "edges" and torch.is_grad_enabled():
                told = self.head(checkpoint(self.body, rows, use_reentrant=False))
            else:
                told = self.head(self.body(rows))
        told = told.to(self.head.weight.dtype)
        bent = torch.exp if how.bent == "exp" else functional.softplus
        factor = lower(told[..., SEEN:].unflatten(-1, (SEEN, SEEN)), 0.05, bent)
        return told[..., :SEEN], factor @ factor.mT


class Covariance(nn.Module):
    """A covariance by its Cholesky factor."""

    def __init__(self, how, size: float) -> None:
        super().__init__()
        self.how = how
        self.raw = nn.Parameter(size * torch.eye(STATE) + 0.1 * torch.randn(STATE, STATE))

    def forward(self):
        """The covariance (4, 4)."""
        factor = lower(self.raw, 1e-2)
        return factor.t().mm(factor) if self.how.factor == "turned" else factor.mm(factor.t())


class Predict(nn.Module):
    """One step on without having seen anything."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        steady = torch.eye(STATE) + torch.diag(torch.ones(STATE - SEEN), SEEN)
        self.transition = nn.Parameter(steady + 0.05 * torch.randn(STATE, STATE))

    def forward(self, state, spread, process):
        """The state (sample, 4) and its covariance (sample, 4, 4)."""
        moves = self.transition.to(state.dtype)
        if self.how.products == "einsum":
            spread = torch.einsum("ij,bjk,lk->bil", moves, spread, moves) + process
            return torch.einsum("ij,bj->bi", moves, state), spread
        turned = moves if self.how.turned_moves else moves.T
        return state @ moves.T, turned.T @ spread @ turned + process


class Update(nn.Module):
    """What an observation changes."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.observe = nn.Parameter(torch.eye(SEEN, STATE) + 0.05 * torch.randn(SEEN, STATE))

    def forward(self, state, spread, seen, noise, here):
        """The state, its covariance, the innovation and its covariance."""
        how, observe = self.how, self.observe.to(state.dtype)
        innovation = seen - state @ observe.T
        crossed = spread @ observe.T
        around = observe @ crossed + noise if how.noisy else observe @ crossed
        gain = self._gain(crossed, around)
        if how.products == "einsum":
            moved = state + torch.einsum("bij,bj->bi", gain, innovation)
        else:
            moved = state + (gain @ innovation[..., None])[..., 0]
        narrow = self._narrowed(spread, observe, gain, noise, around)
        if how.innovations == "after":
            innovation = seen - moved @ observe.T
        if how.masks:
            moved = torch.where(here[:, None], moved, state)
            narrow = torch.where(here[:, None, None], narrow, spread)
        return moved, narrow, innovation, around

    def _gain(self, crossed, around):
        """How far states follow innovations: crossed times the inverse of around."""
        if self.how.gain == "solve":
            return torch.linalg.solve(around, crossed.mT).mT
        if self.how.gain == "inverse":
            return crossed @ torch.linalg.inv(around)
        factor = torch.linalg.cholesky(around)
        return torch.cholesky_solve(crossed.mT, factor).mT

    def _narrowed(self, spread, observe, gain, noise, around):
        """The covariance after the observation."""
        if self.how.narrowed == "information":
            known = torch.linalg.inv(spread) + observe.T @ torch.linalg.inv(noise) @ observe
            return torch.linalg.inv(known)
        if self.how.narrowed == "gain":
            return spread - gain @ around @ gain.mT
        stays = torch.eye(STATE, dtype=spread.dtype) - gain @ observe
        if self.how.narrowed == "plain":
            return stays @ spread
        narrow = stays @ spread @ stays.mT
        if self.how.narrowed == "halves":
            return narrow
        narrow = narrow + gain @ noise @ gain.mT
        return (narrow + narrow.mT) / 2 if self.how.even else narrow


class Filter(nn.Module):
    """Prediction and update by turns, from a first state that is learnt."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.first = nn.Parameter(0.1 * torch.randn(STATE))
        self.prior, self.process = Covariance(how, 0.5), Covariance(how, -2.0)
        self.predict, self.update = Predict(how), Update(how)

    def forward(self, seen, noise, here):
        """States, predicted states, innovations and their covariances, each (sample, time, …)."""
        how, count = self.how, len(seen)
        wide = torch.float64 if how.double else seen.dtype
        seen, noise = seen.to(wide), noise.to(wide)
        state = self.first.to(wide).expand(count, -1)
        spread = self.prior().to(wide).expand(count, -1, -1)
        process = self.process().to(wide)
        told = []
        for at in range(seen.shape[1]):
            if how.detaches:
                state, spread = state.detach(), spread.detach()
            state, wider = self.predict(state, spread, process)
            before, spread = state, spread if how.stale else wider
            state, spread, innovation, around = self.update(
                state, spread, seen[:, at], noise[:, at], here[:, at]
            )
            told.append((state, before, innovation, around))
        return [torch.stack(one, 1).to(self.first.dtype) for one in zip(*told, strict=True)]


class Model(nn.Module):
    """The filter behind the sensor."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.sensor, self.filter = Sensor(how), Filter(how)

    def forward(self, rows, here):
        """What the filter tells of rows (sample, time, pixel) of which some show nothing."""
        told = self.filter(*self.sensor(rows), here)
        for one, name in zip(told, ("states", "predicted", "innovations", "spreads"), strict=True):
            anchorlib.anchor(one, name)
        return told
