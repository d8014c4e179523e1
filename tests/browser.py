"""A headless browser, driven by the W3C WebDriver protocol: Debian's chromium and chromedriver."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # the protocol's key of a reference to an element
KEYS = {"Tab": "\ue004", "Enter": "\ue007", "Space": " "}
ARGUMENTS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--disable-extensions",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--no-first-run",
    "--force-device-scale-factor=1",
)


def missing() -> str | None:
    """Why there is no browser here; None if there is."""
    for program in ("chromium", "chromedriver"):
        if shutil.which(program) is None:
            return f"{program} is not installed (on Debian: chromium and chromium-driver)"
    return None


class Browser:
    """A browser, until it is closed."""

    def __init__(self) -> None:
        self.folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        # A group of its own, so that nothing of the browser outlives it.
        self.driver = subprocess.Popen(
            ["chromedriver", "--port=0"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "HOME": self.folder.name},
        )
        for line in self.driver.stdout:
            if "successfully on port" in line:
                self.address = f"http://127.0.0.1:{int(line.split()[-1].rstrip('.'))}"
                break
        else:
            raise RuntimeError("chromedriver did not start")
        options = {
            "binary": shutil.which("chromium"),
            "args": [*ARGUMENTS, f"--user-data-dir={self.folder.name}/profile"],
        }
        wanted = {
            "browserName": "chrome",
            "goog:chromeOptions": options,
            "goog:loggingPrefs": {"browser": "ALL"},
        }
        self.path = ""
        session = self._ask("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self.path = f"/session/{session['sessionId']}"

    def _ask(self, method: str, path: str, body: dict | None = None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"{self.address}{self.path}{path}", data, {"Content-Type": "application/json"}
        )
        request.method = method
        # The driver is on this machine, whatever proxies are set.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=60) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(json.load(error)["value"]["message"]) from None

    def close(self) -> None:
        with contextlib.suppress(RuntimeError, OSError):
            self._ask("DELETE", "")
        self.driver.terminate()
        self.driver.wait()
        time.sleep(0.1)
        self.folder.cleanup()

    def open(
        self, page: Path | str, width: int = 1280, height: int = 900, dark: bool = False
    ) -> None:
        """Shows a page, a file or an address, with a viewport of this size and in this mode."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.devtools("Emulation.setEmulatedMedia", features=[scheme])
        self.devtools(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        url = page if isinstance(page, str) else page.absolute().as_uri()
        self._ask("POST", "/url", {"url": url})

    def devtools(self, command: str, **parameters):
        return self._ask("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def run(self, script: str, *arguments):
        """What a function's body returns."""
        return self._ask("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def find(self, selector: str) -> str:
        found = self._ask("POST", "/element", {"using": "css selector", "value": selector})
        return found[ELEMENT]

    def click(self, selector: str) -> None:
        """Clicks like a mouse: fails where something else would be hit."""
        self._ask("POST", f"/element/{self.find(selector)}/click", {})

    def press(self, key: str) -> None:
        """A key, where the focus is."""
        keys = [{"type": kind, "value": KEYS[key]} for kind in ("keyDown", "keyUp")]
        self._ask("POST", "/actions", {"actions": [{"type": "key", "id": "k", "actions": keys}]})

    def messages(self) -> list[str]:
        """What the browser complained about since it was asked last."""
        return [entry["message"] for entry in self._ask("POST", "/se/log", {"type": "browser"})]

    def screenshot(self, path: Path) -> None:
        Path(path).write_bytes(base64.b64decode(self._ask("GET", "/screenshot")))
