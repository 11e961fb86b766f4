"""The page in Firefox: it draws, says and links to the same as in Chromium."""

from __future__ import annotations

import contextlib

import pytest

from anchorlib.report import page
from tests.anchorlib.report.compared import compared
from tests.page.marionette import FIREFOX, firefox_of
from tests.page.runs import small_run

pytestmark = pytest.mark.long  # Chromium shows the same in shorter tests

NOW = "return document.querySelector(arguments[0] + ' .now').textContent"
# Whether any pixel of a drawing has another colour than the first.
DRAWN = """
const canvas = document.querySelector(arguments[0] + ' canvas[tabindex]');
const pixels = new Uint32Array(canvas.getContext('2d')
  .getImageData(0, 0, canvas.width, canvas.height).data.buffer);
return pixels.some((one) => one !== pixels[0]);
"""


@pytest.fixture(scope="module")
def firefox(tmp_path_factory):
    if FIREFOX is None:
        pytest.skip("no firefox on this machine: apt-get install firefox-esr")
    with contextlib.ExitStack() as stack:
        try:
            driven = stack.enter_context(firefox_of(FIREFOX, tmp_path_factory.mktemp("profile")))
        except (OSError, RuntimeError) as error:
            pytest.skip(f"{FIREFOX} does not start: {error}")
        yield driven


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    store = tmp_path_factory.mktemp("store")
    a, b = small_run(store, "a"), small_run(store, "b", parts=True)
    file = store / "page.html"
    file.write_text(page([a, b], [compared(a, b)]), encoding="utf-8")
    return file.as_uri()


def test_firefox_draws_the_page_from_disk(firefox, address):
    firefox.go(address)
    assert firefox.run("return document.querySelectorAll('.trouble').length") == 0
    said = firefox.run("return document.getElementById('answer').innerText")
    assert "a and b differ first at step 5 in fc2." in said
    for card in ("#overview", "#tensor", "#cell", "#loss", "#gradient-norm"):
        assert firefox.run(DRAWN, card), card
    wide = firefox.run("return [document.documentElement.scrollWidth, innerWidth]")
    assert wide[0] <= wide[1]


def test_firefox_is_used_by_keyboard_alone(firefox, address):
    firefox.go(address)
    keys = ("Home", "ArrowRight", "ArrowRight", "Enter")
    firefox.press("#overview canvas[tabindex]", *keys)
    assert firefox.run(NOW, "#overview") == "fc2@value, step 2, bit-equal"
    cell = firefox.run("return document.getElementById('cell').innerText")
    assert "fc2@value at step 2" in cell


def test_firefox_follows_a_link_to_a_cell(firefox, address):
    firefox.go(f"{address}#run=b&tensor=fc1%40grad&step=7&view=ridges")
    cell = firefox.run("return document.getElementById('cell').innerText")
    assert "fc1@grad at step 7" in cell
    firefox.run("location.hash = 'run=a&tensor=fc1%40value&step=3'")
    again = "return document.getElementById('cell').innerText.includes('fc1@value at step 3')"
    assert firefox.run(
        f"return new Promise((done) => setTimeout(() => done((() => {{{again}}})())))"
    )
