"""Normalization and dropout layers in eval mode inside a training model, noted in the header.

header["eval.1"] = 2        # layer "1" was first seen in eval mode in step 2
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import nn

__all__ = ["ModuleModes"]

_LAYERS = (
    *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm),
    *(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d),
    *(nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d),
    *(nn.AlphaDropout, nn.FeatureAlphaDropout),
)


class ModuleModes:
    """Finds batch norm, instance norm and dropout layers in eval mode while their model trains.

    tell: called once for each such layer, with the name of its entry in the rank's header and the
        step in which it was first seen in eval mode.
    """

    def __init__(
        self,
        root: nn.Module,
        modules: Mapping[str, nn.Module],
        tell: Callable[[str, int], None],
    ) -> None:
        self._root = root
        self._tell = tell
        self._layers = {
            name: module for name, module in modules.items() if isinstance(module, _LAYERS)
        }

    def look(self, step: int) -> None:
        """Call `tell` for layers in eval mode as a pass of `step` begins, once for each layer.

        Does nothing while the whole model is in eval mode.
        """
        if not self._root.training:
            return
        evaluating = [name for name, layer in self._layers.items() if not layer.training]
        for name in evaluating:
            del self._layers[name]
            self._tell(f"eval.{name}", step)
