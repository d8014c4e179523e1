"""Writes the generated parts of the pages, and the pictures of speed: `make pages`.

    python tools/pages.py [--check] [--compilers]

The sources are the committed results, docstrings, docs/rows.md, the planners and the compilers.
`--check` writes nothing, and fails if a page is not what it would write. Plans and excerpts stay as
they are where there is no CUDA extension. Excerpts of other compilers than those at hand stay too,
unless `--compilers` asks for new ones.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import inspect_page

from diglot.backends.registry import load_extension
from diglot.bench import lesson_tables, op_pages, stored_plans, tables


def render(compilers: bool = False) -> dict[Path, str]:
    """The texts, by path.

    Args:
        compilers: whether to replace excerpts that other compilers made.
    """
    extension, _ = load_extension()
    texts = tables.render() | lesson_tables.render()
    texts |= op_pages.render(with_plans=extension is not None)
    if extension is not None:
        texts |= stored_plans.render(texts, stored_plans.judge_all())
    if extension is not None and (compilers or inspect_page.is_of_these_compilers()):
        texts |= inspect_page.render()
    return texts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail if one is stale")
    parser.add_argument("--compilers", action="store_true", help="excerpts of these compilers, too")
    options = parser.parse_args()
    texts = render(options.compilers)
    stale = [path for path in texts if not path.exists() or path.read_text() != texts[path]]
    for path in stale:
        print("stale:" if options.check else "written:", path)
        if not options.check:
            path.write_text(texts[path])
    sys.exit(options.check and bool(stale))


if __name__ == "__main__":
    main()
