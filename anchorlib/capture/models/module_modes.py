"""Layers in eval mode inside a model that trains: batch norm and dropout, which do otherwise then.

header["eval.1"] = 2        # from step 2 on, which is said once
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
    """The modes of one model's layers; `tell` is given each that is not its model's."""

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
        """A pass begins."""
        if not self._root.training:
            return
        found = [name for name, layer in self._layers.items() if not layer.training]
        for name in found:
            del self._layers[name]
            self._tell(f"eval.{name}", step)
