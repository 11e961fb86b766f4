# ruff: noqa: N802 - PopTorch's own names
"""`Options`: how a model written for PopTorch runs.

Options that decide which tensors a call returns and when weights are updated act as in PopTorch.
"""

from __future__ import annotations

import copy
from typing import Any, Self

import torch

from anchorlib.names import quoted
from anchorlib.poptorch.anchors import AnchorArguments
from anchorlib.poptorch.enums import OutputMode
from anchorlib.poptorch.errors import Error, MisuseError
from anchorlib.poptorch.groups import (
    Distributed,
    Jit,
    OptionGroup,
    Popart,
    Precision,
    TensorLocations,
    Training,
    from_one,
)
from anchorlib.poptorch.modes import Window, check_mode

__all__ = ["Options"]


class Options(OptionGroup):
    """How a model runs, and which of its tensors are anchored.

    Methods that set an option return these options. They raise MisuseError for a value that the
    option cannot have, and FrozenOptionsError for the options of a model that was built.

    opts = Options()
    opts.deviceIterations(4)
    opts.Training.gradientAccumulation(2)
    opts.anchorTensor("grad_bias", "Gradient___fc2.bias", poptorch.OutputMode.All)
    """

    ignored = frozenset(
        {
            "appendToLocationExcludes",
            "autoRoundNumIPUs",
            "broadcastBuffers",
            "connectionType",
            "disableModuleNamescope",
            "enableExecutableCaching",
            "enableProfiling",
            "enableStableNorm",
            "inputReplicaGrouping",
            "logCycleCount",
            "logDir",
            "maxRepeatLogs",
            "modelName",
            "relaxOptimizerAttributesChecks",
            "setAvailableMemoryProportion",
            "setExecutionStrategy",
            "showCompilationProgressBar",
            "sourceLocationExcludes",
            "syncPattern",
            "updatableNamedBuffers",
            "useIpuId",
            "useIpuModel",
            "useOfflineIpuTarget",
        }
    )
    missed = frozenset({"enableSyntheticData"})

    def __init__(self) -> None:
        super().__init__()
        self.device_iterations = 1
        self.replication_factor = 1
        self.random_seed: int | None = None
        self.output_mode = OutputMode.Default
        self.output_return_period = 1
        self.anchored_tensors: dict[str, AnchorArguments] = {}
        self.Training = Training()
        self.Precision = Precision()
        self.Distributed = Distributed()
        self.TensorLocations = TensorLocations()
        self.Jit = Jit()
        self._Popart = Popart()

    def deviceIterations(self, device_iterations: int) -> Self:
        """Set how many weight updates (for an inference model: micro-batches) a call runs."""
        return self.set_all(device_iterations=from_one("deviceIterations", device_iterations))

    def replicationFactor(self, replication_factor: int) -> Self:
        """Accept a single copy of the model. Raises Error for more: replicas are not run here."""
        if from_one("replicationFactor", replication_factor) != 1:
            raise Error(
                f"replicationFactor({replication_factor}): a model is not replicated here; use "
                "DistributedDataParallel, one session a rank, each of which records for itself"
            )
        return self

    def randomSeed(self, random_seed: int) -> Self:
        """Seed torch's random number generators at once."""
        if not isinstance(random_seed, int):
            raise MisuseError(f"a random seed is a whole number, not {random_seed!r}")
        torch.manual_seed(random_seed)
        return self.set_all(random_seed=random_seed)

    def outputMode(
        self,
        output_mode: OutputMode | None = None,
        output_return_period: int | None = None,
        **renamed: Any,
    ) -> Self:
        """Set which micro-batches' outputs a call returns; EveryN needs `output_return_period`.

        renamed: the two arguments, where they are passed by their names until PopTorch 2.3:
            `anchor_mode` and `anchor_return_period`.
        """
        mode = _renamed("outputMode", renamed, "anchor_mode", output_mode)
        period = _renamed("outputMode", renamed, "anchor_return_period", output_return_period)
        if mode is None:
            raise MisuseError("outputMode: None is no poptorch.OutputMode")
        checked = check_mode(mode, period, what="outputMode")
        return self.set_all(output_mode=mode, output_return_period=checked)

    anchorMode = outputMode  # noqa: N815  # its name until PopTorch 2.3

    def defaultOutputMode(self) -> bool:
        """Return whether no output mode was chosen: training returns Final, inference All."""
        return self.output_mode is OutputMode.Default

    def anchorTensor(
        self,
        short_name: str,
        long_name: str,
        output_mode: OutputMode | None = None,
        output_return_period: int | None = None,
        **renamed: Any,
    ) -> None:
        """Make the tensor `long_name` available as `getAnchoredTensor(short_name)` after each call.

        long_name: any selector that names one tensor, such as "Gradient___fc2.bias" or
            "fc2.bias@grad".
        output_mode: the micro-batches to record; None for the mode of the model's outputs.
        output_return_period: the period of EveryN, in micro-batches.
        renamed: `anchor_mode`, `anchor_return_period`: the last two, as named until PopTorch 2.3.

        A model that was built earlier has the anchor from its next call on.
        Raises MisuseError for an impossible mode or period, and for a short name that already
        stands for another long name.
        """
        what = f"anchor {quoted(short_name)}"
        mode = _renamed("anchorTensor", renamed, "anchor_mode", output_mode)
        period = _renamed("anchorTensor", renamed, "anchor_return_period", output_return_period)
        wanted = AnchorArguments(long_name, mode, check_mode(mode, period, what=what))
        known = self.anchored_tensors.get(short_name)
        if known is not None and known.long_name != long_name:
            raise MisuseError(f"{what} is {quoted(known.long_name)} already")
        self.anchored_tensors[short_name] = wanted

    # -- for models

    def for_model(self) -> Options:
        """Return a frozen copy of these options for one model.

        Anchors that are added to these options later are in the copy, too.
        """
        mine = self.clone()
        mine.anchored_tensors = self.anchored_tensors
        for group in self.groups():
            group.note_model()
        for group in mine.groups():
            group.freeze()
        return mine

    def groups(self) -> tuple[OptionGroup, ...]:
        """Return the groups of options that a model may depend on; this object is the first."""
        return (self, self.Training, self.Precision, self.Distributed)

    def window(self, *, training: bool) -> Window:
        """Return how many weight updates a call has, and how many micro-batches each update.

        training: whether the model is for training; a call for inference counts as one update.
        """
        if training:
            return Window(self.device_iterations, self.Training.gradient_accumulation)
        return Window(1, self.device_iterations)

    def clone(self) -> Options:
        """Return a copy that can be changed, even if these options are frozen."""
        return copy.deepcopy(self)


def _renamed(call: str, given: dict[str, Any], old: str, value: Any) -> Any:
    """Return the value of a method's argument, which may be passed by its old or its new name.

    Raises TypeError if `given` has an argument that PopTorch does not know either.

    call: the method's name, for messages.
    given: the keyword arguments that the method does not declare.
    old: the argument's name until PopTorch 2.3. If `given` has it, the value there is returned.
    value: what was passed by the new name, which is returned otherwise.
    """
    olds = {"anchor_mode", "anchor_return_period"}
    unknown = set(given) - olds
    if unknown:
        raise TypeError(f"{call}() got an unexpected keyword argument {unknown.pop()!r}")
    return given.get(old, value)
