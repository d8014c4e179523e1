"""`diglot inspect`: every stage of both languages' kernels, and its report."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import io
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest
import torch
from backends import why_no_code
from commands import fails, run

from diglot.backends import registry
from diglot.backends.plans import KernelLaunch, Plan, Scratch
from diglot.reference.specs import find_call
from diglot.tools import cuda_library, inspect, machine_code, recording, resources
from diglot.tools.inspect import STAGES
from diglot.tools.machine_code import ResourcesUnavailable
from diglot.tools.occupancy import LIMITS, occupancy
from diglot.tools.resources import KernelResources, Kernels, TensorLike

pytest.importorskip("triton")

LANGUAGES = ("triton",) if why_no_code() else ("cuda", "triton")
ALL_STAGES = tuple(dict.fromkeys(stage for of in STAGES.values() for stage in of))


@functools.cache
def inspected() -> inspect.Inspection:
    """What the tests of real kernels share: other processes take seconds each."""
    return inspect.inspect("gelu", stages=ALL_STAGES)


def count_of_instructions(sass: str) -> Counter[str]:
    """Instructions by name, told without the tool's own expressions."""
    found: Counter[str] = Counter()
    for line in sass.splitlines():
        words = line.split("/", 2)[2].replace("{", " ").split()
        if words[0].startswith("@"):
            words = words[1:]
        name, *suffixes = words[0].split(".")
        if name in ("LDG", "STG", "LDS", "STS", "LDL", "STL"):
            widths = {"U8": 8, "S8": 8, "U16": 16, "S16": 16, "64": 64, "128": 128}
            name += f".{next((widths[s] for s in suffixes if s in widths), 32)}"
        found[name] += 1
    return found


NAMES = {
    "cuda": ("GeluForward", "GeluBackward"),
    "triton": ("gelu_forward_flat", "gelu_backward_flat"),
}


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_stage(language):
    found = inspected().of(language)
    assert [kernel.directions for kernel in found] == [("forward",), ("backward",)]
    for kernel, name in zip(found, NAMES[language], strict=True):
        assert name in kernel.name and kernel.resources.threads == 128
        assert kernel.resources.architecture == "sm_90a", "sm_90 finds it"
        lacks = {"ptx"} if f"{language} ptx" in inspected().reasons else set()
        assert set(kernel.stages) == set(STAGES[language]) - lacks
        assert (
            kernel.stages["cubin"].startswith(b"\x7fELF")
            and name.encode() in kernel.stages["cubin"]
        )
        sass = kernel.stages["sass"]
        assert re.search(r"\bLDG\.E\.128\b.*\bR\d+, ", sass) and sass.rstrip().endswith(";")
        if "ptx" in kernel.stages:
            assert re.search(r"^\.target sm_90", kernel.stages["ptx"], re.MULTILINE)
            assert f"{name}" in kernel.stages["ptx"] and "ld.global" in kernel.stages["ptx"]
    if language == "triton":
        stages = found[0].stages
        assert "tt.load" in stages["ttir"] and "#ttg." not in stages["ttir"]
        assert "#ttg.blocked" in stages["ttgir"] and "tt.load" in stages["ttgir"]
        assert "target datalayout" in stages["llir"]


@pytest.mark.parametrize("language", LANGUAGES)
def test_instructions_are_counted(language):
    for kernel in inspected().of(language):
        told = dict(kernel.resources.instructions)
        counted = count_of_instructions(kernel.stages["sass"])
        assert told == {name: counted[name] for name in told}
        known = {name for name in counted if name.partition(".")[0] in machine_code.COUNTED}
        assert set(told) == known
        assert told["LDG.128"] >= 2 and told["STG.128"] >= 2 and told["MUFU"] > 2
        assert kernel.resources.load_bytes == kernel.resources.store_bytes == 16


@pytest.mark.parametrize("language", LANGUAGES)
def test_occupancy_follows_from_the_rest(language):
    for kernel in inspected().of(language):
        of = kernel.resources
        whole = 65536 // (-(-of.registers * 32 // 256) * 256) // 4 * 4
        assert not of.shared_bytes and kernel.occupancy.warps == min(64, whole // 4 * 4)


def test_what_a_program_of_1024_elements_becomes():
    """Not eight neighbouring elements for a thread: accesses of four, half a program apart."""
    kernel = next(k for k in inspected().of("triton") if k.directions == ("forward",))
    accesses = re.findall(
        r"\bLDG\.E\.128\S* R\d+, desc\[\w+\]\[(R\d+)\.64(?:\+(0x[0-9a-f]+))?\]",
        kernel.stages["sass"],
    )
    ((base, first), (other, second)) = accesses
    assert base == other and {first, second} == {"", hex(512 * 4)}
    (layout,) = set(
        re.findall(r"#ttg\.blocked<(\{sizePerThread = \[4\].*?\})>", kernel.stages["ttgir"])
    )
    assert "threadsPerWarp = [32], warpsPerCTA = [4]" in layout


@pytest.fixture
def page():
    """The module that writes docs/inspect.md."""
    path = Path(__file__).parents[1] / "tools/inspect_page.py"
    specification = importlib.util.spec_from_file_location("inspect_page", path)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def check_page(page, excerpts):
    """Asserts that the page shows these; of other compilers it only must have a place for them."""
    text = page.PAGE.read_text()
    assert set(excerpts) <= {name for _, name, _ in page.BLOCK.findall(text)}
    if page.versions() in text:
        assert page.fill(text, excerpts) == text, "python tools/pages.py writes it anew"


@pytest.mark.skipif("cuda" not in LANGUAGES, reason="the extension's code cannot be read here")
def test_the_page_shows_what_compilers_make(page):
    excerpts = page.of_gelu(inspected())
    check_page(page, excerpts)
    # What the page says of them holds for every compiler.
    assert excerpts["sass"].count("LDG.E.128") == excerpts["ptx"].count("ld.global.v4") == 2
    assert "+0x800]" in excerpts["sass"] and excerpts["cuda-sass"].count("LDG.E.128") == 3
    assert "LDGSTS.E.BYPASS.128" in excerpts["copies"]


@pytest.mark.slow
@pytest.mark.ahead_of_time
@pytest.mark.skipif("cuda" not in LANGUAGES, reason="the page tells the extension's version")
def test_the_page_compiles_its_own_kernel(page):
    excerpts = page.of_product(page.PAGE.read_text())
    check_page(page, excerpts)
    assert (
        excerpts["product-ttgir"].count("local_alloc") == 2 and "HGMMA" in excerpts["product-sass"]
    )
    shared = int(re.search(r"(\d+) bytes", excerpts["product-shared"])[1])
    assert shared >= 2 * 64 * 64 * 2, "two tiles of 64 by 64 elements of 16 bits"


def test_save(tmp_path):
    """Every stage of every kernel, in files whose names tell them apart."""
    found = inspected()
    written = inspect.save(found, tmp_path / "out")
    names = {path.name for path in written}
    assert names == {path.name for path in (tmp_path / "out").iterdir()}
    assert len(names) == sum(len(kernel.stages) for kernel in found.kernels)
    for stage in STAGES["triton"]:
        assert f"triton.gelu_forward_flat.{stage}" in names
    for path in written:
        assert path.stat().st_size > 100 and re.fullmatch(r"[\w.-]+", path.name)
    with pytest.raises(ValueError, match="has files, which are not overwritten without force"):
        inspect.save(found, tmp_path / "out")
    assert inspect.save(found, tmp_path / "out", force=True) == written
    with pytest.raises(ValueError, match="is a file, not a folder"):
        inspect.save(found, written[0], force=True)
    with pytest.raises(ValueError, match="there is no folder"):
        inspect.save(found, tmp_path / "no/out")


# The report on kernels that were never compiled: two of CUDA's, one of them launched twice.
KERNEL = KernelResources(
    name="scale<float, (Form)0>",
    architecture="sm_90a",
    registers=40,
    spill_bytes=12,
    stack_bytes=16,
    shared_bytes=1000 + 4096,
    load_bytes=16,
    store_bytes=None,
    instructions=(("LDG.128", 2), ("MUFU", 7)),
    dynamic_shared_bytes=4096,
    threads=256,
    cluster_blocks=2,
)
TRITON = dataclasses.replace(KERNEL, name="scale_flat", cluster_blocks=1)


def test_no_two_kernels_share_a_file():
    names = ("a<1>", "a_1", "a<(E)1>", "a<1>")
    kernels = tuple(
        inspect.InspectedKernel(
            *("cuda", ("forward",), dataclasses.replace(KERNEL, name=name, registers=i)),
            *(occupancy("sm_90", 32, 32, 0), {"sass": name}),
        )
        for i, name in enumerate(names)
    )
    files = inspect.file_names(inspect.Inspection("a", "sm_90", kernels, {}, {}))
    assert [of.name for of, _ in files.values()] == list(names)
    assert list(files) == ["cuda.a_1.sass", "cuda.a_1-2.sass", "cuda.a_E_1.sass", "cuda.a_1-3.sass"]


DECIDED = (("elementwise.cuda.tiny_elements", 131072),)


def test_plans_are_those_of_the_architecture(monkeypatch):
    """The planner is asked for a device of its limits, and what it would launch is kept whole."""
    asked = []

    def plan(op, launcher, device, arguments):
        asked.append(device)
        launch = KernelLaunch("void diglot::scale<float>(int)", (7, 1, 1), (32, 4, 2), 4096, 8, ())
        return Plan("planned", (launch,), Scratch(100, 16, "stream"), DECIDED)

    planned = dataclasses.replace(registry.BACKENDS["cuda"], plan=plan)
    monkeypatch.setitem(registry.BACKENDS, "cuda", planned)
    monkeypatch.setattr(recording, "load_extension", lambda: (object(), ""))
    monkeypatch.setattr(recording, "cuda_kernels", lambda _, names: dict.fromkeys(names, KERNEL))
    call = resources.Call("gelu", (resources.TensorLike("float32", (3,), (1,)),), {})
    for architecture in ("sm_90", "sm_86"):
        (answer,) = recording._cuda_answers([call], architecture)
        (kernel,) = answer.kernels
        assert (kernel.threads, kernel.dynamic_shared_bytes, kernel.cluster_blocks) == (
            256,
            4096,
            8,
        )
        scratch = (100, 16, "stream")
        plan_of_run = resources.PlanOfRun("gelu_forward", "planned", scratch, DECIDED)
        assert answer.plans == (plan_of_run,)
    limits = [LIMITS[name] for name in ("sm_90", "sm_86")]
    assert asked == [
        (number, 132, limit.shared_bytes, limit.has_clusters, "h200")
        for number, limit in zip((90, 86), limits, strict=True)
    ]


@pytest.fixture
def recorded(monkeypatch):
    """The other process's answers, made up; returns what it is asked."""
    asked = []

    def answer(calls, architecture, languages, stages):
        asked.append((calls, architecture, languages, stages))
        of = {
            "cuda": Kernels((KERNEL, dataclasses.replace(KERNEL, name="sum<float>"), KERNEL)),
            "triton": Kernels((TRITON,), None, (dict.fromkeys(stages, b"text"),)),
        }
        return [{language: of[language] for language in languages} for _ in calls]

    monkeypatch.setattr(inspect, "kernels_of_calls", answer)
    monkeypatch.setattr(cuda_library, "library_architectures", lambda: ("sm_80", "sm_90a"))
    monkeypatch.setattr(cuda_library, "library_ptx", lambda: ())
    return asked


def test_calls(recorded):
    """The question is about the call that was meant, in both directions."""
    found = inspect.inspect(
        "add", shape=(3, 5), dtype=torch.bfloat16, alpha=2, architecture="sm_80"
    )
    ((calls, architecture, languages, stages),) = recorded
    assert (architecture, tuple(languages), stages) == ("sm_80", ("cuda", "triton"), ())
    like = TensorLike("bfloat16", (3, 5), (5, 1))
    assert [call.inputs for call in calls] == [(like, like)] * 2
    assert [(call.op, call.options, call.backward) for call in calls] == [
        ("add", {"alpha": 2}, False),
        ("add", {"alpha": 2}, True),
    ]
    names = [kernel.name for kernel in found.kernels]
    assert names == ["scale<float, (Form)0>", "sum<float>", "scale_flat"]
    assert {kernel.directions for kernel in found.kernels} == {("forward", "backward")}
    inspect.inspect("layer_norm", shape=(3, 5))
    calls, *_ = recorded[-1]
    assert [of.shape for of in calls[0].inputs] == [(3, 5), (5,), (5,)]
    inspect.inspect("add", dtype=torch.int32)
    assert [call.backward for call in recorded[-1][0]] == [False], "integers have no gradient"


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        ("scale", ["scale<float, (Form)0>"]),
        ("sum<float>", ["sum<float>"]),
        ("s*<float*", ["scale<float, (Form)0>", "sum<float>"]),
        ("SUM<*", ["sum<float>"]),
    ],
)
def test_kernels_are_chosen(recorded, wanted, names):
    found = inspect.inspect("gelu", kernel=wanted)
    assert [kernel.name for kernel in found.kernels] == names


def test_table(recorded):
    result = run("inspect", "gelu")
    assert result.exit_code == 0, result.output
    assert "1  cuda scale<float, (Form)0>, forward, backward, sm_90a" in result.stdout
    assert "2 LDG.128, 7 MUFU" in result.stdout
    row = next(
        line.split() for line in result.stdout.splitlines() if line.split()[:2] == ["1", "256"]
    )
    # 40 registers: 1280 for a warp, 48 warps, 6 blocks of 8 warps; shared memory would take 37.
    assert row == ["1", "256", "40", "12/16", "1000+4096", "2", "6", "75", "%", "registers", "16/–"]


def test_text_stages(recorded):
    """Each with a heading; of both languages' kernels those whose compiler has the stage."""
    result = run("inspect", "gelu", "--stage", "llir")
    assert result.exit_code == 0, result.output
    assert result.stdout == "; triton scale_flat, forward, backward, sm_90a: llir\ntext\n"
    ((_, _, languages, stages),) = recorded
    assert (tuple(languages), stages) == (("triton",), ("llir",))


def test_source_and_code_side_by_side(recorded, monkeypatch):
    """Where it is piped, one below the other; kernels that do the same, next to each other."""
    monkeypatch.setattr(inspect, "_cuda_stages", lambda *_: {"sass": "SASS of cuda"})
    monkeypatch.setattr(inspect, "_triton_stages", lambda *_: {"sass": "SASS of triton"})
    result = run("inspect", "gelu", "--side-by-side")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("// csrc/ops/gelu.cu\n")
    assert "struct GeluForward" in result.stdout and "\n// triton_ops/gelu.py\n" in result.stdout
    heads = [line for line in result.stdout.splitlines() if re.match("// (cuda|triton) ", line)]
    assert [re.sub("<.*>|, forward.*sm_90a", "", head) for head in heads] == [
        *("// cuda scale: sass", "// triton scale_flat: sass"),
        "// cuda sum: sass",
    ]


def test_columns(recorded, monkeypatch):
    """On a terminal the languages are in columns, whole at any width."""
    from rich.console import Console

    from diglot_cli import inspect as command

    console = Console(width=60, record=True, force_terminal=True, file=io.StringIO())
    command._print_columns(console, ["left", "right"], ["a" * 40, "int x;"], ["text", "cuda"])
    lines = console.export_text().splitlines()
    assert any("left" in line and "right" in line for line in lines)
    assert any("aaaa" in line and "int x;" in line for line in lines)
    assert sum(line.count("a") for line in lines if "left" not in line) == 40


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            "nothing",
            "op must be one of add, .*clip_grad_norm_, .*grid_barrier_check, .* not 'nothing'",
        ),
        ("gelu --arch sm_75", "arch must be one of sm_80, .*sm_90, .*, not 'sm_75'"),
        ("gelu --arch 90", "arch must be like 'sm_90', not '90'"),
        (
            "gelu --stage asm",
            "no stage 'asm': cuda has ptx, cubin, sass, resources; triton has ttir",
        ),
        (
            "gelu --stage ttir --backend cuda",
            "no stage 'ttir': cuda has ptx, cubin, sass, resources$",
        ),
        ("gelu --backend torch", "--backend must be one of cuda, triton, not 'torch'"),
        (
            "gelu --kernel nothing",
            "kernel must be one of scale<float, .*, sum<float>, scale_flat, not",
        ),
        ("gelu --backend cuda --arch sm_100", "machine code for sm_80, sm_90a, not for sm_100"),
        ("gelu --backend cuda --stage ptx", "no PTX, but machine code for sm_80, sm_90a"),
        ("gelu --dtype int32", "dtype must be floating-point for gelu"),
        ("gelu --dtype int5", "--dtype must be one of"),
        ("gelu --shape 3x", "--shape must be sizes joined by x"),
        ("gelu --alpha 2", "gelu has no option 'alpha'"),
        ("gelu --stage ttir --side-by-side", "both languages have as text, not ttir"),
        ("gelu --stage cubin --side-by-side", "both languages have as text, not cubin"),
        ("gelu --backend cuda --side-by-side", "--side-by-side shows both languages"),
        ("gelu --stage cubin", "a cubin is binary: write it into a folder by --save DIR"),
        ("gelu --save file", "file is a file, not a folder"),
        ("gelu --save no/where", "there is no folder"),
    ],
)
def test_errors_are_one_line(recorded, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    assert re.search(message, fails("inspect", *arguments.split()))


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ((Kernels(), Kernels()), "error: gelu launches no kernel for an input of shape 0x8"),
        ((Kernels((), "no dim 7"),) * 2, "error: no dim 7"),
        ((Kernels((), "none"), Kernels((), "nor here")), "error: cuda: none; triton: nor here"),
    ],
)
def test_no_kernels(recorded, monkeypatch, answers, message):
    answer = dict(zip(LANGUAGES, answers, strict=True))
    monkeypatch.setattr(inspect, "kernels_of_calls", lambda calls, *_: [answer] * len(calls))
    assert fails("inspect", "gelu", "--shape", "0x8") == message


def test_one_language_does_not_keep_the_other(recorded):
    """An architecture that the extension lacks: the rest is shown, and why this part is not."""
    result = run("inspect", "gelu", "--arch", "sm_100")
    assert result.exit_code == 0 and "triton scale_flat" in result.stdout
    assert "cuda: the CUDA extension holds machine code for sm_80, sm_90a" in result.stderr


PLANTED = """
namespace diglot {
template <typename T> __global__ void scale(int n, const T* x, T* y) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i] * T(2);
}
__global__ void turn(float* x) {
  __shared__ float kept[12];
  extern __shared__ float more[];
  kept[threadIdx.x % 12] = more[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  x[threadIdx.x] = kept[(threadIdx.x + 1) % 12] + more[threadIdx.x ^ 1];
}
template __global__ void scale<float>(int, const float*, float*);
template __global__ void scale<double>(int, const double*, double*);
}
"""


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc")
def test_a_library_with_ptx(tmp_path, monkeypatch):
    """Of its own kernel alone; PTX of another architecture than the machine code's."""
    (tmp_path / "scale.cu").write_text(PLANTED)
    library = tmp_path / "scale.o"
    targets = ("compute_80,code=sm_80", "compute_90,code=compute_90", "compute_90a,code=sm_90a")
    flags = [f"-gencode=arch={target}" for target in targets]
    command = ["nvcc", *flags, "-c", str(tmp_path / "scale.cu"), "-o", str(library)]
    subprocess.run(command, check=True)
    monkeypatch.setattr(cuda_library, "library_path", lambda: library)
    assert cuda_library.library_architectures() == ("sm_80", "sm_90a")
    assert cuda_library.library_ptx() == ("sm_90",)
    ptx = cuda_library.cuda_ptx("scale<double>", "sm_90")
    assert ".target sm_90\n" in ptx and "ld.global.f64" in ptx and "f32" not in ptx
    assert ptx.count(".entry") == 1 and ptx.rstrip().endswith("}")
    with pytest.raises(
        ResourcesUnavailable, match="PTX for sm_90 and machine code for sm_80, sm_90a"
    ):
        cuda_library.cuda_ptx("scale<double>", "sm_86")
    for architecture, load in (
        ("sm_86", r"LDG\.E\.64 R\d+, \[R"),
        ("sm_90", r"LDG\.E\.64 R\d+, desc"),
    ):
        sass = cuda_library.cuda_sass("scale<double>", architecture)
        assert len(re.findall(load, sass)) == 1 and "LDG.E R" not in sass
        assert not re.search(r"NOP|0x[0-9a-f]{16}", sass)
    cubins = [cuda_library.cuda_cubin("scale<float>", of) for of in ("sm_80", "sm_90")]
    assert cubins[0] != cubins[1] and all(of.startswith(b"\x7fELF") for of in cubins)
    for architecture in ("sm_80", "sm_90"):
        kernels = cuda_library.cuda_kernels(architecture)
        assert kernels["scale<float>"].loads == ((4, 1),)
        shared = {name: kernel.shared_bytes for name, kernel in kernels.items()}
        assert shared == {"scale<float>": 0, "scale<double>": 0, "turn": 48}, "none of the system's"
        launched = kernels["turn"].launched(32, 128)
        assert (launched.shared_bytes, launched.dynamic_shared_bytes) == (48 + 128, 128)
    with pytest.raises(KeyError, match="no kernel scale<int>"):
        cuda_library.cuda_sass("scale<int>")


@pytest.mark.slow
@pytest.mark.ahead_of_time
@pytest.mark.parametrize("op", ("clip_grad_norm_", "grid_barrier_check", "softmax"))
def test_other_ops(op):
    """Ops that are no functions of tensors, too."""
    found = inspect.inspect(op, stages=("sass",))
    for language in LANGUAGES:
        assert found.of(language) and language not in found.reasons
        for kernel in found.of(language):
            assert kernel.name.startswith(op.removesuffix("_check"))
            assert kernel.occupancy.blocks > 0
    assert set(find_call(op).directions) == {d for k in found.kernels for d in k.directions}


@pytest.mark.slow
@pytest.mark.ahead_of_time
def test_shared_memory_of_launches():
    """What the backward pass of layer norm asks for: much of an SM, for one block or two."""
    found = inspect.inspect("layer_norm")
    for language in LANGUAGES:
        most = max(found.of(language), key=lambda kernel: kernel.resources.dynamic_shared_bytes)
        assert most.directions == ("backward",) and most.occupancy.blocks <= 2
        assert 50_000 < most.resources.dynamic_shared_bytes <= 227 << 10
