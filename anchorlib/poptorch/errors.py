"""The errors that this package raises, each with its further base classes in parentheses.

Error                   (RuntimeError)                 the base class; PopTorch's is a RuntimeError
├── MisuseError         (AssertionError)               a call that PopTorch refuses by an assertion
├── FrozenOptionsError  (AttributeError)               a change of a built model's options
└── UnknownAnchorError  (UnknownTensorError, KeyError) a name that no tensor of the model has
"""

from __future__ import annotations

from anchorlib.errors import AnchorError, UnknownTensorError

__all__ = ["Error", "FrozenOptionsError", "MisuseError", "UnknownAnchorError"]


class Error(AnchorError, RuntimeError):
    """The base of all errors raised here, so that a program catches them as `poptorch.Error`."""


class MisuseError(Error, AssertionError):
    """A call or an option that PopTorch refuses with an assertion."""


class FrozenOptionsError(Error, AttributeError):
    """An attempt to change the options of a model that was already built."""


class UnknownAnchorError(Error, UnknownTensorError):
    """An anchor names a tensor that the model does not have."""
