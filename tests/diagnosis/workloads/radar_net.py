"""An encoder and a forecaster of ConvLSTM cells with peepholes, and an Adam of its own."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

_WIDTH = 8


class Norm(nn.GroupNorm):
    """A group norm, torch's or by its formula."""

    def __init__(self, how, groups: int, channels: int) -> None:
        super().__init__(groups, channels)
        self.how = how

    def forward(self, x):
        """x, normed."""
        if self.how.norming == "torch":
            return super().forward(x)
        parts = x.unflatten(1, (self.num_groups, -1))
        spread, mean = torch.var_mean(parts, (2, 3, 4), correction=0, keepdim=True)
        x = ((parts - mean) * (spread + self.eps).rsqrt()).flatten(1, 2)
        return x * self.weight[:, None, None] + self.bias[:, None, None]


class Halved(nn.Module):
    """A convolution of stride 2, a norm and a SiLU."""

    def __init__(self, how, into: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(into, _WIDTH, 3, stride=2, padding=1, bias=False)
        self.norm = Norm(how, 2, _WIDTH)
        self.act = nn.SiLU()

    def forward(self, x):
        """Features of half the height and width."""
        return self.act(self.norm(self.conv(x)))


class Doubled(nn.ConvTranspose2d):
    """A transposed convolution of stride 2, torch's or as a convolution among zeros."""

    def __init__(self, how, into: int, out: int) -> None:
        super().__init__(into, out, 4, stride=2, padding=1)
        self.how = how

    def forward(self, x):
        """Features of twice the height and width."""
        if self.how.enlarging == "torch":
            return super().forward(x)
        count, channels, high, wide = x.shape
        among = x.new_zeros(count, channels, 2 * high - 1, 2 * wide - 1)
        among[:, :, ::2, ::2] = x
        weight = self.weight.transpose(0, 1).flip(2, 3)
        return functional.conv2d(functional.pad(among, (2, 2, 2, 2)), weight, self.bias)


class Cell(nn.Module):
    """A ConvLSTM cell: gates of one convolution, normed; input, forget and output gate peep."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.conv = nn.Conv2d(2 * _WIDTH, 4 * _WIDTH, 3, padding=1, bias=False)
        self.norm = Norm(how, how.groups, 4 * _WIDTH)
        self.peep = nn.Parameter(torch.randn(3, _WIDTH, 1, 1) * 0.1)
        with torch.no_grad():
            self.norm.bias[_WIDTH : 2 * _WIDTH] = 1.0

    def forward(self, x, state):
        """The new hidden state and the new cell."""
        hidden, cell = state
        enters, keeps, fresh, leaves = self.norm(self._gates(x, hidden)).chunk(4, 1)
        enters = torch.sigmoid(enters + self.peep[0] * cell)
        keeps = torch.sigmoid(keeps + self.peep[1] * cell)
        new = keeps * cell + enters * torch.tanh(fresh)
        seen = new if self.how.peeps == "new" else cell
        return torch.sigmoid(leaves + self.peep[2] * seen) * torch.tanh(new), new

    def _gates(self, x, hidden):
        if self.how.gates == "joined":
            return self.conv(torch.cat((x, hidden), 1))
        of_x, of_hidden = self.conv.weight.split(_WIDTH, 1)
        given = functional.conv2d(x, of_x, padding=1)
        return given + functional.conv2d(hidden, of_hidden, padding=1)


class Stack(nn.Module):
    """Two cells, the second of half the height and width."""

    def __init__(self, how) -> None:
        super().__init__()
        self.cells = nn.ModuleList(Cell(how) for _ in range(2))
        self.down = Halved(how, _WIDTH)

    def forward(self, x, states):
        """The states of both cells after one more frame."""
        first = self.cells[0](x, states[0])
        return first, self.cells[1](self.down(first[0]), states[1])


class Head(nn.Module):
    """A frame from the hidden states of both cells."""

    def __init__(self, how) -> None:
        super().__init__()
        self.up = Doubled(how, _WIDTH, _WIDTH)
        self.out = Doubled(how, 2 * _WIDTH, _WIDTH // 2)
        self.act = nn.SiLU()
        self.last = nn.Conv2d(_WIDTH // 2, 1, 1)

    def forward(self, fine, coarse):
        """The frame."""
        both = torch.cat((fine, self.act(self.up(coarse))), 1)
        return self.last(self.act(self.out(both)))


class Nowcaster(nn.Module):
    """The encoder reads frames; the forecaster goes on from its states, frame by frame."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.stem = Halved(how, 1)
        self.encoder, self.forecaster = Stack(how), Stack(how)
        self.head = Head(how)
        self.kept = None

    def forward(self, seen, ahead, taught):
        """Forecasts of the frames `ahead` (sample, frame, 1, y, x).

        taught: after which frames of which samples the true frame is the next input, in training.
        """
        how, states = self.how, self._encoded(seen)
        if how.hands == "detached":
            states = [tuple(one.detach() for one in state) for state in states]
        shown, told = seen[:, -1], []
        for at in range(ahead.shape[1]):
            states = self._advanced(self.stem(shown), states)
            shown = self.head(*(hidden for hidden, _ in states)).to(ahead.dtype)
            told.append(shown)
            if self.training and at < taught.shape[1]:
                shown = self._next(taught[:, at, None, None, None], ahead[:, at], shown)
        if how.collects == "stacked":
            return torch.stack(told, 1)
        return torch.cat([frame.unsqueeze(1) for frame in told], 1)

    def _next(self, taught, truth, forecast):
        """The forecaster's next input."""
        if self.how.teaches == "truth":
            return torch.where(taught, truth, forecast)
        return torch.where(taught, forecast, truth)

    def _encoded(self, seen):
        """The states of the encoder's cells after all frames that are seen."""
        states = self._begun(seen)
        if self.how.stems == "at once":
            features = self.stem(seen.flatten(0, 1)).unflatten(0, seen.shape[:2]).unbind(1)
        else:
            features = (self.stem(frame) for frame in seen.unbind(1))
        for x in features:
            states = self.encoder(x, states)
        if not self.how.resets:
            self.kept = [tuple(one.detach() for one in state) for state in states]
        return states

    def _begun(self, seen):
        """The states before the first frame."""
        if self.kept is None:
            sizes = (seen.shape[-1] // 2, seen.shape[-1] // 4)
            zeros = [seen.new_zeros(len(seen), _WIDTH, size, size) for size in sizes]
            return [(zero, zero) for zero in zeros]
        return self.kept

    def _advanced(self, x, states):
        if self.how.keeps == "all" or not torch.is_grad_enabled():
            return self.forecaster(x, states)
        return checkpoint(self.forecaster, x, states, use_reentrant=False)


class Folded(torch.optim.Optimizer):
    """Adam as its paper orders it for speed: both corrections of bias in the step's length."""

    def __init__(self, parameters, lr, betas, eps) -> None:
        super().__init__(parameters, {"lr": lr, "betas": betas, "eps": eps})

    @torch.no_grad()
    def step(self, closure=None):
        """Update all parameters."""
        for group in self.param_groups:
            first, second = group["betas"]
            for one in group["params"]:
                state = self.state[one]
                if not state:
                    state["step"] = torch.zeros(())
                    state["exp_avg"] = torch.zeros_like(one)
                    state["exp_avg_sq"] = torch.zeros_like(one)
                state["step"] += 1
                mean, square = state["exp_avg"], state["exp_avg_sq"]
                mean.mul_(first).add_(one.grad, alpha=1 - first)
                square.mul_(second).addcmul_(one.grad, one.grad, value=1 - second)
                count = state["step"].item()
                root = (1 - second**count) ** 0.5
                length = group["lr"] * root / (1 - first**count)
                one.addcdiv_(mean, square.sqrt().add_(group["eps"] * root), value=-length)
