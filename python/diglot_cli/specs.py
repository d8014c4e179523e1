"""`diglot specs`."""

from __future__ import annotations

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
def specs(asked: Any) -> None:
    """Show GPUs' data sheets, and the measured ceilings of this machine's GPU.

    --measure times copies within device memory, matrix products, and copies from and to the host.
    `diglot.stream_map` and `diglot report` read these ceilings. `diglot bench` measures its own in
    the same run as the ops.
    """
    from diglot.tools import ceilings
    from diglot.tools.device import query
    from diglot.tools.gpus import find_gpu

    if not asked.measure and (asked.output is not None or asked.force):
        raise ValueError("--output and --force go with --measure")
    where = find_device(asked.device)
    if asked.measure:
        _check_measurable(where)
        check_files([], {"--output": asked.output}, asked.force)
    facts = query(where) if where.type == "cuda" else None
    measured = None
    if asked.measure:
        assert facts is not None
        path = Path(asked.output) if asked.output is not None else ceilings.default_path(facts.name)
        measured = _measure(where, facts, path)
    elif facts is not None:
        measured = ceilings.load(facts.name)
    _print_data_sheets()
    _print_machine(facts, None if facts is None else find_gpu(facts.name), measured)


def _check_measurable(where: Any) -> None:
    from diglot.tools import measure

    reason = measure.why_not()
    if reason is None and where.type != "cuda":
        reason = f"{where} is no GPU"
    if reason is not None:
        raise ValueError(f"--measure: nothing is measured here: {reason}")


def _measure(where: Any, facts: DeviceFacts, path: Path) -> Ceilings:
    from diglot.files import writing
    from diglot.tools import ceiling_runs

    messages = make_console(stderr=True)
    with show_progress(messages, f"measuring {facts.name}, which takes a minute") as tell:
        measured = ceiling_runs.measure_all(where, tell)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    measured.save(path, force=True)  # whether it may be written was checked before
    messages.print(f"wrote {path}", markup=False)
    return measured


def _print_table(title: str, rows: list[dict[str, Any]]) -> None:
    from diglot.tools.table import of_mappings

    made = of_mappings(rows)
    make_console().print(title, markup=False, style="italic")
    print_table(made.columns, made.rows)


def _print_data_sheets() -> None:
    from diglot.tools.gpus import gpus

    sources: dict[str, int] = {}
    chips: list[dict[str, Any]] = []
    rates: list[dict[str, Any]] = []
    for gpu in gpus():
        figures = {"GB/s": "bandwidth_gb_per_s", "L2, MB": "l2_mb", "SMs": "multiprocessors"}
        head = {"GPU": gpu.name, "architecture": gpu.architecture}
        head |= {"capability": gpu.compute_capability, "memory": f"{gpu.memory_gb} GB {gpu.memory}"}
        told = {
            title: f"{getattr(gpu, name):,}" + "*" * (name in gpu.undocumented)
            for title, name in figures.items()
        }
        shared = f"{gpu.shared_kb_per_multiprocessor}/{gpu.shared_kb_per_block}"
        chips.append({**head, **told, "shared, KB\nSM/block": shared})
        numbers = [str(sources.setdefault(source, len(sources) + 1)) for source in gpu.sources]
        rates.append({"GPU": gpu.name, **gpu.tflop_per_s, "sources": ", ".join(numbers)})
    _print_table("By data sheets", chips)
    _print_table("Peak TFLOP/s without sparsity", rates)
    notes = [*(f"{number:2} {source}" for source, number in sources.items()), FOOTNOTES, ""]
    make_console().print("\n".join(notes), markup=False, style="dim", soft_wrap=True)


def _print_machine(facts: DeviceFacts | None, gpu: Gpu | None, measured: Ceilings | None) -> None:
    console = make_console()
    if facts is None:
        console.print("This machine: PyTorch finds no CUDA GPU, or is told to use none.")
        return
    told = asdict(facts).items()
    rows = [{"": name.replace("_", " "), "this machine": value} for name, value in told]
    _print_table("", rows)
    if measured is None:
        console.print("Not measured yet: diglot specs --measure does it, and keeps the result.")
        return
    title = f"Measured {measured.date}, torch {measured.versions.get('torch')}"
    _print_table(title, [_row(row, gpu) for row in measured.rows])


def _row(row: Ceiling, gpu: Gpu | None) -> dict[str, Any]:
    from diglot.tools.numbers import size

    extent = "×".join(map(str, row.shape or ())) or size(row.bytes or 0, "B")
    peak = None
    if gpu is not None and row.unit == "TFLOP/s":
        peak = gpu.tflop_per_s.get(row.dtype)
    elif gpu is not None and row.what == "copy":
        peak = gpu.bandwidth_gb_per_s
    share = None if peak is None or row.rate is None else f"{100 * row.rate / peak:.0f} %"
    return {
        "what": row.what,
        "how": row.how,
        "type": row.dtype,
        "size": extent,
        "median, µs": row.time_us,
        "20th": row.p20_us,
        "80th": row.p80_us,
        "rate": row.rate,
        "unit": row.unit,
        "of sheet": share,
        "no rate because": row.reason,
    }
