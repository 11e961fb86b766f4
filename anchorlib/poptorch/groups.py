# ruff: noqa: N802 - PopTorch's own names
"""The groups of options in `Options`, and how options are treated that have no effect here.

An option that concerns hardware alone is accepted and noted in the debug log, so that programs with
it run. An option that would change numbers and is not available is logged as a warning, or refused.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from typing import Any, ClassVar, Self

from anchorlib.names import suggest
from anchorlib.poptorch.enums import ReductionType
from anchorlib.poptorch.errors import Error, FrozenOptionsError, MisuseError

__all__ = [
    "Distributed",
    "Jit",
    "OptionGroup",
    "Popart",
    "Precision",
    "TensorLocations",
    "Training",
    "from_one",
]

_log = logging.getLogger("anchorlib")


class OptionGroup:
    """A group of options, such as `Options.Training`.

    owner: the group's name in messages.
    ignored: names of options that are accepted and need no effect here.
    missed: names of options that would change numbers in PopTorch. They are accepted without an
    effect here, and a warning says so.
    """

    owner: ClassVar[str] = "Options"

    # Options that concern hardware, compilation or logs alone.
    ignored: ClassVar[frozenset[str]] = frozenset()

    # Options that would change numbers, in ways that torch's devices do not offer.
    missed: ClassVar[frozenset[str]] = frozenset()

    def __init__(self) -> None:
        self._frozen = False
        self._built = 0  # how many models were built from these options

    def set_all(self, **values: Any) -> Self:
        """Set options by name and return the group.

        Raises FrozenOptionsError if the group belongs to a model that was built.
        """
        if self._frozen:
            raise FrozenOptionsError(
                f"Can't modify frozen Options: {self.owner} is the copy of a model that was built"
            )
        self.warn_built(" and ".join(values))
        for name, value in values.items():
            setattr(self, name, value)
        return self

    def warn_built(self, what: str) -> None:
        """Log a warning: models that were built from these options keep an option's earlier value.

        Does nothing if no model was built.

        what: the name of the option that is set, or the names of several, for the message.
        """
        if self._built:
            _log.warning(
                "anchorlib: %s of %s comes after a model was built from it: that model keeps what "
                "it has, those built from now on get it",
                what,
                self.owner,
            )

    def freeze(self) -> None:
        """Make every later change of the group's options raise FrozenOptionsError."""
        self._frozen = True

    def thaw(self) -> None:
        """Allow changes again, and forget that models were built from these options."""
        self._frozen, self._built = False, 0

    def note_model(self) -> None:
        """Count a model that was built from these options, so that `warn_built` warns later."""
        self._built += 1

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        mine = type(self)()
        for name, value in vars(self).items():
            setattr(mine, name, copy.deepcopy(value, memo))
        mine.thaw()
        return mine

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name in self.ignored or name in self.missed:
            return self._unheeded(name)
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        known = [*self.ignored, *self.missed, *(one for one in dir(type(self)) if one[0] != "_")]
        raise AttributeError(
            f"{self.owner} has no option {name!r} here{suggest(name, sorted(known))}"
        )

    def _unheeded(self, name: str) -> Callable[..., Any]:
        def set_nothing(*values: Any, **named: Any) -> Any:
            said = ", ".join([*map(repr, values), *(f"{k}={v!r}" for k, v in named.items())])
            if name in self.missed and values != (False,):
                _log.warning("anchorlib: %s.%s(%s) has no effect here", self.owner, name, said)
            else:
                _log.debug("anchorlib: %s.%s(%s) is not needed here", self.owner, name, said)
            return self

        return set_nothing


class Training(OptionGroup):
    """The options of training, `Options.Training`: gradient accumulation and reduction.

    Methods that set an option return the group. They raise MisuseError for a value that the option
    cannot have, and FrozenOptionsError for the options of a model that was built.
    """

    owner = "Options.Training"
    ignored = frozenset(
        {
            "setConvolutionDithering",
            "setMeanAccumulationAndReplicationReductionStrategy",
        }
    )
    missed = frozenset({"setAutomaticLossScaling"})

    def __init__(self) -> None:
        super().__init__()
        self.gradient_accumulation = 1
        self.reduction = ReductionType.Mean

    def gradientAccumulation(self, gradient_accumulation: int) -> Self:
        """Set how many micro-batches' gradients are combined for one weight update."""
        count = from_one("gradientAccumulation", gradient_accumulation)
        return self.set_all(gradient_accumulation=count)

    def accumulationAndReplicationReductionType(self, reduction_type: ReductionType) -> Self:
        """Set how gradients of micro-batches are combined: Mean (the default) or Sum."""
        if reduction_type not in (ReductionType.Mean, ReductionType.Sum):
            raise MisuseError(
                "accumulationAndReplicationReductionType takes ReductionType.Mean or "
                f"ReductionType.Sum, not {reduction_type!r}"
            )
        return self.set_all(reduction=reduction_type)


class Precision(OptionGroup):
    """The options of precision, `Options.Precision`; none has an effect here."""

    owner = "Options.Precision"
    ignored = frozenset({"enableFloatingPointExceptions", "runningStatisticsAlwaysFloat"})
    missed = frozenset(
        {
            "autocastEnabled",
            "autocastPolicy",
            "enableStochasticRounding",
            "halfFloatCasting",
            "setPartialsType",
        }
    )


class Distributed(OptionGroup):
    """The options of several processes, `Options.Distributed`; only one process is run here."""

    owner = "Options.Distributed"
    ignored = frozenset({"disable", "IPUoFConfigFiles", "setEnvVarNames"})

    def configureProcessId(self, process_id: int, num_processes: int) -> Self:
        """Accept process 0 of 1. Raises Error for anything else: torch.distributed runs several."""
        if (process_id, num_processes) != (0, 1):
            raise Error(
                "Options.Distributed: several processes are not run here; use torch.distributed, "
                "one session a rank"
            )
        return self


class TensorLocations(OptionGroup):
    """Where tensors lie on a device, `Options.TensorLocations`; no option has an effect here."""

    owner = "Options.TensorLocations"
    ignored = frozenset(
        {
            "numIOTiles",
            "setAccumulatorLocation",
            "setActivationLocation",
            "setOptimizerLocation",
            "setWeightLocation",
        }
    )


class Jit(OptionGroup):
    """The options of tracing, `Options.Jit`; none has an effect here."""

    owner = "Options.Jit"
    ignored = frozenset({"traceModel"})


class Popart(OptionGroup):
    """The options of the PopART compiler, `Options._Popart`; none has an effect here."""

    owner = "Options._Popart"
    ignored = frozenset({"set", "setEngineOptions", "setPatterns"})


def from_one(what: str, value: object) -> int:
    """Return `value` if it is a whole number from 1 on; else raise MisuseError.

    what: the option's name, for the error's text.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise MisuseError(f"{what} is a whole number from 1, not {value!r}")
    return value
