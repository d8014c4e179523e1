"""Decisions at import, by variables; and modules that an import does not load."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys

import pytest

# Decisions at import take a process for each case. They fork from one that has imported the slow
# modules: PyTorch and its compiler. The compiler imports Triton, so a process that must still tell
# it to interpret imports only the compiler's other modules.
IN_NEW_PROCESSES = """
import json, os, sys, traceback
import torch
import torch.fx.experimental.symbolic_shapes
answers = []
for code, variables in json.load(sys.stdin):
    if "DIGLOT_INTERPRET" not in variables:
        import torch._dynamo
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.environ.update(variables)
        os.dup2(write, 1)
        os.dup2(write, 2)
        os.close(write)
        status = 1
        try:
            exec(code, {})
            status = 0
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    os.close(write)
    with os.fdopen(read) as output:
        text = output.read().strip()
    answers.append((os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), text))
json.dump(answers, sys.stdout)
"""

RUN = "import torch, diglot; diglot.gelu(torch.ones(2)); print(diglot.last_run().backend)"
SETTING = "from diglot.backends import selection; print(selection._environment)"
IMPORT = """
import sys, torch, diglot
assert not torch.cuda.is_initialized()
lazy = {"diglot.triton_ops", "diglot._C", "diglot._interpreter", "diglot.tools.profiling"}
assert not (lazy | {"diglot.models"}) & set(sys.modules)
assert set(diglot.__all__) <= set(dir(diglot))
assert not {"Any", "TYPE_CHECKING", "annotations"} & set(dir(diglot))  # names of our own alone
assert callable(diglot.patch) and "transformers" not in sys.modules
assert "diglot.distributed" not in sys.modules and callable(diglot.distributed.all_reduce)
print("imported")
"""
CONTRADICTION = """
import torch, diglot
print(diglot.explain("gelu", "cpu").reasons["triton"], flush=True)
diglot.gelu(torch.ones(2), backend="triton")
"""
CONTRADICTIONS = [("1", "0"), ("0", "1"), ("", "true")]
CASES = {
    **{
        f"contradiction of {ours!r} and {tritons!r}": (
            CONTRADICTION,
            {"DIGLOT_INTERPRET": ours, "TRITON_INTERPRET": tritons},
        )
        for ours, tritons in CONTRADICTIONS
    },
    **{
        f"{name!r}, interpreted": (RUN, {"DIGLOT_BACKEND": name, "DIGLOT_INTERPRET": "1"})
        for name in ("cuda", "triton")
    },
    **{
        repr(name): (RUN, {"DIGLOT_BACKEND": name})
        for name in ("torch", " torch ", "opencl", "cuda", "triton")
    },
    **{f"setting of {value!r}": (SETTING, {"DIGLOT_BACKEND": value}) for value in ("", " ")},
    "import": (IMPORT, {}),
}


@pytest.fixture(scope="module")
def new_processes() -> dict[str, tuple[int, str]]:
    """By the case: exit status and output."""
    left_out = ("DIGLOT_", "TRITON_")
    done = subprocess.run(
        [sys.executable, "-c", IN_NEW_PROCESSES],
        input=json.dumps(list(CASES.values())),
        env={name: value for name, value in os.environ.items() if not name.startswith(left_out)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return dict(zip(CASES, map(tuple, json.loads(done.stdout)), strict=True))


@pytest.mark.parametrize("value", ["torch", " torch "])
def test_environment_variable(new_processes, value):
    """Spaces around a name do not count."""
    assert new_processes[repr(value)] == (0, "torch")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            "cuda",
            marks=pytest.mark.skipif(
                importlib.util.find_spec("diglot._interpreter") is None,
                reason="the interpreter of CUDA kernels was not built",
            ),
        ),
        "triton",
    ],
)
def test_environment_variable_names_a_kernel(new_processes, name):
    """On CPU tensors it takes an interpreter, and without it the error names the variable."""
    assert new_processes[f"{name!r}, interpreted"] == (0, name)
    status, output = new_processes[repr(name)]
    assert status == 1
    assert f"BackendUnavailable: gelu: backend '{name}' cannot run" in output
    assert f"{name}: cannot run: it takes CUDA tensors, and this one is on the CPU" in output
    assert "DIGLOT_INTERPRET=1" in output


def test_environment_variable_that_names_no_backend(new_processes):
    status, output = new_processes["'opencl'"]
    assert status == 1
    assert "ValueError: DIGLOT_BACKEND must be one of 'cuda', 'triton', 'torch', 'auto'" in output


@pytest.mark.parametrize("value", ["", " "])
def test_empty_environment_variable_is_as_if_unset(new_processes, value):
    assert new_processes[f"setting of {value!r}"] == (0, "auto")


@pytest.mark.parametrize(("ours", "tritons"), CONTRADICTIONS)
def test_variables_that_contradict_each_other(new_processes, ours, tritons):
    """Triton goes by its own: what would run is not what diglot says, so that nothing does."""
    status, output = new_processes[f"contradiction of {ours!r} and {tritons!r}"]
    assert status == 1
    assert output.startswith(f"TRITON_INTERPRET={tritons} contradicts DIGLOT_INTERPRET")
    assert "BackendUnavailable" in output


def test_import_loads_no_backend(new_processes):
    assert new_processes["import"] == (0, "imported")
