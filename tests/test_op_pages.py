"""The generated parts of the ops' pages, and the table of how ours stand."""

from __future__ import annotations

from backends import needs_extension

from diglot.bench import marks, op_pages, op_plans, op_reference, size_tables, standing
from diglot.tools.op_sources import hashes_of

ROOT = op_pages.ROOT


@needs_extension
def test_pages_are_up_to_date():
    made = op_pages.render(with_plans=True)
    stale = [path.name for path, text in made.items() if path.read_text() != text]
    assert stale == [], "python tools/pages.py writes them anew"


def test_every_op_has_its_page_and_its_parts():
    ops = {path.stem for path in (ROOT / "csrc/ops").glob("*.cu")}
    pages = {path.stem for path in (ROOT / "docs/ops").glob("*.md")}
    named = {op_pages.page_of(op).stem for op in ops}
    assert pages == named | {"index"}
    for op in ops:
        text = (ROOT / op_pages.page_of(op)).read_text()
        parts = ["reference", "measured", "files"]
        if "Where rows are held" in text:
            parts.append("rows")
        if op not in standing.WORKLOADS:
            parts.append("plans" if f"<!-- {op.rstrip('_')} plans:begin -->" in text else "cases")
        for part in parts:
            begin, end = (f"<!-- {op.rstrip('_')} {part}:{of} -->" for of in ("begin", "end"))
            assert len(text.split(begin)[1].split(end)[0].split()) > 5, (op, part)


def test_the_reference_is_the_docstring():
    text = op_reference.reference("gelu")
    assert "- `diglot.gelu(input, approximate='none', *, backend=None)`" in text
    assert "- `diglot.nn.GELU(" in text
    assert '| `approximate` | "none" or "tanh". |' in text
    assert "- `ValueError`: `approximate` or `backend` is unknown." in text
    inherited = op_reference.reference("rms_norm")
    assert "**Raises.** As `diglot.layer_norm`." in inherited
    assert "diglot.dropout(input, p=0.5" in op_reference.reference("dropout")


@needs_extension
def test_cases_are_planned_without_memory():
    made = op_plans.cases("scaled_mm")
    assert "| blocks, fast False forward | 4096×4096×4096 | wgmma, blocks, tiles of" in made
    # The 8192×28672×8192 of one scale is launched as 4096×4096×4096 is.
    assert "8192×28672×8192" not in made
    assert "<br>moe_activation_forward: " in op_plans.cases("moe")


def test_errors_of_sums_that_cancel_are_shares():
    errors = {"worst_ulp": 1e5, "worst_share": 2e-3}
    few = {"worst_ulp": 0.5, "worst_share": 2e-3}
    made = op_pages.accuracy(
        report(
            row("cuda", 1.0, dtype="bfloat16", **errors),
            row("cuda", 1.0, options={"precision": "TF32"}, **errors),
            row("torch", 1.0, options={"precision": "TF32"}, **few),
            row("triton", 1.0, direction="backward", dtype="float64", **few),
        )
    )
    lines = [line for line in made if line.startswith("| ")]
    assert lines[1:] == [
        "| forward | bfloat16 | 2.0e-03 | – | – | 3.9e-03 |",
        "| forward | float32, TF32 | 2.0e-03 | – | 2.0e-03 | 6.0e-08 |",
        "| backward | float64 | – | 0.5 ulp | – | 0.5 ulp |",
    ]
    text = " ".join("\n".join(made).split())
    assert "worst figure in ulp, 1e+05 here" in text and "all bits are equal" in text
    plain = op_pages.accuracy(report(row("cuda", 1.0, **few)))
    assert "cancel" not in "".join(plain)


def test_rows_are_those_of_the_op():
    page = (
        "## A\n\n| op | direction | x |\n|---|---|---|\n| one, two | forward | 4 |\n"
        "| three | forward | 5 |\n\n## B\n\n| C | direction | y |\n|---|---|---|\n| two | f | 6 |\n"
    )
    assert op_plans.rows("two", page) == (
        "A:\n\n| op | direction | x |\n|---|---|---|\n| one, two | forward | 4 |\n\n"
        "B:\n\n| C | direction | y |\n|---|---|---|\n| two | f | 6 |\n"
    )


def row(provider, us, **more):
    case = {"op": "toy", "direction": "forward", "dtype": "float32", "shape": [4], "options": {}}
    return {**case, "timer": "device", "provider": provider, "time_us": us, "bars": [], **more}


def report(*rows, **more):
    facts = {"gpu": "a GPU", "versions": {}, "date": "2026-01-02", "commit": "fed", "op": "toy"}
    return {**facts, "rows": list(rows), **more}


def test_a_standing_is_the_fastest_others_time_over_ours():
    wide = {"shape": [8]}
    made = standing.markdown(
        [
            report(
                row("cuda", 10.0),
                row("torch", 40.0),
                row("liger", 20.0),
                row("formula", 1.0),
                row("torch", 1.0, timer="host"),
                row("cuda", 10.0, **wide),
                row("torch", 5.0, **wide),
                row("triton", 10.0, direction="backward"),
                row("torch", 30.0, direction="backward"),
            )
        ]
    )
    # 2 and 0.5 forward; 3 backward, of Triton alone.
    assert "| toy | 3 | 1.00 (0.50) | – | – | 3.00 (3.00) | cuda, forward, 8, float32 |" in made


def test_drawn_shapes_count_instead_of_an_ops_own():
    own = report(row("cuda", 10.0), row("torch", 40.0))
    drawn = report(
        row("cuda", 10.0, kernels="fed", timer="captured"), row("torch", 20.0, timer="captured")
    )
    made = standing.markdown([own, drawn])
    assert "| toy * | 1 | 2.00 (2.00) |" in made and "4.00" not in made
    assert standing.DRAWN in made and standing.DRAWN not in standing.markdown([own])


def test_strawmen_and_workloads_do_not_count():
    ours, other = row("cuda", 10.0), row("torch", 90.0, how=marks.STRAWMAN)
    assert list(standing.compared(report(ours, other))) == []
    workload = report(row("cuda", 1.0), row("torch", 2.0), op=standing.WORKLOADS[0])
    assert workload["op"] not in standing.markdown([workload])


def test_old_kernels_are_marked():
    """By what the report says of its kernels' code; a report that says nothing is old."""
    rows = row("cuda", 1.0, op="gelu"), row("torch", 2.0, op="gelu")
    new = report(*rows, op="gelu", code=hashes_of("gelu"))
    assert "| gelu |" in standing.markdown([new])
    for code in ({**hashes_of("gelu"), "triton": "fed"}, {}, None):
        assert "| gelu † |" in standing.markdown([{**new, "code": code}])


def test_a_sweep_has_a_line_for_each_size():
    small = {"shape": [1, 4096], "tb_per_s": 0.5}
    large = {"shape": [1 << 15, 4096], "tb_per_s": 4.0}
    made = size_tables.markdown(
        [
            report(
                row("cuda", 1.0, share_of_copy=0.75, **small),
                row("torch", 1.0, **small),
                row("cuda", 1.0, share_of_copy=1.0, **large),
                {**row("triton", 1.0), "shape": [5], "tb_per_s": 0.001},
                row("formula", 1.0, **large),
            )
        ]
    )
    assert "| elements: toy forward, float32 | cuda | torch | triton |" in made
    assert "| 2^12 | 500 (0.75) | 500 | – |" in made and "| 2^27 | 4,000 (1.00) | – | – |" in made
    assert "| 5 | – | – | 1 |" in made
