"""A stock Firefox driven by its own protocol: Playwright only drives a build of its own.

Marionette sends `LENGTH:JSON` over TCP, [0, number, command, parameters] there and
[1, number, error, result] back (firefox-source-docs.mozilla.org, "Marionette: protocol").
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

FIREFOX = os.environ.get("FIREFOX") or shutil.which("firefox-esr") or shutil.which("firefox")
KEYS = {"ArrowDown": "\ue015", "ArrowRight": "\ue014", "Home": "\ue011", "Enter": "\ue007"}
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # how WebDriver calls a reference to one
PATIENCE = 120.0


class Marionette:
    """One tab of a running Firefox."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
        self._file = self._socket.makefile("rb")
        self._number = 0
        self._message()  # its greeting
        self.ask("WebDriver:NewSession", {})

    def ask(self, command: str, parameters: dict[str, Any]) -> Any:
        """What Firefox answers. Raises RuntimeError with its error."""
        self._number += 1
        text = json.dumps([0, self._number, command, parameters]).encode()
        self._socket.sendall(b"%d:%s" % (len(text), text))
        _, _, error, result = self._message()
        if error:
            raise RuntimeError(f"{command}: {error['message']}")
        return result

    def _message(self) -> Any:
        length = b""
        while not length.endswith(b":"):
            length += self._file.read(1)
        return json.loads(self._file.read(int(length[:-1])))

    def go(self, address: str) -> None:
        """Open a page and wait until it has drawn itself."""
        self.ask("WebDriver:Navigate", {"url": "about:blank"})
        self.ask("WebDriver:Navigate", {"url": address})
        end = time.monotonic() + PATIENCE
        while not self.run("return 'ready' in document.documentElement.dataset"):
            assert time.monotonic() < end, self.run("return document.body.innerText")
            time.sleep(0.1)

    def run(self, script: str, *arguments: Any) -> Any:
        """What a script in the page returns."""
        asked = {"script": script, "args": list(arguments)}
        return self.ask("WebDriver:ExecuteScript", asked)["value"]

    def press(self, selector: str, *keys: str) -> None:
        """Give an element the focus and type, as a keyboard does."""
        found = self.ask("WebDriver:FindElement", {"using": "css selector", "value": selector})
        text = "".join(KEYS.get(key, key) for key in keys)
        place = {"id": found["value"][ELEMENT], "text": text}
        self.ask("WebDriver:ElementSendKeys", place)

    def close(self) -> None:
        """Firefox ends with its last session."""
        with suppress(OSError, ValueError):
            self.ask("Marionette:Quit", {"flags": ["eForceQuit"]})
        self._file.close()
        self._socket.close()


@contextmanager
def firefox_of(executable: str, profile: Path) -> Iterator[Marionette]:
    """A Firefox without a window, with a profile of its own."""
    (profile / "user.js").write_text(
        'user_pref("marionette.port", 0);\n'  # any that is free; it says which in a file
        'user_pref("browser.shell.checkDefaultBrowser", false);\n'
        'user_pref("datareporting.policy.dataSubmissionEnabled", false);\n'
    )
    command = [executable, "--headless", "--marionette", "--no-remote", "--profile", str(profile)]
    process = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "HOME": str(profile)},
    )
    try:
        driven = Marionette(_port(process, profile / "MarionetteActivePort"))
        try:
            yield driven
        finally:
            driven.close()
    finally:
        process.kill()
        process.wait()


def _port(process: subprocess.Popen[bytes], file: Path) -> int:
    """The port that Firefox writes down once it listens. Raises RuntimeError."""
    end = time.monotonic() + PATIENCE
    while not (file.exists() and file.read_text().strip()):
        if process.poll() is not None or time.monotonic() > end:
            raise RuntimeError(f"Firefox does not start (exit status {process.poll()})")
        time.sleep(0.1)
    return int(file.read_text())
