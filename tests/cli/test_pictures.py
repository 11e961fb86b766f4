"""PNG and HTML of a histogram: what is drawn, and that no name gets out of its place."""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anchor_cli.histograms.panel import Panel, Picture, ticks
from anchor_cli.histograms.svg import page
from anchorlib.summary import Log2Histogram
from tests.cli.made import HOSTILE, anchor, make_run, record

pytestmark = pytest.mark.slow  # matplotlib is loaded

MANY = Log2Histogram({-20: 1, -14: 300, -3: 7}, zero=5000, nan=2, inf=1)
ALL_FORMATS = ("fp16", "bf16", "e4m3", "e5m2")

histograms = st.builds(
    lambda bins, zero, nan, inf: Log2Histogram(dict(sorted(bins.items())), zero, nan, inf),
    st.dictionaries(st.integers(-149, 127), st.integers(1, 10**12), max_size=12),
    *[st.integers(0, 10**12)] * 3,
)


def picture(*histograms: Log2Histogram, title: str = "fc2.bias@grad") -> Picture:
    return Picture("run1", [Panel(title, ["note", "more"], one) for one in histograms], ALL_FORMATS)


class Page(HTMLParser):
    """The tags, their attributes and the texts of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.texts: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data):
        self.texts.append(data)


def test_the_page_is_one_file_without_script_or_link():
    found = Page(page(picture(MANY)))
    assert not {"script", "link", "img", "iframe", "object", "a"} & set(found.tags)
    assert not [name for name, _ in found.attributes if name.startswith("on")]
    assert not [value for _, value in found.attributes if value and "//" in value]


def test_the_page_says_every_count_and_every_limit():
    text = " ".join(Page(page(picture(MANY))).texts)
    for said in ("2⁻¹⁴: 300", "zero: 5,000", "NaN: 2", "Inf: 1", "fp16, e5m2 smallest normal"):
        assert said in text


def test_bars_beside_the_axis_are_clipped_and_say_so():
    assert "5,000 ↑" in page(picture(MANY))


@given(st.lists(histograms, min_size=1, max_size=3))
def test_everything_that_is_drawn_lies_inside_the_picture(several):
    text = page(picture(*several))
    for x, y, width, height in re.findall(
        r'<rect x="([-\d.]+)" y="([-\d.]+)" width="([-\d.]+)" height="([-\d.]+)"', text
    ):
        assert float(x) >= 0
        assert float(x) + float(width) <= 560.1
        assert float(y) >= 0
        assert float(y) + float(height) <= 300


@given(histograms)
def test_what_is_not_zero_is_high_enough_to_see_and_stays_in_its_panel(histogram):
    panel = Panel("", [], histogram)
    for count in (*histogram.bins.values(), histogram.zero, histogram.nan):
        height = panel.height(count)
        assert 0 <= height <= panel.top
        assert (height > panel.top / 200) == (count > 0)


def test_all_panels_share_one_axis():
    shared = picture(Log2Histogram({-30: 1}), Log2Histogram({5: 1}, nan=1))
    assert (shared.lowest, shared.highest) == (-31, 6)
    labels = [[one.label for one in shared.apart(panel)] for panel in shared.panels]
    assert labels == [["zero", "NaN"]] * 2


@given(st.integers(-200, 100), st.integers(1, 400))
def test_ticks_are_few_and_inside(lowest, span):
    found = ticks(lowest, lowest + span)
    assert len(found) <= 10
    assert all(lowest <= tick <= lowest + span for tick in found)


@pytest.fixture
def hostile(tmp_path):
    make_run(tmp_path, [record(HOSTILE), record("中$\\frac{", raw=np.zeros(3, np.float32))])
    return tmp_path


def test_a_hostile_name_is_text_in_the_page(hostile, tmp_path):
    place = tmp_path / "h.html"
    assert anchor("hist", "run1", "--store", hostile, "-t", "*", "-o", place).code == 0
    written = place.read_text(encoding="utf-8")
    assert not {"\x1b", "\u202e"} & set(written)
    found = Page(written)
    assert "b" not in found.tags
    assert "\\x1b[31mfc\\n\\u202e<b>&$x$</b>@grad" in found.texts


def test_a_hostile_name_reaches_no_terminal(hostile):
    done = anchor("hist", "run1", "--store", hostile, "-t", "*")
    assert done.code == 0
    assert not {"\x1b", "\u202e"} & set(done.out)


def test_a_png_is_drawn_of_any_name(hostile, tmp_path):
    place = tmp_path / "h.PNG"
    done = anchor("hist", "run1", "--store", hostile, "-t", "*", "-o", place)
    assert (done.code, done.err) == (0, "")
    assert place.read_bytes().startswith(b"\x89PNG\r\n")


@pytest.fixture
def drawn(monkeypatch):
    """The figures that are saved."""
    from matplotlib.figure import Figure

    seen = []
    save = Figure.savefig

    def keep(figure, *args, **kwargs):
        seen.append(figure)
        return save(figure, *args, **kwargs)

    monkeypatch.setattr(Figure, "savefig", keep)
    return seen


def test_a_png_has_a_panel_for_each_tensor_and_a_line_for_each_limit(drawn):
    import io

    import matplotlib.image

    from anchor_cli.histograms.png import write_png

    file = io.BytesIO()
    write_png(picture(MANY, Log2Histogram({-14: 1}), Log2Histogram()), file)
    (figure,) = drawn
    shown = [axis for axis in figure.axes if axis.get_visible()]
    assert [len(axis.lines) for axis in shown] == [4] * 3
    texts = [text.get_text() for text in shown[0].texts]
    assert {"5,000 ↑", "2", "1", "note", "more"} == set(texts)
    file.seek(0)
    assert matplotlib.image.imread(file).std() > 0.05


def test_many_tensors_are_pooled_into_one_panel(tmp_path):
    make_run(tmp_path, [record(f"layer{i}") for i in range(13)])
    place = tmp_path / "h.html"
    anchor("hist", "run1", "--store", tmp_path, "-t", "*", "-o", place)
    assert place.read_text().count("<figure>") == 1
    assert "<h2>* (13 tensors pooled)</h2>" in place.read_text()


def test_the_title_of_a_png_says_that_it_is_pooled(tmp_path, drawn):
    make_run(tmp_path, [record(f"layer{i}") for i in range(13)])
    where = ("hist", "run1", "--store", tmp_path, "-o", tmp_path / "h.png", "-t")
    assert anchor(*where, "*").code == 0
    assert anchor(*where, "layer?").code == 0
    pooled, each = drawn
    assert [axis.get_title() for axis in pooled.axes] == ["* (13 tensors pooled)"]
    assert [axis.get_title() for axis in each.axes if axis.get_visible()] == [
        f"layer{i}@grad" for i in range(10)
    ]


def test_without_matplotlib_one_line_says_what_to_install(tmp_path, monkeypatch):
    make_run(tmp_path, [record()])
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    place = tmp_path / "h.png"
    done = anchor("hist", "run1", "--store", tmp_path, "-t", "fc2.bias", "-o", place)
    assert done.code == 2
    assert "pip install 'anchorlib[plot]'" in done.err
    assert not place.exists()
