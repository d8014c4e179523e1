"""`diglot specs`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from diglot_cli.common import (
    check_files,
    command,
    find_device,
    make_console,
    print_table,
    show_progress,
)

if TYPE_CHECKING:
    from diglot.tools.ceilings import Ceiling, Ceilings
    from diglot.tools.device import DeviceFacts
    from diglot.tools.gpus import Gpu

NOTHING = "–"
FOOTNOTES = """\
 * no data sheet, white paper or guide of NVIDIA was found to give it for this GPU: the driver does
as quoted: the document was not read, only what others quote of it"""


@command()
@click.option(
    "--measure", is_flag=True, help="Measure the ceilings of this machine's GPU, and save them."
)
@click.option("--device", metavar="DEVICE", help="The GPU, such as cuda:1. Default: the first.")
@click.option(
    "--output",
    metavar="FILE",
    help="File of --measure. Default: $DIGLOT_CEILINGS, or ~/.cache/diglot/ceilings-<gpu>.json.",
)
@click.option("--force", is_flag=True, help="Overwrite the file of --output.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def specs(
    *, measure: bool, device: str | None, output: str | None, force: bool, as_json: bool
) -> None:
    """Show GPUs' data sheets, and the measured ceilings of this machine's GPU.

    --measure times copies, reads and writes of device memory, matrix products, and copies from and
    to the host. `diglot stream` and `diglot report` read these ceilings. `diglot bench` measures
    its own in the same run as the ops.
    """
    from diglot.tools import ceilings
    from diglot.tools.device import query
    from diglot.tools.gpus import find_gpu, gpus

    if not measure and (output is not None or force):
        raise ValueError("--output and --force go with --measure")
    where = find_device(device)
    if measure:
        _check_measurable(where)
        check_files([], {"--output": output}, force)
    facts = query(where) if where.type == "cuda" else None
    measured = None
    if measure:
        assert facts is not None
        path = Path(output) if output is not None else ceilings.default_path(facts.name)
        measured = _measure(where, facts, path, named=output is not None)
    elif facts is not None:
        measured = ceilings.load(facts.name)
    if as_json:
        record = {
            "data_sheets": [asdict(gpu) for gpu in gpus()],
            "device": None if facts is None else asdict(facts),
            "ceilings": None if measured is None else measured.as_dict(),
        }
        click.echo(json.dumps(record, indent=1, ensure_ascii=False))
        return
    _print_data_sheets()
    _print_machine(facts, None if facts is None else find_gpu(facts.name), measured)


def _check_measurable(where: Any) -> None:
    from diglot.tools import measure

    reason = measure.why_not()
    if reason is None and where.type != "cuda":
        reason = f"{where} is no GPU"
    if reason is not None:
        raise ValueError(f"--measure: nothing is measured here: {reason}")


def _measure(where: Any, facts: DeviceFacts, path: Path, named: bool) -> Ceilings:
    """Measures and saves; interrupted, it saves what there is, but over no whole file of before."""
    from diglot.tools import ceiling_runs

    messages = make_console(stderr=True)
    rows: list[Ceiling] = []
    try:
        with show_progress(messages, f"measuring {facts.name}, which takes a minute") as tell:
            measured = ceiling_runs.measure_all(where, tell, rows.append)
    except KeyboardInterrupt:
        if rows and (named or not path.exists()):
            _save(ceiling_runs.describe(facts, rows), path)
            messages.print(f"interrupted; wrote the {len(rows)} ceilings measured to {path}")
        raise
    _save(measured, path)
    messages.print(f"wrote {path}", markup=False)
    return measured


def _save(measured: Ceilings, path: Path) -> None:
    from diglot.files import writing

    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    measured.save(path, force=True)  # whether it may be written was checked before


def _print_table(title: str, titles: list[str], rows: list[list[str]]) -> None:
    from diglot.tools.table import Column

    make_console().print(title, markup=False, style="italic")
    columns = [Column(name, bool(n) and _is_number(rows, n)) for n, name in enumerate(titles)]
    print_table(columns, rows)


def _is_number(rows: list[list[str]], column: int) -> bool:
    return all(row[column] == NOTHING or row[column][0].isdigit() for row in rows)


def _text(value: float | None, digits: int = 4) -> str:
    return NOTHING if value is None else f"{value:,.{digits}g}" if value < 1000 else f"{value:,.0f}"


def _print_data_sheets() -> None:
    from diglot.tools.gpus import gpus

    console = make_console()
    sources: dict[str, int] = {}
    chips, rates = [], []
    for gpu in gpus():
        shared = f"{gpu.shared_kb_per_multiprocessor}/{gpu.shared_kb_per_block}"
        figures = (
            _text(getattr(gpu, name)) + "*" * (name in gpu.undocumented)
            for name in ("bandwidth_gb_per_s", "l2_mb", "multiprocessors")
        )
        memory = f"{_text(gpu.memory_gb)} {gpu.memory}"
        head = [gpu.name, gpu.architecture, gpu.compute_capability, memory]
        chips.append([*head, *figures, shared])
        numbers = [str(sources.setdefault(source, len(sources) + 1)) for source in gpu.sources]
        rates.append([gpu.name, *map(_text, gpu.tflop_per_s.values()), ", ".join(numbers)])
    columns = ["GPU", "architecture", "capability", "memory, GB", "GB/s", "L2, MB", "SMs"]
    columns += ["shared, KB\nSM/block"]
    _print_table("By data sheets", columns, chips)
    columns = ["GPU", *gpus()[0].tflop_per_s, "sources"]
    _print_table("Peak TFLOP/s without sparsity", columns, rates)
    for source, number in sources.items():
        console.print(f"{number:2} {source}", markup=False, style="dim", soft_wrap=True)
    console.print(FOOTNOTES, markup=False, style="dim", soft_wrap=True)
    console.print()


def _print_machine(facts: DeviceFacts | None, gpu: Gpu | None, measured: Ceilings | None) -> None:
    console = make_console()
    if facts is None:
        console.print("This machine: PyTorch finds no CUDA GPU, or is told to use none.")
        return
    kb = (facts.shared_bytes_per_multiprocessor, facts.shared_bytes_per_block)
    shared = "/".join(_text(None if of is None else of / 1024) for of in kb)
    console.print(
        f"This machine: {facts.name}, compute capability {facts.compute_capability}, "
        f"{facts.memory_bytes / 2**30:.1f} GB, L2 {facts.l2_bytes / 2**20:.1f} MB, "
        f"{facts.multiprocessors} SMs, shared memory {shared} KB per SM/block, "
        f"{_text(facts.clock_mhz)} MHz of at most {_text(facts.max_clock_mhz)}, memory "
        f"{_text(facts.max_memory_clock_mhz)} MHz, at most {_text(facts.power_limit_w)} W, "
        f"driver {facts.driver or 'unknown'}",
        markup=False,
        soft_wrap=True,
    )
    if measured is None:
        console.print("Not measured yet: diglot specs --measure does it, and keeps the result.")
        return
    rows = [_row(row, gpu) for row in measured.rows]
    title = f"Measured {measured.date}, torch {measured.versions.get('torch')}"
    columns = ["what", "how", "type", "size", "median, µs", "20th", "80th", "rate", "", "of sheet"]
    _print_table(title, columns, rows)


def _row(row: Ceiling, gpu: Gpu | None) -> list[str]:
    if row.shape:
        size = "×".join(map(str, row.shape))
    else:
        size = NOTHING if row.bytes is None else f"{row.bytes / 2**20:,.0f} MiB"
    head = [row.what, row.how, row.dtype, size]
    if row.rate is None:
        return [*head, *[NOTHING] * 3, NOTHING, row.reason or "not verified", NOTHING]
    times = [_text(time) for time in (row.time_us, row.p20_us, row.p80_us)]
    peak = None
    if gpu is not None and row.unit == "TFLOP/s":
        peak = gpu.tflop_per_s.get(row.dtype)
    elif gpu is not None and row.what in ("copy", "read", "write"):
        peak = gpu.bandwidth_gb_per_s
    share = NOTHING if peak is None else f"{100 * row.rate / peak:.0f} %"
    return [*head, *times, _text(row.rate), row.unit, share]
