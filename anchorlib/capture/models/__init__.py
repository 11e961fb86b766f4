"""Watched models: outputs, inputs, parameters and buffers, by hooks on their modules."""

from anchorlib.capture.models.called_parts import hook_called_parts
from anchorlib.capture.models.encoder_layers import show_encoder_layers_no_hooks
from anchorlib.capture.models.model_watch import ModelWatch
from anchorlib.capture.models.scripting import script_without_hooks

__all__ = [
    "ModelWatch",
    "hook_called_parts",
    "script_without_hooks",
    "show_encoder_layers_no_hooks",
]
