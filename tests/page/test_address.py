"""A link to a cell is a URL: the page's own address with a fragment, from disk and served."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import expect

from anchorlib.report import page, show
from tests.anchorlib.report.compared import compared
from tests.page.browsing import settled
from tests.page.runs import small_run
from tests.page.test_served import served


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    place = tmp_path_factory.mktemp("store")
    small_run(place, "a")
    small_run(place, "b", parts=True)
    return place


@pytest.fixture(scope="module")
def two(store):
    a, b = small_run(store, "one"), small_run(store, "other", parts=True)
    return page([a, b], [compared(a, b)])


def choose(visited):
    """A run, a tensor, a step, a view, a format and figures that are not those of the start."""
    exponents = visited.card("Exponents by step")
    visited.card("Tensors").get_by_role("button", name="fc1@grad").click()
    exponents.get_by_label("run").select_option(index=1)
    exponents.get_by_role("radio", name="e4m3").check()
    exponents.get_by_label("view").select_option("ridges")
    shown = visited.card("Tensors by step").get_by_label("show", exact=True)
    shown.select_option(label="L2 norm (b)" if "run=b" in visited.page.url else "L2 norm (other)")
    visited.card("Selected tensor over steps").get_by_label("figure", exact=True).select_option(
        "norm"
    )
    drawing = visited.drawing("Tensors by step")
    drawing.focus()
    for key in ("Home", "ArrowRight", "ArrowRight", "Enter"):
        drawing.press(key)


def seen(visited):
    """What a reader sees of the selection."""
    exponents = visited.card("Exponents by step")
    return {
        "cell": visited.card("Selected cell").inner_text(),
        "drawn": visited.drawing("Exponents by step").get_attribute("aria-label"),
        "view": exponents.get_by_label("view").input_value(),
        "format": exponents.get_by_role("radio", name="e4m3").is_checked(),
        "overview": visited.card("Tensors by step").get_by_label("show", exact=True).input_value(),
        "figure": visited.card("Selected tensor over steps")
        .get_by_label("figure", exact=True)
        .input_value(),
    }


def test_the_address_of_a_page_on_disk_restores_the_selection(browser, visit, two):
    visited = visit(two)
    choose(visited)
    before = seen(visited)
    assert "fc1@grad at step 2" in before["cell"]
    asked = parse_qs(urlsplit(visited.page.url).fragment)
    assert asked["run"] == ["other"]
    assert asked["tensor"] == ["fc1@grad"]
    assert asked["step"] == ["2"]
    link = visited.card("Selected cell").get_by_role("link", name="link to this cell")
    assert link.get_attribute("href") == "#" + urlsplit(visited.page.url).fragment
    again = settled(browser, visited.page.url)
    assert seen(again) == before
    again.close()


def test_the_address_of_a_served_page_restores_the_selection(browser, store):
    with served(store) as address:
        visited = settled(browser, f"{address}view?run=a&run=b", offline=False)
        choose(visited)
        again = settled(browser, visited.page.url, offline=False)
        assert seen(again) == seen(visited)
        visited.close()
        again.close()


def test_another_fragment_is_followed_while_the_page_is_open(visit, two):
    visited = visit(two)
    visited.page.evaluate("location.hash = 'tensor=fc1%40value&step=7'")
    cell = visited.card("Selected cell")
    cell.get_by_text("fc1@value").wait_for()
    assert "fc1@value at step 7" in cell.inner_text()
    visited.page.evaluate("location.hash = 'format=e5m2'")  # what it does not name stays
    expect(visited.card("Exponents by step").get_by_role("radio", name="e5m2")).to_be_checked()
    assert "fc1@value at step 7" in cell.inner_text()


def test_a_fragment_that_names_nothing_harms_nothing(visit, two):
    visited = visit(two)
    address = visited.page.url
    for fragment in (
        "tensor=<img src=x onerror=alert(1)>",
        "run=__proto__&show=constructor&of=toString&view=map&format=__proto__&figure=constructor",
        "step=-1&tensor=fc1%40value",
        "step=1e99&against=nobody&%E0%A4%A",
        "&&==",
    ):
        visited.page.goto("about:blank")  # else another fragment is followed without a new page
        visited.page.goto(f"{address}#{fragment}")
        visited.page.wait_for_selector("html[data-ready]")
        assert visited.card("Tensors by step").is_visible()
        if fragment.startswith("tensor"):
            said = visited.page.get_by_role("banner").inner_text()
            assert "the link names a tensor that is not here" in said
        assert visited.troubles == []


def test_a_page_in_a_notebook_has_no_address_to_link_to(browser, store):
    outer = browser.new_page()
    outer.set_content(f"<!doctype html>{show(small_run(store, 'shown'))._repr_html_()}")
    cell = outer.frame_locator("iframe").get_by_role("region", name="Selected cell")
    cell.get_by_role("application").wait_for()
    assert cell.get_by_role("link").count() == 0
    outer.close()
