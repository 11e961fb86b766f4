"""Finds which formula, with every rounding explicit, reproduces the bits of a recorded tensor.

    rounded         arithmetic that rounds after each operation, and the exact fused multiply-add
    elementary      exp, tanh and erf, as several libraries round them
    activations, normalisations, products, convolutions, attention, losses
                    for each function, the formulas that differ in where they round
    fit             compares recorded bits with the result of every formula

Everything needs numpy alone, but for `kernels`, which asks torch for its own results.
"""

from anchorlib.formulas.activations import ACTIVATIONS
from anchorlib.formulas.attention import Attention, attention, attention_backward
from anchorlib.formulas.convolutions import (
    Elements,
    Strides,
    arriving,
    by_channels,
    convolution,
    convolution_backward,
    in_groups,
    patches,
)
from anchorlib.formulas.fit import ENOUGH, Fit, fit
from anchorlib.formulas.formula import Function
from anchorlib.formulas.losses import (
    cross_entropy,
    cross_entropy_backward,
    log_softmax,
    log_softmax_backward,
    mse_loss,
    mse_loss_backward,
)
from anchorlib.formulas.normalisations import (
    layer_norm,
    layer_norm_backward,
    rms_norm,
    softmax,
    softmax_backward,
)
from anchorlib.formulas.products import ProductPart, product

__all__ = [
    "ACTIVATIONS",
    "ENOUGH",
    "Attention",
    "Elements",
    "Fit",
    "Function",
    "ProductPart",
    "Strides",
    "arriving",
    "attention",
    "attention_backward",
    "by_channels",
    "convolution",
    "convolution_backward",
    "cross_entropy",
    "cross_entropy_backward",
    "fit",
    "in_groups",
    "layer_norm",
    "layer_norm_backward",
    "log_softmax",
    "log_softmax_backward",
    "mse_loss",
    "mse_loss_backward",
    "patches",
    "product",
    "rms_norm",
    "softmax",
    "softmax_backward",
]
