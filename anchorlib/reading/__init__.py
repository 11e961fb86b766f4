"""Reading recorded runs from Python: `open_run` gives a `Run`, a `Run` gives `Series` of records.

run = open_run("run1")           also while the run is still being recorded
run.tensors("fc*@grad")          list of TensorInfo, in order of execution
run["fc2.bias@grad"].values()    array of shape (record, *tensor shape)

Values are numpy arrays; torch is imported by `Series.to_torch` alone.
"""

from anchorlib.reading.blocks import MapFunction, map_blocks
from anchorlib.reading.run import Run, open_run
from anchorlib.reading.series import Series, tensor_tree
from anchorlib.reading.tables import as_frame, html_table, html_text
from anchorlib.reading.tensor_histograms import gradients_first
from anchorlib.reading.tensors import as_tensor

__all__ = [
    "MapFunction",
    "Run",
    "Series",
    "as_frame",
    "as_tensor",
    "gradients_first",
    "html_table",
    "html_text",
    "map_blocks",
    "open_run",
    "tensor_tree",
]
