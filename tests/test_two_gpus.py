"""Pages with the results of a second GPU, which are made up here: nothing of them is committed."""

from __future__ import annotations

import json
import re

import pytest

from diglot.bench import op_pages, result_files, tables
from diglot.bench.evidence import ROOT, gpu_short_name

H200, H100 = "NVIDIA H200", "NVIDIA H100 80GB HBM3"
FOLDERS = ("results", "results/ranking", "distributions/models", "distributions/sizes")


def slower(row):
    """A row of ours that takes ten times as long, and misses its bars."""
    if row["provider"] not in ("cuda", "triton"):
        return row
    times = {name: 10 * row[name] for name in ("time_us", "p20_us", "p80_us") if name in row}
    return row | times | {"bars": [bar | {"met": False} for bar in row["bars"]]}


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """The pages of the H200's results of add alone, and with an H100's beside them, by name."""
    found, root = [], tmp_path_factory.mktemp("tree")
    for gpu in (H200, H100):
        for folder in FOLDERS:
            top, _, below = folder.partition("/")
            content = json.loads((ROOT / "bench" / top / "h200" / below / "add.json").read_text())
            content["gpu"] = gpu
            if gpu == H100:
                content["rows"] = [*map(slower, content["rows"])]
            path = root / "bench" / top / gpu_short_name(gpu) / below / "add.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(content))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(result_files, "ROOT", root)
            texts = tables.render() | op_pages.render(with_plans=False)
        found.append({path.name: text for path, text in texts.items()})
    return found


@pytest.mark.parametrize("page", ["speed.md", "ranking.md"])
def test_a_second_gpu_has_tables_of_its_own(pages, page):
    """Below those of the first, which stay as they were."""
    alone, both = (of[page] for of in pages)
    remaining = iter(both.splitlines())
    assert all(line in remaining for line in alone.splitlines())
    assert H100 not in alone and both.count(H100) == alone.count(H200) > 0
    assert both.index(H200) < both.index(H100)


def test_its_misses_are_marked(pages):
    text = pages[1]["speed.md"]
    assert len(re.findall(r"\| add \| (\d+) \| \1 ✗ \| (\d+) \| \2 ✗ \|", text)) == 1
    _, of_first, of_second = text.partition("## Shapes of")[2].split("\n### NVIDIA")[:3]
    line = re.compile(r"\| add \| forward \| cuda \| 0\.\d+ \(≥ 0\.99\) ✗ \|")
    assert line.search(of_second) and not line.search(of_first)


def test_the_ops_page_has_a_line_for_each_gpu(pages):
    alone, both = (of["add.md"] for of in pages)
    assert f"{H100}, driver" in both and H100 not in alone
    assert both.count("| op | cases |") == 2 == 2 * alone.count("| op | cases |")
    assert "bench/results/h200 add` and `diglot bench --load bench/results/h100-80gb-hbm3" in both


def test_readme_has_the_first_gpus_figures_alone(pages):
    alone, both = (of["README.md"] for of in pages)
    more = f" [Speed](docs/speed.md) also has the figures of an {H100}."
    assert both.replace(more, "") == alone != both


def test_pictures_are_those_of_the_first_gpu(pages):
    alone, both = ({name: of[name] for name in of if name.endswith(".svg")} for of in pages)
    assert "speed_add.svg" in alone and alone == both
