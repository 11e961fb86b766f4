"""Reads files of tensors that other programs wrote, and records these tensors into a run."""

from anchor_cli.imports.imported import Import
from anchor_cli.imports.placing import Placing

__all__ = [
    "Import",
    "Placing",
]
