"""What is said and refused where kernels are interpreted, or could be."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from diglot.backends import registry
from diglot.tools import info

CPU = torch.device("cpu")


@pytest.mark.parametrize("is_built", [True, False])
def test_an_interpreter_is_offered_where_there_is_one(is_built, monkeypatch):
    monkeypatch.setattr(registry, "INTERPRET", False)
    monkeypatch.setattr(registry, "has_interpreter", lambda: is_built)
    reason = registry.BACKENDS["cuda"].refusal(CPU)
    assert reason.startswith("it takes CUDA tensors, and this one is on the CPU; ")
    assert ("DIGLOT_INTERPRET=1" in reason) == is_built
    assert ("installed without its CUDA interpreter" in reason) != is_built


def test_info_tells_of_the_interpreter(monkeypatch):
    is_built = registry.has_interpreter()
    assert (info.collect().interpreter == "built") == is_built
    monkeypatch.setattr(info, "load_interpreter", lambda: (None, registry.NO_INTERPRETER))
    assert f"CUDA interpreter  {registry.NO_INTERPRETER}" in str(info.collect())


@pytest.mark.parametrize(("ours", "tritons"), [("1", "0"), ("0", "1"), ("", "true")])
def test_variables_that_contradict_each_other(ours, tritons):
    """Triton goes by its own: what would run is not what diglot says, so that nothing does."""
    code = (
        "import torch, diglot\n"
        "print(diglot.explain('gelu', 'cpu').reasons['triton'])\n"
        "diglot.gelu(torch.ones(2), backend='triton')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "DIGLOT_INTERPRET": ours, "TRITON_INTERPRET": tritons},
        capture_output=True,
        text=True,
        check=False,
    )
    assert f"TRITON_INTERPRET={tritons} contradicts DIGLOT_INTERPRET" in done.stdout, done.stderr
    assert "BackendUnavailable" in done.stderr
