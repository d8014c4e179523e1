"""What a user's editor and type checker see of the package."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import diglot

PACKAGE = Path(diglot.__file__).parent
PUBLIC = {name: getattr(diglot, name) for name in diglot.__all__}
PUBLIC |= {f"nn.{name}": of for name, of in vars(diglot.nn).items() if name[0].isupper()}
FUNCTIONS = {
    name: of
    for name, of in PUBLIC.items()
    if inspect.isfunction(of)
    or (inspect.isclass(of) and of.__init__ not in (object.__init__, RuntimeError.__init__))
}
USER = """\
from torch import Tensor, nn

import diglot


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = diglot.nn.LayerNorm(64)
        self.gelu = diglot.nn.GELU(approximate="tanh", backend="triton")

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        with diglot.use_backend("cuda"):
            y, total = diglot.add_rms_norm(x, residual, (64,), eps=1e-6)
        y = diglot.softmax(diglot.gelu(self.gelu(self.norm(y)), "tanh"), dim=-1)
        return diglot.dropout(diglot.add(y, total, alpha=2), 0.1, self.training)


def clip(model: nn.Module) -> float:
    norm = diglot.clip_grad_norm_(model.parameters(), 1.0)
    run = diglot.last_run()
    print(diglot.explain("gelu"), None if run is None else run.variant)
    return norm.item()
"""
# By the kind of error, the line.
WRONG = {
    "arg-type": "diglot.gelu(3)\n",
    "call-arg": "diglot.softmax(Tensor(), dimension=1)\n",
    "attr-defined": "diglot.explain('gelu').chose\n",
}
# What editors show, by expression: the begin and the end of the type.
SHOWN = {
    "diglot.gelu": ('(input: Tensor, approximate: str = "none", *, backend: str', "-> Tensor"),
    "diglot.compare": ("(op: str | ((...) -> Tensor)", "-> Comparison"),
    "diglot.patch": ("(model: Module, backend: str | None = None, only: str", "-> Patch"),
    "diglot.tune": ("(op: (...) -> Any", "-> list[Tuned]"),
    "diglot.nn.Linear": ("type[Linear]", ""),
    "diglot.nn.Linear(64, 32).forward(Tensor())": ("Tensor", ""),
    "diglot.add_rms_norm(Tensor(), Tensor(), 64)": ("tuple[Tensor, Tensor]", ""),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_signatures_say_their_defaults(name):
    of = FUNCTIONS[name]
    text = str(inspect.signature(of))
    assert " at 0x" not in text, text
    for parameter in inspect.signature(of).parameters.values():
        assert parameter.annotation is not parameter.empty, parameter


def write_programs(folder: Path) -> None:
    """What a checker sees: the package, a right program and a wrong one."""
    (folder / "site").mkdir()
    (folder / "site/diglot").symlink_to(PACKAGE)
    (folder / "right.py").write_text(USER)
    (folder / "wrong.py").write_text(USER + "".join(WRONG.values()))


@pytest.mark.slow
def test_a_users_checker(tmp_path):
    """mypy, strict: it finds every error, and nothing in right code."""
    pytest.importorskip("mypy")
    write_programs(tmp_path)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy",
            "--strict",
            "--follow-imports=silent",
            "right.py",
            "wrong.py",
        ],
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": "site"},
        capture_output=True,
        text=True,
        check=False,
    )
    errors = [line for line in done.stdout.splitlines() if ": error: " in line]
    assert all(line.startswith("wrong.py") for line in errors), done.stdout + done.stderr
    for kind in WRONG:
        assert any(f"[{kind}]" in line for line in errors), done.stdout + done.stderr


def test_pyright_sees_types(tmp_path):
    """basedpyright is pyright with a Node.js of its own, which pip installs."""
    pytest.importorskip("basedpyright")
    write_programs(tmp_path)
    shown = "".join(f"reveal_type({expression})\n" for expression in SHOWN)
    (tmp_path / "shown.py").write_text(f"from torch import Tensor\n\nimport diglot\n\n{shown}")
    settings = {"extraPaths": ["site"], "include": ["*.py"], "typeCheckingMode": "standard"}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "basedpyright", "--outputjson", "--pythonpath", sys.executable]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    told = json.loads(done.stdout)["generalDiagnostics"]
    errors = [(Path(of["file"]).name, of["rule"]) for of in told if of["severity"] == "error"]
    rules = ("reportArgumentType", "reportCallIssue", "reportAttributeAccessIssue")
    assert sorted(errors) == sorted(("wrong.py", rule) for rule in rules), told
    texts = [of["message"] for of in told if Path(of["file"]).name == "shown.py"]
    for (expression, (begin, end)), text in zip(SHOWN.items(), texts, strict=True):
        _, _, kind = text.partition('" is "')
        assert kind.startswith(begin) and kind.endswith(f'{end}"'), (expression, text)
