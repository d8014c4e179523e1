"""diglot report: what it makes of result files, of damaged ones, and of strings with markup."""

from __future__ import annotations

import copy
import json
import math
import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from commands import fails, run

pytest.importorskip("jinja2")
pytest.importorskip("matplotlib")

from diglot.bench.reports import largest
from diglot.bench.result_files import read_reports
from diglot.reference.specs import all_op_names
from diglot.tools import drawing, inline_svg
from diglot.tools.ceilings import Ceiling, Ceilings
from diglot.tools.drawing import Case, Picture, Point
from diglot.tools.numbers import number, size
from diglot.tools.report import operations as counted
from diglot.tools.report import read, render
from diglot.tools.report.views import page_of

RESULTS = Path(__file__).parents[1] / "bench/results/h200"
EVIL = "<script>alert(1)</script>\"' onload=x <img src=x onerror=alert(2)>"


def row(provider="cuda", **facts):
    return {
        "op": "gelu",
        "provider": provider,
        "direction": "forward",
        "dtype": "float32",
        "shape": [1024, 1024],
        "options": {"approximate": "tanh"},
        "timer": "device",
        "bytes": 8 << 20,
        "verified": True,
        "time_us": 10.0,
        "p20_us": 9.0,
        "p80_us": 11.0,
        "tb_per_s": 0.84,
        "copy_tb_per_s": 1.0,
        "share_of_copy": 0.84,
        "worst_ulp": 0.5,
        "bars": [],
        **facts,
    }


def band(time):
    """A time with 2 % of it to each side, in which others may lie."""
    return {"time_us": time, "p20_us": 0.98 * time, "p80_us": 1.02 * time}


def benchmark(*rows, **facts):
    head = {"schema": 1, "op": "gelu", "gpu": "NVIDIA H200", "date": "2026-01-02"}
    versions = {"torch": "2.11.0", "driver": None}
    return {
        **head,
        "commit": "abc",
        "sources": "0123",
        "versions": versions,
        "rows": list(rows),
    } | (facts)


TESTS = {
    "gpu": "NVIDIA H200",
    "passed": 7,
    "failed": 1,
    "skipped": 2,
    "failures": ["tests/test_x.py::test_y"],
    "skip_reasons": {"no reason": 2},
    "versions": {"torch": "2.11.0"},
    "commit": "def",
    "sources": "4567",
}


@pytest.fixture
def write(tmp_path):
    def write(content, name="gelu.json"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    return write


class Page(HTMLParser):
    """What of a page could load or run something, its tables, and whether its tags are balanced."""

    VOID = ("meta", "br", "input", "link", "img", "hr")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.titles: list[str] = []
        self.texts: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.seen.append((tag, dict(attributes)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.seen.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1:] not in (["style"], ["script"]):
            self.words.append(data)
        if "svg" in self.open:
            (self.titles if self.open[-1] == "title" else self.texts).append(data)

    def all(self, tag):
        return [attributes for name, attributes in self.seen if name == tag]

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())


def page_text(*paths, sources=""):
    return Page(render(read(paths), sources))


@pytest.fixture(scope="module")
def committed(committed_page):
    return committed_page.read_text(encoding="utf-8")


def test_the_committed_results(committed):
    page = Page(committed)
    for file in sorted(RESULTS.glob("*.json")):
        content = json.loads(file.read_text())
        assert str(file) in page.text
        if content.get("op") in all_op_names():
            assert f"All measurements of {content['op']}." in page.text
    tests = json.loads((RESULTS / "tests.json").read_text())
    assert f"{tests['passed']} passed, {tests['failed']} failed" in page.text
    assert len(committed.encode()) <= 2_500_000
    # Every figure has a picture with a label, and a caption.
    pictures = [of for of in page.all("svg") if of.get("role") == "img"]
    assert len(pictures) == len(page.all("figure")) == len(page.all("figcaption")) > 50
    assert all(of["aria-label"] for of in pictures)
    assert all(of.get("scope") == "col" for of in page.all("th"))
    assert len(page.all("caption")) == len(page.all("table"))


def test_the_page_loads_nothing(committed):
    page = Page(committed)
    assert not any(page.all(name) for name in ("link", "img", "iframe", "object", "embed", "base"))
    for name, attributes in page.seen:
        assert not any(key.startswith("on") for key in attributes), attributes
        assert "src" not in attributes
        if name == "a":
            assert attributes["href"].startswith("#")
    (script,) = page.all("script")
    assert script == {}
    (policy,) = (of for of in page.all("meta") if of.get("http-equiv"))
    assert "default-src 'none'" in policy["content"] and "http" not in policy["content"]
    style = committed[committed.index("<style>") : committed.index("</style>")]
    assert "url(" not in style and "@import" not in style


def test_links_and_labels_lead_somewhere(committed):
    page = Page(committed)
    ids = [of["id"] for _, of in page.seen if "id" in of]
    assert len(ids) == len(set(ids))
    targets = {of["href"][1:] for of in page.all("a")}
    targets |= {of["aria-labelledby"] for _, of in page.seen if "aria-labelledby" in of}
    assert targets <= set(ids)


def test_every_op_is_on_a_roofline(committed):
    """Of those that the benchmarks time on the device with a cold cache: marks, and a table."""
    rows = [row for file in read([RESULTS]).files if file.kind == "ops" for row in file.rows]
    ops = {row["op"] for row in rows if row["timer"] in ("device", "captured")}
    begin = committed.index('<section id="m0-0"')
    part = Page(committed[begin : committed.index("</section>", begin) + len("</section>")])
    assert {op for op in ops if f"{op} " not in " ".join(part.titles)} == set()
    assert {op for op in ops if f" {op} " not in part.text} == set()
    # A mark is told by its title: no case is written into the picture.
    assert not any(op in text for op in ops for text in part.texts)


def test_figures_are_the_files(write):
    """Numbers of the page are those of the file; what misses its bar, or is wrong, is marked."""
    missed = {"name": "share", "value": 0.84, "bound": 0.97, "met": False}
    wrong = row("triton", verified=False)
    for key in ("time_us", "p20_us", "p80_us", "tb_per_s", "share_of_copy", "copy_tb_per_s"):
        del wrong[key]
    path = write(benchmark(row(bars=[missed]), wrong, row("torch", **band(5.0), tb_per_s=1.68)))
    page = page_text(path)
    assert "✗ share 0.84 (bar 0.97)" in page.text
    assert "2. 10 (9–11)" in page.text and "1. 5 (4.9–5.1)" in page.text
    assert "wrong result" in page.text
    assert "long bad" in [of.get("class") for of in page.all("td")] or "bad" in [
        of.get("class") for of in page.all("td")
    ]
    assert "1 of 2 results of ours are wrong or failed, 0 of 1 bars are met." in page.text
    assert page.texts.count(drawing.MISSED) == 2  # rings, in the roofline and in the op's picture


def test_places_within_noise_are_shared(write):
    """As in the ranking of `diglot bench`: within 2 %, or with bands that overlap."""
    times = {"cuda": 10.0, "triton": 10.15, "torch": 12.0, "formula": 12.4, "liger": 14.0}
    rows = [row(name, **band(time)) for name, time in times.items()]
    text = page_text(write(benchmark(*rows))).text
    for cell in ("1. 10 ", "1. 10.15 ", "3. 12 ", "3. 12.4 ", "5. 14 "):
        assert cell in text


def test_a_ranking_is_shown_whole(write):
    """Each of its cases, with what each way costs; other ops by the largest of their own."""
    small, large = [64, 64], [4096, 4096]
    ways = {"formula": (30.0, 9, 111.0), "torch": (12.0, 1, 9.0), "cuda": (10.0, 1, 20.5)}
    rows = [
        row(name, **band(time), shape=shape, bytes=8 * shape[0] ** 2, launches=n, host_us=host)
        for shape in (small, large)
        for name, (time, n, host) in ways.items()
    ]
    rows.append(row("triton", shape=small, verified=False, reason="RuntimeError: no", launches=2))
    for of in ("time_us", "p20_us", "p80_us"):
        del rows[-1][of]
    lines = {name: {"own": i + 1} for i, name in enumerate(ways)}
    lines["cuda"] = {"own": 107}
    own = [row(shape=[9999, 9999], bytes=1 << 40), row(op="softmax", options={})]
    paths = [
        write(benchmark(*rows, lines={"gelu": lines}), "ranking/gelu.json"),
        write(benchmark(*own, op="several"), "own.json"),
    ]
    (machine,) = page_of(read(paths)).machines
    (section,) = (of for of in machine.sections if of.name == "Ranking")
    beside, every, code = section.tables.values()
    assert [of[0] for of in every.rows] == [
        "gelu tanh forward, 64×64, float32",
        "gelu tanh forward, 4096×4096, float32",
        "gelu tanh forward, 9999×9999, float32",
        "softmax forward, 1024×1024, float32",
    ]
    times = ["3. 30 (29.4–30.6)", "2. 12 (11.76–12.24)", "failed", "1. 10 (9.8–10.2)"]
    assert every.rows[0][1:] == [*times, "9 → 2 / 1", "111 → – / 20.5"]
    assert code.rows == [["gelu", "1", "2", "–", "–", "107"]]
    # PyTorch takes 12 µs, and CUDA 10: in two of its three cases there is another to compare with.
    # The files do not name the kernels that they are of.
    assert beside.rows[0][:3] == ["gelu †", "2", "1.20 (1.20)"]
    assert "incomplete" not in " ".join(section.tables)


def test_a_run_that_was_ended_is_told(write):
    part = benchmark(row(), incomplete="2 of 6 cases", lines={"gelu": {}})
    text = page_text(write(part), write(benchmark(row(op="add"), op="add"), "add.json")).text
    assert "gelu.json (incomplete: 2 of 6 cases)" in text  # in the table of files
    assert "1 measurements, commit abc, 2026-01-02. Incomplete: 2 of 6 cases." in text
    assert "Incomplete: gelu (2 of 6 cases)." in text  # the ranking


def test_stale_or_not(write):
    """It is said where results are shown: at each op, the suite, and what several files make."""
    paths = [
        write(benchmark(row())),
        write(benchmark(row(op="add"), op="add", sources="89ab"), "add.json"),
        write(TESTS, "tests.json"),
    ]
    page = page_text(*paths, sources="0123")
    assert "of these sources" in page.text
    (machine,) = page_of(read(paths), "0123").machines
    by_name = {of.name: of.stale for of in machine.sections}
    assert by_name["gelu"] == "" and "stale" in by_name["add"]
    assert machine.stale.startswith("1 of 2 files are stale")
    assert page.text.count("Roofline 1 of 2 files are stale") == 1
    assert page.text.count("Ranking 1 of 2 files are stale") == 1
    assert "add stale: the sources have changed since" in page.text
    assert "tests stale: the sources have changed since" in page.text
    assert "NVIDIA H200 1 of 2 files are stale" in page.text
    text = page_text(*paths).text
    assert "0123" in text and "4567" in text and "stale:" not in text
    assert "7 passed, 1 failed, 2 skipped" in text and "tests/test_x.py::test_y" in text


def test_the_command_knows_the_tree(write, tmp_path):
    """Without --sources, results are compared with the tree at hand."""
    path = write(benchmark(row()))
    assert run("report", path, "-o", tmp_path / "page.html").exit_code == 0
    assert "gelu stale: " in Page((tmp_path / "page.html").read_text()).text


def test_strings_are_escaped(write):
    """Whatever a file says is text: in every place where it could be a string."""
    evil = row(EVIL, op=EVIL, direction=EVIL, dtype=EVIL, options={EVIL: EVIL}, reason=EVIL)
    evil["bars"] = [{"name": EVIL, "value": 1, "bound": 2, "met": False}]
    sizes = {**copy.deepcopy(evil), "shape": [2048, 2048], "bytes": 32 << 20}
    facts = dict.fromkeys(("op", "gpu", "date", "commit", "sources"), EVIL)
    facts["versions"] = {"torch": EVIL}
    tests = {**TESTS, "gpu": EVIL, "failures": [EVIL], "skip_reasons": {EVIL: EVIL}}
    known = Ceilings(EVIL, EVIL, {EVIL: EVIL}, {EVIL: EVIL}, (Ceiling(EVIL, EVIL, EVIL, EVIL),))
    contents = [benchmark(evil, sizes, **facts), tests, known.as_dict()]
    paths = [write(of, f"{i}.json") for i, of in enumerate(contents)]
    page = page_text(*paths)
    assert len(page.all("script")) == 1 and not page.all("img")
    assert not any("onload" in of or "onerror" in of for _, of in page.seen)
    assert page.text.count("alert(1)") > 20


def test_numbers_that_are_none(write):
    """Infinite and missing numbers have no place in a picture; extreme ones have."""
    rows = [
        row(worst_ulp=math.inf, failing=math.nan),
        row("torch", time_us=1e-9, p20_us=1e-9, p80_us=1e-9, tb_per_s=1e12),
        row("triton", host_us=None, peak_bytes=None, launches=None),
        row("liger", tb_per_s=1e29, shape=[0, 4], bytes=0),
        row("quack", shape=[10**9, 10**9], bytes=1e29, options={"approximate": [1]}),
        row("other", options={"terms": "x"}, op="gaussian_pdf", peak_bytes=10**29),
        row("no", time_us=1e29, p20_us=1e29, p80_us=1e29),
    ]
    text = render(read([write(benchmark(*rows))]))
    assert "∞" in text
    assert not re.search(r'(?:d|x|y|cx|cy|width)="[^"]*(?:nan|inf|e\+)', text)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "holds no results: it is not JSON: Expecting value"),
        ("[1]", "holds no results: it holds no object"),
        ("[" * 100_000, "holds no results: it is not JSON"),
        ("{}", "has results of another kind, or none"),
        (benchmark({"workload": "of no op"}), "has results of another kind than those of ops"),
        ({"schema": 1}, "holds no results: it has no rows"),
        ({"schema": 2, "rows": []}, "has results of schema 2, and this diglot reads 1"),
        ({"schema": 1, "rows": {}}, "holds no results: it has no rows"),
        (benchmark(3), "is damaged: row 0: it is no object"),
        (benchmark(row(), row(time_us="fast")), "row 1: time_us is no positive number"),
        (benchmark(row(time_us=-1)), "row 0: time_us is no positive number"),
        (benchmark(row(p20_us=None)), "row 0: p20_us is no positive number"),
        (benchmark(row(shape=[2**63, 2**63])), "row 0: shape is no list of sizes"),
        (benchmark(row(provider=3)), "row 0: provider is no str"),
        (benchmark(row(tb_per_s=-1)), "row 0: tb_per_s is no positive number"),
        (
            benchmark(row(bars=[{"name": "", "met": True, "bound": None}])),
            "row 0: bars is no list of bars",
        ),
        (benchmark(row(bars=[3])), "row 0: bars is no list of bars"),
        (benchmark(row(shape=[-4])), "row 0: shape is no list of sizes"),
        (benchmark(row(options=[])), "row 0: options is no dict"),
        (benchmark(row(), gpu=3), "is damaged: gpu is no str"),
        ({**TESTS, "passed": "all"}, "is damaged: passed is no number"),
        ({"schema": "diglot.ceilings", "schema_version": 9}, "schema version 9, not 1"),
    ],
)
def test_files_that_are_none(content, message, write, tmp_path):
    path, page = write(content), tmp_path / "page.html"
    error = fails("report", path, "-o", page)
    assert message in error and str(path) in error
    assert not page.exists()


@pytest.mark.parametrize("name", ["p20_us", "verified", "timer", "bars"])
def test_what_diglot_bench_does_not_load_is_not_shown(name, write, tmp_path):
    """One check for both: of a row without a band, say."""
    bare = row()
    del bare[name]
    path = write(benchmark(row(), bare))
    with pytest.raises(ValueError, match="is damaged: row 1: ") as error:
        read_reports(path)
    assert str(error.value) in fails("report", path, "-o", tmp_path / "page.html")


def test_folders(write, tmp_path):
    (tmp_path / "empty").mkdir()
    assert f"{tmp_path / 'empty'} has no result files" in fails("report", tmp_path / "empty")
    write({"schema": 2, "rows": []}, "old/one.json")
    message = fails("report", tmp_path / "old")
    assert "has no result files" in message and "has results of schema 2" in message
    write(benchmark(row()), "some/h200/gelu.json")
    write("no", "some/other.json")
    page = tmp_path / "page.html"
    result = run("report", tmp_path / "some", "-o", page)
    assert result.exit_code == 0, result.output
    assert "left out: 1 files" in result.stderr
    text = Page(page.read_text()).text
    assert "Left out (1)" in text and "other.json holds no results" in text


def test_mistakes_are_one_line(write, tmp_path):
    path = write(benchmark(row()))
    assert "Missing argument 'RESULTS...'" in fails("report")
    assert "nothing.json does not exist" in fails("report", tmp_path / "nothing.json")
    page = write("mine", "page.html")
    message = fails("report", path, "-o", page)
    assert "--output: " in message and "is not overwritten without force (--force)" in message
    assert page.read_text() == "mine"
    assert run("report", path, "-o", page, "--force").exit_code == 0
    assert page.read_text().startswith("<!doctype html>")
    assert "there is no folder" in fails("report", path, "-o", tmp_path / "no/page.html")
    assert "must name another file" in fails("report", path, "-o", path, "--force")
    assert json.loads(path.read_text())["op"] == "gelu"


def test_no_page_is_written_where_it_cannot_be_drawn(write, tmp_path, monkeypatch):
    path, page = write(benchmark(row())), tmp_path / "page.html"
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert "pictures need matplotlib, which is not installed" in fails("report", path, "-o", page)
    assert not page.exists()


def test_a_gpu_without_benchmarks(write):
    """For a GPU where the tests alone ran, the page shows these, and draws nothing."""
    page = page_text(write(TESTS, "tests.json"))
    assert "7 passed, 1 failed, 2 skipped" in page.text and not page.all("svg")
    assert "Roofline" not in page.text and "Ranking" not in page.text


def test_a_file_named_twice_counts_once(write, tmp_path):
    path = write(benchmark(row()))
    assert len(read([path, tmp_path, path]).files) == 1


def test_an_op_of_several_files_is_one(write):
    """Such as its own cases, and those of a ranking."""
    paths = [
        write(benchmark(row()), "gelu.json"),
        write(benchmark(row(shape=[7, 9]), commit="another"), "ranking/gelu.json"),
    ]
    page = page_text(*paths)
    assert page.text.count("All measurements of gelu.") == 1
    assert "2 measurements, commit abc, another" in page.text
    assert "7×9" in page.text


def test_a_file_of_several_ops_is_several(write):
    """Cases that differ in nothing but the op are not one."""
    rows = [row(op=op, options={}) for op in ("softmax", "rms_norm")]
    path = write(benchmark(*rows, op="softmax, rms_norm"))
    page = page_text(path)
    for op in ("softmax", "rms_norm"):
        assert f"All measurements of {op}." in page.text
    assert "softmax, rms_norm" not in page.text


def test_a_failure_is_no_wrong_result(write):
    bar = {"name": "share", "value": None, "bound": 0.9, "met": False}
    rows = [
        row("cuda", verified=False, reason="wrong result: 3 % beyond the tolerance", bars=[bar]),
        row("liger", verified=False, reason="RuntimeError: rows are too long"),
        row("torch"),
    ]
    for of in rows[:2]:
        for name in ("time_us", "p20_us", "p80_us"):
            del of[name]
    text = page_text(write(benchmark(*rows))).text
    # In the ranking, in the measurements, and among bars that are missed; and why, once. The
    # verdict counts both.
    assert text.count("wrong result") == 4 and text.count("failed") == 3
    assert "RuntimeError: rows are too long" in text


def test_several_gpus_and_no_rows(write):
    paths = [
        write(benchmark(row()), "a.json"),
        write(benchmark(row(), gpu="NVIDIA A100-SXM4-80GB"), "b.json"),
        write(benchmark(gpu=None), "c.json"),
    ]
    page = page_text(*paths)
    titles = [of["id"] for of in page.all("h2") if "id" in of]
    assert titles == ["m0", "m1", "m2"]
    assert "A100 80 GB SXM, float32 outside tensor cores" in page.text
    assert "an unknown GPU" in page.text


def test_measured_ceilings_are_in_the_roofline(write):
    product = Ceiling(
        "matrix product",
        "torch.mm",
        "float32",
        "TFLOP/s",
        shape=(8, 8, 8),
        verified=True,
        rate=51.5,
    )
    known = Ceilings("NVIDIA H200", "2026-01-02", {}, {}, (product,))
    page = page_text(write(benchmark(row())), write(known.as_dict(), "ceilings.json"))
    assert "float32 product, measured: 51.5 TFLOP/s" in page.text


def test_operations():
    """By hand: GELU's tanh form ½·x·(1 + tanh(c·(x + a·x·x·x))) has nine, its other form five."""
    assert counted.operations("gelu", "forward", (4, 8), {"approximate": "tanh"}) == 32 * 9
    assert counted.operations("gelu", "forward", (4, 8), {"approximate": "none"}) == 32 * 5
    assert counted.operations("add", "forward, bias", (4, 8), {}) == 32
    assert counted.operations("clip_grad_norm_", "2 GB", (3, 100), {}) == 300
    assert counted.operations("gaussian_pdf", "forward", (10,), {"terms": 3}) == 10 * (3 * 6 + 2)
    assert counted.operations("gelu", "recorded", (4,), {}) is None
    assert counted.operations("nothing", "forward", (4,), {}) is None
    assert counted.operations("gaussian_pdf", "forward", (4,), {"terms": "x"}) is None


def test_words_of_numbers():
    assert [number(v) for v in (None, 12345.6, 123.4, 12.34, 1.234, 0.01234, 0.0001234)] == [
        *("–", "12,346", "123", "12.3", "1.23", "0.0123", "1.23e-04")
    ]
    assert [size(v) for v in (512, 4096, 3 << 20, 1.5 * 2**30)] == ["512", "4 Ki", "3 Mi", "1.5 Gi"]


def test_no_two_series_look_alike():
    """Not even without colours, as long as there are markers left."""
    names = [*drawing.PROVIDERS, *(f"other {i}" for i in range(30))]
    found = drawing.styles(names)
    assert list(found) == names and len(set(found.values())) == len(names)
    assert len({marker for _, marker in drawing.PROVIDERS.values()}) == len(drawing.PROVIDERS)
    few = drawing.styles(["cuda", "triton", "grid.sync()", "CUB"])
    assert len({marker for _, marker in few.values()}) == 4
    assert len({color for color, _ in few.values()}) == 4
    assert drawing.styles(["b", "a"]) == drawing.styles(["b", "a"])


def test_inline_pictures():
    """Colours are the style sheet's, and marks say their figures."""
    cases = [Case("float32\n4×4", {EVIL: Point(2.0, 0, 1.9, 2.1, "3 µs", True)}, 4.0)]
    picture = Picture(EVIL, lambda figure: drawing.dots(figure.subplots(), cases), 3, 2)
    text = inline_svg.inline(picture)
    page = Page(text)
    assert page.all("svg")[0]["aria-label"] == EVIL and not page.all("img")
    assert page.titles == [f"float32 4×4, {EVIL}: 2 (3 µs)"]
    assert "var(--bad)" in text and not re.search("#[0-9a-f]{6}", text)
    assert text == inline_svg.inline(picture)
    alone = inline_svg.standalone(picture)
    assert "prefers-color-scheme: dark" in alone and EVIL[:8] not in alone
    assert set(inline_svg.DARK) == set(drawing.COLORS)


def test_cases(write):
    small, big = row(), row(shape=[4096, 4096], bytes=128 << 20)
    (file,) = read([write(benchmark(small, row("other"), big))]).files
    (case,) = largest(file.rows, lambda row: row["op"])
    assert case["cuda"]["shape"] == [4096, 4096]
