"""Puts the page together: one file, which loads nothing and whose policy lets it load nothing."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

from diglot.bench import plots
from diglot.bench.result_files import Results
from diglot.tools import inline_svg
from diglot.tools.report.views import page_of

FOLDER = Path(__file__).parent


def render(results: Results, sources: str = "") -> str:
    """The page of results, as HTML.

    Args:
        sources: the hash of the sources at hand. Results of other sources are marked as stale.

    Raises:
        ImportError: Jinja or matplotlib is not installed.
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
    script = (FOLDER / "page.js").read_text()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return environment.get_template("page.html").render(
        page=page_of(results, sources),
        drawn=inline_svg.inline,
        narrow=plots.WIDTH,
        script=script,
        script_hash=digest,
        style=inline_svg.variables(":root") + (FOLDER / "page.css").read_text(),
    )
