"""The generated parts of docs/ops/: each stands between two comments that name the op and the part.

The rest of a page is written by hand. Docstrings, docs/rows.md, the planners and bench/results are
the sources.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import torch

from diglot.bench import marks, pictures, standing, tile_order
from diglot.bench.evidence import PICTURED, ROOT, gpu_short_name
from diglot.bench.markdown import put, table
from diglot.bench.op_plans import cases, plans, rows
from diglot.bench.op_reference import reference
from diglot.bench.result_files import committed
from diglot.tools import inline_svg

FILES = {
    "csrc/ops/{}.cu": "kernels in CUDA C++",
    "triton_ops/{}.py": "kernels in Triton",
    "python/diglot/ops/{}.py": "the function: checks, derivatives, registration",
    "python/diglot/reference/{}.py": 'the backend "torch", and the float64 oracle',
    "tests/test_{}.py": "tests",
    "bench/{}.py": "benchmark",
}
JUDGED = ("cuda", "triton", "torch")
FEW_ULP = 20
# Options that set how sums are rounded, in words, and what benchmarks take where none is named.
SUMS = {("precision", "TF32"): "TF32", ("fast", True): "fast sums", ("fast", False): "exact sums"}
DEFAULTS = {"scaled_mm": {"fast": True}}
CANCELLED = """
Errors without a unit are shares of the result's largest element, not ulp. Where the terms of a sum
cancel, its result is near zero and has a tiny ulp, while each term was rounded by its own. So the
worst figure in ulp, {:.2g} here, says how well a sum cancelled, and not how good a kernel is."""
OF_FLOAT64 = """
The oracle of float64 is PyTorch's result in float64. An error of 0 says that all bits are equal."""
Report = dict[str, Any]


def files(op: str) -> str:
    """An op's files, each a link."""
    found = {pattern.format(op): text for pattern, text in FILES.items()}
    return "".join(f"- [{path}](../../{path}): {text}\n" for path, text in found.items())


def accuracy(report: Report) -> list[str]:
    """The largest errors of each direction and dtype, against float64."""
    found: dict[tuple[str, str], dict[str, dict[str, float]]] = defaultdict(dict)
    for row in report["rows"]:
        if row["provider"] in JUDGED and "worst_share" in row and "float" in row["dtype"]:
            errors = found[_case(row)].setdefault(row["provider"], {})
            for name in ("worst_ulp", "worst_share"):
                errors[name] = max(errors.get(name, 0.0), float(row[name]))
    if not found:
        return []
    body, cancelled = [], 0.0
    for (what, dtype), of in found.items():
        worst = max(of[name]["worst_ulp"] for name in ("cuda", "triton") if name in of)
        is_share = worst >= FEW_ULP
        cancelled = max(cancelled, worst * is_share)
        style = "{worst_share:.1e}" if is_share else "{worst_ulp:.3g} ulp"
        cells = [style.format(**of[name]) if name in of else "–" for name in JUDGED]
        eps = torch.finfo(getattr(torch, dtype.partition(",")[0])).eps
        body.append([what, dtype, *cells, f"{eps / 2:.1e}" if is_share else "0.5 ulp"])
    return [
        "Largest error against float64 in the same run. The last column is what rounding the exact",
        "result to its dtype can cost alone.",
        *([CANCELLED.format(cancelled)] if cancelled else []),
        *([OF_FLOAT64] if any(dtype == "float64" for _, dtype in found) else []),
        "",
        *table(["direction", "dtype", *JUDGED, "rounding once"], body),
    ]


def _case(row: Report) -> tuple[str, str]:
    """Direction and dtype, with the options that set how sums are rounded."""
    options = DEFAULTS.get(row["op"], {}) | row["options"]
    words = [word for (name, value), word in SUMS.items() if options.get(name) == value]
    return row["direction"], ", ".join([row["dtype"], *words])


def measured(reports: list[Report], image: str | None) -> str:
    """The picture, how the op stands beside others on each GPU, and its errors on the first."""
    if not reports:
        return "No result of this op is committed yet.\n"
    op = reports[0]["op"]
    lines = []
    if any(map(marks.is_of_old_kernels, reports)):
        lines += [f"**The kernels of `{op}` have changed since these figures.**", ""]
    if image is not None:
        lines += [f"![Speed of {op} beside others](../images/{image})", ""]
    lines += [standing.of_op(reports), *accuracy(reports[0])]
    folders = [f"bench/results/{gpu_short_name(report['gpu'])}" for report in reports]
    commands = " and ".join(f"`diglot bench --load {folder} {op}`" for folder in folders)
    return "\n".join([*lines, f"Every figure: {commands}.", ""])


def _shapes(report: Report) -> list[tuple[int, ...]]:
    measured_in = (pictures.TIMER, pictures.DTYPE)
    return [
        tuple(row["shape"]) for row in report["rows"] if (row["timer"], row["dtype"]) == measured_in
    ]


def page_of(op: str) -> Path:
    """Where an op's page lies in the repository."""
    return Path("docs/ops", f"{'workloads' if op in standing.WORKLOADS else op.rstrip('_')}.md")


def render(with_plans: bool) -> dict[Path, str]:
    """The texts of the pages and of the pictures.

    Args:
        with_plans: whether to plan, which takes the CUDA extension; else plans stay as they are.
    """
    assert ROOT is not None, "the pages are those of a source tree"
    images = ROOT / "docs/images"
    texts = {
        images / "speed.svg": pictures.of_readme(PICTURED),
        images / "tile_order.svg": inline_svg.standalone(tile_order.picture()),
    }
    held = (ROOT / "docs/rows.md").read_text()
    for op in sorted(path.stem for path in ROOT.glob("csrc/ops/*.cu")):
        reports = committed(f"results/*/{op}.json")
        drawn = pictures.of_op(reports[0]) if reports else None
        image = f"speed_{op.rstrip('_')}.svg" if drawn is not None else None
        if drawn is not None:
            texts[images / f"{image}"] = drawn
        parts = {
            "reference": reference(op),
            "rows": rows(op, held),
            "measured": measured(reports, image),
            "files": files(op),
        }
        path = ROOT / page_of(op)
        text = texts.get(path) or path.read_text()
        title = op.rstrip("_")
        if with_plans and reports and f"<!-- {title} plans:begin -->" in text:
            parts["plans"] = plans(op, _shapes(reports[0]))
        if with_plans and f"<!-- {title} cases:begin -->" in text:
            parts["cases"] = cases(op)
        for part, made in parts.items():
            name = f"{title} {part}"
            text = put(text, name, made) if f"<!-- {name}:begin -->" in text else text
        texts[path] = text
    return texts
