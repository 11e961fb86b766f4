"""Data in a page: nothing in it can end its element, and it comes back as it was."""

from __future__ import annotations

import base64
import json
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anchorlib.report.packing import ArrayPacker

texts = st.one_of(
    st.text(),
    st.sampled_from(["</script>", "<!--", "<script", "]]>", "&lt;", "\u2028\u2029", "\ud800", "$"]),
)
documents = st.recursive(
    st.one_of(texts, st.integers(-(2**53), 2**53), st.floats(allow_nan=False), st.none()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=3)),
    max_leaves=8,
)


@pytest.mark.slow
@given(documents)
def test_no_text_can_end_a_script_element_and_all_come_back(document):
    text = ArrayPacker().text({"held": document})
    assert text.isascii()
    assert not set("<>&") & set(text)
    held = json.loads(text.partition("\n")[0])["held"]
    assert held == plain(document)


def plain(value):
    """Infinities are null in JSON."""
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, list):
        return [plain(one) for one in value]
    return None if isinstance(value, float) and np.isinf(value) else value


@pytest.mark.slow
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["u1", "u2", "i2", "u4", "i4", "f4", "f8"]),
            st.lists(st.integers(0, 100), max_size=9),
        )
    )
)
def test_arrays_lie_where_the_document_says_and_where_a_typed_array_may(drawn):
    packer = ArrayPacker()
    places = [packer.array(values, dtype)["$"] for dtype, values in drawn]
    block = zlib.decompress(base64.b64decode(packer.text({}).partition("\n")[2]))
    for (dtype, values), (named, offset, length) in zip(drawn, places, strict=True):
        assert named == dtype
        assert offset % 8 == 0
        found = np.frombuffer(block, np.dtype(dtype).newbyteorder("<"), length, offset)
        assert found.tolist() == values


@pytest.mark.slow
@given(st.lists(st.one_of(st.integers(0, 300), st.integers(0, 2**53)), max_size=5))
def test_whole_numbers_travel_as_narrow_as_they_allow(values):
    packer = ArrayPacker()
    dtype, offset, length = packer.whole(np.array(values, np.int64))["$"]
    block = zlib.decompress(base64.b64decode(packer.text({}).partition("\n")[2]))
    assert np.frombuffer(block, f"<{dtype}", length, offset).tolist() == values
    widest = max(values, default=0)
    assert dtype == (
        "u1" if widest < 256 else "u2" if widest < 2**16 else "u4" if widest < 2**32 else "f8"
    )


@pytest.mark.slow
@given(st.lists(st.floats(width=32), min_size=1))
def test_rough_figures_are_right_to_a_hundredth_of_a_percent(values):
    packer = ArrayPacker()
    _, offset, length = packer.rough(values)["$"]
    block = zlib.decompress(base64.b64decode(packer.text({}).partition("\n")[2]))
    found = np.frombuffer(block, "<f4", length, offset).astype(np.float64)
    for value, kept in zip(values, found.tolist(), strict=True):
        if not np.isfinite(value) or abs(value) < 2.0**-126:
            assert np.isnan(kept) == np.isnan(value)
        elif abs(value) < 3.4e38:
            assert abs(kept - value) <= abs(value) * 2.0**-13
