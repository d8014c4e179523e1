"""Compares the machine code of two builds: were kernels only moved and renamed?

    python tools/compare_machine_code.py OLD NEW [--rename REGEX=TEXT ...] [--part]

OLD and NEW are libraries, objects or cubins. A kernel is compared by its instructions, their
encodings (which hold the scheduling too), its registers and its memory. Kernels are paired by their
demangled names, to which `--rename` applies in OLD; those without a partner are paired by their
code. The exit status is 1 where a kernel changed or lacks a partner. `--part`: NEW holds some of the
kernels.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path


@functools.cache
def find_cuobjdump() -> str:
    """cuobjdump of the toolkit, or else the one inside Triton's package."""
    found = shutil.which("cuobjdump")
    if found is not None:
        return found
    import triton

    path = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    if not path.exists():
        raise SystemExit("no cuobjdump: neither on PATH nor in Triton's package")
    return str(path)


def demangle(names: list[str]) -> list[str]:
    """Names without what differs from build to build: the tag of a file's internal linkage."""
    command = ["c++filt", "--no-strip-underscore"]
    answer = subprocess.run(command, input="\n".join(names), text=True, capture_output=True)
    return [re.sub(r"_(GLOBAL__N_|INTERNAL)_*\w*", "internal", name)
            for name in answer.stdout.splitlines()]


def hash_kernels(library: Path) -> dict[str, str]:
    """A hash of each kernel's code and resources, by its demangled name and architecture."""
    hashes: dict[tuple[str, str], list[str]] = {}
    resources: dict[tuple[str, str], str] = {}
    architecture, name = "", ""
    digest = hashlib.sha256()

    def finish() -> None:
        if name:
            hashes.setdefault((architecture, name), []).append(digest.hexdigest())

    with subprocess.Popen(
        [find_cuobjdump(), "-sass", str(library)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if match := re.match(r"\s*Function : (\S+)", line):
                finish()
                name, digest = match[1], hashlib.sha256()
            elif match := re.match(r"\s*(?:arch =|code for) (sm_\w+)", line):
                finish()
                architecture, name = match[1], ""
            elif "/*" in line:
                # Columns are as wide as the file's longest line. Calls name their target: `(symbol).
                digest.update(re.sub(r"`\([^)]*\)", "`()", " ".join(line.split())).encode())
        finish()
    usage = subprocess.run(
        [find_cuobjdump(), "-res-usage", str(library)], capture_output=True, text=True, check=True
    )
    for line in (usage.stdout + usage.stderr).splitlines():
        if match := re.match(r"\s*(?:arch =|code for) (sm_\w+)", line):
            architecture = match[1]
        elif match := re.match(r"\s*Function (\S+):", line):
            name = match[1]
        elif "REG:" in line:
            resources[architecture, name] = line.strip()
    demangled = demangle([name for _, name in hashes])
    return {
        f"{plain} [{key[0]}]": " ".join(sorted(hashes[key])) + resources.get(key, "")
        for key, plain in zip(hashes, demangled, strict=True)
    }


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
    changed = sorted(name for name in old.keys() & new.keys() if old[name] != new[name])
    identical = len(old.keys() & new.keys()) - len(changed)
    by_code = defaultdict(list)
    for name in old.keys() - new.keys():
        by_code[old[name]].append(name)
    lone = [name for name in sorted(new.keys() - old.keys())
            if not (by_code[new[name]] and by_code[new[name]].pop())]
    renamed = len(new.keys() - old.keys()) - len(lone)
    missing = [] if options.part else sorted(sum(by_code.values(), []))
    print(f"{identical} identical, {renamed} identical under another name, {len(changed)} changed, "
          f"{len(missing)} only in {options.old}, {len(lone)} only in {options.new}")
    for title, names in (("changed", changed), ("missing", missing), ("new", lone)):
        for name in names:
            print(f"{title}: {name}")
    return 1 if changed or missing or lone else 0


if __name__ == "__main__":
    sys.exit(main())
