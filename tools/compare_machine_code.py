"""Compares the machine code of two builds: were kernels only moved and renamed?

    python tools/compare_machine_code.py OLD NEW [--rename REGEX=TEXT ...] [--part]

OLD and NEW are libraries, objects or cubins. A kernel is compared by its instructions, their
encodings (which hold the scheduling too), its registers and its memory. Kernels are paired by their
demangled names, to which `--rename` applies in OLD, and else by their code. The exit status is 1
where a kernel changed or lacks a partner. `--part`: NEW holds only some of the kernels.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from diglot.tools.machine_code import demangle, find_cuobjdump


def read_lines(option: str, library: Path) -> Iterator[tuple[str, str, str]]:
    """What cuobjdump prints of each function: its architecture, its symbol and a line."""
    architecture, symbol = "", ""
    command = [str(find_cuobjdump()), option, str(library)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if match := re.match(r"\s*(?:arch =|code for) (sm_\w+)", line):
                architecture, symbol = match[1], ""
            elif match := re.match(r"\s*Function(?: :)? ([\w$.]+)", line):
                symbol = match[1]
            elif symbol:
                yield architecture, symbol, line
    if process.returncode != 0:
        raise SystemExit(f"cuobjdump cannot read {library}")


def hash_kernels(library: Path) -> dict[str, str]:
    """A hash of each kernel's code and resources, by its demangled name and architecture."""
    digests: dict[tuple[str, str], hashlib._Hash] = defaultdict(hashlib.sha256)
    for architecture, symbol, line in read_lines("-sass", library):
        if "/*" in line:
            # A file's longest line sets the width of columns. Calls name their target: `(symbol).
            text = re.sub(r"`\([^)]*\)", "`()", " ".join(line.split()))
            digests[architecture, symbol].update(text.encode())
    for architecture, symbol, line in read_lines("-res-usage", library):
        if "REG:" in line and (architecture, symbol) in digests:
            digests[architecture, symbol].update(line.strip().encode())
    kernels: dict[str, list[str]] = defaultdict(list)
    for (architecture, symbol), digest in digests.items():
        kernels[f"{demangle(symbol)} [{architecture}]"].append(digest.hexdigest())
    return {name: " ".join(sorted(hashes)) for name, hashes in kernels.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--rename", action="append", default=[], metavar="REGEX=TEXT")
    parser.add_argument("--part", action="store_true", help="NEW holds some of the kernels")
    options = parser.parse_args()
    old, new = hash_kernels(options.old), hash_kernels(options.new)
    for rename in options.rename:
        pattern, _, text = rename.partition("=")
        old = {re.sub(pattern, text, name): code for name, code in old.items()}
    both = old.keys() & new.keys()
    changed = sorted(name for name in both if old[name] != new[name])
    by_code: dict[str, list[str]] = defaultdict(list)
    for name in old.keys() - new.keys():
        by_code[old[name]].append(name)
    lone = []
    for name in sorted(new.keys() - old.keys()):
        if by_code[new[name]]:
            by_code[new[name]].pop()
        else:
            lone.append(name)
    renamed = len(new.keys() - old.keys()) - len(lone)
    missing = [] if options.part else sorted(name for names in by_code.values() for name in names)
    print(
        f"{len(both) - len(changed)} identical, {renamed} identical under another name, "
        f"{len(changed)} changed, {len(missing)} only in {options.old}, "
        f"{len(lone)} only in {options.new}"
    )
    for title, names in (("changed", changed), ("missing", missing), ("new", lone)):
        for name in names:
            print(f"{title}: {name}")
    return 1 if changed or missing or lone else 0


if __name__ == "__main__":
    sys.exit(main())
