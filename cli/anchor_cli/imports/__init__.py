"""Reads files of tensors that other programs wrote, and makes records of a run of them."""

from anchor_cli.imports.imported import Import
from anchor_cli.imports.placing import Placing

__all__ = [
    "Import",
    "Placing",
]
