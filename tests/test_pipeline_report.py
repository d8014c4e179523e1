"""PipelineReport: exact numbers of small timelines; its table, file, trace and picture."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest

from diglot.pipeline.report import STAGES, PipelineReport
from diglot.tools.ceilings import Ceiling, Ceilings

NONE = (math.nan, math.nan)


def chunk(**stages):
    """The times of a chunk, in quarters of a second, which are exact."""
    times = [t for stage in STAGES for t in stages.get(stage, NONE)]
    return tuple(math.nan if math.isnan(t) else t / 4 for t in times)


# Pinned memory, two slots. The copies in wait once, the kernel is short.
PINNED = [
    chunk(h2d=(0, 4), compute=(4, 5), d2h=(5, 9)),
    chunk(h2d=(4, 8), compute=(8, 9), d2h=(9, 13)),
    chunk(h2d=(9, 13), compute=(13, 14), d2h=(14, 18)),
]
STAGED = [
    chunk(read=(0, 1), h2d=(1, 2), compute=(2, 3), d2h=(3, 4), write=(4, 6)),
    chunk(read=(1, 2), h2d=(2, 3), compute=(3, 4), d2h=(4, 5), write=(6, 8)),
]


def report(timelines=(PINNED,), **changes):
    values = {
        "op": "gelu",
        "backend": "cuda",
        "engine": "native",
        "devices": ("cuda:0",),
        "rows": 300,
        "chunk_rows": 100,
        "chunks": 3,
        "num_slots": 2,
        "bytes_in": 9_000_000_000,
        "bytes_out": 18_000_000_000,
        "device_bytes": 18_000_000,
        "seconds": 4.5,
        "timelines": timelines,
    }
    return PipelineReport(**{**values, **changes})


def test_rates():
    of = report()
    assert (of.gb_per_s_in, of.gb_per_s_out) == (2.0, 4.0)
    assert of.share_of_duplex(5.0) == 0.8  # of the direction that has more to do
    assert report(bytes_out=0).share_of_duplex(5.0) == 0.4


def test_the_ceiling_that_was_measured_here(tmp_path, monkeypatch):
    path = tmp_path / "ceilings.json"
    monkeypatch.setenv("DIGLOT_CEILINGS", str(path))
    assert report(gpu="A").duplex_ceiling is None
    both = Ceiling("both ways", "copies", "uint8", "GB/s", 1, verified=True, rate=5.0)
    Ceilings("A", "2026-01-01", {}, {}, (both,)).save(path)
    assert "0.800 of the duplex ceiling, 5.0 GB/s each way" in str(report(gpu="A"))
    for of in (report(gpu="B"), report(gpu=None)):
        assert of.duplex_ceiling is None
        assert "ceiling" not in str(of)


def test_busy_and_stalls():
    of = report()
    assert of.busy == {"h2d": 3.0, "compute": 0.75, "d2h": 3.0}
    assert of.stalls == {"h2d": 0.25, "compute": 1.75, "d2h": 0.25}
    h2d = of.stages()["h2d"]
    assert (h2d.chunks, h2d.begin, h2d.end, h2d.busy, h2d.stall) == (3, 0.0, 3.25, 3.0, 0.25)
    assert list(report([STAGED]).busy) == list(STAGES)
    assert report([STAGED]).stalls == dict.fromkeys(STAGES, 0.0)


def test_speed_of_a_stage():
    of = report()
    assert of.stage_gb_per_s("h2d") == 3.0
    assert of.stage_gb_per_s("d2h") == 6.0
    assert of.stage_gb_per_s("compute") is None
    assert of.stage_gb_per_s("read") == 0.0  # there was none


@pytest.mark.parametrize(
    ("intervals", "busy", "stall"),
    [
        ([(0, 4), (2, 3)], 1.0, 0.0),  # one within another
        ([(0, 4), (3, 6)], 1.5, 0.0),  # one into another
        ([(8, 9), (0, 4)], 1.25, 1.0),  # not in order
        ([(3, 3)], 0.0, 0.0),
        ([(0, 1), NONE, (2, 3)], 0.75, 0.0),  # one is not timed, and took what the others did
        ([(0, 1), NONE, (3, 4)], 0.75, 0.25),
    ],
)
def test_what_several_intervals_cover(intervals, busy, stall):
    of = report([[chunk(compute=at) for at in intervals]])
    assert of.busy == {"compute": busy}
    assert of.stalls == {"compute": stall}


def test_devices_add_up():
    late = [tuple(t + 10 for t in of) for of in PINNED]
    of = report([PINNED, late], devices=("cuda:0", "cuda:1"))
    # What lies between the two is no stall: no device was idle in its turn.
    assert of.busy == {"h2d": 6.0, "compute": 1.5, "d2h": 6.0}
    assert of.stalls == {"h2d": 0.5, "compute": 3.5, "d2h": 0.5}
    assert of.stages(1)["h2d"].begin == 10.0
    assert of.stage_gb_per_s("h2d") == 1.5


def test_nothing_was_done():
    of = report([[]], rows=0, chunks=0, bytes_in=0, bytes_out=0, seconds=0.0)
    assert (of.gb_per_s_in, of.gb_per_s_out, of.busy, of.stalls) == (0.0, 0.0, {}, {})
    assert "0 rows" in str(of) and "0 bytes" in str(of)


def test_table():
    lines = str(report(notes=("no GPU",))).splitlines()
    assert lines[0] == (
        "gelu of 300 rows, 9 GB in and 18 GB out, on cuda:0 (backend cuda, native engine, 3 chunks "
        "of 100 rows, 2 slots) in 4.5 s: 2 GB/s in, 4 GB/s out"
    )
    assert lines[1:4] == [
        "18 MB of device memory",
        "",
        "stage    chunks  busy ms  of the run  stalls ms  ms per chunk  GB/s",
    ]
    assert [line.split() for line in lines[4:7]] == [
        ["h2d", "3", "3000.00", "0.67", "250.00", "1000.000", "3.0"],
        ["compute", "3", "750.00", "0.17", "1750.00", "250.000", "–"],
        ["d2h", "3", "3000.00", "0.67", "250.00", "1000.000", "6.0"],
    ]
    assert lines[7:] == ["", "note: no GPU"]
    assert len({len(line) for line in lines[3:7]}) == 1  # columns


@pytest.mark.parametrize("timelines", [[PINNED], [STAGED, PINNED], [[]], []])
def test_json_and_back(timelines):
    of = report(timelines, notes=("é",), seconds=0.1 + 0.2)
    text = of.to_json()
    again = PipelineReport.from_json(text)
    assert again == dataclasses.replace(of, timelines=timelines)
    assert again.to_json() == text
    assert "NaN" not in text


def test_json_says_what_it_is():
    values = json.loads(report().to_json())
    assert (values["schema"], values["schema_version"]) == ("diglot.pipeline_report", 1)
    assert values["times"][:4] == ["read begin", "read end", "h2d begin", "h2d end"]
    assert values["timelines"][0][1] == [None, None, 1.0, 2.0, 2.0, 2.25, 2.25, 3.25, None, None]
    assert values["stalls"] == {"h2d": 0.25, "compute": 1.75, "d2h": 0.25}
    assert values == report().to_dict()


@pytest.mark.parametrize("text", ["{}", "[]", '{"schema": "diglot.comparison"}', "nonsense"])
def test_other_files_are_refused(text):
    with pytest.raises(ValueError):
        PipelineReport.from_json(text)


def test_save(tmp_path):
    path = tmp_path / "report.json"
    report().save(path)
    assert PipelineReport.from_json(path.read_text()) == report([PINNED])
    with pytest.raises(ValueError, match="is not overwritten without force"):
        report().save(path)
    report(op="add").save(path, force=True)
    assert PipelineReport.from_json(path.read_text()).op == "add"


def test_trace(tmp_path):
    path = tmp_path / "trace.json"
    report([STAGED, PINNED], devices=("cuda:0", "cuda:1")).trace(path)
    events = json.loads(path.read_text())["traceEvents"]
    names = [e["args"]["name"] for e in events if e["name"] == "process_name"]
    assert names == ["cuda:0", "cuda:1"]
    spans = {e["name"]: e for e in events if e["ph"] == "X" and e["pid"] == 1}
    assert len(spans) == 9
    found = spans["h2d 2"]
    assert (found["ts"], found["dur"], found["args"]) == (2.25e6, 1e6, {"chunk": 2, "slot": 0})


@pytest.mark.parametrize("timelines", [[PINNED], [STAGED, PINNED], [PINNED * 90], [[]], []])
def test_picture(timelines, tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "overlap.png"
    report(timelines, devices=("cuda:0", "cuda:1")[: len(timelines)]).plot(path)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_a_picture_in_place_of_another(tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "overlap.png"
    path.write_bytes(b"another")
    with pytest.raises(ValueError, match="is not overwritten without force"):
        report().plot(path)
    assert path.read_bytes() == b"another"
    report().plot(path, force=True)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_bars_of_the_picture():
    """Each chunk's stages from begin to end, in its own lane; below, in the stages' lanes."""
    pytest.importorskip("matplotlib")
    close, whole = bars(report())
    assert close == {
        ("H2D copy", 0): [(0, 1000)],
        ("compute", 0): [(1000, 1250)],
        ("D2H copy", 0): [(1250, 2250)],
        ("H2D copy", 1): [(1000, 2000)],
        ("compute", 1): [(2000, 2250)],
        ("D2H copy", 1): [(2250, 3250)],
        ("H2D copy", 2): [(2250, 3250)],
        ("compute", 2): [(3250, 3500)],
        ("D2H copy", 2): [(3500, 4500)],
    }
    assert whole == {
        ("H2D copy", 0): [(0, 2000), (2250, 3250)],  # as one where they touch
        ("compute", 1): [(1000, 1250), (2000, 2250), (3250, 3500)],
        ("D2H copy", 2): [(1250, 3250), (3500, 4500)],
    }


def bars(of):
    """The bars of both axes in whole ms, by what they are and their lane."""
    from diglot.tools import stream_chart as chart
    from diglot.tools.drawing import drawn

    found = []
    with drawn(chart.picture(of)) as figure:
        for axes in figure.axes:
            spans = {}
            for drawn_bars in axes.collections:
                boxes = [path.get_extents() for path in drawn_bars.get_paths()]
                lane = round(float(boxes[0].y0 + chart.LANE_HEIGHT / 2))
                spans[drawn_bars.get_label(), lane] = [(round(b.x0), round(b.x1)) for b in boxes]
            found.append(spans)
    return found


def test_the_picture_says_what_was_not_timed():
    """Between timed chunks, and in a chunk whose host part alone is known."""
    pytest.importorskip("matplotlib")
    from diglot.tools.stream_chart import UNTIMED

    def at(i, **more):
        return chunk(read=(i, i + 1), write=(i + 5, i + 6), **more)

    timed = [at(i, h2d=(i + 1, i + 2), d2h=(i + 2, i + 3)) for i in (0, 3)]
    close, whole = bars(report([[timed[0], at(1), at(2), timed[1]]], seconds=9.0))
    assert {key: of for key, of in close.items() if key[0] == UNTIMED} == {
        (UNTIMED, 1): [(500, 1500)],
        (UNTIMED, 2): [(750, 1750)],
    }
    assert {key: of for key, of in whole.items() if key[0] == UNTIMED} == {
        (UNTIMED, 1): [(500, 1000)],
        (UNTIMED, 2): [(750, 1250)],
    }
    assert not any(UNTIMED in key for spans in bars(report()) for key in spans)


def test_the_picture_names_the_gpu():
    from diglot.tools import stream_chart as chart

    assert "NVIDIA H200 (cuda:0)" in chart.picture(report(gpu="NVIDIA H200")).title
    assert "· cuda:0\n" in chart.picture(report()).title


def test_a_picture_of_no_known_kind(tmp_path):
    pytest.importorskip("matplotlib")
    with pytest.raises(ValueError, match="must end in one of"):
        report().plot(tmp_path / "overlap.txt")


def test_chunks_that_are_not_timed():
    """The device's stages are estimated; reads and writes are known of all."""
    timed = [chunk(read=(i, i + 1), h2d=(i + 1, i + 2), compute=(i + 2, i + 3)) for i in (0, 3)]
    between = [chunk(read=(i, i + 1)) for i in (1, 2)]
    of = report([[timed[0], *between, timed[1]]])
    stages = of.stages()
    assert [(s.chunks, s.timed) for s in stages.values()] == [(4, 4), (4, 2), (4, 2)]
    assert of.busy == {"read": 1.0, "h2d": 1.0, "compute": 1.0}
    assert set(of.stalls.values()) == {0.0}
    assert "note: what the device did was timed of 2 chunks" in str(of)
    assert "was timed" not in str(report())


def test_what_is_odd_at_the_begin_is_not_taken_for_all():
    """Such as a first call, in which a kernel is compiled."""
    times = [chunk(compute=(0, 40)), *(chunk(compute=(40 + i, 41 + i)) for i in range(15))]
    times += [chunk() if i % 8 else chunk(compute=(55 + i, 56 + i)) for i in range(17)]
    compute = report([times]).stages()["compute"]
    assert (compute.chunks, compute.timed) == (33, 19)
    assert compute.busy == (40 + 15 + 17) / 4
