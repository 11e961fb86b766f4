"""A net that fills gaps of time series from both ends: each moment is told before it is seen."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

import anchorlib

_HIDDEN = 8


class Fade(nn.Module):
    """How much is left of what was last seen, by how long ago each feature was seen."""

    def __init__(self, features: int, size: int, alone: bool = False) -> None:
        super().__init__()
        bound = size**-0.5
        self.weight = nn.Parameter(torch.empty(size, features).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(size).uniform_(-bound, bound))
        self.register_buffer("own", torch.eye(features) if alone else None)

    def forward(self, gaps):
        """Factors of 0 to 1; of inputs, each feature's gap counts for itself alone."""
        weight = self.weight if self.own is None else self.weight * self.own
        return torch.exp(-functional.linear(gaps, weight, self.bias).relu())


class Features(nn.Module):
    """Each feature as a sum of the other ones at the same moment."""

    def __init__(self, how, features: int) -> None:
        super().__init__()
        self.how = how
        bound = features**-0.5
        self.weight = nn.Parameter(torch.empty(features, features).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(features).uniform_(-bound, bound))
        self.register_buffer("others", 1 - torch.eye(features))

    def forward(self, x):
        """The features, each told by the others."""
        if self.how.regression == "each":
            rest = [self.others[at] > 0 for at in range(len(self.bias))]
            told = [x[:, of] @ row[of] for of, row in zip(rest, self.weight, strict=True)]
            return torch.stack(told, 1) + self.bias
        weight = self.weight * self.others if self.how.masks_itself else self.weight
        return functional.linear(x, weight, self.bias)


class Cell(nn.LSTMCell):
    """A cell with gates, torch's or by its formula."""

    way = "torch"

    def forward(self, x, state):
        """The next state, hidden and inner."""
        if self.way == "torch":
            return super().forward(x, state)
        hidden, inner = state
        weight = torch.cat((self.weight_ih, self.weight_hh), 1)
        gates = functional.linear(torch.cat((x, hidden), 1), weight, self.bias_ih + self.bias_hh)
        into, kept, new, out = gates.chunk(4, 1)
        inner = kept.sigmoid() * inner + into.sigmoid() * new.tanh()
        return out.sigmoid() * inner.tanh(), inner


class Direction(nn.Module):
    """One way through the moments."""

    def __init__(self, how, features: int, back: bool) -> None:
        super().__init__()
        self.how, self.back = how, back
        self.fade_hidden = Fade(features, _HIDDEN)
        self.fade_input = Fade(features, features, alone=True)
        self.drop = nn.Dropout(how.dropout)
        self.history = nn.Linear(_HIDDEN, features)
        self.features = Features(how, features)
        self.mix = nn.Linear(2 * features, features)
        self.cell = Cell(2 * features, _HIDDEN)
        self.cell.way = how.cell

    def forward(self, values, masks, gaps):
        """What each moment is told to be in three ways, and the values with their gaps filled."""
        turns = self.back and self.how.reads != "indices"
        if turns:
            values, masks, gaps = (one.flip(1) for one in (values, masks, gaps))
        moments = self._moments(values, masks, gaps)
        order = range(len(moments))
        order = reversed(order) if self.back and not turns else order
        fades = self._at_once(gaps) if self.how.fading == "at once" else None
        hidden = inner = values.new_zeros(len(values), _HIDDEN)
        told, filled = [], []
        for at in order:
            x, mask, gap = moments[at]
            fade_h, fade_x = self._fades(gap) if fades is None else fades[at]
            if self.how.fades == "first":
                hidden = hidden * fade_h
            by_past = self.history(self.drop(hidden))
            if self.how.fades == "after":
                hidden = hidden * fade_h
            by_others = self.features(self._filled(x, mask, by_past))
            share = self.mix(torch.cat((fade_x, mask), 1)).sigmoid()
            both = self._mixed(by_past, by_others, share)
            full = self._filled(x, mask, both)
            hidden, inner = self.cell(torch.cat((full, mask), 1), (hidden, inner))
            told.append(torch.stack((by_past, by_others, both)))
            filled.append(full if self.how.keeps == "attached" else full.detach())
        if self.back and not turns:
            told, filled = told[::-1], filled[::-1]
        told, filled = torch.stack(told, 2), torch.stack(filled, 1)
        if turns:
            told = told.flip(2)
            filled = filled.flip(1) if self.how.returns else filled
        return told, filled

    def _moments(self, *series):
        if self.how.reads == "unbound":
            return list(zip(*(one.unbind(1) for one in series), strict=True))
        return [tuple(one[:, at] for one in series) for at in range(series[0].shape[1])]

    def _fades(self, gaps):
        return self.fade_hidden(gaps), self.fade_input(gaps)

    def _at_once(self, gaps):
        """The factors of all moments, which depend on nothing that is told."""
        return list(zip(*(one.unbind(1) for one in self._fades(gaps)), strict=True))

    def _filled(self, x, mask, told):
        """What was seen, and what is told where nothing was."""
        if self.how.filling == "blend":
            return mask * x + (1 - mask) * told
        return told + mask * (x - told)

    def _mixed(self, past, others, share):
        """Both ways to tell a moment, mixed."""
        if self.how.mixing == "lerp":
            return torch.lerp(past, others, share)
        return share * others + (1 - share) * past


class Both(nn.Module):
    """Both directions, each with parameters of its own."""

    def __init__(self, how, features: int) -> None:
        super().__init__()
        self.how = how
        self.ahead, self.back = (Direction(how, features, back) for back in (False, True))

    def forward(self, values, masks, times):
        """The filled values, then what each direction told and filled; all in the order of time."""
        ahead = self._gaps(times, masks)
        back = self._gaps(-times.flip(1), masks.flip(1)).flip(1) if self.how.turns_gaps else ahead
        anchorlib.anchor(ahead, "gaps")
        anchorlib.anchor(back, "gaps_back")
        told_ahead, ahead = self.ahead(values, masks, ahead)
        told_back, back = self.back(values, masks, back)
        return (ahead + back) / 2, told_ahead, told_back, ahead, back

    def _gaps(self, times, masks):
        """How long ago each feature was seen before each moment; 0 at the first one."""
        gap = torch.zeros_like(masks[:, 0])
        found = [gap]
        for at in range(1, masks.shape[1]):
            seen = masks[:, at - 1 if self.how.seen == "before" else at]
            step = (times[:, at] - times[:, at - 1])[:, None]
            if self.how.gaps == "sum":
                gap = step + (1 - seen) * gap
            else:
                gap = torch.where(seen > 0, step, step + gap)
            found.append(gap)
        return torch.stack(found, 1)
