"""The benchmark of graphs: its parts compute and judge the right things; no GPU is needed."""

from __future__ import annotations

import json

import pytest
import torch
from recorded_graphs import install

from diglot.bench import graphs as bench
from diglot.bench import session
from diglot.bench.graph_tables import graphs_markdown
from diglot.bench.reports import make_report
from diglot.tools import measure
from diglot.tools.measure import Timing


@pytest.fixture
def on_cpu(monkeypatch):
    """A recorded device in a GPU's place; every call takes the set number of microseconds."""
    install(monkeypatch)
    times = {}

    def timed(functions, **options):
        for function in functions.values():
            function()
        return {name: Timing(times.get(name, 10.0), 1.0, 99.0, 3) for name in functions}

    for timer in ("host", "interleaved"):
        monkeypatch.setattr(measure, timer, timed)
    # Small sizes keep the tests quick.
    for name in ("WIDTH", "BATCH", "NARROW", "WIDE"):
        monkeypatch.setattr(bench, name, 8)
    monkeypatch.setattr(measure, "check", lambda: None)
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *args: None)
    return times


def bars_of(rows):
    return {
        (row["provider"], bar["name"]): (bar["value"], bar["met"])
        for row in rows
        for bar in row["bars"]
    }


def test_training(on_cpu):
    on_cpu |= {"eager": 50.0, "eager, PyTorch's clipping": 40.0}
    rows = list(bench.training())
    compiled = {("graphs of compiled", "speed over reduce-overhead"): (1.0, True)}
    assert bars_of(rows) == {("graphs", "speed over eager"): (4.0, True), **compiled}
    (graphed,) = [row for row in rows if row["provider"] == "graphs"]
    assert graphed["report"][0]["replays"] > 0 and graphed["nodes"]


def test_training_that_differs_is_not_timed(on_cpu, monkeypatch):
    graphed = bench.Training.graphed

    def wrong(self, pair):
        return graphed(self, lambda inputs, targets: pair(inputs, targets + 1))

    monkeypatch.setattr(bench.Training, "graphed", wrong)
    with pytest.raises(AssertionError):
        list(bench.training())


def test_host(on_cpu):
    on_cpu |= {"in place, 2": 17.0, "copied, 2": 28.0}
    bars = bars_of(bench.host())
    assert bars["in place, 2", "µs beyond the bare replay"] == (7.0, False)
    assert bars["copied, 2", "µs for each copied tensor"] == (5.5, True)


def test_memory(on_cpu, monkeypatch):
    monkeypatch.setattr(bench, "SIZES", (1, 4))
    ((name, (value, met)),) = bars_of(bench.memory()).items()
    assert name == ("eight buckets", "memory over the largest alone") and value == 1.0 and met


def test_all_of_it(on_cpu, monkeypatch, tmp_path):
    """A part that fails leaves a row, and the others' rows."""

    def fails():
        yield bench.row_of("begun", "graphs", "wall", time_us=1.0)
        raise ValueError("of the part")

    monkeypatch.setattr(bench, "CHECKED", (0, 10))
    monkeypatch.setattr(bench, "parts", lambda: {"fails": fails, "checks": bench.checks})
    path = bench.run(tmp_path)
    rows = json.loads(path.read_text())["rows"]
    assert [row["provider"] for row in rows] == ["graphs", "none", "0 parameters", "10 parameters"]
    assert rows[1]["reason"] == "failed: ValueError: of the part" and not rows[1]["verified"]
    assert len(rows[2]["bars"]) == 1


def test_tables():
    row = bench.row_of("host", "in place, 1", "host", time_us=1234.5, reserved_bytes=3 << 20)
    bench.judge(row, "µs beyond", 7.0, 6.0, False)
    failed = bench.row_of("nodes", "none", "none", reason="failed: why")
    made = graphs_markdown([make_report("graphs", [row, failed])])
    assert "| host | in place, 1 | µs beyond | ≤ 6 | 7.00 | ✗ |" in made
    assert "| host | in place, 1 | 1,234.50 | – | 3 MiB |" in made
    assert "- nodes: failed: why" in made


def test_it_is_found():
    assert "graphs" in session.APART and session.load("graphs") is bench
    assert list(bench.parts())[-1] == "requests"
