"""The links of the documents, and the anchors of their headings, as GitHub reads them."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator
from pathlib import PurePosixPath

# A fenced block, inline code, or a link's target.
TOKEN = re.compile(
    r"^ *(?P<fence>```+).*?^ *(?P=fence) *$"
    r"|(?P<ticks>`+)(?!`).*?(?P=ticks)"
    r"|\]\((?P<link>[^)\s]+)\)",
    re.MULTILINE | re.DOTALL,
)
HEADING = re.compile(r"^#+ +(.*?) *$", re.MULTILINE)


def map_links(text: str, change: Callable[[str], str]) -> str:
    """The text with each link outside code replaced by what `change` makes of it."""

    def put(found: re.Match[str]) -> str:
        return f"]({change(found['link'])})" if found["link"] else found[0]

    return TOKEN.sub(put, text)


def links(text: str) -> Iterator[str]:
    """Where the links of a Markdown text lead, without those to the web."""
    for found in TOKEN.finditer(text):
        if found["link"] and ":" not in found["link"]:
            yield found["link"]


def path_of(link: str, page: PurePosixPath) -> PurePosixPath:
    """The file, from the repository's root, to which a link on a page leads."""
    return PurePosixPath(posixpath.normpath(page.parent / link.partition("#")[0]))


def anchors(text: str) -> set[str]:
    """The anchors of a Markdown text's headings."""
    plain = TOKEN.sub(lambda found: "" if found["fence"] else found[0], text)
    found: dict[str, int] = {}
    for heading in HEADING.findall(plain):
        words = re.sub(r"\[(.*?)\]\(.*?\)", r"\1", heading).lower()
        anchor = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        found[anchor] = found.get(anchor, 0) + 1
    return {f"{name}-{i}" if i else name for name, count in found.items() for i in range(count)}
