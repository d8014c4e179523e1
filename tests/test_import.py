"""What `import diglot` loads, how long it takes, and what the library may not lean on."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

import diglot

PACKAGE = Path(diglot.__file__).parent
KERNELS = Path(find_spec("diglot.triton_ops").origin).parent
INSTRUMENTS = ("diglot.tools", "diglot.bench", "diglot_cli")
DOOR = PACKAGE / "instruments.py"  # the one file that may name them
LIBRARY = sorted(
    path
    for path in (*PACKAGE.rglob("*.py"), *KERNELS.rglob("*.py"))
    if not {PACKAGE / "tools", PACKAGE / "bench"} & set(path.parents)
    and path not in (DOOR, PACKAGE / "__main__.py")
)

# A second process of a user's finds compiled files. Tests write none, so the time leaves compiling
# out.
MEASURED = """
import json, sys, time
import torch
from importlib.machinery import SourceFileLoader

compiling = 0.0
compile_source = SourceFileLoader.source_to_code

def source_to_code(*arguments, **options):
    global compiling
    began = time.process_time()
    try:
        return compile_source(*arguments, **options)
    finally:
        compiling += time.process_time() - began

SourceFileLoader.source_to_code = source_to_code
before, began = set(sys.modules), time.process_time()
import diglot
seconds = time.process_time() - began - compiling
loaded = sorted(set(sys.modules) - before)
assert not torch.cuda.is_initialized()
operators = [str(torch.ops.diglot.gelu), str(torch.ops.diglot.layer_norm_backward)]
sys.modules["diglot.tools"] = sys.modules["diglot.bench"] = None  # as if there were none
with diglot.use_backend("torch"):
    doubled = diglot.stream_map(lambda x: diglot.add(x, x), torch.ones(8, 4))
json.dump([seconds, loaded, operators, doubled.sum().item()], sys.stdout)
"""


@pytest.fixture(scope="module")
def imported() -> list:
    done = subprocess.run(
        [sys.executable, "-c", MEASURED], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_import_loads_no_instrument_and_no_compiler(imported):
    _, loaded, *_ = imported
    assert "diglot.ops.gelu" in loaded
    heavy = (*INSTRUMENTS, "triton", "torch._dynamo", "torch._inductor", "numpy", "click", "rich")
    assert [name for name in loaded if _is_below(name, heavy)] == []


def test_import_is_quick(imported):
    seconds, *_ = imported
    assert seconds < 0.4


def test_import_registers_the_operators(imported):
    _, _, operators, _ = imported
    assert operators == ["diglot.gelu", "diglot.layer_norm_backward"]


def test_the_library_runs_without_instruments(imported):
    *_, total = imported
    assert total == 64


def _is_below(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def _named_modules(source: str) -> Iterator[str]:
    """What a file imports, anywhere in it, and every text that could be a module's name.

    Imports for type checkers alone do not run.
    """
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            node.body = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ("from diglot.tools import ceilings", True),
        ("def f():\n    import diglot.bench.models", True),
        ("from diglot import tools", True),
        ("import_module('diglot.tools.tune')", True),
        ("import_module(f'diglot.tools.{name}')", True),
        ("from diglot.ops import add", False),
        ("if TYPE_CHECKING:\n    from diglot.tools.tune import tune", False),
    ],
)
def test_the_walk_finds_edges(source, named):
    assert any(_is_below(name, INSTRUMENTS) for name in _named_modules(source)) is named


@pytest.mark.parametrize(
    "path", LIBRARY, ids=lambda path: str(path.relative_to(PACKAGE.parents[1]))
)
def test_no_module_of_the_library_names_an_instrument(path):
    named = [name for name in _named_modules(path.read_text()) if _is_below(name, INSTRUMENTS)]
    assert named == []
