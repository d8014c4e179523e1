"""Defines the arrays of dynamic shared memory that kernels declare, for the interpreter.

Such an array, `extern __shared__ float values[]`, is a thread-local variable that no source
defines. As in CUDA, all of them are one block of memory: its definition in assembler, under all
their names, is printed.

    python dynamic_shared.py KERNEL.o ...
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence

MAX_SHARED_BYTES = 227 * 1024  # kMaxSharedBytes of interpreter.h


def definition(objects: Sequence[str]) -> str:
    """The definition for the compiled kernels."""
    command = ["readelf", "--wide", "--symbols", *objects]
    table = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    symbols = re.findall(r" TLS +(?:GLOBAL|WEAK) +\S+ +(\w+) (\S+)$", table, re.MULTILINE)
    defined = {name for section, name in symbols if section != "UND"}
    arrays = {name for section, name in symbols if section == "UND"} - defined
    lines = ['.section .tbss, "awT", %nobits', ".balign 1024"]
    for name in ["diglot_dynamic_shared", *sorted(arrays)]:
        if not name.startswith(("_ZSt", "_ZNSt")):  # the standard library's own
            lines += [f".globl {name}", f".hidden {name}", f"{name}:"]
    lines += [f".zero {MAX_SHARED_BYTES}", '.section .note.GNU-stack, "", %progbits', ""]
    return "\n".join(lines)


if __name__ == "__main__":
    print(definition(sys.argv[1:]))
