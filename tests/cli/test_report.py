"""`anchor report` and `anchor compare --html`: one page, written whole or not at all."""

from __future__ import annotations

import pytest

from anchorlib.errors import CollectorError
from tests.cli.made import anchor, make_run, record
from tests.page.runs import small_run


@pytest.fixture
def store(tmp_path):
    small_run(tmp_path, "a")
    small_run(tmp_path, "b", parts=True)
    return tmp_path


@pytest.mark.slow
def test_a_report_of_one_run_is_one_page(store):
    file = store / "a.html"
    done = anchor("report", "a", "--store", store, "-o", file)
    assert (done.code, done.out) == (0, "")
    assert done.err.strip() == f"anchor: wrote {file}"
    text = file.read_text()
    assert text.startswith("<!doctype html>")
    assert "<title>anchor: a</title>" in text
    assert list(store.rglob("*.part")) == []


@pytest.mark.slow
def test_of_several_runs_each_is_compared_with_the_first(store):
    make_run(store, [record("fc2", "value", step=5)], run="c")
    done = anchor("report", "a", "a", "b", "--store", store, "-o", store / "x.html", "--json")
    assert done.code == 0
    assert done.json["runs"] == ["a", "a", "b"]
    compared = [anchor("compare", "a", run, "--store", store, "--json").json for run in "ab"]
    assert [(one["run"], one["verdict"]) for one in done.json["comparisons"]] == [
        (one["b"], one["verdict"]) for one in compared
    ]
    assert done.json["comparisons"][0]["verdict"] == "identical"
    assert done.json["comparisons"][1]["sentence"] == compared[1]["sentence"]


@pytest.mark.slow
def test_compare_writes_the_same_page(store):
    anchor("compare", "a", "b", "--store", store, "--html", store / "compared.html")
    anchor("report", "a", "b", "--store", store, "-o", store / "reported.html")
    assert (store / "compared.html").read_text() == (store / "reported.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["report", "a", "-o", "a.png"], "choose .html, .htm"),
        (["report", "z", "-o", "a.html"], "no run 'z' in"),
        (["report", "-o", "a.html"], "missing argument"),
        (["report", "a"], "missing option"),
        (["report", "a", "-o", "nowhere/a.html"], "cannot write nowhere/a.html"),
    ],
)
def test_what_cannot_be_done_is_one_line(store, arguments, said):
    done = anchor(*arguments, "--store", store)
    assert (done.code, done.out) == (2, "")
    assert said in done.err
    assert done.err.count("\n") == 1


def test_a_collector_that_goes_away_while_the_page_is_made_is_exit_4(tmp_path, monkeypatch):
    def gone(*_args, **_options):
        raise CollectorError("no collector answers at grpc://127.0.0.1:1")

    make_run(tmp_path, [record()])
    monkeypatch.setattr("anchorlib.report.page", gone)
    done = anchor("report", "run1", "-o", tmp_path / "page.html", "--store", tmp_path)
    assert (done.code, done.out) == (4, "")
    assert done.err == "anchor: no collector answers at grpc://127.0.0.1:1\n"
    assert not (tmp_path / "page.html").exists()
