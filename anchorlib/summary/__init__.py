"""What a summary row says of an array: digest, counts, extremes, sums and the log2 histogram.

    raw storage ─blocks─▶ Tally   (exponents, zeros, nan, inf: from the bits) ─▶ Log2Histogram
                        └▶ Moments (min, max, sum, l2 over finite elements)    ─▶ Summary

layouts    the bits of a float, and an array's elements in cache-sized blocks
tally      counts exponents
moments    min, max, sum and l2
histogram  Log2Histogram, the value that adds up
rows       Summary, summarise, digest
columns    figures_of: the summaries of many records as columns, in one pass
arrays     anything array-like as raw storage; log2_histogram, the user's door
shares     how the elements would land in a narrower float: `anchor hist --as`
scales     what to multiply them by first, so that least is lost
compiled   tally and moments in one call an array, where the extra `fast` is installed
compiling  a process beside this one that compiles `kernels`

Numpy, and compiled code that says the same to the last bit. Everything is decided by bits, never by
float arithmetic, wherever a thread that flushes subnormals (`torch.set_flush_denormal(True)`) would
get another answer.
"""

from anchorlib.summary.arrays import as_storage, log2_histogram
from anchorlib.summary.columns import Figures, figures_of
from anchorlib.summary.compiled import SCANS
from anchorlib.summary.histogram import Log2Histogram
from anchorlib.summary.rows import Summary, digest, summarise
from anchorlib.summary.scales import ScaleRange, scales_for
from anchorlib.summary.shares import FORMATS, Shares, shares_as

__all__ = [
    "FORMATS",
    "SCANS",
    "Figures",
    "Log2Histogram",
    "ScaleRange",
    "Shares",
    "Summary",
    "as_storage",
    "digest",
    "figures_of",
    "log2_histogram",
    "scales_for",
    "shares_as",
    "summarise",
]
