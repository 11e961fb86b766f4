"""The histograms of `anchor hist`, counted from records or read from an archived run's index.

They are drawn as text, PNG or HTML.
"""

from anchor_cli.histograms.histogram_report import WRITERS, HistogramReport
from anchor_cli.histograms.indexed import answer_of_index
from anchor_cli.histograms.measured import NarrowFormat

__all__ = ["WRITERS", "HistogramReport", "NarrowFormat", "answer_of_index"]
