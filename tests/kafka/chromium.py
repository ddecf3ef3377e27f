"""A real browser without a window, driven over its DevTools protocol through a pair of pipes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any

from firebird_cdc.demo.paths import cache_directory
from firebird_cdc.demo.processes import has_input

PATIENCE_S = 60.0

_FLAGS = (
    "--remote-debugging-pipe",
    "--no-sandbox",  # which root must not use
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--no-first-run",
    "--hide-scrollbars",
)


def browser_command() -> tuple[str, dict[str, str]]:
    """The browser's program and what it needs in its environment. Fails if there is none."""
    root = cache_directory() / "browser" / "root"
    program = root / "usr/lib/chromium/chromium-headless-shell"
    if program.exists():
        folders = [*root.glob("usr/lib/*-linux-gnu"), *root.glob("lib/*-linux-gnu")]
        folders += [folder / "pulseaudio" for folder in folders]
        return str(program), {"LD_LIBRARY_PATH": ":".join(map(str, folders))}
    for name in ("chromium-headless-shell", "chromium"):
        found = shutil.which(name)
        if found is not None:
            return found, {}
    raise AssertionError("no Chromium is there; `make setup` fetches it into .cache/browser")


class Browser:
    """One browser with one page; what it logs and asks for is kept.

    ``errors``: of the console and of scripts. ``requests``: every URL that the page asked for.
    """

    def __init__(self, profile: Path) -> None:
        self.errors: list[str] = []
        self.requests: list[str] = []
        self._number = 0
        self._buffer = b""
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()
        program, environment = browser_command()

        # The browser reads from descriptor 3 and writes to 4.
        place = f'exec "$@" 3<&{to_browser} 4>&{from_browser}'
        with (profile.with_suffix(".log")).open("wb") as log:
            self._process = subprocess.Popen(
                ["bash", "-c", place, "bash", program, *_FLAGS, f"--user-data-dir={profile}"],
                env={"HOME": str(profile), "PATH": os.environ["PATH"], **environment},
                pass_fds=(to_browser, from_browser),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        os.close(to_browser)
        os.close(from_browser)
        target = self._call("Target.createTarget", {"url": "about:blank"}, session=None)
        self._session: str = self._call(
            "Target.attachToTarget",
            {"targetId": target["targetId"], "flatten": True},
            session=None,
        )["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def close(self) -> None:
        """End it."""
        with suppress(OSError):
            os.close(self._out)
        self._process.kill()
        self._process.wait()
        os.close(self._in)

    def call(self, method: str, **parameters: Any) -> Any:
        """Call METHOD of the page."""
        return self._call(method, parameters, session=self._session)

    def open(self, url: str) -> None:
        """Go to URL."""
        assert "errorText" not in self.call("Page.navigate", url=url)

    def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript EXPRESSION in the page."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def text(self, selector: str) -> str:
        """The text of the first element that SELECTOR finds; empty if there is none."""
        content: str = self.evaluate(
            f"document.querySelector({json.dumps(selector)})?.textContent ?? ''"
        )
        return content

    def _call(self, method: str, parameters: dict[str, Any], *, session: str | None) -> Any:
        self._number += 1
        number = self._number
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        for answer in self._messages():
            if answer.get("id") == number:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]
            self._take(answer)
        raise AssertionError(f"the browser ended during {method}")

    def _messages(self) -> Iterator[dict[str, Any]]:
        deadline = monotonic() + PATIENCE_S
        while True:
            message, zero, rest = self._buffer.partition(b"\0")
            if zero:
                self._buffer = rest
                yield json.loads(message)
                continue
            is_ready = has_input(self._in, max(deadline - monotonic(), 0))
            assert is_ready, "the browser does not answer"
            content = os.read(self._in, 1 << 16)
            if not content:
                return
            self._buffer += content

    def _take(self, event: dict[str, Any]) -> None:
        """Note what happened in the page."""
        content = event.get("params", {})
        match event.get("method"):
            case "Network.requestWillBeSent":
                self.requests.append(content["request"]["url"])
            case "Runtime.exceptionThrown":
                self.errors.append(json.dumps(content["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if content["type"] in ("error", "warning", "assert"):
                self.errors.append(json.dumps(content["args"]))
            case "Log.entryAdded" if content["entry"]["level"] in ("error", "warning"):
                self.errors.append(content["entry"]["text"])
