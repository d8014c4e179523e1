"""Puts the page together: one file, which loads nothing and whose policy lets it load nothing."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path

from markupsafe import Markup

from diglot.tools.report.results import Results
from diglot.tools.report.svg import outline, tag
from diglot.tools.report.views import Page, page_of

FOLDER = Path(__file__).parent


def render(results: Results, sources: str = "") -> str:
    """The page of results, as HTML.

    Args:
        results: what `read` gave.
        sources: the hash of the sources at hand: what was measured with others is marked as stale.

    Raises:
        ImportError: Jinja is not installed.
    """
    try:
        import jinja2
    except ImportError as error:
        raise ImportError(
            'a report needs jinja2, which is not installed: pip install "diglot[tools]"'
        ) from error
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page = page_of(results, sources)
    script = (FOLDER / "page.js").read_text()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return environment.get_template("page.html").render(
        page=page,
        script=script,
        script_hash=digest,
        style=(FOLDER / "page.css").read_text() + hiding(page),
        outline=outline,
    )


def hiding(page: Page) -> str:
    """Rules by which a provider that is switched off is not seen."""
    rules = [
        f".off-{provider.key} .series[data-p={provider.key}], "
        f".off-{provider.key} tr[data-p={provider.key}] {{ display: none; }}\n"
        for provider in page.providers
    ]
    return "".join(rules)


def alone(picture: Markup) -> str:
    """A chart as a file of its own, with a background, in the mode of who looks at it."""
    css = (FOLDER / "page.css").read_text()
    begin, end = css.index("/* colours */"), css.index("/* page */")
    style = tag("style", Markup(css[begin:end].replace(":root", "svg")))
    *_, width, height = re.findall(r"[\d.]+", picture.split('"', 2)[1])
    pad = 14
    box = [-pad, -pad, float(width) + 2 * pad, float(height) + 2 * pad]
    sizes = dict(zip(("x", "y", "width", "height"), box, strict=True))
    background = tag("rect", **sizes, rx=10, style="fill: var(--card)")
    opening, rest = str(picture).split(">", 1)
    opening = re.sub(r'viewBox="[^"]*"', f'viewBox="{" ".join(f"{of:g}" for of in box)}"', opening)
    return f"{opening}>{style}{background}{rest}\n"
