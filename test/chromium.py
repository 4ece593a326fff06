"""Headless Chromium for tests of pages, driven over its DevTools pipe: no driver, no package.

The browser is the ``chromium`` of the distribution. Every request that a page makes is seen, as is
every error that it writes to its console.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

PATIENCE_S = 90.0


def require_chromium() -> str:
    """Returns the browser's path; skips the test where there is none."""
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        pytest.skip("no chromium here: apt-get install chromium")
    return found


def _loaded(event: dict[str, Any], loader: str) -> bool:
    if event["method"] != "Page.lifecycleEvent":
        return False
    return bool(event["params"]["name"] == "load" and event["params"]["loaderId"] == loader)


class Browser:
    """A browser with one tab, in a ``with`` block."""

    def __enter__(self) -> Browser:
        self._profile = tempfile.TemporaryDirectory(prefix="chromium_", ignore_cleanup_errors=True)
        self._log = open(Path(self._profile.name, "log"), "w+b")
        to_read, self._write = os.pipe()
        self._read, to_write = os.pipe()
        # The browser reads commands from file descriptor 3 and answers on 4.
        shuffle = 'exec "$@" 3<&"$IN" 4>&"$OUT"'
        words = [
            *("bash", "-c", shuffle, "bash", require_chromium()),
            *("--headless=new", "--no-sandbox", "--remote-debugging-pipe", "--disable-gpu"),
            # Containers have little shared memory.
            "--disable-dev-shm-usage",
            *("--no-first-run", "--disable-extensions", "--disable-component-update"),
            *("--disable-background-networking", f"--user-data-dir={self._profile.name}/p"),
            # Nothing in or out, should a page try.
            "--proxy-server=127.0.0.1:9",
            "about:blank",
        ]
        home = {"HOME": self._profile.name, "IN": str(to_read), "OUT": str(to_write)}
        self._process = subprocess.Popen(
            words,
            env={**os.environ, **home},
            pass_fds=(to_read, to_write),
            stdout=self._log,
            stderr=self._log,
        )
        os.close(to_read)
        os.close(to_write)
        self._rest, self._number, self._session = b"", 0, ""
        self.events: list[dict[str, Any]] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable")
        self.send("Page.setLifecycleEventsEnabled", enabled=True)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.terminate()
        self._process.wait(PATIENCE_S)
        os.close(self._write)
        os.close(self._read)
        self._log.close()
        self._profile.cleanup()

    def send(self, method: str, **parameters: object) -> dict[str, Any]:
        """Sends a command and returns its result."""
        self._number += 1
        message: dict[str, object] = {
            "id": self._number,
            "method": method,
            "params": parameters,
        }
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return dict(answer["result"])
            self.events.append(answer)

    def open(self, path: Path, width: int = 1200, height: int = 900, touch: bool = False) -> None:
        """Opens a file in a window of that many CSS pixels and waits until it is loaded."""
        self.events.clear()
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=touch,
        )
        self.send("Emulation.setTouchEmulationEnabled", enabled=touch)
        # Of this page: the empty one before it may be said to be loaded only now.
        loader = self.send("Page.navigate", url=path.resolve().as_uri())["loaderId"]
        while not any(_loaded(event, loader) for event in self.events):
            self.events.append(self._receive())
        self.settle()

    def evaluate(self, expression: str) -> Any:
        """Returns the JSON value of a JavaScript expression; waits for promises."""
        answer = self.send(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def settle(self) -> None:
        """Waits until some frames have been painted: what is seen is drawn, and then more."""
        frame = "await new Promise(requestAnimationFrame)"
        self.evaluate(f"(async () => {{ for (let i = 0; i < 4; i++) {frame} }})()")

    def wait(self, condition: str) -> None:
        """Waits until a JavaScript expression is true."""
        end_s = time.monotonic() + PATIENCE_S
        while not self.evaluate(f"Boolean({condition})"):
            assert time.monotonic() < end_s, f"not true after {PATIENCE_S:.0f} s: {condition}"
            self.settle()

    def scroll_through(self) -> None:
        """Scrolls from top to bottom, so that everything that waits for being seen is drawn."""
        while True:
            before = self.evaluate("scrollY")
            self.evaluate("window.scrollBy(0, innerHeight)")
            self.settle()
            if self.evaluate("scrollY") == before:
                return

    def screenshot(self, path: Path, whole: bool = True) -> None:
        """Writes a PNG of the page."""
        data = self.send("Page.captureScreenshot", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(data))

    def complaints(self) -> list[str]:
        """Errors and warnings of the page, in words."""
        found = []
        for event in self.events:
            method, params = event["method"], event["params"]
            if method == "Runtime.exceptionThrown":
                found.append(str(params["exceptionDetails"]))
            elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
                found.append(str(params["entry"]["text"]))
            elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
                found.append(str(params["args"]))
        return found

    def requests(self) -> list[str]:
        """What the page asked for, besides itself and what it holds as ``data:``."""
        urls = [
            str(event["params"]["request"]["url"])
            for event in self.events
            if event["method"] == "Network.requestWillBeSent"
        ]
        return [url for url in urls[1:] if not url.startswith(("data:", "blob:"))]

    def _receive(self) -> dict[str, Any]:
        end_s = time.monotonic() + PATIENCE_S
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._read], [], [], max(0, end_s - time.monotonic()))
            piece = os.read(self._read, 1 << 20) if ready else b""
            if not piece:
                self._log.seek(0)
                raise RuntimeError(f"chromium does not answer: {self._log.read()[-2000:]!r}")
            self._rest += piece
        message, _, self._rest = self._rest.partition(b"\0")
        return dict(json.loads(message))
