"""How far the two records of a pair are apart, in units of rounding, and which elements differ.

measurement                 measures all differing pairs of an alignment
measures                    what is measured of a pair
blocks                      pairs that are measured together, here or in another process
differences                 the measures of pairs computed from their values
bounds                      lower bounds of the measures, where only summaries are stored
digest_checks               values that do not have the digest that was recorded
values                      a record's values, read in pieces
ulps, whereabouts           the largest difference in ulps; which indices differ
precision, autocast         in which dtype values were rounded
coarsest                    the coarsest format in which a step computed, up to a record
unrounding                  operations that do not round
sums, convolutions, steady  how far rounding may move a sum, or a parameter's update
"""

from anchorlib.diagnosis.sizes.autocast import (
    AUTOCAST,
    CAST,
    CONVOLUTION,
    MATMUL,
    autocast_eps,
    multiplies,
)
from anchorlib.diagnosis.sizes.coarsest import coarsest_formats
from anchorlib.diagnosis.sizes.convolutions import Geometry, convolutions, geometry_of
from anchorlib.diagnosis.sizes.differences import FILLED
from anchorlib.diagnosis.sizes.digest_checks import DigestChecks
from anchorlib.diagnosis.sizes.measurement import measure
from anchorlib.diagnosis.sizes.measures import Measure, Measures
from anchorlib.diagnosis.sizes.precision import observed_eps
from anchorlib.diagnosis.sizes.steady import steady_elements_apart
from anchorlib.diagnosis.sizes.sums import ReferenceSum, Task, plain_sums, products, shifted
from anchorlib.diagnosis.sizes.ulps import max_ulp
from anchorlib.diagnosis.sizes.unrounding import unrounding
from anchorlib.diagnosis.sizes.whereabouts import EQUAL, NONFINITE, apart, read, where, whereabouts

__all__ = [
    "AUTOCAST",
    "CAST",
    "CONVOLUTION",
    "EQUAL",
    "FILLED",
    "MATMUL",
    "NONFINITE",
    "DigestChecks",
    "Geometry",
    "Measure",
    "Measures",
    "ReferenceSum",
    "Task",
    "apart",
    "autocast_eps",
    "coarsest_formats",
    "convolutions",
    "geometry_of",
    "max_ulp",
    "measure",
    "multiplies",
    "observed_eps",
    "plain_sums",
    "products",
    "read",
    "shifted",
    "steady_elements_apart",
    "unrounding",
    "where",
    "whereabouts",
]
