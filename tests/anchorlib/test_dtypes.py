"""Element types: their figures, and the exact value of every bit pattern."""

from __future__ import annotations

import pickle
import warnings

import ml_dtypes
import numpy as np
import pytest
import torch

from anchorlib.dtypes import DTYPES, decode, dtype
from anchorlib.errors import AnchorError, UnknownDTypeError

FLOATS = [name for name, kind in DTYPES.items() if kind.family in ("float", "complex")]
FLOAT8 = [name for name in DTYPES if name.startswith("float8")]
ITSELF = [name for name, kind in DTYPES.items() if kind.storage == kind.decoded]


def same(actual: np.ndarray, expected: np.ndarray) -> None:
    """Equal bit for bit, but for which NaN a NaN is."""
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    unsigned = f"u{actual.dtype.itemsize}"
    equal = actual.view(unsigned) == expected.view(unsigned)
    assert np.all(equal | (np.isnan(actual) & np.isnan(expected)))


@pytest.fixture(params=[False, True], ids=["ieee", "flush"])
def flush(request):
    """Both ways a thread may treat subnormals."""
    torch.set_flush_denormal(request.param)
    yield
    torch.set_flush_denormal(False)


@pytest.mark.parametrize("name", FLOATS)
def test_the_figures_are_those_of_torch(name):
    info = torch.finfo(getattr(torch, name))
    kind = dtype(name)
    # torch 2.13 is wrong about one: 0x40 is 1 and the next pattern, 0x41, is 1.25.
    assert kind.eps == (0.25 if name == "float8_e5m2fnuz" else info.eps)
    assert kind.max == info.max
    assert 2.0**kind.smallest_normal_exponent == info.smallest_normal


@pytest.mark.parametrize("name", [name for name in FLOAT8 if name != "float8_e8m0fnu"])
def test_eps_is_the_step_after_one(name):
    values = decode(np.arange(128, dtype=np.uint8), name)
    one = int(np.flatnonzero(values == 1)[0])
    assert values[one + 1] - values[one] == dtype(name).eps


@pytest.mark.parametrize("name", DTYPES)
def test_storage_has_the_width_of_torchs_type(name):
    assert dtype(name).name == name
    assert dtype(name).storage.itemsize == getattr(torch, name).itemsize
    assert dtype(name).storage.byteorder in "<|="


def test_every_type_that_torch_computes_with_has_a_storage_form():
    known = {str(t).removeprefix("torch.") for t in vars(torch).values() if type(t) is torch.dtype}
    packed = {"bit", "bits1x8", "bits2x4", "bits4x2", "bits8", "bits16", "float4_e2m1fn_x2"}
    quantised = {"qint8", "qint32", "quint8", "quint4x2", "quint2x4"}
    narrow = {f"{sign}int{bits}" for sign in ("", "u") for bits in range(1, 8)}
    assert known - packed - quantised - narrow == set(DTYPES)


@pytest.mark.parametrize("name", FLOAT8)
def test_every_8_bit_float_decodes_as_torch_and_ml_dtypes_do(name, flush):
    raw = np.arange(256, dtype=np.uint8)
    with_torch = torch.from_numpy(raw).view(getattr(torch, name)).float().numpy()
    with_ml_dtypes = raw.view(getattr(ml_dtypes, name)).astype(np.float32)
    same(decode(raw, name), with_torch)
    same(decode(raw, name), with_ml_dtypes)


def test_every_bfloat16_decodes_as_torch_and_ml_dtypes_do(flush):
    raw = np.arange(65536, dtype=np.uint16)
    with_torch = torch.from_numpy(raw).view(torch.bfloat16).float().numpy()
    with_ml_dtypes = raw.view(ml_dtypes.bfloat16).astype(np.float32)
    same(decode(raw, "bfloat16"), with_torch)
    same(decode(raw, "bfloat16"), with_ml_dtypes)


@pytest.mark.parametrize("part", [0, 1], ids=["real", "imaginary"])
def test_every_complex32_decodes_as_torch_does(part, flush):
    halves = np.zeros((65536, 2), np.uint16)
    halves[:, part] = np.arange(65536)
    halves[:, 1 - part] = np.arange(65536)[::-1]
    raw = halves.view("<u4")[:, 0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "ComplexHalf support is experimental"
        tensor = torch.from_numpy(halves).view(torch.float16)
        expected = torch.view_as_real(torch.view_as_complex(tensor)).float().numpy()
    values = decode(raw, "complex32")
    assert values.dtype == np.complex64
    same(values.view("<f4").reshape(-1, 2), expected)


@pytest.mark.parametrize("name", ITSELF)
def test_what_numpy_knows_is_returned_itself(name):
    raw = np.zeros((2, 3), dtype(name).storage)
    assert decode(raw, name) is raw


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (1,), (2, 3)])
def test_decoding_keeps_the_shape(name, shape):
    values = decode(np.zeros(shape, dtype(name).storage), name)
    assert isinstance(values, np.ndarray)
    assert values.shape == shape
    assert values.dtype == dtype(name).decoded


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "complex32"])
def test_strided_storage_decodes_too(name):
    raw = np.arange(48, dtype=dtype(name).storage).reshape(6, 8) * 3
    same(decode(raw.T[::2], name), decode(np.ascontiguousarray(raw.T[::2]), name))


def test_a_decoded_array_is_the_callers_own():
    raw = np.zeros(3, np.uint8)
    decode(raw, "float8_e5m2")[:] = 7
    assert decode(raw, "float8_e5m2").tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("bfloat6", "bfloat16"),
        ("bf16", "bfloat16"),
        ("torch.float32", "float32"),
        ("flot64", "float64"),
    ],
)
def test_an_unknown_dtype_says_what_was_meant(wrong, meant):
    with pytest.raises(UnknownDTypeError, match=f"did you mean '{meant}'") as caught:
        dtype(wrong)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, AnchorError)
    assert "\n" not in str(caught.value)
    assert all(name in str(caught.value) for name in DTYPES)


def test_an_unknown_dtype_far_from_all_lists_the_choices():
    with pytest.raises(UnknownDTypeError) as caught:
        dtype("xyz")
    assert "did you mean" not in str(caught.value)
    assert "float8_e5m2fnuz" in str(caught.value)


def test_an_array_that_is_not_the_storage_is_refused():
    with pytest.raises(UnknownDTypeError, match=r"bfloat16 is stored as <u2.*is <f4"):
        decode(np.zeros(3, np.float32), "bfloat16")


def test_the_other_byte_order_is_refused():
    with pytest.raises(UnknownDTypeError, match=r"float32 is stored as <f4.*is >f4"):
        decode(np.zeros(3, ">f4"), "float32")


def test_the_table_cannot_be_changed():
    with pytest.raises(TypeError):
        DTYPES["float16"] = DTYPES["float32"]  # type: ignore[index]


def test_a_dtype_survives_pickling():
    assert pickle.loads(pickle.dumps(dtype("bfloat16"))) == dtype("bfloat16")
