"""Which regime a call is in: the rule, and the instruments that say it."""

from __future__ import annotations

import math

import pytest
import torch

import diglot
from diglot.bench import summary
from diglot.reference.specs import find_spec
from diglot.tools import compare as comparing
from diglot.tools import measure
from diglot.tools.comparison import Row
from diglot.tools.measure import Timing
from diglot.tools.profile_tables import launch_table
from diglot.tools.regimes import find_regime, input_bytes, peak_gb_per_s
from diglot.tools.trace import Trace

MB = 10**6  # takes 1 µs at 1000 GB/s


@pytest.mark.parametrize(
    ("device_us", "given", "name", "share"),
    [
        (100, {"copy_us": 90}, "bandwidth", 0.8),
        (100, {"copy_us": 90, "host_us": 99}, "bandwidth", 0.8),  # it hides behind the device
        (100, {"copy_us": 90, "host_us": 400}, "overhead", (10 + 300) / 400),
        (500, {"copy_us": 90}, "compute", (500 - 90) / 500),
        (500, {"copy_us": 90, "host_us": 5000}, "overhead", 4510 / 5000),
        (80, {"copy_us": 90}, "bandwidth", 1.0),  # faster than a copy
        (60, {}, "bandwidth", 1.0),  # faster than device memory: from a cache
    ],
)
def test_the_largest_part_names_the_regime(device_us, given, name, share):
    regime = find_regime(device_us, 80 * MB, 1000, **given)
    assert (regime.name, regime.share) == (name, pytest.approx(share))
    assert str(regime) == f"{name} {100 * share:.0f} %"


def test_a_call_of_few_bytes_is_bound_by_its_start():
    assert find_regime(4, 0.1 * MB, 1000, copy_us=3).name == "overhead"
    assert find_regime(2.2, 0.1 * MB, 1000).name == "overhead"  # by what starting is known to take
    assert find_regime(50, 0.1 * MB, 1000, copy_us=3).name == "compute"


def test_peaks_are_of_data_sheets(monkeypatch, tmp_path):
    monkeypatch.setenv("DIGLOT_CEILINGS", str(tmp_path / "none.json"))
    assert peak_gb_per_s("NVIDIA H200") == 4800
    assert peak_gb_per_s("NVIDIA Toy 1") is None


def test_bytes_of_operands():
    types, shapes = ["float", "c10::BFloat16", "Scalar"], [[2, 3], [5], []]
    assert input_bytes(types, shapes) == 2 * 3 * 4 + 5 * 2
    assert math.isnan(input_bytes(["TensorList"], [[[2], [2]]]))
    assert math.isnan(input_bytes(None, None))


ROW = {
    "provider": "cuda",
    "bytes": 80 * MB,
    "time_us": 500.0,
    "copy_tb_per_s": 80 * MB / 90e6,
    "timer": "device",
}


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (ROW, "compute 82 %"),
        (ROW | {"host_us": 5000.0}, "overhead 90 %"),
        (ROW | {"host_us": 5000.0, "timer": "captured"}, "compute 82 %"),  # no host in a graph
        (ROW | {"timer": "host"}, "–"),
        (ROW | {"provider": "formula"}, "–"),
        ({name: of for name, of in ROW.items() if name != "time_us"}, "–"),
    ],
)
def test_rows_of_benchmarks(row, said):
    assert summary._bound_by(row, 1000.0) == said
    assert summary._bound_by(row, None) == "–"


def test_compare_says_it(monkeypatch):
    """Of times that were measured on a GPU; here they are given."""
    case = comparing._Case(find_spec("gelu"), (torch.randn(1000, 1000),), {}, False, 0)
    times = {"copy": 2.0, "cuda": 2.5, "triton": 40.0}
    monkeypatch.setattr(
        measure,
        "interleaved",
        lambda functions: {n: Timing(times[n], times[n], times[n], 9) for n in functions},
    )
    monkeypatch.setattr(measure, "host_beside", lambda function, us: 30.0)
    monkeypatch.setattr(comparing, "_device_name", lambda device: "NVIDIA H200")
    ran = {n: comparing._Ran(Row(n, None, False), dict) for n in ("cuda", "triton")}
    speeds = comparing._time(case, ran)
    assert speeds["copy"].regime is None
    assert (speeds["cuda"].regime.name, speeds["cuda"].host_us) == ("overhead", 30.0)
    assert speeds["triton"].regime.name == "compute"
    monkeypatch.setattr(comparing, "_device_name", lambda device: "Unknown")
    assert comparing._time(case, ran)["cuda"].regime is None


def event(category, name, begin, us, **arguments):
    return {
        "ph": "X", "cat": category, "name": name, "pid": 1, "tid": 1, "ts": begin, "dur": us,
        "args": {key.replace("_", " "): value for key, value in arguments.items()},
    }  # fmt: skip


def launched(name, begin, host_us, device_us, number, allocated=0, **arguments):
    """An operator that launches a kernel."""
    return [
        event("cpu_op", name, begin, host_us, External_id=number, **arguments),
        {"name": "[memory]", "ph": "i", "pid": 1, "tid": 1, "ts": begin + 1,
         "args": {"Bytes": allocated, "Device Type": 1}},
        event("cuda_runtime", "cudaLaunchKernel", begin + 2, 1, correlation=number),
        event("kernel", f"kernel of {name}", begin + 3, device_us, correlation=number),
    ]  # fmt: skip


def test_launchers_bytes_are_counted():
    """Of each launch that is recorded: what it reads and writes, tensors in lists too."""
    x, more = torch.randn(100), [torch.nn.Parameter(torch.randn(n)) for n in (10, 20)]
    for parameter in more:
        parameter.grad = torch.randn_like(parameter)
    with diglot.profile(warmup=1, frames=False) as done:
        for _ in range(3):
            diglot.gelu(x, backend="torch")
            diglot.clip_grad_norm_(more, 1.0, backend="torch")
            done.step()
    moved = done._torch().moved
    assert moved["diglot::gelu_forward[torch]"] == 2 * 2 * 400
    (clipped,) = [of for name, of in moved.items() if "gelu" not in name]
    assert clipped >= 2 * 120


def test_profiles_say_it():
    floats = {"Input_type": ["float"], "Input_Dims": [[10 * MB]]}
    trace = Trace(
        [
            *launched("moving", 0, 9, 90, 1, allocated=40 * MB, **floats),
            *launched("working", 100, 9, 900, 2, allocated=40 * MB, **floats),
            *launched("waiting", 200, 500, 90, 3, allocated=40 * MB, **floats),
            *launched("unknown", 800, 9, 90, 4),
            *launched("diglot::gelu_forward[cuda]", 900, 9, 90, 5),
        ]
    )
    moved = {"diglot::gelu_forward[cuda]": 80.0 * MB}
    header, *lines = launch_table(trace, 20, 1000.0, moved).splitlines()
    begin = header.index("bound by")
    said = {line.split("  ")[0]: line[begin:].split("  ")[0] for line in lines}
    assert said["moving"] == "bandwidth 89 %"
    assert said["working"] == "compute 91 %"
    assert said["waiting"] == "overhead 82 %"
    assert said["unknown"] == "–"
    assert said["diglot::gelu_forward[cuda]"] == "bandwidth 89 %"
    assert "bound by" not in launch_table(trace, 20)
