"""`diglot inspect`."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Sequence
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.syntax import Syntax
from rich.table import Table

from diglot_cli.common import (
    NO_BREAK,
    command,
    given,
    make_console,
    op_options,
    print_indented,
    print_table,
    print_verdict,
    show_progress,
)

# How a comment begins in what has no other, and what to colour a text as on a terminal.
COMMENT = {"llir": ";"}
LEXER = {"cuda": "cuda", "triton": "python"}
LIMITED_BY = "limited by"
RESOURCES = (
    *("", "threads", "registers", "spills/stack\nbytes", "shared bytes\nstatic+dynamic"),
    *("cluster\nblocks", "blocks\nper SM", "occupancy", LIMITED_BY, "load/store\nbytes"),
)


@command()
@click.argument("op")
@click.option("--backend", metavar="NAME", help="cuda or triton. Default: both.")
@click.option("--arch", default="sm_90", show_default=True, help="The GPU's architecture.")
@click.option(
    "--stage",
    metavar="STAGE",
    help="ttir, ttgir, llir (triton), ptx, cubin, sass, or resources, the default.",
)
@click.option("--kernel", metavar="NAME", help="Only this kernel; * and ? are wildcards.")
@click.option("--dtype", metavar="DTYPE", help="Dtype of the call, such as bf16. Default: float32.")
@click.option(
    "--shape", metavar="SIZES", help="Shape of the call's first input. Default: 4096x4096."
)
@op_options
@click.option("--side-by-side", is_flag=True, help="Both languages: files and --stage, or SASS.")
@click.option("--save", metavar="DIR", help="Write every stage, or --stage, of every kernel.")
@click.option("--force", is_flag=True, help="Write into a folder that has files.")
def inspect(asked: Any) -> None:
    """Look into the kernels of OP, such as gelu, in both languages, without a GPU.

    diglot compiles Triton's kernels ahead of time, and reads CUDA's from the built extension. The
    kernels that OP launches depend on the dtype and the shape of its input.
    """
    from diglot.files import check_folder
    from diglot.names import unknown_name
    from diglot.tools import inputs
    from diglot.tools import inspect as inspecting
    from diglot.tools.resources import LANGUAGES

    if asked.backend is not None and asked.backend not in LANGUAGES:
        raise unknown_name("--backend", asked.backend, LANGUAGES)
    languages: tuple[str, ...] = LANGUAGES if asked.backend is None else (asked.backend,)
    if asked.side_by_side and asked.backend is not None:
        raise ValueError("--side-by-side shows both languages: it takes no --backend")
    if asked.stage is not None:
        languages = inspecting.check_stage(asked.stage, languages)
    if asked.side_by_side and (len(languages) < 2 or asked.stage == inspecting.BINARY):
        raise ValueError(
            f"--side-by-side shows what both languages have as text, not {asked.stage}"
        )
    if asked.stage == inspecting.BINARY and asked.save is None:
        raise ValueError("a cubin is binary: write it into a folder by --save DIR")
    if asked.save is not None:
        check_folder(asked.save, asked.force, makes_parents=False)
    if asked.stage not in (None, inspecting.RESOURCES):
        stages: tuple[str, ...] = (asked.stage,)
    elif asked.save is not None:
        every = itertools.chain(*(inspecting.STAGES[of] for of in languages))
        stages = tuple(dict.fromkeys(every))
    else:
        stages = ("sass",) if asked.side_by_side else ()
    messages = make_console(stderr=True)
    with show_progress(messages, "") as tell:
        tell("compiling and reading kernels")
        found = inspecting.inspect(
            asked.op,
            languages=languages,
            architecture=asked.arch,
            stages=stages,
            kernel=asked.kernel,
            shape=inspecting.DEFAULT_SHAPE
            if asked.shape is None
            else inputs.parse_shape(asked.shape),
            dtype=inputs.parse_dtype(asked.dtype or "float32"),
            **given(asked),
        )
    if asked.save is not None:
        for path in inspecting.save(found, asked.save, asked.force):
            click.echo(str(path))
    elif asked.side_by_side:
        _print_side_by_side(make_console(), found, stages[0])
    elif stages:
        for each in found.kernels:
            click.echo(f"{COMMENT.get(stages[0], '//')} {_title(each)}: {stages[0]}")
            click.echo(each.stages[stages[0]])
    else:
        _print_resources(make_console(), found)
    for what, why in found.reasons.items():
        print_indented(messages, f"{what}: {why}")


def _title(kernel: Any) -> str:
    passes = ", ".join(kernel.directions)
    return f"{kernel.language} {kernel.name}, {passes}, {kernel.resources.architecture}"


def _verdict(found: Any) -> tuple[str, bool]:
    """How many kernels of each language there are, and whether they spill registers."""
    counts = collections.Counter(kernel.language for kernel in found.kernels)
    said = " and ".join(f"{count} of {language}" for language, count in counts.items())
    of_all = f"{found.op}: kernels for {found.architecture}, {said}"
    spilling = [str(n) for n, k in enumerate(found.kernels, 1) if k.resources.spill_bytes]
    if spilling:
        return f"{of_all}; registers are spilled by {', '.join(spilling)}", True
    return f"{of_all}; no register is spilled", False


def _print_resources(console: Console, found: Any) -> None:
    from diglot.tools.table import Column

    print_verdict(*_verdict(found))
    rows = []
    for number, kernel in enumerate(found.kernels, 1):
        of = kernel.resources
        # Names of CUDA's kernels are too long for a cell, and so is what they do.
        print_indented(console, f"{number}  {_title(kernel)}", style="bold")
        counts = ", ".join(f"{count}{NO_BREAK}{name}" for name, count in of.instructions)
        print_indented(console, f"   {counts or 'no instruction that is counted'}")
        if of.products:
            print_indented(console, f"   {of.form}")
        cells = (
            *(number, of.threads, of.registers, f"{of.spill_bytes}/{of.stack_bytes}"),
            f"{of.shared_bytes - of.dynamic_shared_bytes}+{of.dynamic_shared_bytes}",
            *(of.cluster_blocks, kernel.occupancy.blocks, f"{100 * kernel.occupancy.share:.0f} %"),
            ", ".join(kernel.occupancy.limited_by),
            f"{of.load_bytes or '–'}/{of.store_bytes or '–'}",
        )
        rows.append([*map(str, cells)])
    print_table([Column(title, title != LIMITED_BY) for title in RESOURCES], rows)
    for language, plans in found.plans.items():
        for plan in plans:
            print_indented(console, _plan_line(language, plan))
            decided = ", ".join(
                f"{name}{NO_BREAK}{_number(value)}" for name, value in plan.tunables
            )
            if decided:
                print_indented(console, f"   by tunables: {decided}")


def _number(tunable: int) -> str:
    from diglot.backends.tunable_files import NEVER

    return "never" if tunable == NEVER else str(tunable)


def _plan_line(language: str, plan: Any) -> str:
    line = f"plan of {language} {plan.launcher}: {plan.variant}"
    if plan.scratch is None:
        return line
    count, zeroed, lifetime = plan.scratch
    return f"{line}; scratch: {count} bytes, {zeroed} of them zeroed, for a {lifetime}"


def _pairs(found: Any) -> list[tuple[Any | None, Any | None]]:
    """The kernels of the two languages that do the same: the first of a pass, the second, ..."""
    pairs = []
    for direction in ("forward", "backward"):
        sides = [[k for k in found.of(of) if k.directions[0] == direction] for of in LEXER]
        pairs += list(itertools.zip_longest(*sides))
    return pairs


def _print_side_by_side(console: Console, found: Any, stage: str) -> None:
    from diglot.tools.op_sources import source_of

    heads, bodies = zip(*(source_of(language, found.op) for language in LEXER), strict=True)
    _print_beside(console, heads, bodies, [*LEXER.values()])
    for pair in _pairs(found):
        kernels = [kernel for kernel in pair if kernel is not None]
        titles = [f"{_title(kernel)}: {stage}" for kernel in kernels]
        code = [kernel.stages.get(stage, "") for kernel in kernels]
        _print_beside(console, titles, code, ["text"] * len(kernels))


def _print_beside(
    console: Console, heads: Sequence[str], bodies: Sequence[str], lexers: Sequence[str]
) -> None:
    if console.is_terminal:
        _print_columns(console, heads, bodies, lexers)
        return
    for head, body in zip(heads, bodies, strict=True):
        click.echo(f"// {head}\n{body}")


def _print_columns(
    console: Console, heads: Sequence[str], bodies: Sequence[str], lexers: Sequence[str]
) -> None:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False, expand=True)
    for head in heads:
        table.add_column(escape(head), ratio=1, overflow="fold")
    table.add_row(
        *(
            Syntax(body, lexer, word_wrap=True, background_color="default")
            for body, lexer in zip(bodies, lexers, strict=True)
        )
    )
    console.print(table)
