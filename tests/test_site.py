"""The documentation's site: built strictly and without a network, it reads well in a browser."""

from __future__ import annotations

import functools
import http.server
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import browser
import pytest

pytest.importorskip("mkdocs", reason="mkdocs is not installed")
pytest.importorskip("material", reason="mkdocs-material is not installed")

ROOT = Path(__file__).parent.parent
NOWHERE = "http://127.0.0.1:9"  # a proxy that answers nothing
# By how much the page is too wide; what sticks out, in no box that scrolls; its scheme; what it
# fetched.
LOOK = """
const root = document.documentElement;
const scrolls = (of) => !of.matches(".md-content") &&
  (getComputedStyle(of).overflowX !== "visible" || scrolls(of.parentElement));
const out = [...document.querySelectorAll(".md-content *")]
  .filter((of) => of.getBoundingClientRect().right > root.clientWidth + 1)
  .filter((of) => !scrolls(of.parentElement));
return [
  root.scrollWidth - root.clientWidth,
  out.map((of) => `${of.tagName} ${of.textContent.slice(0, 60)}`).slice(0, 3),
  document.body.getAttribute("data-md-color-scheme"),
  performance.getEntriesByType("resource").map((of) => of.name),
];
"""
TYPE = """
const input = document.querySelector(".md-search__input");
input.value = arguments[0];
for (const kind of ["keyup", "input"]) input.dispatchEvent(new Event(kind, {bubbles: true}));
"""


def build(folder: Path) -> subprocess.CompletedProcess[str]:
    proxies = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), NOWHERE)
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, **proxies, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    done = build(folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_the_site_is_built(site):
    first = (site / "index.html").read_text()
    assert "<h1" in first and "fonts.googleapis" not in first
    for page in ("ops/gelu.html", "api/ops.html", "source/csrc/ops/gelu.cu.html"):
        assert (site / page).exists()
    reference = (site / "api/ops.html").read_text()
    assert ">diglot.gelu<" in reference and "Hendrycks" in reference


def test_nothing_is_fetched(site):
    """No page names a script, a style or a picture of another host."""
    for page in site.rglob("*.html"):
        text = page.read_text()
        for mark in ('src="http', 'rel="stylesheet" href="http', 'rel="preconnect"'):
            assert mark not in text, f"{page.relative_to(site)}: {mark}"


@pytest.fixture(scope="module")
def address(site):
    """Where the site is served, on this machine."""
    handler = functools.partial(Quiet, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *of):
        pass


@pytest.fixture
def window():
    """A browser that knows of no choice of colours yet."""
    opened = browser.Browser()
    yield opened
    opened.close()


@pytest.mark.slow
@pytest.mark.skipif(browser.missing() is not None, reason=f"no browser: {browser.missing()}")
@pytest.mark.parametrize(("width", "is_dark"), [(375, True), (1280, False)])
def test_pages_read_well(site, address, window, width, is_dark):
    pages = [path.relative_to(site).as_posix() for path in sorted(site.rglob("*.html"))]
    shown = [page for page in pages if not page.startswith("source/")]
    shown.append("source/csrc/ops/gelu.cu.html")  # like all listings
    assert len(shown) >= 30
    problems = []
    for page in shown:
        window.open(f"{address}/{page}", width=width, dark=is_dark)
        overflow, sticking_out, scheme, fetched = window.run(LOOK)
        if overflow > 0 or sticking_out:
            problems.append(f"{page}: {overflow} px too wide: {sticking_out}")
        problems += [f"{page}: {scheme}"] if (scheme == "slate") != is_dark else []
        problems += [f"{page}: fetches {of}" for of in fetched if not of.startswith(address)]
        problems += [f"{page}: {message}" for message in window.messages()]
    assert problems == []


@pytest.mark.slow
@pytest.mark.skipif(browser.missing() is not None, reason=f"no browser: {browser.missing()}")
def test_what_does_not_read_well_is_told(address, window):
    window.open(f"{address}/index.html", width=375)
    window.run(
        """
    const wide = document.createElement("p");
    wide.textContent = "wide";
    wide.style.width = "2000px";
    document.querySelector(".md-content").append(wide);
    document.body.append(Object.assign(new Image(), {src: arguments[0]}));
    """,
        f"{address}/none.png",
    )
    time.sleep(0.5)
    overflow, sticking_out, _, fetched = window.run(LOOK)
    assert overflow > 0 and sticking_out[0].startswith("P wide")
    assert f"{address}/none.png" in fetched
    assert any("none.png" in message for message in window.messages())


@pytest.mark.slow
@pytest.mark.skipif(browser.missing() is not None, reason=f"no browser: {browser.missing()}")
def test_search_finds_an_op(address, window):
    window.open(f"{address}/index.html")
    window.run("document.querySelector('.md-search__input').focus()")
    window.run(TYPE, "standardize")
    for _ in range(50):
        time.sleep(0.1)
        found = window.run("return document.querySelector('.md-search-result__list')?.textContent")
        if found and "standardize" in found:
            return
    raise AssertionError(found)
