"""How far the two records of a pair are apart, in units of rounding, and which elements differ."""

from anchorlib.diagnosis.sizes.autocast import (
    AUTOCAST,
    CAST,
    CONVOLUTION,
    MATMUL,
    autocast_eps,
    multiplies,
)
from anchorlib.diagnosis.sizes.convolutions import Geometry, convolutions, geometry_of
from anchorlib.diagnosis.sizes.damage import Seals
from anchorlib.diagnosis.sizes.measurement import measure
from anchorlib.diagnosis.sizes.measures import Measure, Measures
from anchorlib.diagnosis.sizes.precision import observed_eps
from anchorlib.diagnosis.sizes.steady import steady_elements_apart
from anchorlib.diagnosis.sizes.sums import ReferenceSum, Task, plain_sums, products, shifted
from anchorlib.diagnosis.sizes.ulps import max_ulp
from anchorlib.diagnosis.sizes.whereabouts import EQUAL, NONFINITE, apart, read, where, whereabouts

__all__ = [
    "AUTOCAST",
    "CAST",
    "CONVOLUTION",
    "EQUAL",
    "MATMUL",
    "NONFINITE",
    "Geometry",
    "Measure",
    "Measures",
    "ReferenceSum",
    "Seals",
    "Task",
    "apart",
    "autocast_eps",
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
    "where",
    "whereabouts",
]
