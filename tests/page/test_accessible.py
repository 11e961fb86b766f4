"""Usable without a mouse and without eyes: names, roles and contrasts that axe accepts."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from anchorlib.report import page
from anchorlib.store import Writer
from tests.anchorlib.report.compared import compared
from tests.page.runs import small_run
from tests.page.test_served import served

STANDARDS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]

FOCUSED = """() => {
  const one = document.activeElement;
  if (one === document.body) return null;
  const style = getComputedStyle(one);
  return [one.tagName, style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) > 0];
}"""


@pytest.fixture(scope="module")
def axe():
    reason = "axe is not installed: pip install axe-playwright-python"
    return pytest.importorskip("axe_playwright_python.sync_playwright", reason=reason).Axe()


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    store = tmp_path_factory.mktemp("store")
    a, *others = (small_run(store, name, parts=name != "a") for name in "abcd")
    found = [
        compared(a, one, config_diff={"optimizer.lr": (0.1, 0.2)}, notes=["a note"])
        for one in others
    ]
    return {
        "one": page([a]),
        "two": page([a, others[0]], found[:1]),
        "four": page([a, *others], found),
    }


# Every two of name, width and scheme meet; all three of them need not.
@pytest.mark.parametrize(
    ("name", "schemes"),
    [
        pytest.param("one", ("light", "dark"), marks=pytest.mark.long),
        ("two", ("dark", "light")),
        pytest.param("four", ("light", "dark"), marks=pytest.mark.long),
    ],
)
def test_axe_finds_nothing_wrong(visit, axe, pages, name, schemes):
    visited = visit(pages[name])
    for summary in visited.page.locator("details:not([open]) > summary").all():
        if summary.is_visible():
            summary.click()
    for width, scheme in zip((600, 1280), schemes, strict=True):
        visited.page.set_viewport_size({"width": width, "height": 900})
        visited.page.emulate_media(color_scheme=scheme)
        assert objections(axe, visited.page) == [], (width, scheme)


def objections(axe, shown):
    """What axe objects to: rule, sentence, elements."""
    found = axe.run(shown, options={"runOnly": STANDARDS}).response
    assert len(found["passes"]) > 10
    return [
        (one["id"], one["help"], [node["html"][:200] for node in one["nodes"]])
        for one in found["violations"]
    ]


def test_axe_finds_nothing_wrong_with_the_list_of_runs(browser, axe, tmp_path):
    for name in ("a", "another", "b"):
        small_run(tmp_path, name, steps=1)
    with served(tmp_path) as address, Writer.open(tmp_path, "b", 1):
        shown = browser.new_page(viewport={"width": 480, "height": 600})
        for scheme in ("light", "dark"):
            shown.emulate_media(color_scheme=scheme)
            shown.goto(address)
            expect(shown.get_by_role("region", name="Who writes now")).to_contain_text("b")
            assert shown.evaluate("document.documentElement.scrollWidth") <= 480
            assert objections(axe, shown) == [], scheme
        shown.close()


def test_the_tab_key_reaches_every_control_and_the_focus_is_always_seen(visit, pages):
    visited = visit(pages["four"])
    selector = "a[href], button, select, input:not([type=radio]), summary, [tabindex='0']"
    wanted = len([one for one in visited.page.locator(selector).all() if one.is_visible()])
    reached = []
    visited.page.locator("body").press("Tab")
    while (one := visited.page.evaluate(FOCUSED)) is not None and len(reached) < 2 * wanted:
        reached.append(one)
        visited.page.keyboard.press("Tab")
    assert all(seen for _, seen in reached)
    assert len(reached) == wanted + 1  # of the radio buttons the chosen one


def test_every_drawing_says_its_name_and_what_its_keys_do(visit, pages):
    visited = visit(pages["four"])
    drawings = [one for one in visited.page.get_by_role("application").all() if one.is_visible()]
    assert len(drawings) > 8
    for drawing in drawings:
        assert drawing.get_attribute("aria-label")
        assert drawing.get_attribute("aria-roledescription")
        help_ = drawing.get_attribute("aria-describedby")
        said = visited.page.locator(f"#{help_}").text_content()
        assert "arrow keys" in said.lower()


def test_the_histogram_and_the_ridge_lines_are_read_by_arrow_keys(visit, pages):
    visited = visit(pages["one"])
    drawing = visited.drawing("Selected cell")
    drawing.press("Home")
    assert "≤ |x| <" in visited.said("Selected cell")
    assert ", a: " in visited.said("Selected cell")
    visited.card("Exponents by step").get_by_label("view").select_option("ridges")
    drawing = visited.drawing("Exponents by step")
    drawing.press("ArrowRight")
    drawing.press("ArrowRight")
    assert visited.said("Exponents by step").startswith("step 1: ")


@pytest.mark.parametrize("card", ["Selected cell", "Tensors by step", "Exponents by step"])
def test_a_drawing_keeps_the_focus_while_the_page_is_drawn_anew(visit, pages, card):
    visited = visit(pages["two"])
    drawing = visited.drawing(card)
    drawing.focus()
    visited.page.evaluate("location.hash = 'show=rms&of=a'")
    shown = visited.card("Tensors by step").get_by_label("show", exact=True)
    expect(shown).to_have_value("r:0:rms")
    held = visited.page.evaluate("document.activeElement.getAttribute('aria-label')")
    assert held == drawing.get_attribute("aria-label")
