"""The summary of an array: its digest, counts, extremes, sums and log2 histogram.

    raw storage ─blocks─▶ Tally   (exponents, zeros, nan, inf: from the bits) ─▶ Log2Histogram
                        └▶ Moments (min, max, sum, l2 over finite elements)    ─▶ ArraySummary

float_bits       the bits of a float, and an array's elements in cache-sized blocks
exponent_counts  counts exponents; `pairs`: two float32 at a time
moments          min, max, sum and l2 (the Euclidean norm)
histogram        Log2Histogram, the histogram of exponents; two of them can be added
rows             ArraySummary, summarise, digest: the summary of one array
columns          figures_of: the summaries of many records as columns, in one pass
exact_sums       sums of floats that do not depend on the order of adding
arrays           anything array-like as raw storage; log2_histogram, for users
shares           how the elements would land in a narrower float: `anchor hist --as`
scales           the loss scales with which a narrower float loses least
compiled         counts and moments in one compiled call, where the extra `fast` is installed
kernels          the code that is compiled, with numba
object_file      compiles `kernels` in a process beside this one, and links the machine code

Raw storage is the bits of an array's elements in a dtype that numpy has, such as uint16 for
bfloat16.

The summaries are made with numpy, or with compiled code that gives the same bits. Elements are
classified by their bits wherever float arithmetic would give another answer in a thread that
flushes subnormals (`torch.set_flush_denormal(True)`).
"""

from anchorlib.summary.arrays import as_storage, log2_histogram
from anchorlib.summary.columns import figures_of
from anchorlib.summary.compiled import SCANS
from anchorlib.summary.exact_sums import LIMBS, ExactSums, added_up
from anchorlib.summary.histogram import Log2Histogram
from anchorlib.summary.rows import ArraySummary, digest, summarise
from anchorlib.summary.scales import scales_for
from anchorlib.summary.shares import FORMATS, Shares, shares_as

__all__ = [
    "FORMATS",
    "LIMBS",
    "SCANS",
    "ArraySummary",
    "ExactSums",
    "Log2Histogram",
    "Shares",
    "added_up",
    "as_storage",
    "digest",
    "figures_of",
    "log2_histogram",
    "scales_for",
    "shares_as",
    "summarise",
]
