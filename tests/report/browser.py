"""A headless Chromium, spoken to over a pipe by the DevTools protocol; nothing else is needed."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_FLAGS = (
    "--headless=new",
    "--no-sandbox",  # tests run as root in containers, where its sandbox cannot start
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-extensions",
    "--disable-sync",
    "--no-first-run",
    "--no-default-browser-check",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
    # Fonts and colours are the same wherever pictures are taken.
    "--force-color-profile=srgb",
)


def find_chromium() -> str | None:
    """Its path; ``COLOCATE_CHROMIUM`` names another than those on PATH."""
    named = os.environ.get("COLOCATE_CHROMIUM")
    return named or next(filter(None, map(shutil.which, _NAMES)), None)


class Browser:
    """One page of one browser, from enter to exit. ``faults`` is what its console complained of."""

    def __init__(self, chromium: str, profile: Path, *, patience_s: float = 120.0) -> None:
        self._patience_s = patience_s
        self._number = 0
        self._buffer = b""
        self._session: str | None = None
        self.faults: list[str] = []
        ours, theirs = os.pipe(), os.pipe()
        self._write, self._read = ours[1], theirs[0]
        # The browser reads commands from descriptor 3, and answers on 4. Not by sh: some know
        # no descriptor above 9.
        move = f'exec "$@" 3<&{ours[0]} 4>&{theirs[1]}'
        command = ["bash", "-c", move, "bash", chromium, *_FLAGS, f"--user-data-dir={profile}"]
        self._process = subprocess.Popen(
            [*command, "about:blank"],
            pass_fds=(ours[0], theirs[1]),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(ours[0])
        os.close(theirs[1])

    def __enter__(self) -> Browser:
        try:
            self._attach()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _attach(self) -> None:
        (target, *_) = [
            each for each in self.ask("Target.getTargets")["targetInfos"] if each["type"] == "page"
        ]
        attached = self.ask("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def close(self) -> None:
        """Ends the browser; not to be called twice."""
        self._process.terminate()
        try:
            self._process.wait(self._patience_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._write)
        os.close(self._read)

    def open(self, url: str, *, width: int = 1280, height: int = 900) -> None:
        """Loads a page in a window of so many CSS pixels."""
        self.resize(width, height)
        self.ask("Page.navigate", url=url)
        self.wait_for("document.readyState === 'complete'")

    def resize(self, width: int, height: int) -> None:
        self.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression, awaited where it is a promise."""
        answer = self.ask(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait_for(self, expression: str) -> Any:
        """Asks until the expression is true; returns its value."""
        until_s = time.monotonic() + self._patience_s
        while not (value := self.evaluate(expression)):
            assert time.monotonic() < until_s, f"has not become true: {expression}"
            self._listen(0.1)
        return value

    def picture(self, path: Path, *, whole: bool = True) -> Path:
        """The page as PNG: all of it, or what the window shows."""
        answer = self.ask(
            "Page.captureScreenshot",
            format="png",
            captureBeyondViewport=whole,
            **({"clip": self._all()} if whole else {}),
        )
        path.write_bytes(base64.b64decode(answer["data"]))
        return path

    def _all(self) -> dict[str, Any]:
        size = self.ask("Page.getLayoutMetrics")["cssContentSize"]
        return {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command, and its answer."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        number = self._number
        answer = self._receive(lambda told: told.get("id") == number, self._patience_s)
        assert answer is not None, f"the browser did not answer {method}"
        assert "error" not in answer, (method, answer["error"])
        result: dict[str, Any] = answer["result"]
        return result

    def _listen(self, seconds: float) -> None:
        self._receive(lambda told: False, seconds)

    def _receive(
        self, wanted: Callable[[dict[str, Any]], bool], patience_s: float
    ) -> dict[str, Any] | None:
        """The next message that is wanted; complaints among the others are kept."""
        until_s = time.monotonic() + patience_s
        while True:
            while b"\0" in self._buffer:
                line, _, self._buffer = self._buffer.partition(b"\0")
                told: dict[str, Any] = json.loads(line)
                self._note(told)
                if wanted(told):
                    return told
            left_s = until_s - time.monotonic()
            if left_s <= 0 or not select.select([self._read], [], [], left_s)[0]:
                return None
            read = os.read(self._read, 2**20)
            assert read, "the browser has ended"
            self._buffer += read

    def _note(self, told: dict[str, Any]) -> None:
        given = told.get("params", {})
        match told.get("method"):
            case "Runtime.exceptionThrown":
                self.faults.append(str(given["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if given["type"] in ("error", "warning", "assert"):
                self.faults.append(str(given["args"]))
            case "Log.entryAdded" if given["entry"]["level"] in ("error", "warning"):
                self.faults.append(f"{given['entry']['text']} {given['entry'].get('url', '')}")
