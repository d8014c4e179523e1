"""The package builds without a CUDA compiler, and says so."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PARTS = ["LICENSE", "README.md", "csrc", "pyproject.toml", "python", "setup.py", "triton_ops"]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def sources(tmp_path_factory) -> Path:
    """A copy of what a build reads, so that the tree's own build folder has no part in it."""
    copy = tmp_path_factory.mktemp("diglot")
    ignored = shutil.ignore_patterns("__pycache__", "*.so", "*-info")
    for name in PARTS:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy / name, ignore=ignored)
        else:
            shutil.copy(ROOT / name, copy / name)
    return copy


def build(sources: Path, where: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Builds a wheel with nothing on PATH and no variable of CUDA's."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("CUDA_", "DIGLOT_"))}
    where.mkdir()
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "-v",
            "--no-build-isolation",
            "--no-deps",
            "--disable-pip-version-check",
            f"--wheel-dir={where}",
            str(sources),
        ],
        capture_output=True,
        text=True,
        env={**environment, "PATH": str(where), **variables},
    )


@pytest.fixture(scope="module")
def wheel(sources, tmp_path_factory) -> Path:
    where = tmp_path_factory.mktemp("wheel") / "dist"
    answer = build(sources, where)
    output = answer.stdout + answer.stderr
    assert answer.returncode == 0, output[-4000:]
    if "no CUDA compiler (nvcc) found" not in output:
        pytest.skip("this Python has a CUDA compiler from pip: no build here is without one")
    (made,) = where.glob("diglot-*.whl")
    return made


def test_wheel_without_nvcc(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    for name in (
        "diglot/__init__.py",
        "diglot/py.typed",
        "diglot/include/diglot/gelu.cuh",
        "diglot/ops/gelu.py",
        "diglot/reference/gelu.py",
        "diglot/triton_ops/gelu.py",
        "diglot/triton_ops/lib/gelu.py",
    ):
        assert name in names
    assert not any(name.endswith(".so") for name in names)


def test_every_module_is_packaged(wheel):
    """The list of packages in pyproject.toml leaves none out."""
    names = set(zipfile.ZipFile(wheel).namelist())
    python = {p.relative_to(ROOT / "python") for p in (ROOT / "python").rglob("*.py")}
    triton = {"diglot" / p.relative_to(ROOT) for p in (ROOT / "triton_ops").rglob("*.py")}
    headers = {
        "diglot/include" / p.relative_to(ROOT / "csrc/include")
        for p in (ROOT / "csrc/include").rglob("*.*h")
    }
    assert {p.as_posix() for p in python | triton | headers} - names == set()


def test_installed_without_nvcc(wheel, tmp_path):
    """Installed from that wheel, everything but the CUDA backend works, and it says why."""
    venv.create(tmp_path / "venv", with_pip=False, symlinks=True)
    python = tmp_path / "venv/bin/python"
    (folder,) = (tmp_path / "venv/lib").glob("python*/site-packages")
    zipfile.ZipFile(wheel).extractall(folder)
    # torch and the rest come from the environment that runs this test.
    others = [path for path in sys.path if path.endswith("-packages")]
    (folder / "others.pth").write_text("\n".join(others) + "\n")
    code = (
        "import diglot, torch\n"
        f"assert diglot.__file__.startswith({str(folder)!r}), diglot.__file__\n"
        f"assert diglot.get_include().startswith({str(folder)!r}), diglot.get_include()\n"
        "x = torch.randn(5)\n"
        "torch.testing.assert_close(diglot.gelu(x), torch.nn.functional.gelu(x))\n"
        "reason = diglot.explain('gelu', x).reasons['cuda']\n"
        "assert 'without its CUDA extension' in reason, reason\n"
        "try:\n"
        "    diglot.gelu(x, backend='cuda')\n"
        "except diglot.BackendUnavailable as error:\n"
        "    assert reason in str(error)\n"
        "else:\n"
        "    raise AssertionError('the CUDA backend ran')\n"
    )
    answer = subprocess.run([python, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr


def test_required_cuda_is_an_error(wheel, sources, tmp_path):
    answer = build(sources, tmp_path / "dist", DIGLOT_REQUIRE_CUDA="1")
    assert answer.returncode != 0
    assert "DIGLOT_REQUIRE_CUDA=1 forbids that" in answer.stdout + answer.stderr
    assert not list((tmp_path / "dist").glob("*.whl"))
