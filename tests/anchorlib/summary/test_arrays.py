"""The users' door takes anything array-like, torch tensors too, without importing torch."""

from __future__ import annotations

import subprocess
import sys
import warnings

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given

from anchorlib.dtypes import DTYPES, dtype
from anchorlib.errors import UnknownDTypeError, UnsupportedError
from anchorlib.summary import Log2Histogram, as_storage, log2_histogram, shares_as, summarise
from tests.strategies import stored

pytestmark = pytest.mark.usefixtures("path_taken")


def to_torch(raw, name):
    """A tensor of these bits."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "ComplexHalf support is experimental"
        data = torch.from_numpy(np.frombuffer(bytearray(raw.tobytes() or b"0"), np.uint8))
        wide = data[: raw.nbytes].view(getattr(torch, name))
        return wide.reshape(raw.shape)


@pytest.mark.slow
@given(stored())
def test_a_torch_tensor_gives_the_histogram_of_its_storage(array):
    raw, name = array
    tensor = to_torch(raw, name)
    assert log2_histogram(tensor) == summarise(raw, name).histogram
    back, found = as_storage(tensor)
    assert (back.dtype, back.shape, found) == (raw.dtype, raw.shape, name)
    assert back.tobytes() == raw.tobytes()


@pytest.mark.slow
@given(stored())
def test_raw_storage_is_read_as_it_is_told(array):
    raw, name = array
    assert log2_histogram(raw, name) == summarise(raw, name).histogram


@pytest.mark.parametrize("name", [n for n in DTYPES if n == "bfloat16" or n.startswith("float8")])
def test_arrays_of_ml_dtypes_are_known(name):
    raw = np.arange(200, dtype=dtype(name).storage)
    assert log2_histogram(raw.view(getattr(ml_dtypes, name))) == log2_histogram(raw, name)


def test_a_parameter_that_requires_grad():
    parameter = torch.nn.Parameter(torch.tensor([1.0, 2.0, 0.0]))
    assert log2_histogram(parameter) == Log2Histogram({0: 1, 1: 1}, zero=1)
    assert log2_histogram(parameter * 2) == Log2Histogram({1: 1, 2: 1}, zero=1)


def test_lazy_conjugates_and_negations():
    tensor = torch.tensor([1 + 2j, 4 - 8j])
    assert log2_histogram(tensor.conj()) == Log2Histogram({0: 1, 1: 1, 2: 1, 3: 1})
    assert log2_histogram(tensor.conj().imag) == Log2Histogram({1: 1, 3: 1})


def test_views_with_strides():
    tensor = torch.arange(12.0).reshape(3, 4).t()[::2]
    assert log2_histogram(tensor) == log2_histogram(tensor.contiguous())
    half = torch.arange(12.0).bfloat16().reshape(3, 4).t()[::2]
    assert log2_histogram(half) == log2_histogram(half.contiguous())
    assert log2_histogram(np.arange(9.0)[::-2]) == log2_histogram([8.0, 6.0, 4.0, 2.0, 0.0])


@pytest.mark.parametrize("name", DTYPES)
def test_a_tensor_that_was_counted_can_still_be_resized(name):
    tensor = to_torch(np.arange(8, dtype=np.int64), "int64").clone().view(getattr(torch, name))
    log2_histogram(tensor)
    shares_as(tensor, "fp16")
    as_storage(tensor)
    assert tensor.untyped_storage().resizable()


def test_tensors_in_lists_can_still_be_resized():
    scalars, rows = [torch.tensor(1.0), torch.tensor(2)], (torch.ones(2), [torch.tensor(4.0), 8])
    assert log2_histogram(scalars) == Log2Histogram({0: 1, 1: 1})
    assert log2_histogram(rows) == Log2Histogram({0: 2, 2: 1, 3: 1})
    tensors = [*scalars, rows[0], rows[1][0]]
    assert all(tensor.untyped_storage().resizable() for tensor in tensors)


def test_a_tensor_whose_storage_was_emptied_is_refused():
    tensor = torch.ones(4)[1:]
    tensor.untyped_storage().resize_(0)
    with pytest.raises(UnsupportedError, match="memory"):
        log2_histogram(tensor)


class OnADevice:
    """A tensor that lives elsewhere: numpy cannot read it before `detach().cpu()`."""

    def __init__(self, tensor):
        self._tensor = tensor
        self.dtype = tensor.dtype
        self.asked: list[str] = []

    def detach(self):
        self.asked.append("detach")
        return self

    def cpu(self):
        self.asked.append("cpu")
        return self._tensor

    def __array__(self, *args, **kwargs):
        raise AssertionError("read before it was copied to the CPU")


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float8_e4m3fn"])
def test_a_tensor_on_a_device_is_copied_first(name):
    tensor = OnADevice(torch.tensor([1.0, 4.0]).to(getattr(torch, name)))
    assert log2_histogram(tensor) == Log2Histogram({0: 1, 2: 1})
    assert tensor.asked == ["detach", "cpu"]


@pytest.mark.parametrize(
    ("given_", "expected"),
    [
        ([], Log2Histogram()),
        ([0.5, -0.25, 0], Log2Histogram({-2: 1, -1: 1}, zero=1)),
        ([[1, 2], [3, -4]], Log2Histogram({0: 1, 1: 2, 2: 1})),
        (3, Log2Histogram({1: 1})),
        (0.75, Log2Histogram({-1: 1})),
        (True, Log2Histogram({0: 1})),
        (1 - 2j, Log2Histogram({0: 1, 1: 1})),
        (np.float32(2), Log2Histogram({1: 1})),
        (2**63, Log2Histogram({63: 1})),
        (float("inf"), Log2Histogram(inf=1)),
        (range(5), Log2Histogram({0: 1, 1: 2, 2: 1}, zero=1)),
    ],
)
def test_lists_and_numbers(given_, expected):
    assert log2_histogram(given_) == expected


def test_the_other_byte_order():
    values = [1.0, -3.5, 1e-40, 0.0]
    for code in ("f4", "f8", "f2", "c8", "i4", "u8"):
        with np.errstate(all="ignore"):
            native = np.abs(np.array(values)).astype(code)
        assert log2_histogram(native.astype(">" + code)) == log2_histogram(native)


@pytest.mark.parametrize("wrong", ["text", [object()], [None], np.array(["a"]), 2**64])
def test_what_is_no_number_is_refused(wrong):
    with pytest.raises(UnknownDTypeError, match="choices: float16"):
        log2_histogram(wrong)


def test_a_type_without_storage_form_is_refused():
    with pytest.raises(UnknownDTypeError, match=np.dtype(np.longdouble).name):
        log2_histogram(np.zeros(2, np.longdouble))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quantised = torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)
    with pytest.raises(UnknownDTypeError, match="qint8"):
        log2_histogram(quantised)


def test_storage_of_another_type_is_refused():
    with pytest.raises(UnknownDTypeError, match=r"bfloat16 is stored as <u2.*<f8"):
        log2_histogram([1.0], "bfloat16")


def test_numpys_error_settings_do_not_matter():
    with np.errstate(all="raise"):
        log2_histogram(np.arange(65536, dtype=np.uint16).view(np.float16))


@pytest.mark.slow
def test_the_package_does_not_import_torch():
    code = (
        "import sys, anchorlib.summary; print(sorted({'torch', 'zarr', 'grpc'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
