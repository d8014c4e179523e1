"""Pages of the documentation's site for files that lie outside docs/, as hooks of mkdocs.

Links in the documents are relative, so that they work on GitHub: to README.md, say, or to the
source of a kernel. The site has a page for every file that is linked so. README.md is the first,
other Markdown keeps its place, a source is a listing below source/, and data are copied.
"""

from __future__ import annotations

import posixpath
from pathlib import Path, PurePosixPath

from document_links import links, map_links, path_of
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
ROOTS = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")  # which the site's menu has
LANGUAGES = {".cu": "cpp", ".cuh": "cpp", ".cpp": "cpp", ".h": "cpp", ".py": "python"}


def place_of(path: PurePosixPath) -> str:
    """Where in the site's sources a file of the repository lies."""
    if path.parts[0] == "docs":
        return str(path.relative_to("docs"))
    if str(path) == "README.md":
        return "index.md"
    return str(path) if path.suffix == ".md" else f"source/{path}{_ending(path)}"


def _ending(path: PurePosixPath) -> str:
    if (ROOT / path).is_dir():
        return "/index.md"
    return ".md" if path.suffix in LANGUAGES else ""


def _listing(path: PurePosixPath) -> str:
    """A page that shows a source, or names a folder's files."""
    hidden = "---\nsearch:\n  exclude: true\n---\n"
    if (ROOT / path).is_dir():
        files = sorted(of.name for of in (ROOT / path).iterdir() if of.is_file())
        return f"{hidden}# {path}\n\n" + "".join(f"- `{name}`\n" for name in files)
    code = (ROOT / path).read_text(encoding="utf-8")
    return f"{hidden}# {path}\n\n````{LANGUAGES[path.suffix]}\n{code}````\n"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds a page, or a copy, for each file outside docs/ to which documents lead."""
    waiting = [PurePosixPath("docs", page.src_uri) for page in files.documentation_pages()]
    for name in ROOTS:
        files.append(_generated(config, PurePosixPath(name)))
        waiting.append(PurePosixPath(name))
    while waiting:
        page = waiting.pop()
        for link in links((ROOT / page).read_text(encoding="utf-8")):
            path = path_of(link, page)
            if link.startswith("#") or not (ROOT / path).exists():
                continue  # what does not exist mkdocs reports
            if files.get_file_from_path(place_of(path)) is None:
                files.append(_generated(config, path))
                waiting += [path] if path.suffix == ".md" else []
    return files


def _generated(config: MkDocsConfig, path: PurePosixPath) -> File:
    place = place_of(path)
    if path.suffix == ".md" or not place.endswith(".md"):
        return File.generated(config, place, abs_src_path=str(ROOT / path))
    return File.generated(config, place, content=_listing(path))


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links of a page, which lead through the repository, lead through the site."""
    source = page.file.abs_src_path
    if source is None:  # a listing
        return markdown
    origin = PurePosixPath(Path(source).relative_to(ROOT).as_posix())
    here = posixpath.dirname(page.file.src_uri)

    def change(link: str) -> str:
        path = path_of(link, origin)
        if link.startswith("#") or ":" in link or not (ROOT / path).exists():
            return link  # within the page, to the web; or wrong, which mkdocs reports
        _, mark, heading = link.partition("#")
        return posixpath.relpath(place_of(path), here) + mark + heading

    return map_links(markdown, change)
