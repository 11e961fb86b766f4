"""`anchor ui`: the page served, kept fresh, and to nobody who asks under another name."""

from __future__ import annotations

import http.client
import re
import signal
import socket
import subprocess
from contextlib import contextmanager
from urllib.parse import urlsplit

import numpy as np
import pytest
from playwright.sync_api import expect

from anchor_server import Collector
from anchorlib.archive import Keep, archive_run, make_room
from anchorlib.store import Writer
from anchorlib.store.objects import FolderShelf
from tests.cli.made import COMMAND, anchor, make_run, record
from tests.page.browsing import settled
from tests.page.runs import small_run
from tests.writing import put


@contextmanager
def served(store, *arguments):
    """`anchor ui` on a free port; its address."""
    command = [*COMMAND, "ui", *arguments, "--store", str(store), "--bind", "127.0.0.1:0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline()
        assert line.startswith(f"anchor: showing {store} on http://127.0.0.1:"), (
            line + process.stderr.read()
        )
        yield re.search(r"http\S+", line).group()
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        assert process.stderr.read() == ""
    finally:
        process.kill()
        process.stdout.close()
        process.stderr.close()
        process.wait()


def asked(address, path, *, method="GET", **headers):
    """Status, headers and body of an answer."""
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=60)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read().decode()
    finally:
        connection.close()


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    place = tmp_path_factory.mktemp("store")
    small_run(place, "a")
    small_run(place, "b", parts=True)
    return place


@pytest.fixture(scope="module")
def address(store):
    with served(store) as found:
        yield found


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "127.0.0.1", ""])
def test_another_host_is_refused(address, host):
    status, _, text = asked(address, "/view?run=a", Host=host)
    assert status == 421
    assert text == "this Host is not served here"


def test_our_own_names_are_answered(address):
    port = urlsplit(address).port
    for name in ("127.0.0.1", "localhost", "LOCALHOST"):
        assert asked(address, "/", Host=f"{name}:{port}")[0] == 200


@pytest.mark.parametrize("run", ["../a", "/etc", "a.zarr", "grpc://127.0.0.1:1/a", "", "%00"])
def test_only_runs_of_the_store_are_shown(address, run):
    status, _, text = asked(address, f"/view?run={run}")
    assert status == 404
    assert text.startswith("anchor: no run is named")


def test_it_only_reads(address):
    assert asked(address, "/view?run=a", method="POST")[0] == 405
    assert asked(address, "/elsewhere")[0] == 404


def test_every_page_says_what_it_may_do(address):
    for path in ("/", "/view?run=a"):
        status, headers, _ = asked(address, path)
        assert status == 200
        assert headers["content-security-policy"].startswith("default-src 'none'")
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"


def test_data_is_sent_only_where_it_is_newer(address):
    status, _, text = asked(address, "/data?run=a")
    assert status == 200
    tag = re.search(r'"tag":"(\w+)"', text).group(1)
    assert asked(address, f"/data?run=a&have={tag}")[0] == 204
    assert asked(address, "/data?run=a&have=older")[0] == 200


def test_the_list_says_how_big_and_how_old_each_run_is(address):
    _, _, text = asked(address, "/", Host=urlsplit(address).netloc)
    assert (
        len(re.findall(r"</label> [0-9.]+ (B|KiB), last written (just now|\d+ \w+ ago)", text)) == 2
    )


def test_a_run_that_is_in_its_archive_alone_is_listed_so_and_shown_from_there(tmp_path):
    small_run(tmp_path / "store", "a")
    small_run(tmp_path / "store", "here")
    shelf = FolderShelf(tmp_path / "archive<b>")
    archive_run(tmp_path / "store", "a", shelf)
    with served(tmp_path / "store") as address:
        before = asked(address, "/data?run=a")[2]
        assert "only in" not in asked(address, "/")[2]
        make_room(tmp_path / "store", shelf, Keep(most=0))
        status, _, text = asked(address, "/")
        gone, here = re.findall(r"</label> (.*)</li>", text)
        assert status == 200
        assert re.fullmatch(r"[0-9.]+ (B|KiB), last written .*, only in .*/archive&lt;b&gt;", gone)
        assert "only in" not in here
        assert re.findall('"tag":".*?"', asked(address, "/data?run=a")[2]) == re.findall(
            '"tag":".*?"', before
        )
        with served(tmp_path / "store", "a") as again:
            assert asked(again, "/view?run=a")[0] == 200
        (tmp_path / "archive<b>").rename(tmp_path / "away")
        gone, here = re.findall(r"</label> (.*)</li>", asked(address, "/")[2])
        assert re.fullmatch(r"cannot be read now, only in .*/archive&lt;b&gt;", gone)
        status, _, text = asked(address, "/view?run=a&run=here")
        assert (status, text.count("\n")) == (404, 0)


def test_the_list_says_who_writes_now(store, address):
    assert "Who writes now" not in asked(address, "/")[2]
    with Writer.open(store, "a", 5):
        status, _, text = asked(address, "/")
    assert status == 200
    (row,) = re.findall(r"<tbody><tr>(.*)</tr></tbody>", text)
    assert re.findall(r"<td>(.*?)</td>", row) == [
        "a", "5", socket.gethostname(), "just now", *["–"] * 5
    ]  # fmt: skip


def test_the_list_leads_to_the_page_of_several_runs(browser, address):
    context = browser.new_context()
    page = context.new_page()
    page.goto(address)
    for name in ("a", "b"):
        page.get_by_label(name, exact=True).check()
    page.get_by_role("button", name="show the ticked runs").click()
    expect(page.get_by_role("region", name="Answer")).to_contain_text("step 5")
    assert page.url.endswith("/view?run=a&run=b")
    context.close()


def test_a_run_that_grows_is_followed_without_losing_the_selection(browser, tmp_path):
    with Writer.open(tmp_path, "growing", 0) as writer:
        put(writer, [record("fc1", step=0), record("fc2", step=0, order=1)])
        with served(tmp_path, "growing") as address:
            visited = settled(browser, address, offline=False)
            visited.page.get_by_role("button", name="fc2@grad", exact=True).click()
            put(writer, [record("fc2", step=1, order=2), record("fc3", step=1, order=3)])
            header = visited.page.get_by_role("banner")
            expect(header).to_contain_text("being recorded, 2 steps, 3 tensors", timeout=30_000)
            expect(header).to_contain_text("live")
            label = visited.drawing("Exponents by step").get_attribute("aria-label")
            assert "Exponents of fc2@grad" in label
            assert {urlsplit(one).netloc for one in visited.requests} == {urlsplit(address).netloc}
            visited.close()


def test_a_comparison_with_a_run_that_grows_says_where_it_parts_once_it_does(browser, tmp_path):
    same = np.ones(4, np.float32)
    steps = [record("fc", "value", same, step=step, order=step) for step in range(4)]
    make_run(tmp_path, steps, "whole")
    with Writer.open(tmp_path, "growing", 0) as writer:
        put(writer, steps[:2])
        with served(tmp_path, "whole", "growing") as address:
            visited = settled(browser, f"{address}view?run=whole&run=growing", offline=False)
            answer = visited.page.get_by_role("region", name="Answer")
            assert "first difference" not in answer.inner_text()
            visited.card("Tensors").get_by_role("button", name="fc@value").click()
            chosen = visited.page.url
            put(writer, [record("fc", "value", same + 1, step=2, order=2)])
            go = answer.get_by_role(
                "button", name="show the first difference: step 2 pass 0, fc@value"
            )
            go.wait_for(timeout=60_000)
            assert "differs in all 4 elements" in answer.inner_text()
            assert visited.page.url == chosen
            visited.close()


def test_runs_of_a_collector_are_shown_and_its_end_is_told(browser, store):
    collector = Collector(store, "127.0.0.1:0")
    collector.start()
    place = f"grpc://{collector.address}"
    with served(place) as address:
        assert "run=b" in asked(address, "/")[2]
        visited = settled(browser, f"{address}view?run=a&run=b", offline=False)
        expect(visited.page.get_by_role("region", name="Answer")).to_contain_text("step 5")
        collector.stop(0)
        header = visited.page.get_by_role("banner")
        expect(header).to_contain_text("not updated: anchor: ", timeout=60_000)
        # What was read is still there, and the browser's own word on the failed request is all.
        assert {one.partition(":")[0] for one in visited.troubles} == {"error"}
        visited.troubles.clear()
        visited.close()


def test_beyond_loopback_it_refuses_to_listen(tmp_path):
    make_run(tmp_path, [record()])
    done = anchor("ui", "--store", tmp_path, "--bind", "0.0.0.0:0")
    assert (done.code, done.out) == (2, "")
    assert "--insecure" in done.err


def test_an_unknown_run_is_told_before_anything_is_served(tmp_path):
    make_run(tmp_path, [record()])
    done = anchor("ui", "run2", "--store", tmp_path, "--bind", "127.0.0.1:0")
    assert done.code == 2
    assert "did you mean 'run1'?" in done.err


def test_the_page_says_what_ends_a_step(browser, tmp_path):
    with Writer.open(tmp_path, "counted", 0, header={"steps.ended_by": "Adam of <b>"}) as writer:
        put(writer, [record("fc1", step=0), record("fc1", step=1, order=1)])
    with served(tmp_path, "counted") as address:
        header = settled(browser, address, offline=False).page.get_by_role("banner")
        expect(header).to_contain_text("2 steps ended by Adam of <b>, 1 tensor")
