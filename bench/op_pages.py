"""The generated parts of docs/ops/: each stands between two comments that name the op and the part.

The rest of a page is written by hand. Docstrings, docs/rows.md, the planners and bench/results are
the sources.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from markupsafe import Markup

from diglot.bench import marks, standing, tables
from diglot.bench.evidence import ROOT
from diglot.bench.op_plans import plans, rows
from diglot.bench.op_reference import reference
from diglot.tools.report import cases, figures, page
from diglot.tools.report.results import read

OPS = (
    "add",
    "gelu",
    "dropout",
    "softmax",
    "log_softmax",
    "layer_norm",
    "rms_norm",
    "add_layer_norm",
    "add_rms_norm",
    "global_softmax",
    "standardize",
    "clip_grad_norm",
)
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
WIDE = ("device", "bfloat16")  # the timer and the dtype of pictures and plans
Report = dict[str, Any]


def files(op: str) -> str:
    """An op's files, each a link."""
    found = {pattern.format(op): text for pattern, text in FILES.items()}
    return "".join(f"- [{path}](../../{path}): {text}\n" for path, text in found.items())


def accuracy(report: Report) -> list[str]:
    """The largest errors of each direction and dtype, against float64."""
    found: dict[tuple[str, str], dict[str, dict[str, float]]] = defaultdict(dict)
    for row in report["rows"]:
        if row["provider"] in JUDGED and "worst_ulp" in row:
            errors = found[row["direction"], row["dtype"]].setdefault(row["provider"], {})
            for name in ("worst_ulp", "worst_share"):
                errors[name] = max(errors.get(name, 0.0), float(row[name]))
    if not found:
        return []
    lines = [
        "Largest error against float64 in the same run, in ulp. Where sums cancel, an ulp of a",
        "tiny result says little; then it is the error as a share of the largest element.",
        "",
        f"| direction | dtype | {' | '.join(JUDGED)} |",
        "|---|---|---|---|---|",
    ]
    for case, of in found.items():
        ulps = [of[name]["worst_ulp"] for name in ("cuda", "triton") if name in of]
        style = "{worst_ulp:.3g} ulp" if max(ulps) < FEW_ULP else "{worst_share:.1e}"
        cells = [style.format(**of[name]) if name in of else "–" for name in JUDGED]
        lines.append(f"| {' | '.join([*case, *cells])} |")
    return [*lines, ""]


def measured(report: Report, has_picture: bool) -> str:
    """The picture, the tables and the errors of an op's committed results."""
    op = report["op"]
    lines = []
    if marks.is_of_old_kernels(report):
        lines += [f"**The kernels of `{op}` have changed since these figures.**", ""]
    if has_picture:
        lines += [f"![Speed of {op} beside others](../images/speed_{op}.svg)", ""]
    return "\n".join([*lines, tables.of_op(report), *accuracy(report)])


def picture(path: Path) -> Markup | None:
    """Bars of an op's device times in bfloat16: of each kind of call the largest case."""
    file, *_ = read([path]).files
    timed = [row for row in file.rows if (row.timer, row.dtype) == WIDE and row.tb_per_s]
    shown = [cases.largest(of) for of in cases.groups(timed, "kind").values()]
    if not shown:
        return None
    return figures.side_by_side(shown, cases.providers_of([file]), tables.on_gpu([file]))


def _shapes(report: Report) -> list[tuple[int, ...]]:
    return [tuple(row["shape"]) for row in report["rows"] if (row["timer"], row["dtype"]) == WIDE]


def _mark(op: str, part: str) -> str:
    return f"<!-- {op} {part}:begin -->\n"


def _put(text: str, op: str, part: str, made: str) -> str:
    """A page's text with one part of an op made anew."""
    before, rest = text.split(_mark(op, part))
    end = f"<!-- {op} {part}:end -->"
    return f"{before}{_mark(op, part)}{made}{end}{rest.split(end)[1]}"


def render(with_plans: bool) -> dict[Path, str]:
    """The texts of the pages and of their pictures.

    Args:
        with_plans: whether to plan, which takes the CUDA extension; else plans stay as they are.
    """
    assert ROOT is not None, "the pages are those of a source tree"
    texts: dict[Path, str] = {}
    held = (ROOT / "docs/rows.md").read_text()
    for op in (*OPS, *standing.WORKLOADS):
        results = ROOT / f"bench/results/h200/{op}.json"
        report = json.loads(results.read_text())
        drawn = picture(results)
        if drawn is not None:
            texts[ROOT / f"docs/images/speed_{op}.svg"] = page.alone(drawn)
        parts = {
            "reference": reference(op),
            "rows": rows(op, held),
            "measured": measured(report, drawn is not None),
            "files": files(op),
        }
        path = ROOT / "docs" / tables.page_of(op)
        text = texts.get(path) or path.read_text()
        if with_plans and _mark(op, "plans") in text:
            parts["plans"] = plans(op, _shapes(report))
        for part, made in parts.items():
            text = _put(text, op, part, made) if _mark(op, part) in text else text
        texts[path] = text
    return texts
