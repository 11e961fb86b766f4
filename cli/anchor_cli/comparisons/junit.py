"""The result of `anchor compare` as JUnit XML, which CI systems show as tests.

One case is the verdict: it fails where the exit code is not 0. Every tensor and kind is a case too:

    passed    all its records are bit-identical, or the verdict allows their differences
    failed    one of its records is an origin, and the verdict fails
    skipped   its records differ only as a consequence of earlier differences

The document has the elements that both common schemas ask for (Ant's and Jenkins'). Names are
escaped: XML cannot hold control characters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import IO, TYPE_CHECKING
from xml.etree import ElementTree as ET

from anchor_cli.comparisons.terminal_report import DOUBTED
from anchor_cli.exits import ExitCode
from anchor_cli.terminal import counted
from anchorlib.diagnosis import described, where
from anchorlib.names import escape, join

if TYPE_CHECKING:
    from anchorlib.diagnosis import Comparison, Origin

__all__ = ["write_junit"]

_NO_TIME = "0.000"  # the schemas ask for a time; a comparison has none

Key = tuple[str, str]


@dataclass(slots=True)
class _Tensor:
    """Counts of one tensor and kind.

    records: how many records were compared.
    differing: how many of these differ.
    first: the first step with a difference; without any difference, 0.
    """

    records: int = 0
    differing: int = 0
    first: int = 0

    def add(self, step: int, *, equal: bool) -> None:
        self.records += 1
        if not equal:
            self.first = min(self.first, step) if self.differing else step
            self.differing += 1


def write_junit(comparison: Comparison, code: ExitCode, file: IO[str]) -> None:
    """Writes the comparison as JUnit XML into `file`.

    code: the exit code of the command.
    """
    failing = code != ExitCode.DONE and comparison.verdict in DOUBTED
    cases = [_verdict(comparison, code), *_tensors(comparison, failing=failing)]
    suites = ET.Element("testsuites")
    suite = ET.SubElement(suites, "testsuite", _counts(comparison, cases))
    properties = ET.SubElement(suite, "properties")
    for name, value in _properties(comparison).items():
        ET.SubElement(properties, "property", {"name": name, "value": value})
    suite.extend(cases)
    ET.SubElement(suite, "system-out").text = "\n".join(_said(comparison))
    ET.SubElement(suite, "system-err")
    ET.indent(suites)
    file.write('<?xml version="1.0" encoding="utf-8"?>\n')
    file.write(f"{ET.tostring(suites, encoding='unicode')}\n")


def _counts(comparison: Comparison, cases: Sequence[ET.Element]) -> dict[str, str]:
    outcomes = {kind: sum(one.find(kind) is not None for one in cases)
                for kind in ("failure", "skipped")}  # fmt: skip
    return {
        "id": "0",
        "package": "anchor",
        "name": f"anchor compare {escape(comparison.a)} {escape(comparison.b)}",
        "timestamp": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S"),
        "hostname": "localhost",
        "tests": str(len(cases)),
        "failures": str(outcomes["failure"]),
        "errors": "0",
        "skipped": str(outcomes["skipped"]),
        "time": _NO_TIME,
    }


def _properties(comparison: Comparison) -> dict[str, str]:
    document = comparison.to_dict()
    counts = {name: str(value) for name, value in document["counts"].items()}
    return {
        "a": escape(comparison.a),
        "b": escape(comparison.b),
        "verdict": comparison.verdict,
        **counts,
    }


def _verdict(comparison: Comparison, code: ExitCode) -> ET.Element:
    case = _case("anchor", "verdict")
    if code != ExitCode.DONE:
        kind = comparison.verdict if code != ExitCode.INCOMPLETE else "incomplete"
        lines = _said(comparison)
        _fail(case, kind, f"{comparison.verdict}: {lines[0]}", lines)
    return case


def _said(comparison: Comparison) -> list[str]:
    return [escape(one) for one in (comparison.sentence, *comparison.notes)]


def _tensors(comparison: Comparison, *, failing: bool) -> list[ET.Element]:
    """Returns a test case for each tensor and kind, in the order in which run A recorded them.

    failing: whether the verdict makes the command fail. If not, every case passes.
    """
    origins: dict[Key, list[Origin]] = {}
    for origin in comparison.origins if failing else ():
        origins.setdefault((origin.place.name, origin.place.kind), []).append(origin)
    cases = []
    for key, tensor in _compared(comparison).items():
        case = _case(f"anchor.{escape(key[1])}", escape(join(*key)))
        differs = f"{tensor.differing:,} of {counted(tensor.records, 'record')} differ"
        if own := origins.get(key):
            lines = [f"{where(one.place)}: {described(one)}" for one in own]
            message = f"{own[0].cls.replace('_', ' ')} at {lines[0]}"
            _fail(case, own[0].cls, message, [*lines, differs])
        elif tensor.differing and failing:
            message = f"{differs}, from step {tensor.first} on; no origin is among them"
            ET.SubElement(case, "skipped", {"message": message})
        cases.append(case)
    return cases


def _compared(comparison: Comparison) -> dict[Key, _Tensor]:
    tensors: dict[Key, _Tensor] = {}
    for part in comparison.columns():
        rows = zip(part["name"], part["kind"], part["step"], part["equal"], strict=True)
        for name, kind, step, equal in rows:
            tensors.setdefault((name, kind), _Tensor()).add(step, equal=equal)
    return tensors


def _case(group: str, name: str) -> ET.Element:
    about = {"classname": group, "name": name, "time": _NO_TIME}
    return ET.Element("testcase", about)


def _fail(case: ET.Element, kind: str, message: str, lines: Sequence[str]) -> None:
    failure = ET.SubElement(case, "failure", {"type": kind, "message": message})
    failure.text = "\n".join(lines)
