"""`diglot.profile`: records, counts and files; Ctrl-C and errors."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections import Counter
from contextlib import contextmanager
from xml.etree import ElementTree

import pytest
import torch
import torch.nn.functional as F
from backends import DEVICE, KERNELS

import diglot
from diglot.backends import runs
from diglot.tools.flame import folded, render
from diglot.tools.proton import Node
from diglot.tools.trace import Trace

SVG = "{http://www.w3.org/2000/svg}"
ON_CPU = pytest.mark.skipif(DEVICE == "cuda", reason="there is a GPU")


def manual_gelu(x):
    return 0.5 * x * (1 + torch.tanh(0.79788456 * (x + 0.044715 * x * x * x)))


@pytest.fixture
def x():
    return torch.linspace(-3, 3, 64, device=DEVICE)


def test_a_fused_op_is_one_kernel_and_the_formula_many(x):
    def both():
        with torch.profiler.record_function("formula"):
            manual_gelu(x)
        with torch.profiler.record_function("fused"):
            F.gelu(x, approximate="tanh")

    done = diglot.profile_call(both, warmup=1, repeat=3)
    scopes = done.kernels_by_scope()
    # Six products, two sums, a tanh.
    assert (scopes["formula"].calls, scopes["formula"].per_call) == (3, 9)
    assert (scopes["fused"].calls, scopes["fused"].per_call) == (3, 1)
    operators = done.kernels_by_op()
    assert (operators["aten::mul"].calls, operators["aten::mul"].per_call) == (18, 1)
    assert operators["aten::gelu"].per_call == 1
    assert done.notes[0].startswith("3 steps recorded after 1 of warm-up")
    assert re.search(r"^formula +3 +9 ", str(done), re.MULTILINE)


@pytest.mark.parametrize("backend", [*KERNELS, "torch"])
def test_launchers_have_ranges_of_their_own(x, backend):
    leaf = x.clone().requires_grad_()

    def step():
        diglot.gelu(leaf, backend=backend).backward(torch.ones_like(leaf))

    operators = diglot.profile_call(step, warmup=1, repeat=2).kernels_by_op()
    for direction in ("forward", "backward"):
        launched = operators[f"diglot::gelu_{direction}[{backend}]"]
        assert (launched.calls, launched.per_call) == (2, 1)


@ON_CPU
def test_without_a_gpu_it_says_so(x):
    with diglot.profile() as done:
        F.gelu(x)
    assert done.notes[0] == "recorded from the first call on, without warm-up"
    assert "times are not a GPU's" in done.notes[1]
    assert "aten::gelu" in done.table() and "GPU" not in done.table()


def test_shapes_and_memory(x):
    a, b = torch.ones(1000, 100, device=DEVICE), torch.ones(100, 7, device=DEVICE)
    a @ b  # on some GPUs the first product gets a workspace
    with diglot.profile() as done:
        a @ b
    (row,) = [line for line in done.table(by_shape=True).splitlines() if "aten::mm" in line]
    # 7000 numbers of 4 bytes; a GPU's memory is given out by 512 bytes.
    size = "27.34 KB" if DEVICE == "cpu" else "27.50 KB"
    assert "[[1000, 100], [100, 7]]" in row and size in row


@ON_CPU
def test_pytorchs_profiler_is_silent():
    """In a process of its own: the level is read once."""
    code = "import diglot; diglot.profile_call(lambda: None, frames=False)"
    environment = {k: v for k, v in os.environ.items() if k != "KINETO_LOG_LEVEL"}
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment
    )
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, "", "")


def test_warm_up_is_not_recorded(x):
    with diglot.profile(warmup=2) as done:
        for scope in ("first", "second", "third"):
            with done.scope(scope):
                F.gelu(x)
            done.step()
    assert set(done.kernels_by_scope()) == {"third"}
    too_few = pytest.raises(ValueError, match=r"of 2 steps of warm-up 1 ended with a call of step")
    with too_few, diglot.profile(warmup=2) as done:
        done.step()
    with pytest.raises(RuntimeError, match="when the with statement has ended"):
        done.stacks()
    with pytest.raises(ValueError, match="at least 1"):
        diglot.profile_call(lambda: None, warmup=0)


def test_launchers_are_wrapped_only_meanwhile(x):
    labels = []

    @contextmanager
    def mark(label):
        labels.append((label, threading.get_ident()))
        yield

    diglot.gelu(x, backend="torch")
    plain = runs._launchers["torch", "gelu_forward"]
    with runs.mark_runs(mark):
        thread = threading.Thread(target=diglot.gelu, args=(x,), kwargs={"backend": "torch"})
        thread.start()
        thread.join()
        assert labels == [("diglot::gelu_forward[torch]", thread.ident)]
    diglot.gelu(x, backend="torch")
    assert len(labels) == 1 and runs._launchers["torch", "gelu_forward"] is plain


def test_compiled_graphs_are_not_marked(x):
    # What others trace meanwhile stays the same afterwards.
    function = torch.compile(lambda t: diglot.gelu(t, backend="torch"), backend="eager")
    with diglot.profile(frames=False):
        marked = function(x)
    torch.testing.assert_close(marked, function(x))


# --- files ---------------------------------------------------------------------------------------


def test_outputs(x, tmp_path):
    names = {"trace": "t.json", "flame": "f.svg", "stacks": "s.txt", "tensorboard": "logs"}
    outputs = {name: tmp_path / file for name, file in names.items()}
    with diglot.profile(frames=True) as done, done.scope("mine"):
        manual_gelu(x)
    for name, path in outputs.items():
        getattr(done, f"save_{name}")(path)
    assert any(e["name"] == "mine" for e in json.loads(outputs["trace"].read_text())["traceEvents"])
    (log,) = outputs["tensorboard"].iterdir()
    assert log.name.endswith(".pt.trace.json") and log.read_bytes() == outputs["trace"].read_bytes()
    assert all(
        re.fullmatch(r"\S.* \d+", line) for line in outputs["stacks"].read_text().split("\n")[:-1]
    )
    titles = [t.text for t in ElementTree.parse(outputs["flame"]).iter(f"{SVG}title")]
    frame = next(t for t in titles if "manual_gelu" in t)
    assert re.search(r"test_profiling\.py\(\d+\): manual_gelu: [\d.]+ (µs|ms|s), [\d.]+ %$", frame)
    # The profiler itself is nowhere.
    assert not [t for t in titles if "torch/profiler/" in t or "tools/profiling.py" in t]
    # What PyTorch's own object writes is there too.
    done.profiler.export_stacks(str(tmp_path / "own.txt"), "self_cpu_time_total")
    assert "manual_gelu" in (tmp_path / "own.txt").read_text()
    for name in ("trace", "flame", "stacks"):
        with pytest.raises(ValueError, match="is not overwritten without force"):
            getattr(done, f"save_{name}")(outputs[name])
    with pytest.raises(ValueError, match="is a file, not a folder"):
        done.save_tensorboard(outputs["trace"])
    with pytest.raises(ValueError, match="there is no folder"):
        done.save_trace(tmp_path / "gone/t.json")


@pytest.mark.parametrize("kind", [KeyError, KeyboardInterrupt])
def test_what_fails_is_recorded_all_the_same(x, tmp_path, kind):
    with pytest.raises(kind, match="mine"), diglot.profile(frames=False) as done:
        F.gelu(x)
        raise kind("mine")
    done.save_trace(tmp_path / "t.json")
    assert "aten::gelu" in str(done) and (tmp_path / "t.json").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"engine": "perf"}, "engine must be one of torch, proton, nvtx, not 'perf'"),
        ({"warmup": -1}, "warmup must be at least 0"),
    ],
)
def test_refused(options, message):
    with pytest.raises(ValueError, match=message):
        diglot.profile(**options)


@ON_CPU
@pytest.mark.parametrize("engine", ["proton", "nvtx"])
def test_engines_that_need_a_gpu(engine):
    with pytest.raises(ValueError, match=f"engine '{engine}' needs a GPU"):
        diglot.profile(engine=engine)


def test_nvtx_ranges(x, monkeypatch):
    names = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *devices: None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.cuda.nvtx, "range_push", names.append)
    monkeypatch.setattr(torch.cuda.nvtx, "range_pop", lambda: names.append("end"))
    for name in ("start", "stop"):
        monkeypatch.setattr(torch.cuda.profiler, name, lambda name=name: names.append(name))
    with diglot.profile(engine="nvtx") as done, done.scope("{mine}"):
        diglot.gelu(x, backend="torch")
    assert names == ["start", "{mine}", "diglot::gelu_forward[torch]", "end", "end", "stop"]
    with pytest.raises(ValueError, match="engine 'nvtx' has no trace"):
        done.kernels_by_op()


# --- a trace with a GPU --------------------------------------------------------------------------


def event(category, name, begin, us, thread=1, **arguments):
    return {
        "ph": "X", "cat": category, "name": name, "pid": 1, "tid": thread, "ts": begin, "dur": us,
        "args": {key.replace("_", " "): value for key, value in arguments.items()},
    }  # fmt: skip


# A scope begins in the frame of its __enter__ and ends in that of its __exit__.
OF_GPU = [
    event("python_function", "script.py(9): start", 0, 1000),
    event("python_function", "diglot/tools/profiling.py(9): profile_call", 0.5, 990),
    event("python_function", "script.py(1): <module>", 1, 900),
    event("python_function", "torch/autograd/profiler.py(9): __enter__", 10, 10),
    event("user_annotation", "mine", 15, 200, External_id=1),
    event("cpu_op", "aten::linear", 30, 100, External_id=2, Input_Dims=[[2, 3]]),
    event("cpu_op", "aten::addmm", 40, 80, External_id=3, Input_Dims=[[2, 3]]),
    {"name": "[memory]", "ph": "i", "pid": 1, "tid": 1, "ts": 45,
     "args": {"Bytes": 512, "Device Type": 1}},
    {"name": "[memory]", "ph": "i", "pid": 1, "tid": 1, "ts": 46,
     "args": {"Bytes": 4096, "Device Type": 0}},
    # The library's clock is a little off: it seems to end after the operator.
    event("cuda_runtime", "cudaLaunchKernel", 100, 21, correlation=7),
    event("kernel", "gemm", 300, 50, thread=7, correlation=7, External_id=3),
    event("cuda_driver", "cuLaunchKernelEx", 150, 5, correlation=8),
    event("kernel", "mine_kernel", 350, 25, thread=7, correlation=8),
    event("cuda_runtime", "cudaGraphLaunch", 400, 5, correlation=9),
    event("kernel", "a", 500, 1, thread=7, correlation=9),
    event("kernel", "b", 501, 2, thread=7, correlation=9),
    event("cpu_op", "autograd::engine::evaluate_function: Back", 600, 30, 2, External_id=4),
    event("user_annotation", "diglot::gelu_backward[cuda]", 605, 20, 2, External_id=5),
    # Its call of the runtime was not recorded.
    event("kernel", "gelu_backward", 700, 4, thread=7, correlation=99, External_id=5),
]  # fmt: skip


def test_kernels_are_found_by_what_launched_them():
    trace = Trace(OF_GPU)
    assert trace.has_device
    operators = {name: dict(of.kernels) for name, of in trace.kernels_by_op().items()}
    assert operators == {
        "aten::linear": {"gemm": 1},
        "(no operator)": {"mine_kernel": 1, "a": 1, "b": 1},
        "diglot::gelu_backward[cuda]": {"gelu_backward": 1},
    }
    assert dict(trace.kernels_by_scope()["mine"].kernels) == {"gemm": 1, "mine_kernel": 1}
    assert trace.stacks() == {
        ("script.py(1): <module>", "mine", "aten::linear", "aten::addmm", "gemm"): 50,
        ("script.py(1): <module>", "mine", "mine_kernel"): 25,
        ("script.py(1): <module>", "a"): 1,
        ("script.py(1): <module>", "b"): 2,
        ("autograd::engine::evaluate_function: Back", "diglot::gelu_backward[cuda]",
         "gelu_backward"): 4,
    }  # fmt: skip


def test_stacks_begin_with_the_script():
    starting = {"pathlib.py(1): resolve", "<built-in function exec>", "runpy.py(1): run_path"}
    host = Trace([e for e in OF_GPU if e.get("cat") not in ("kernel", None)])
    stacks = host.stacks()
    assert not host.has_device and not [s for s in stacks if starting & set(s)]
    assert stacks["script.py(1): <module>",] == 900 - 10 - 200 - 5
    assert not [s for s in stacks if s[-1] == "aten::empty"]


# --- flame graphs, and Proton's trees ------------------------------------------------------------


def test_flame_graph():
    stacks = {("a<b>", "\x00&"): 75.0, ("a<b>",): 25.0, ("deep",) * 3000: 100.0, ("tiny",): 0.001}
    root = ElementTree.fromstring(render(stacks, "It's <mine>"))
    boxes = {
        group.find(f"{SVG}title").text: group.find(f"{SVG}rect").attrib
        for group in root.iter(f"{SVG}g")
    }
    assert float(boxes["a<b>: 100 µs, 50 %"]["width"]) == pytest.approx(590, abs=0.1)
    inner, outer = boxes[" &: 75 µs, 37.5 %"], boxes["a<b>: 100 µs, 50 %"]
    assert float(inner["y"]) < float(outer["y"]) and inner["x"] == outer["x"]
    assert float(inner["width"]) == pytest.approx(442.5, abs=0.1)
    assert not [title for title in boxes if "tiny" in title]
    assert root[2].text == "It's <mine>"
    with pytest.raises(ValueError, match="nothing to draw"):
        render({}, "")


def test_folded_stacks():
    assert folded({("a;b", "c d"): 12.9, ("short",): 0.9}) == "a:b;c d 12\n"


def node(name, *parts, **metrics):
    kernel = {"device_id": "0", "device_type": "CUDA", "time (ns)": metrics.pop("ns", 0)}
    return {
        "children": list(parts),
        "frame": {"name": name, "type": "function"},
        "metrics": {**(kernel if kernel["time (ns)"] else {}), **metrics},
    }


def test_protons_tree(tmp_path):
    path = tmp_path / "proton.hatchet"
    metadata = node("__proton_launch_metadata", node("cuda", ns=9, count=1))
    tree = node(
        "ROOT",
        node("copy", node("memcpy", ns=1000, count=2), bytes=4e6),
        node("scope", metadata, node("softmax", ns=3000, count=1)),
    )
    path.write_text(json.dumps([tree, {"CUDA": {"0": {"arch": "90"}}}]))
    root = Node.read(path)
    assert (root.us, root.count) == (4, 3)
    assert root.stacks() == {("copy", "memcpy"): 1, ("scope", "softmax"): 3}
    assert str(root).splitlines() == [
        "ROOT: 4 µs, 100.0 %, 3 kernels",
        "├── scope: 3 µs, 75.0 %, 1 kernels",
        "│   └── softmax: 3 µs, 75.0 %, 1 kernels",
        "└── copy: 1 µs, 25.0 %, 2 kernels, bytes 4e+06, 4000 GB/s",
        "    └── memcpy: 1 µs, 25.0 %, 2 kernels",
    ]
    path.write_text('{"traceEvents": []}')
    with pytest.raises(ValueError, match="is no tree of Proton's"):
        Node.read(path)


def test_profilers_do_not_nest(x):
    with diglot.profile(frames=False) as outer:
        with pytest.raises(RuntimeError, match="one is recording already"):
            diglot.profile_call(lambda: F.gelu(x), frames=False)
        F.gelu(x)
    assert "aten::gelu" in str(outer)


@ON_CPU  # whose process is this one
def test_a_recording_that_another_profiler_ended():
    """PyTorch's own ends it without a word, and an export would end the process."""
    with (
        pytest.raises(RuntimeError, match="another one ended this recording"),
        diglot.profile(frames=False),
        torch.profiler.profile(),
    ):
        pass


def test_frames_whose_end_was_missed():
    """They end with what they began in, and leave out what comes after."""
    endless = event("python_function", "<built-in method __enter__>", 1, 1000)
    frames = [event("python_function", "a.py(1): f", 0, 100), endless]
    scope = event("user_annotation", "mine", 50, 20)
    launch = event("cuda_runtime", "cudaLaunchKernel", 60, 1, correlation=7)
    kernel = event("kernel", "k", 70, 5, correlation=7)
    (found,) = Trace([*frames, scope, launch, kernel]).kernels
    assert "mine" in [span.name for span in found.launched_by.with_ancestors()]
    later = event("python_function", "a.py(9): g", 200, 10)
    spans = {span.name: span for span in Trace([*frames, later, kernel]).spans}
    assert spans["a.py(9): g"].parent is None


# --- on a GPU ------------------------------------------------------------------------------------


@pytest.mark.gpu
def test_kernels_on_a_gpu(tmp_path):
    x = torch.randn(1 << 20, device="cuda")
    functions = {
        "formula": lambda: manual_gelu(x),
        "torch": lambda: F.gelu(x, approximate="tanh"),
        "cuda": lambda: diglot.gelu(x, "tanh", backend="cuda"),
        "triton": lambda: diglot.gelu(x, "tanh", backend="triton"),
    }

    def all_of_them():
        for name, function in functions.items():
            with torch.profiler.record_function(name):
                function()

    done = diglot.profile_call(all_of_them)
    done.save_flame(tmp_path / "f.svg")
    scopes = done.kernels_by_scope()
    assert {name: scopes[name].per_call for name in functions} == {
        "formula": 9, "torch": 1, "cuda": 1, "triton": 1,
    }  # fmt: skip
    operators = done.kernels_by_op()
    for backend in ("cuda", "triton"):
        launched = operators[f"diglot::gelu_forward[{backend}]"]
        assert (launched.calls, launched.per_call) == (5, 1)
        (kernel,) = launched.kernels
        assert ("GeluForward" if backend == "cuda" else "gelu_forward") in kernel
    us = Counter()
    for kernel in done._torch().trace.kernels:
        us.update({span.name: kernel.us for span in kernel.launched_by.with_ancestors()})
    # A megabyte-sized kernel takes microseconds, not nothing and not milliseconds.
    assert 1 < us["torch"] / 5 < 100
    assert us["formula"] > 3 * us["torch"]
    assert "aten::gelu" in done.table()
    assert "the GPU was waited for" in done.notes[0] and len(done.notes) == 1
    stacks = done.stacks()
    assert all(any("all_of_them" in frame for frame in stack) for stack in stacks)
    assert "gelu" in (tmp_path / "f.svg").read_text()
    # PyTorch's table by either name of its columns.
    averages = done.profiler.key_averages()
    assert hasattr(averages[0], "device_time_total")
    tables = [
        averages.table(sort_by=name, row_limit=10, max_name_column_width=80).splitlines()[3:13]
        for name in ("device_time_total", "cuda_time_total")
    ]
    assert tables[0] == tables[1]


@pytest.mark.gpu
def test_which_kernel_runs_depends_on_sizes():
    a, b = (torch.randn(size, size, device="cuda") for size in (128, 2048))
    with diglot.profile() as done:
        for matrix in (a, b):
            with done.scope(str(len(matrix))):
                matrix @ matrix
    scopes = done.kernels_by_scope()
    assert scopes["128"].kernels.keys() != scopes["2048"].kernels.keys()


PROTON = """
import sys, torch, diglot
x = torch.randn(1 << 20, device="cuda")
with diglot.profile(engine="proton", warmup=1) as done:
    for _ in range(4):
        with done.scope("mine", {"bytes": 8 * x.numel()}):
            for backend in ("cuda", "triton"):
                diglot.gelu(x, backend=backend)
        done.step()
print(done)
done.save_flame(sys.argv[1])
"""


@pytest.mark.gpu
def test_proton_on_a_gpu(tmp_path):
    # In a process of its own: PyTorch's profiler does not let go of what Proton needs.
    answer = subprocess.run(
        [sys.executable, "-c", PROTON, str(tmp_path / "f.svg")], capture_output=True, text=True
    )
    assert answer.returncode == 0, answer.stderr[-3000:]
    for backend in ("cuda", "triton"):
        wanted = rf"─ diglot::gelu_forward\[{backend}\]: .*, 3 kernels"
        assert re.search(wanted, answer.stdout), answer.stdout
    assert re.search(r"─ mine: .*, 6 kernels, bytes .* GB/s", answer.stdout), answer.stdout
    assert "gelu_forward" in (tmp_path / "f.svg").read_text()


@pytest.mark.gpu
def test_nvtx_on_a_gpu():
    with diglot.profile(engine="nvtx") as done, done.scope("mine"):
        diglot.gelu(torch.ones(3, device="cuda"))
    assert "NVTX" in str(done)
