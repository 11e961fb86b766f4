"""The writers of `anchor export`: for TensorBoard, Weights & Biases, MLflow and zarr."""

from anchor_cli.exports.export_source import ExportSource
from anchor_cli.exports.hierarchy import write_zarr
from anchor_cli.exports.mlflow import write_tracking
from anchor_cli.exports.tensorboard import write_events
from anchor_cli.exports.wandb import write_offline

__all__ = [
    "ExportSource",
    "write_events",
    "write_offline",
    "write_tracking",
    "write_zarr",
]
