"""Measured numbers as data: what may stand in the files, who reads them, and choosing by them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from backends import DEVICE, KERNELS, needs_cuda, needs_extension

import diglot
from diglot.backends import tunables as module
from diglot.backends.choosing import use_plans
from diglot.backends.plans import Device, plan_runs
from diglot.backends.registry import cuda_module
from diglot.backends.runs import plan, run
from diglot.backends.tunable_files import NEVER, TunableError, read_default, read_gpu
from diglot.backends.tunables import generic_name, specs, tunables, use_tunables
from diglot.backends.tuning import candidate_plans

ROOT = Path(__file__).parent.parent
FILES = ROOT / "configs/tunables"
ENTRY = {"about": "A threshold.", "value": 8, "range": [0, 64], "factors": [0.5, 2, 16]}
TABLE = {"about": "A table.", "by": ["rows"], "value": {"4": 1, "more": 2}, "range": [1, 4]}


def written(folder: Path, name: str, content: object) -> Path:
    path = folder / name
    path.write_text(json.dumps(content))
    return path


def default(folder: Path, **changes: object) -> dict[str, object]:
    entry = {key: value for key, value in {**ENTRY, **changes}.items() if value is not None}
    return {"about": "For a test.", "rows": {"cuda": {"some": entry, "table": TABLE}}}


def test_what_a_file_says(tmp_path):
    found = read_default(written(tmp_path, "default.json", default(tmp_path)))
    assert {name: spec.value for name, spec in found.items()} == {
        "rows.cuda.some": 8,
        "rows.cuda.table.4": 1,
        "rows.cuda.table.more": 2,
    }
    assert found["rows.cuda.some"].alternatives == (4, 16)  # 128 is out of range
    gpu = written(tmp_path, "h100.json", {"rows": {"cuda": {"some": 9, "table": {"4": 3}}}})
    assert read_gpu(gpu, found) == {"rows.cuda.some": 9, "rows.cuda.table.4": 3}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"value": None}, "default.json: rows.cuda.some must have 'about' and 'value'"),
        ({"values": 3}, "default.json: rows.cuda.some has an unknown key 'values'"),
        ({"value": 65}, "default.json: rows.cuda.some must be from 0 to 64, not 65"),
        ({"value": 8.0}, "rows.cuda.some must be an integer or 'never', not 8.0"),
        ({"value": True}, "rows.cuda.some must be an integer or 'never', not True"),
        ({"value": {"4": 1}}, "rows.cuda.some must be an integer"),
        ({"value": "never"}, "rows.cuda.some must be from 0 to 64, not never"),
        ({"value": 6, "power_of_two": True}, "rows.cuda.some must be a power of two, not 6"),
        ({"alternatives": [99]}, "rows.cuda.some: alternative must be from 0 to 64, not 99"),
        ({"by": ["rows"]}, "rows.cuda.some must be a table"),
        ({"by": ["rows"], "value": {"few": 1}}, "has the key 'few', which is no number"),
        ({"fields": {"warps": {}}, "value": {"warp": 1}}, "rows.cuda.some must have warps"),
    ],
)
def test_what_no_default_file_may_say(tmp_path, changes, message):
    with pytest.raises(TunableError, match=message.replace("[", r"\[")):
        read_default(written(tmp_path, "default.json", default(tmp_path, **changes)))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"rows": {"cuda": {"other": 1}}}, "h100.json: rows.cuda.other is no number of default"),
        ({"rows": {"cuda": {"table": {"5": 1}}}}, "h100.json: rows.cuda.table.5 is no number"),
        ({"rows": {"cuda": {"some": "8"}}}, "h100.json: rows.cuda.some must be an integer"),
        ({"rows": {"cuda": {"some": 99}}}, "h100.json: rows.cuda.some must be from 0 to 64"),
        ({"rows": {"hip": {"some": 9}}}, "h100.json: rows.hip must be one of both, cuda, triton"),
        ({"rows": 3}, "h100.json: rows must have both, cuda, triton"),
    ],
)
def test_what_no_gpus_file_may_say(tmp_path, content, message):
    known = read_default(written(tmp_path, "default.json", default(tmp_path)))
    with pytest.raises(TunableError, match=message):
        read_gpu(written(tmp_path, "h100.json", content), known)


def test_a_gpu_does_not_change_what_results_depend_on(tmp_path):
    content = default(tmp_path, same_everywhere=True)
    known = read_default(written(tmp_path, "default.json", content))
    with pytest.raises(TunableError, match=r"rows\.cuda\.some is the same for every GPU"):
        read_gpu(written(tmp_path, "h100.json", {"rows": {"cuda": {"some": 9}}}), known)


def test_the_files_are_right_and_a_gpu_has_its_own(tmp_path, monkeypatch):
    known = specs()
    for path in FILES.glob("*.json"):
        if path.stem != "default":
            read_gpu(path, known)
    assert tunables("NVIDIA H200").gpu == tunables("h200").gpu == "h200"
    # Another GPU's numbers lie in its file; of a GPU without one the default ones are taken.
    name = "elementwise.cuda.tiny_elements"
    written(tmp_path, "default.json", json.loads((FILES / "default.json").read_text()))
    written(tmp_path, "h100.json", {"elementwise": {"cuda": {"tiny_elements": 77}}})
    monkeypatch.setattr(module, "_folder", lambda: tmp_path)
    monkeypatch.setattr(module, "_kept", {})
    assert (tunables("NVIDIA H100 80GB HBM3").gpu, tunables("NVIDIA H100").gpu) == (
        "default",
        "h100",
    )
    assert tunables("H100").read(name) == 77 and tunables("made up").read(name) == 131072
    assert tunables("made up").values == tunables().values == tunables("default").values


def test_entries_of_tables():
    default = tunables()
    sizes = (1, 224, 225, 5280, 5281, NEVER)
    groups = [default.read("norm_backward.cuda.groups", n) for n in sizes]
    assert groups == [132, 132, 66, 7, 35, 35]
    assert default.read("norm_forward.triton.shared", 2, 4)["bytes"] == 32768
    with pytest.raises(TunableError, match=r"norm_backward\.triton\.alone\.4 has no entry"):
        default.read("norm_backward.triton.alone", 4, 10_000)


@needs_cuda
def test_names_are_those_of_the_library():
    """Every number of CUDA C++ is one of a name that tunables.h has, and none lacks numbers."""
    library, reason = cuda_module()
    assert library is not None, reason
    wanted = {specs()[name].tunable for name, _ in tunables().of_language("cuda")}
    assert wanted == set(library.tunables) and len(library.tunables) == len(wanted)


def test_names_are_those_of_triton():
    """Planners read every number of Triton, and no others."""
    text = "".join(path.read_text() for path in (ROOT / "triton_ops").rglob("*.py"))
    for name in {specs()[full].tunable for full, _ in tunables().of_language("triton")}:
        assert f'"{name}"' in text, name
    known = {spec.tunable for spec in specs().values()}
    assert set(re.findall(r'"(\w+\.(?:both|triton)\.\w+)"', text)) <= known


@needs_cuda
@pytest.mark.skipif(DEVICE == "cuda", reason="it sets numbers of the device")
def test_the_library_takes_no_others():
    library, _ = cuda_module()
    pairs = tunables().of_language("cuda")
    with pytest.raises(ValueError, match=r"there is no tunable rows\.cuda\.other"):
        library.set_tunables(-1, (*pairs, ("rows.cuda.other", 1)), "")
    with pytest.raises(ValueError, match=r"rows\.cuda\.few_slots has no value"):
        library.set_tunables(-1, tuple(p for p in pairs if p[0] != "rows.cuda.few_slots"), "")
    for wrong in (("rows.cuda.few_slots",), (1, "rows.cuda.few_slots")):
        with pytest.raises((TypeError, ValueError)):
            library.set_tunables(-1, (wrong,), "")


VARIANTS = {
    "cuda": ("flat, 1 element per thread", "flat, 1 access per thread"),
    "triton": ("flat, blocks of 256", "flat, blocks of 512, 16-byte accesses"),
}


@pytest.mark.parametrize("backend", KERNELS)
def test_others_are_used_for_a_while(backend):
    """Plans that were made by others are not used: before, within and behind the context."""
    x = torch.randn(3000, device=DEVICE)
    before, within = VARIANTS[backend]
    name = f"elementwise.{backend}.tiny_elements"

    def check(variant: str) -> None:
        torch.testing.assert_close(diglot.gelu(x, backend=backend), torch.nn.functional.gelu(x))
        assert diglot.last_run().variant == variant
        made = plan(backend, "gelu", "gelu_forward", x, "none", torch.empty_like(x))
        assert made.variant == variant and name in dict(made.tunables)

    check(before)
    with use_tunables({name: 16}):
        check(within)
        with use_tunables({name: "never"}):
            check(before)
        check(within)
        with pytest.raises(RuntimeError), use_tunables({name: 5000}):
            raise RuntimeError
        check(within)
    check(before)


def test_what_cannot_be_used():
    for name, value, message in (
        ("rows.cuda.made_up", 1, "there is no tunable rows.cuda.made_up"),
        ("rows.triton.warps.1024", 3, "rows.triton.warps.1024 must be a power of two, not 3"),
        ("rows.triton.warps", 64, "rows.triton.warps.1024 must be from 1 to 32, not 64"),
        ("rows.cuda.few_slots", 1.5, "few_slots must be an integer or 'never', not 1.5"),
    ):
        before = tunables()
        with pytest.raises(ValueError, match=message), use_tunables({name: value}):
            pass
        assert tunables() is before


# Calls by the launcher's arguments, and what the last one, the output, is to be.
def softmax_call() -> tuple[str, str, tuple[object, ...], torch.Tensor]:
    x = torch.randn(6, 300, device=DEVICE)
    return "softmax", "softmax_forward", (x, 1, torch.empty_like(x)), x.softmax(1)


def norm_call() -> tuple[str, str, tuple[object, ...], torch.Tensor]:
    x, weight = torch.randn(6, 300, device=DEVICE), torch.randn(300, device=DEVICE)
    expected = torch.nn.functional.layer_norm(x, (300,), weight)
    out = torch.empty_like(x)
    return "layer_norm", "layer_norm_forward", (x, weight, None, 1e-5, None, out), expected


def norm_backward_call() -> tuple[str, str, tuple[object, ...], torch.Tensor]:
    x, weight = torch.randn(9, 44, device=DEVICE), torch.randn(44, device=DEVICE)
    leaf, grad = x.clone().requires_grad_(), torch.randn_like(x)
    (expected,) = torch.autograd.grad(
        torch.nn.functional.rms_norm(leaf, (44,), weight, 1e-5), leaf, grad
    )
    statistics = torch.rsqrt(x.square().mean(1) + 1e-5)[None]
    outs = (torch.empty_like(weight), torch.empty_like(x))
    return "rms_norm", "rms_norm_backward", (grad, None, x, statistics, weight, *outs), expected


def columns_call() -> tuple[str, str, tuple[object, ...], torch.Tensor]:
    x = torch.randn(700, 12, device=DEVICE)
    return "log_softmax", "log_softmax_forward", (x, 0, torch.empty_like(x)), x.log_softmax(0)


@pytest.mark.parametrize("call", [softmax_call, norm_call, norm_backward_call, columns_call])
@pytest.mark.parametrize("backend", KERNELS)
def test_candidates_are_distinct_and_right(backend, call):
    """Each is what the call then runs; the first is what it runs without a choice."""
    op, name, arguments, expected = call()
    candidates = candidate_plans(backend, op, name, *arguments)
    # CUDA's columns have scratch or none by numbers that no tuning may change.
    has_one = backend == "cuda" and call is columns_call
    assert len(candidates) >= 2 - has_one and candidates[0].numbers == {}
    assert len({str((c.plan.variant, c.plan.launches, c.plan.scratch)) for c in candidates}) == len(
        candidates
    )
    for candidate in candidates:
        arguments[-1].fill_(torch.nan)
        with use_plans(candidate.numbers):
            run(backend, op, name, *arguments)
        assert diglot.last_run().variant == candidate.plan.variant
        torch.testing.assert_close(arguments[-1], expected, rtol=1e-4, atol=1e-5)
        read = {(generic_name(n, specs()[n]), value) for n, value in candidate.plan.tunables}
        assert set(candidate.numbers.items()) <= read


@needs_extension
@pytest.mark.parametrize("backend", KERNELS)
def test_a_named_device_has_its_gpus_numbers(backend, tmp_path, monkeypatch):
    """In both languages; a GPU that nobody knows has the default ones."""
    name = f"elementwise.{backend}.tiny_elements"
    written(tmp_path, "default.json", json.loads((FILES / "default.json").read_text()))
    written(tmp_path, "h100.json", {"elementwise": {backend: {"tiny_elements": 16}}})
    monkeypatch.setattr(module, "_folder", lambda: tmp_path)
    monkeypatch.setattr(module, "_kept", {})
    x, found = torch.empty(3000), []
    for gpu in ("", "NVIDIA H100", "made up"):
        with plan_runs(Device(90, 132, 228 << 10, True, gpu)) as runs:
            diglot.gelu(x, backend=backend)
        found.append((runs[0].plan.variant, dict(runs[0].plan.tunables)[name]))
    before, within = VARIANTS[backend]
    assert found == [(before, 131072), (within, 16), (before, 131072)]
