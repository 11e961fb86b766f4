"""The dashboard and the alerts of examples/operate, over what a collector really says."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.request
from itertools import combinations
from pathlib import Path

import pytest

from anchor_server import MetricsPort, serve
from anchor_server.counters import CollectorCounters
from anchorlib.wire import FailureKind
from tests.server.pushing import Pusher, record

OPERATE = Path(__file__).parents[2] / "examples" / "operate"
DASHBOARD = json.loads((OPERATE / "dashboard.json").read_text())
ALERTS = (OPERATE / "alerts.yml").read_text()
DOOR = {"token", "handshake"}  # who is turned away before a call is taken
TARGETS = [target for panel in DASHBOARD["panels"] for target in panel["targets"]]
EXPRESSIONS = [
    *(target["expr"] for target in TARGETS),
    DASHBOARD["templating"]["list"][1]["query"]["query"],
    *re.findall(r"expr: (?:>-\n)?(.+?)\n +(?:for|labels):", ALERTS, re.DOTALL),
]


@pytest.fixture(scope="module")
def scraped(tmp_path_factory) -> str:
    """A scrape of a collector that has taken, refused and left out something."""
    store = tmp_path_factory.mktemp("store")
    with serve(store) as collector:
        port = MetricsPort("127.0.0.1:0", collector.tally, store)
        with Pusher(collector.address) as stream:
            stream.push(record(0))
            stream.acked(1)
            with Pusher(collector.address, run="no name\n") as other:
                other.refusal()
            collector.tally.drop("line full", 1)
            with urllib.request.urlopen(f"http://{port.address}/metrics", timeout=10) as answer:
                text: str = answer.read().decode()
        port.close()
    return text


def test_every_metric_and_label_that_is_asked_for_is_there(scraped):
    samples: dict[str, set[str]] = {}
    for name, labels in re.findall(r"^(anchor_\w+)(?:\{(.*)\})? ", scraped, re.MULTILINE):
        samples.setdefault(name, set()).update(re.findall(r"(\w+)=", labels))
    for expression in EXPRESSIONS:
        named = set(re.findall(r"\banchor_\w+", expression))
        assert named <= set(samples), expression
        known = {"instance", "job"}.union(*(samples[name] for name in named))
        asked = set(re.findall(r"(\w+)=~?\"", expression))
        for group in re.findall(r"by \((.*?)\)", expression):
            asked |= set(group.split(", "))
        assert asked <= known, expression


def test_every_reason_that_an_alert_looks_for_is_one_of_a_refusal():
    found = "|".join(re.findall(r'reason=~?"(.*?)"', ALERTS)).split("|")
    assert "disk" in found
    assert set(found) <= {kind.value for kind in FailureKind} | DOOR


def test_metrics_that_are_of_use_are_on_the_dashboard(scraped):
    families = set(re.findall(r"^# TYPE (anchor_\w+) ", scraped, re.MULTILINE))
    shown = " ".join(EXPRESSIONS)
    missing = {name for name in families if not name.endswith("_created") and name not in shown}
    assert missing == {"anchor_acked_seq"}  # one line for each rank of each run


def test_an_idle_collector_has_no_lag_and_no_backlog(tmp_path):
    port = MetricsPort("127.0.0.1:0", CollectorCounters(), tmp_path)
    with urllib.request.urlopen(f"http://{port.address}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    port.close()
    assert "\nanchor_lag_seconds 0.0\n" in text
    assert "\nanchor_backlog_records 0.0\n" in text


def test_the_panels_have_a_place_of_their_own_and_say_what_they_show():
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    places = [panel["gridPos"] for panel in DASHBOARD["panels"]]
    for one, other in combinations(places, 2):
        apart_x = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        apart_y = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert apart_x or apart_y
    assert all(place["x"] + place["w"] <= 24 for place in places)
    for panel in DASHBOARD["panels"]:
        assert panel["title"]
        assert panel["description"].endswith(".")
        assert panel["fieldConfig"]["defaults"]["unit"]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool (Debian: prometheus)")
@pytest.mark.parametrize(
    "arguments",
    ["check rules alerts.yml", "check config prometheus.yml", "test rules alerts_test.yml"],
)
def test_prometheus_takes_the_rules_and_fires_them_when_they_should(arguments):
    done = subprocess.run(
        ["promtool", *arguments.split()],
        cwd=OPERATE,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
