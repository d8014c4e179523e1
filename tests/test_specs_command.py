"""diglot specs: the table of data sheets, the measured figures, and the file of ceilings."""

from __future__ import annotations

import dataclasses
import os

import pytest
import torch
from commands import fails, run

from diglot.backends.tunables import short_name
from diglot.bench.evidence import RESULTS
from diglot.tools import ceiling_runs, ceilings, measure, transfer
from diglot.tools import device as devices
from diglot.tools.ceilings import Ceiling, Ceilings
from diglot.tools.gpus import find_gpu, gpus

FACTS = devices.DeviceFacts(
    name="NVIDIA H200",
    compute_capability="9.0",
    memory_bytes=150_000_000_000,
    l2_bytes=62914560,
    multiprocessors=132,
    shared_bytes_per_multiprocessor=233472,
    shared_bytes_per_block=232448,
    clock_mhz=1980.0,
    max_clock_mhz=1980.0,
    max_memory_clock_mhz=None,
    power_limit_w=700.0,
    driver="580.1",
)
TIMING = measure.Timing(1000.0, 990.0, 1010.0, 10)
ROW = ceiling_runs.with_timing(
    Ceiling("copy", "Tensor.copy_", "float32", "GB/s", bytes=4_000_000_000), 4e9, TIMING
)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """No other's ceilings are read or written."""
    monkeypatch.delenv(ceilings.VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


@pytest.fixture
def gpu(here, monkeypatch):
    """A machine that seems to have a GPU, and measures it at once."""
    import diglot_cli.specs as command

    monkeypatch.setattr(command, "find_device", lambda name: torch.device("cuda"))
    monkeypatch.setattr(devices, "query", lambda device: FACTS)
    monkeypatch.setattr(measure, "why_not", lambda: None)

    def measure_all(device, tell):
        return ceiling_runs.describe(FACTS, [ROW])

    monkeypatch.setattr(ceiling_runs, "measure_all", measure_all)
    return here


@pytest.mark.parametrize(
    ("name", "memory", "bandwidth", "architecture"),
    [
        ("NVIDIA H200", 141, 4800, "Hopper"),
        ("NVIDIA H100 80GB HBM3", 80, 3350, "Hopper"),
        ("NVIDIA H100 PCIe", 80, 2000, "Hopper"),
        ("NVIDIA A100-SXM4-80GB", 80, 2039, "Ampere"),
        ("NVIDIA A100-SXM4-40GB", 40, 1555, "Ampere"),
        ("Tesla V100-SXM2-32GB", 32, 900, "Volta"),
        ("Tesla V100-SXM2-16GB", 16, 900, "Volta"),
        ("NVIDIA RTX 6000 Ada Generation", 48, 960, "Ada Lovelace"),
    ],
)
def test_data_sheets(name, memory, bandwidth, architecture):
    found = find_gpu(name)
    assert (found.memory_gb, found.bandwidth_gb_per_s) == (memory, bandwidth)
    assert found.architecture == architecture


def test_every_gpu_has_its_sources_and_sensible_figures():
    capabilities = {"7.0": "Volta", "8.0": "Ampere", "8.9": "Ada Lovelace", "9.0": "Hopper"}
    for gpu in gpus():
        assert len(gpu.sources) >= 2
        expected = capabilities.get(gpu.compute_capability, "Blackwell")
        assert gpu.architecture == expected
        rates = gpu.tflop_per_s
        assert list(rates) == ["float32", "tf32", "bfloat16", "float16", "float8"]
        # Tensor cores double with each halving of the width; bfloat16 and float16 are alike.
        if rates["tf32"] is not None:
            assert rates["bfloat16"] == rates["float16"] == pytest.approx(2 * rates["tf32"], 1e-3)
        if rates["float8"] is not None:
            assert rates["float8"] == pytest.approx(2 * rates["float16"], 1e-3)
        assert 0 < gpu.shared_kb_per_block <= gpu.shared_kb_per_multiprocessor
        # What the table can mark, and only where a source says that the driver reports it.
        assert {*gpu.undocumented} <= {"bandwidth_gb_per_s", "l2_mb", "multiprocessors"}
        assert bool(gpu.undocumented) == any("the driver reports" in line for line in gpu.sources)
    assert find_gpu("NVIDIA H200 NVL") is None  # it is another
    assert find_gpu("Radeon") is None


def test_what_the_driver_reported_of_a_gpu():
    """The figures of a data sheet are those of the GPU that results were measured on."""
    known = ceilings.read(RESULTS / "h200" / "ceilings.json")
    sheet, device = find_gpu(known.gpu), known.device
    assert sheet.compute_capability == device["compute_capability"]
    assert sheet.multiprocessors == device["multiprocessors"]
    assert sheet.l2_mb * 2**20 == device["l2_bytes"]
    assert sheet.shared_kb_per_multiprocessor << 10 == device["shared_bytes_per_multiprocessor"]
    assert sheet.shared_kb_per_block << 10 == device["shared_bytes_per_block"]
    # Device memory is given in powers of two, and the driver keeps a little of it.
    assert 0.98 < device["memory_bytes"] / (sheet.memory_gb * 2**30) <= 1


def test_names_in_files():
    assert short_name("NVIDIA H200") == "h200"
    assert short_name("NVIDIA GeForce RTX 4090") == "rtx-4090"
    assert short_name("../") == "unknown"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu(here):
    result = run("specs")
    assert result.exit_code == 0, result.output
    for text in ("H200 SXM", "4,800", "Ada Lovelace", "https://www.nvidia.com", "no CUDA GPU"):
        assert text in result.stdout
    for text in ("126.5*", " 60*", "132*", " * no data sheet", "as quoted: "):
        assert text in result.stdout
    assert result.stdout.count("*") == 5  # two figures of each of two GPUs, and the footnote
    assert all(gpu.name in result.stdout for gpu in gpus())
    assert "--measure: nothing is measured here: " in fails("specs", "--measure")
    assert not (here / "cache").exists()


def test_options_that_go_together(gpu):
    assert "--output and --force go with --measure" in fails("specs", "--force")
    (gpu / "there.json").write_text("mine")
    message = fails("specs", "--measure", "--output", gpu / "there.json")
    assert "--output: " in message and "is not overwritten without force (--force)" in message
    assert (gpu / "there.json").read_text() == "mine"
    assert "there is no folder" in fails("specs", "--measure", "--output", gpu / "no/there.json")


def test_interpreted_kernels_are_not_measured(gpu, monkeypatch):
    monkeypatch.setattr(measure, "why_not", lambda: "kernels are interpreted")
    assert "nothing is measured here: kernels are interpreted" in fails("specs", "--measure")


def test_measured_kept_and_shown(gpu):
    first = run("specs", "--measure")
    assert first.exit_code == 0, first.output
    path = gpu / "cache/diglot/ceilings-h200.json"
    assert f"wrote {path}" in first.stderr
    assert run("specs", "--measure").exit_code == 0  # a file that nobody named is replaced
    shown = run("specs").stdout
    for text in (
        "NVIDIA H200",
        "memory bytes 150,000,000,000",
        "l2 bytes 62,914,560",
        "multiprocessors 132",
        "4,000 GB/s",
        "83 %",
    ):
        assert text in " ".join(shown.split()), text
    known = ceilings.load("NVIDIA H200")
    assert known.gb_per_s() == known.gb_per_s("copy") == pytest.approx(4000)
    assert known.gb_per_s("read") is None and known.tflop_per_s("float16") is None
    assert known.device == dataclasses.asdict(FACTS)


def test_another_file(gpu, monkeypatch):
    path = gpu / "mine.json"
    assert run("specs", "--measure", "--output", path).exit_code == 0
    assert ceilings.load("NVIDIA H200") is None
    monkeypatch.setenv(ceilings.VARIABLE, str(path))
    assert ceilings.load("NVIDIA H200").rows == (ROW,)
    with pytest.raises(ValueError, match="has the ceilings of NVIDIA H200, not of NVIDIA A100"):
        ceilings.load("NVIDIA A100")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "cannot be read"),
        ("[]", "is no ceilings file"),
        ('{"schema": 1, "rows": []}', "is no ceilings file"),
        ('{"schema": "diglot.ceilings", "schema_version": 2}', "is of schema version 2, not 1"),
        ('{"schema": "diglot.ceilings", "schema_version": 1}', "is a damaged ceilings file"),
        (
            '{"schema": "diglot.ceilings", "schema_version": 1, "gpu": "g", "date": "d", '
            '"versions": {}, "device": {}, "rows": [{"what": 1, "how": "", "dtype": "", '
            '"unit": ""}]}',
            "damaged",
        ),
        (
            '{"schema": "diglot.ceilings", "schema_version": 1, "gpu": "g", "date": "d", '
            '"versions": {}, "device": {}, "rows": [{"what": "copy", "how": "", "dtype": "", '
            '"unit": "", "rate": "fast"}]}',
            "damaged",
        ),
    ],
)
def test_files_that_are_none(content, message, gpu, monkeypatch):
    path = gpu / "bad.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=message):
        ceilings.read(path)
    monkeypatch.setenv(ceilings.VARIABLE, str(path))
    assert message in fails("specs")


def test_a_file_that_cannot_be_written(gpu, monkeypatch):
    (gpu / "file").write_text("")
    monkeypatch.setenv(ceilings.VARIABLE, str(gpu / "file/ceilings.json"))
    assert "cannot be" in fails("specs", "--measure")


class Timers:
    """In place of a GPU's timers: calls each function, and says it took a millisecond."""

    def __init__(self, monkeypatch) -> None:
        monkeypatch.setattr(measure, "interleaved", self.interleaved)

    def interleaved(self, functions, *, budget_ms):
        for function in functions.values():
            function()
        return dict.fromkeys(functions, TIMING)


@pytest.fixture
def timers(monkeypatch):
    return Timers(monkeypatch)


def test_memory_is_checked_and_counted(timers):
    size = 4 << 20
    rows = list(ceiling_runs.memory("cpu", (size,)))
    assert [row.what for row in rows] == ["copy"]
    assert all(row.verified and row.bytes == size for row in rows)
    assert all(row.rate == pytest.approx(size / 1e-3 / 1e9) for row in rows)


def test_what_is_wrong_has_no_speed(timers, monkeypatch):
    """A copy that copies nothing."""
    monkeypatch.setattr(torch.Tensor, "copy_", lambda tensor, *_: tensor)
    (bad,) = ceiling_runs.memory("cpu", (4 << 20,))
    assert (bad.verified, bad.rate, bad.time_us) == (False, None, None)
    assert bad.reason == "the result was wrong"


def test_memory_that_does_not_fit_is_left_out(timers, monkeypatch):
    def runs(device, size):
        raise torch.OutOfMemoryError("no")

    monkeypatch.setattr(ceiling_runs, "_copy", runs)
    assert list(ceiling_runs.memory("cpu")) == []


def test_products_are_checked_and_counted(timers):
    rows = {row.dtype: row for row in ceiling_runs.products("cpu", 64)}
    assert list(rows) == list(ceiling_runs.PRODUCTS)
    for name in ("bfloat16", "float16", "tf32", "float32"):
        assert rows[name].verified, rows[name]
        assert rows[name].rate == pytest.approx(2 * 64**3 / 1e-3 / 1e12)
        assert rows[name].shape == (64, 64, 64)
    if not rows["float8"].verified:  # what the device lacks is a reason, and the run goes on
        assert rows["float8"].reason and rows["float8"].rate is None


def test_tf32_does_not_pass_for_float32(timers, monkeypatch):
    right = torch.mm

    def rounded(a, b):
        """The factors with TF32's ten bits."""
        a, b = ((t.view(torch.int32) & ~0x1FFF).view(torch.float32) for t in (a, b))
        return right(a, b)

    monkeypatch.setattr(torch, "mm", rounded)
    both = {name: ceiling_runs.PRODUCTS[name] for name in ("tf32", "float32")}
    monkeypatch.setattr(ceiling_runs, "PRODUCTS", both)
    rows = {row.dtype: row for row in ceiling_runs.products("cpu", 256)}
    assert rows["tf32"].verified and not rows["float32"].verified


@pytest.mark.gpu
@pytest.mark.alone
def test_on_a_gpu(here):
    """Everything is measured, right, and below what the data sheet promises."""
    path = here / "ceilings.json"
    result = run("specs", "--measure", "--output", path)
    assert result.exit_code == 0, result.output
    known = ceilings.read(path)
    found = {row.what for row in known.rows if row.rate is not None}
    assert found >= {"copy", "matrix product"}
    assert found >= {"host to device", "device to host", "both ways"}
    assert all(row.verified or "wrong" not in row.reason for row in known.rows)
    assert all(row.p20_us <= row.time_us <= row.p80_us for row in known.rows if row.rate)
    sheet = find_gpu(known.gpu)
    if sheet is not None:
        assert 0.5 < known.gb_per_s() / sheet.bandwidth_gb_per_s < 1.05
        for dtype, peak in sheet.tflop_per_s.items():
            reached = known.tflop_per_s(dtype)
            assert reached is None or reached < 1.05 * peak


@pytest.mark.gpu
def test_device_facts():
    facts = devices.query("cuda")
    assert facts.name == torch.cuda.get_device_name()
    assert facts.multiprocessors > 0 and facts.l2_bytes > 1 << 20
    assert facts.shared_bytes_per_block >= 48 << 10


@pytest.mark.gpu
def test_links_that_copy_nothing_are_found(monkeypatch):
    size = 64 << 20
    assert all(row.verified for row in ceiling_runs.links("cuda", size))
    monkeypatch.setattr(transfer.Copies, "run", lambda self, **directions: None)
    assert not any(row.verified for row in ceiling_runs.links("cuda", size))


def test_a_driver_that_cannot_be_asked(monkeypatch):
    monkeypatch.setenv("PATH", os.devnull)
    assert devices.ask_driver(["driver_version"], "GPU-0") == {}
    assert devices._number("[N/A]") is None and devices._number("700.00") == 700


def test_ceilings_of_the_fastest():
    def row(**facts):
        return Ceiling(**{"what": "copy", "how": "", "dtype": "", "unit": "GB/s", **facts})

    known = Ceilings("g", "d", {}, {}, (row(bytes=2, rate=5.0), row(bytes=9), row(bytes=3, rate=4)))
    assert known.gb_per_s() == 4  # of most bytes that were right, not the largest rate
