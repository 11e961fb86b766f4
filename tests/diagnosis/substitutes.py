"""Equal formulas, and mistakes, in the place of torch's functions, in any of the trainings.

    with substituted("layer norm by hand") as calls:
        record(workload, ...)

A function is replaced where a workload or a module of torch calls it, and nowhere else: what the
recorder computes stays as it is.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch.nn import functional

__all__ = ["EQUAL", "MISTAKEN", "applicable", "substituted"]

Tensor = torch.Tensor
Place = tuple[Any, str]
CALLERS = ("tests.diagnosis.workloads", "torch.nn.modules")

_linear, _layer_norm, _gelu = functional.linear, functional.layer_norm, functional.gelu
_silu, _batch_norm, _conv2d = functional.silu, functional.batch_norm, functional.conv2d
_softmax, _log_softmax, _dropout = torch.softmax, torch.log_softmax, functional.dropout
_cross_entropy, _attention = functional.cross_entropy, functional.scaled_dot_product_attention
_mean, _divided, _norm = Tensor.mean, Tensor.__truediv__, functional.normalize
_mse, _clip = functional.mse_loss, nn.utils.clip_grad_norm_


def _linear_by_einsum(x, w, b=None):
    y = torch.einsum("...i,oi->...o", x, w)
    return y if b is None else y + b


def _linear_by_halves(x, w, b=None):
    half = x.shape[-1] // 2
    return _linear(x[..., :half], w[:, :half], b) + _linear(x[..., half:], w[:, half:])


def _linear_in_double(x, w, b=None):
    return _linear(x.double(), w.double(), None if b is None else b.double()).to(x.dtype)


def _own_layer_norm(x, shape, weight=None, bias=None, eps=1e-5):
    axes = tuple(range(-len(shape), 0))
    centred = x - x.mean(axes, keepdim=True)
    y = centred * torch.rsqrt(centred.square().mean(axes, keepdim=True) + eps)
    y = y.contiguous()  # as torch's is: dropout draws its mask in the order of memory
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


def _own_batch_norm(x, mean, var, weight=None, bias=None, training=False, momentum=0.1, eps=1e-5):
    if not training or weight is None:
        return _batch_norm(x, mean, var, weight, bias, training, momentum, eps)
    axes, shape = [axis for axis in range(x.dim()) if axis != 1], [1, -1] + [1] * (x.dim() - 2)
    own, count = x.mean(axes), x.numel() / x.shape[1]
    centred = x - own.view(shape)
    spread = centred.square().mean(axes)
    if mean is not None:
        with torch.no_grad():
            mean.lerp_(own, momentum)
            var.lerp_(spread * count / (count - 1), momentum)
    y = centred / (spread + eps).sqrt().view(shape)
    return y * weight.view(shape) + bias.view(shape)


def _own_gelu(x, approximate="none"):
    if approximate == "tanh":
        return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x.pow(3))))
    return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))


def _tanh_by_sigmoid(x):
    return 2 * torch.sigmoid(2 * x) - 1


def _sigmoid_by_tanh(x):
    return 0.5 * (1 + torch.tanh(x / 2))


def _own_softmax(x, dim=None, _stacklevel=3, dtype=None):
    return _log_softmax(x if dtype is None else x.to(dtype), dim).exp()


def _own_log_softmax(x, dim=None, _stacklevel=3, dtype=None):
    x = x if dtype is None else x.to(dtype)
    return x - torch.logsumexp(x, dim, keepdim=True)


def _own_cross_entropy(x, target, *weight, **options):
    plain = (
        not weight
        and not options.keys() - {"reduction"}
        and options.get("reduction", "mean") == "mean"
    )
    if not plain or target.is_floating_point() or x.dim() != 2 or (target < 0).any():
        return _cross_entropy(x, target, *weight, **options)
    own = x.gather(1, target[:, None])[:, 0]
    return (torch.logsumexp(x, 1) - own).sum() / len(x)


def _attention_by_hand(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, **options):
    if dropout_p or is_causal or options:
        return _attention(q, k, v, attn_mask, dropout_p, is_causal, **options)
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, -math.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    return scores.softmax(-1) @ v


def _convolution_by_samples(x, *arguments, **options):
    return torch.cat([_conv2d(one, *arguments, **options) for one in x.split(1)])


def _times_the_inverse(x, y):
    if not x.is_floating_point() or (isinstance(y, Tensor) and not y.is_floating_point()):
        return _divided(x, y)
    return x * (y.reciprocal() if isinstance(y, Tensor) else 1 / y)


def _mean_of_double(x, *axes, **options):
    return _mean(x.double(), *axes, **options).to(x.dtype)


def _norm_at_once(x, p=2.0, dim=1, eps=1e-12, out=None):
    return x * x.square().sum(dim, keepdim=True).clamp(min=eps * eps).rsqrt()


def _clipped_at_once(parameters, max_norm, *_):
    grads = [one.grad for one in parameters if one.grad is not None]
    norm = torch.cat([grad.flatten().double() for grad in grads]).norm().float()
    for grad in grads:
        grad.mul_((max_norm / (norm + 1e-6)).clamp(max=1))
    return norm


def _dropout_by_a_mask(x, p=0.5, training=True, inplace=False):
    if not training or not p:
        return _dropout(x, p, training, inplace)
    return x * torch.empty_like(x).bernoulli_(1 - p) / (1 - p)


SOFTMAX = ((functional, "softmax"), (torch, "softmax"), (Tensor, "softmax"))
LOG_SOFTMAX = ((functional, "log_softmax"), (torch, "log_softmax"), (Tensor, "log_softmax"))
Substitutes = Mapping[str, tuple[Sequence[Place], Callable[..., Any]]]
EQUAL: Substitutes = {
    "linear by einsum": ([(functional, "linear")], _linear_by_einsum),
    "linear by halves": ([(functional, "linear")], _linear_by_halves),
    "linear in float64": ([(functional, "linear")], _linear_in_double),
    "layer norm by hand": ([(functional, "layer_norm")], _own_layer_norm),
    "batch norm by hand": ([(functional, "batch_norm")], _own_batch_norm),
    "GELU by hand": ([(functional, "gelu")], _own_gelu),
    "SiLU by sigmoid": ([(functional, "silu")], lambda x, inplace=False: x * torch.sigmoid(x)),
    "tanh by sigmoid": ([(torch, "tanh"), (Tensor, "tanh")], _tanh_by_sigmoid),
    "sigmoid by tanh": ([(torch, "sigmoid"), (Tensor, "sigmoid")], _sigmoid_by_tanh),
    "softmax by its logarithm": (SOFTMAX, _own_softmax),
    "log_softmax by logsumexp": (LOG_SOFTMAX, _own_log_softmax),
    "cross entropy by logsumexp": ([(functional, "cross_entropy")], _own_cross_entropy),
    "attention by hand": ([(functional, "scaled_dot_product_attention")], _attention_by_hand),
    "convolution sample by sample": ([(functional, "conv2d")], _convolution_by_samples),
    "division by the inverse": ([(Tensor, "__truediv__")], _times_the_inverse),
    "means in float64": ([(Tensor, "mean")], _mean_of_double),
    "normalized at once": ([(functional, "normalize")], _norm_at_once),
    "clipped at once": ([(nn.utils, "clip_grad_norm_")], _clipped_at_once),
    "dropout by a mask": ([(functional, "dropout")], _dropout_by_a_mask),
}
"""Name -> the functions, and what stands for them: the same mathematics."""


def _half_the_bias(x, w, b=None):
    return _linear(x, w, None if b is None else b / 2)


def _other_eps(x, shape, weight=None, bias=None, eps=1e-5):
    return _layer_norm(x, shape, weight, bias, 1e-2)


def _other_approximation(x, approximate="none"):
    return _gelu(x, approximate="tanh" if approximate == "none" else "none")


def _warmer(x, dim=None, _stacklevel=3, dtype=None):
    return _softmax(0.9 * x, dim, dtype=dtype)


def _smoothed(x, target, *weight, **options):
    return _cross_entropy(x, target, *weight, **{**options, "label_smoothing": 0.1})


def _turned(x, w, *arguments, **options):
    return _conv2d(x, w.flip(-1), *arguments, **options)


MISTAKEN: Substitutes = {
    "half the bias": ([(functional, "linear")], _half_the_bias),
    "another eps": ([(functional, "layer_norm")], _other_eps),
    "another GELU": ([(functional, "gelu")], _other_approximation),
    "a temperature": (SOFTMAX, _warmer),
    "smoothed labels": ([(functional, "cross_entropy")], _smoothed),
    "turned kernels": ([(functional, "conv2d")], _turned),
    "half the limit": (
        [(nn.utils, "clip_grad_norm_")],
        lambda parameters, max_norm, *rest: _clip(parameters, max_norm / 2, *rest),
    ),
}
"""Name -> the functions, and what stands for them: other mathematics."""


@contextmanager
def substituted(name: str) -> Iterator[list[str]]:
    """Let the substitute stand for its functions; yields a list of each call of it."""
    places, function = (EQUAL | MISTAKEN)[name]
    calls: list[str] = []
    with ExitStack() as stack:
        for owner, attribute in places:
            stack.enter_context(
                patch.object(owner, attribute, _standing_in(owner, attribute, function, calls))
            )
        yield calls


def _standing_in(owner: Any, attribute: str, function: Callable[..., Any], calls: list[str]) -> Any:
    original = getattr(owner, attribute)

    @functools.wraps(original)
    def called(*arguments: Any, **options: Any) -> Any:
        if not sys._getframe(1).f_globals.get("__name__", "").startswith(CALLERS):
            return original(*arguments, **options)
        calls.append(attribute)
        return function(*arguments, **options)

    return called


def applicable(train: Callable[[], object], names: Sequence[str]) -> list[str]:
    """Return those of the substitutes whose functions a training calls."""
    seen: dict[Place, list[str]] = {}
    with ExitStack() as stack:
        for place in {place for name in names for place in (EQUAL | MISTAKEN)[name][0]}:
            calls = seen.setdefault(place, [])
            original = getattr(*place)
            stack.enter_context(patch.object(*place, _standing_in(*place, original, calls)))
        train()
    return [name for name in names if any(seen[place] for place in (EQUAL | MISTAKEN)[name][0])]
