"""Element types: torch's names, how their bits are stored, and the limits of each.

Values are stored in dtypes that numpy and every zarr reader know: bfloat16 as uint16, the 8-bit
floats as uint8, complex32 (two float16) as uint32; every other type as itself, little-endian.
Storing keeps every bit, and `decode` gives the exact values:

    name            storage   decode() gives
    bfloat16        uint16    float32
    float8_*        uint8     float32
    complex32       uint32    complex64
    all the others  itself    the storage array itself
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from anchorlib.errors import UnknownDTypeError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["DTYPES", "DType", "decode", "dtype", "of_storage"]

Family = Literal["float", "complex", "int", "bool"]


@dataclass(frozen=True, slots=True)
class DType:
    """An element type: its name in torch, how its bits are stored, and its limits.

    name: torch's name without "torch.".
    storage: the little-endian numpy dtype in which its bits are kept.
    decoded: the numpy dtype that `decode` gives.
    family: "float", "complex", "int" (unsigned ones too) or "bool".
    eps, max: the spacing just above 1 and the largest finite value; for a complex type those of its
        real and imaginary parts; None for integers and bool. They equal `torch.finfo`'s, except for
        the eps of float8_e5m2fnuz: it is 0.25 (1.25 follows 1), where torch 2.13 says 0.125.
    smallest_normal_exponent: e where 2**e is the smallest normal value; None for integers and bool.
    """

    name: str
    storage: np.dtype[Any]
    decoded: np.dtype[Any]
    family: Family
    eps: float | None = None
    smallest_normal_exponent: int | None = None
    max: float | None = None


def _float(  # noqa: PLR0913 - one row of the table below
    name: str,
    storage: str,
    decoded: str,
    mantissa: int,
    exponent: int,
    max_: float,
    family: Family = "float",
) -> DType:
    eps = 2.0**-mantissa
    return DType(name, np.dtype(storage), np.dtype(decoded), family, eps, exponent, max_)


def _whole(name: str, family: Family = "int") -> DType:
    storage = np.dtype(name).newbyteorder("<")
    return DType(name, storage, storage, family)


DTYPES: Mapping[str, DType] = MappingProxyType(
    {
        kind.name: kind
        for kind in (
            # name, storage, decoded, mantissa bits, smallest normal exponent, max
            _float("float16", "<f2", "<f2", 10, -14, 65504.0),
            _float("bfloat16", "<u2", "<f4", 7, -126, (2 - 2.0**-7) * 2.0**127),
            _float("float32", "<f4", "<f4", 23, -126, (2 - 2.0**-23) * 2.0**127),
            _float("float64", "<f8", "<f8", 52, -1022, (2 - 2.0**-52) * 2.0**1023),
            _float("float8_e4m3fn", "u1", "<f4", 3, -6, 448.0),
            _float("float8_e4m3fnuz", "u1", "<f4", 3, -7, 240.0),
            _float("float8_e5m2", "u1", "<f4", 2, -14, 57344.0),
            _float("float8_e5m2fnuz", "u1", "<f4", 2, -15, 57344.0),
            _float("float8_e8m0fnu", "u1", "<f4", 0, -127, 2.0**127),
            _float("complex32", "<u4", "<c8", 10, -14, 65504.0, "complex"),
            _float("complex64", "<c8", "<c8", 23, -126, (2 - 2.0**-23) * 2.0**127, "complex"),
            _float("complex128", "<c16", "<c16", 52, -1022, (2 - 2.0**-52) * 2.0**1023, "complex"),
            _whole("bool", "bool"),
            *(_whole(f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)),
        )
    }
)
"""Every element type that can be stored, by torch's name."""


def dtype(name: str) -> DType:
    """Return the element type called `name`. Raises UnknownDTypeError, which lists the choices."""
    try:
        return DTYPES[name]
    except KeyError:
        raise UnknownDTypeError(_unknown(name)) from None


def of_storage(raw: np.ndarray[Any, Any], name: str) -> DType:
    """Return the element type called `name`, after a check that `raw` has its storage dtype.

    Raises UnknownDTypeError for an unknown name, or an array of another dtype.
    """
    kind = dtype(name)
    if raw.dtype != kind.storage:
        raise UnknownDTypeError(
            f"{name} is stored as {kind.storage.str}, but this array is {raw.dtype.str}; "
            f"give the raw storage of a {name} tensor"
        )
    return kind


def decode(
    raw: np.ndarray[Any, Any], name: str, *, out: np.ndarray[Any, Any] | None = None
) -> np.ndarray[Any, Any]:
    """Return the exact values of a storage array, in an array of its shape (a NaN stays a NaN).

    raw: an array of `dtype(name).storage`; returned itself where there is nothing to decode.
    out: a contiguous float32 array of that shape, into which bfloat16 and fp8 are decoded.
    The values are made by moving bits, not by arithmetic, so that they are also right in a thread
    that flushes subnormal numbers to zero. Raises UnknownDTypeError for an unknown name, or an
    array that does not have the storage dtype of `name`.
    """
    kind = of_storage(raw, name)
    if kind.storage == kind.decoded:
        return raw
    flat = raw.reshape(-1)
    if name == "complex32":
        with np.errstate(invalid="ignore"):  # some processors report a signalling NaN here
            parts = np.ascontiguousarray(flat).view("<f2").astype("<f4")
        return parts.view("<c8").reshape(raw.shape)
    values = np.empty(flat.shape, "<f4") if out is None else out.reshape(-1)
    if name == "bfloat16":
        np.left_shift(flat, np.uint32(16), out=values.view("<u4"), dtype=np.dtype("<u4"))
    else:
        # Every index is in the table; mode="raise" would check that, and need another buffer.
        _float8_values(name).take(flat, out=values, mode="clip")
    return values.reshape(raw.shape)


@cache
def _float8_values(name: str) -> np.ndarray[Any, Any]:
    """Return the float32 value of each of the 256 bit patterns of the 8-bit float called `name`."""
    patterns = np.arange(256, dtype="<u4")
    if name == "float8_e8m0fnu":
        # The pattern is float32's exponent field; 2**-127 is subnormal there, hence by bits.
        bits = patterns << np.uint32(23)
        bits[0] = 1 << 22
        bits[255] = 0x7FC00000
        values = bits.view("<f4")
    else:
        values = _minifloat_values(DTYPES[name], patterns)
    values.flags.writeable = False  # the cache hands the same array to all callers
    return values


def _minifloat_values(kind: DType, patterns: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the float32 values of 8-bit patterns, from their sign, exponent and mantissa.

    Follows the formats "OCP 8-bit floating point" and "fnuz" (finite, no negative zero).
    """
    assert kind.eps is not None
    assert kind.smallest_normal_exponent is not None
    assert kind.max is not None
    steps = int(1 / kind.eps)  # mantissa steps in a power of two
    magnitude = (patterns & 0x7F).astype(np.int64)
    exponent, mantissa = magnitude // steps, magnitude % steps
    significand = mantissa + np.where(exponent > 0, steps, 0)
    scale = np.maximum(exponent, 1) - 1 + kind.smallest_normal_exponent
    values = np.ldexp(significand * kind.eps, scale)
    beyond = values > kind.max
    values[beyond] = np.nan
    if kind.name == "float8_e5m2":
        values[0x7C::0x80] = np.inf
    values[patterns >= 0x80] *= -1
    if kind.name.endswith("fnuz"):  # no negative zero: its pattern is the one NaN
        values[0x80] = np.nan
    single: np.ndarray[Any, Any] = values.astype("<f4")
    return single


def _unknown(name: str) -> str:
    near = difflib.get_close_matches(str(name).removeprefix("torch."), DTYPES, 1, 0.5)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"no dtype is named {name!r:.80}{hint} (choices: {', '.join(DTYPES)})"
