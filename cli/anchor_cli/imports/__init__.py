"""Reads tensors that other programs dumped, and places them as records of a run."""

from anchor_cli.imports.imported import Import
from anchor_cli.imports.placing import Placing

__all__ = [
    "Import",
    "Placing",
]
