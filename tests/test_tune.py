"""Tuning, with times that are made up: which plans are measured, judged, kept and taken."""

from __future__ import annotations

import json
import statistics

import pytest
import torch
from apart import COMMAND, run_apart
from backends import DEVICE
from commands import run

import diglot
from diglot.backends import choosing, store
from diglot.backends.choosing import forget_stores, store_of, use_plans
from diglot.backends.registry import INTERPRET
from diglot.bench import harness, model_bars, models
from diglot.bench.selection import load
from diglot.tools import measure, tune
from diglot.tools.gpus import named_device
from diglot.tools.measure import Timing

pytestmark = pytest.mark.skipif(not INTERPRET, reason="times are made up where nothing is timed")
BEST = {"cuda": "rows.cuda.skipped_shapes=2", "triton": "rows.triton.few_elements=2048"}


@pytest.fixture
def gpu(tmp_path, monkeypatch):
    """A GPU on which the plans of BEST take half as long; times by name that were asked for."""
    asked: list[str] = []

    def times(functions, **_):
        asked.extend(functions)
        for function in functions.values():
            function()
        good = [name for name in functions if any(best in name for best in BEST.values())]
        return {n: Timing(5.0 if n in good else 10.0, 1, 1, 1) for n in functions}

    monkeypatch.setenv("DIGLOT_CONFIGS", str(tmp_path))
    monkeypatch.setattr(store, "shipped_folder", lambda: tmp_path / "shipped")
    monkeypatch.setattr(measure, "check", lambda: None)
    monkeypatch.setattr(measure, "captured", _captured)
    monkeypatch.setattr(measure, "interleaved", times)
    monkeypatch.setattr(tune, "gpu_name", lambda: "NVIDIA H200")
    real = choosing._choose
    monkeypatch.setattr(choosing, "_choose", lambda problem, gpu: real(problem, gpu or "h200"))
    forget_stores()
    yield asked
    forget_stores()


def _captured(function):
    """As a graph does: runs what the capture planned."""
    function()
    numbers = dict(choosing._modes[-1])

    def replay():
        with use_plans(numbers):
            function()

    return replay


@pytest.mark.parametrize("backend", ["cuda", "triton"])
def test_the_fastest_plan_is_kept_and_taken(backend, gpu):
    x = torch.randn(6, 300, device=DEVICE)
    (found,) = diglot.tune(diglot.softmax, x, -1, backends=(backend,))
    assert found.best == BEST[backend]
    assert found.times_us[""] == 2 * found.times_us[found.best]
    assert found.problem.shape == (6, 300) and found.problem.launcher == "softmax_forward"
    entry = store_of("softmax", "h200").entries[found.problem]
    assert entry.best == BEST[backend]
    name, _, value = BEST[backend].partition("=")
    assert store.plan_numbers(entry.best) == {name: int(value)}
    run = store_of("softmax", "h200").runs[1]
    assert run["gpu"] == "NVIDIA H200" and run["torch"] == torch.__version__ and run["sources"]


@pytest.mark.parametrize("backend", ["cuda", "triton"])
def test_results_stay_as_they_were(backend, gpu):
    """The call's outputs hold its results when a launch was tuned."""
    x, out = torch.randn(6, 300, device=DEVICE), torch.empty(6, 300, device=DEVICE)
    arguments = (x, 1, out)
    diglot.backends.runs.run(backend, "softmax", "softmax_forward", *arguments)
    record = diglot.last_run()
    before = out.clone()
    problem = diglot.backends.runs.plan(backend, "softmax", "softmax_forward", *arguments)
    tune.tune_launch(problem.choices[0].problem, record, arguments)
    assert torch.equal(out, before)


def test_backward_is_tuned_where_an_input_requires_grad(gpu):
    x = torch.randn(6, 300, device=DEVICE, requires_grad=True)
    w = torch.randn(300, device=DEVICE, requires_grad=True)
    found = diglot.tune(diglot.rms_norm, x, (300,), w, backends=("triton",))
    assert [t.problem.launcher for t in found] == [
        "add_rms_norm_forward",
        "rms_norm_backward",
    ]


def test_a_wrong_plan_is_none(gpu, monkeypatch):
    """Neither one whose results differ, nor one that leaves them as they were."""
    x = torch.randn(6, 300, device=DEVICE)
    real = tune.run

    def spoil(backend, op, launcher, *arguments):
        real(backend, op, launcher, *arguments)
        if choosing._modes and choosing._modes[-1]:
            arguments[-1][3, 7] *= 1.01

    monkeypatch.setattr(tune, "run", spoil)
    (found,) = diglot.tune(diglot.softmax, x, -1, backends=("triton",))
    assert found.best == "" and set(found.times_us) == {""}
    assert found.skipped and all("results differ" in why for why in found.skipped.values())
    monkeypatch.setattr(tune, "run", lambda *_: None)
    with pytest.raises(RuntimeError, match="no plan runs"):
        diglot.tune(diglot.softmax, x, -1, backends=("triton",))


def test_long_sums_of_tensor_cores_may_differ_more():
    """By as much as an H200's TF32 did in 18432 terms, and no more."""
    right = [torch.full((4, 4), 600.0)]
    tune._check([right[0] + 0.026], right, 18432)
    for wrong, terms in ((0.026, 0), (0.026, 1024), (1.0, 18432)):
        with pytest.raises(ValueError, match="differ by"):
            tune._check([right[0] + wrong], right, terms)
    with pytest.raises(ValueError, match="differ by"):
        tune._check([right[0].double() + 1e-6], [right[0].double()], 18432)


def test_a_plan_without_room_is_skipped_and_said(gpu, monkeypatch):
    real = measure.captured

    def refuse(function):
        if choosing._modes[-1]:
            raise RuntimeError("out of resource: shared memory")
        return real(function)

    monkeypatch.setattr(measure, "captured", refuse)
    (found,) = diglot.tune(
        diglot.softmax, torch.randn(6, 300, device=DEVICE), -1, backends=("cuda",)
    )
    assert set(found.times_us) == {""}
    assert set(found.skipped.values()) == {"out of resource: shared memory"}


def test_nothing_is_tuned_in_a_capture(gpu, monkeypatch):
    for name in ("is_available", "is_current_stream_capturing"):
        monkeypatch.setattr(torch.cuda, name, lambda: True)
    with pytest.raises(RuntimeError, match="while a CUDA graph is captured"):
        diglot.tune(diglot.softmax, torch.randn(4, 4, device=DEVICE), -1)
    assert not gpu


@pytest.fixture
def group(monkeypatch):
    """A process group, as a process sees it: its rank, and the barriers that it came to."""
    seen = {"rank": 0, "barriers": 0}
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: seen["rank"])

    def barrier():
        seen["barriers"] += 1

    monkeypatch.setattr(torch.distributed, "barrier", barrier)
    return seen


def test_one_rank_of_a_group_tunes(gpu, group, monkeypatch):
    """The others wait for it, and choose by what it wrote."""
    x = torch.randn(6, 300, device=DEVICE)

    def source():
        (choice,) = tune.choices_of(lambda: diglot.softmax(x, -1, backend="triton"))
        return choice.source

    group["rank"] = 1
    assert diglot.tune(diglot.softmax, x, -1, backends=("triton",)) == []
    assert not gpu and group["barriers"] == 1 and source() == "model"
    group["rank"] = 0
    (found,) = diglot.tune(diglot.softmax, x, -1, backends=("triton",))
    assert found.best == BEST["triton"] and group["barriers"] == 2
    measured = len(gpu)
    group["rank"] = 1
    assert diglot.tune(diglot.softmax, x, -1, backends=("triton",)) == []
    assert len(gpu) == measured and source() == "exact"


def test_a_failing_rank_lets_the_others_go_on(gpu, group, monkeypatch):
    """They wait at a barrier, to which it comes in any case."""
    monkeypatch.setattr(tune, "run", lambda *_: None)
    with pytest.raises(RuntimeError, match="no plan runs"):
        diglot.tune(diglot.softmax, torch.randn(6, 300, device=DEVICE), -1, backends=("triton",))
    assert group["barriers"] == 1


def test_a_call_is_tuned_if_that_is_asked_for(gpu, monkeypatch):
    """Once for each problem, never in a capture, and its outputs stay right."""
    x = torch.randn(6, 300, device=DEVICE)
    monkeypatch.setattr(diglot.backends.runs, "is_interpreted", lambda *_: False)
    monkeypatch.setattr(diglot.backends.runs, "_observers", (tune.tune_if_new,))
    monkeypatch.setattr(tune, "_seen", set())
    capturing = [True]
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing[0])
    diglot.softmax(x, -1, backend="triton")
    assert not gpu
    capturing[0] = False
    for _ in range(2):
        out = diglot.softmax(x, -1, backend="triton")
        torch.testing.assert_close(out, x.softmax(-1))
        assert gpu.count("") == 2  # one for each round
    (entry,) = store_of("softmax", "h200").entries.values()
    assert entry.best == BEST["triton"]


def test_interpreted_kernels_are_not_tuned():
    with pytest.raises(RuntimeError, match="interpreted"):
        diglot.tune(diglot.softmax, torch.randn(4, 4, device=DEVICE), -1)


def test_outputs_are_those_that_the_schema_marks():
    x, w, s = torch.empty(4, 8), torch.empty(8), torch.empty(1, 4)
    outs = torch.empty(8), torch.empty(4, 8)
    arguments = (x, None, x, s, w, *outs)
    assert [id(t) for t in tune._outputs("rms_norm_backward", arguments)] == [*map(id, outs)]


# --- shapes of models ----------------------------------------------------------------------------


def test_a_draw_is_of_models_and_the_same_again():
    """Shares of each kind within what chance allows; half of the draws are of either size."""
    drawn = [pair for seed in range(30) for pair in models.draw(f"op {seed}")]
    assert models.draw("op 3") == models.draw("op 3") != models.draw("op 4")
    hidden = {model.hidden_size for model in models.published()}
    words = {model.vocab_size for model in models.published()}
    rows = [shape for shape, _ in drawn]
    assert sum(n in hidden for _, n in rows) / len(rows) > 0.6
    assert 0.10 < sum(n in words - hidden for _, n in rows) / len(rows) < 0.30
    assert sum(shape in models.ODD_ROWS for shape in rows) / len(rows) < 0.13
    assert sum(dtype == torch.float32 for _, dtype in drawn) == len(drawn) // 4
    sizes = [shape[0] * shape[1] * dtype.itemsize for shape, dtype in drawn]
    assert all(models.LEAST_BYTES <= size <= models.MOST_BYTES for size in sizes)
    assert 0.08 < sum(size <= models.SMALL_BYTES for size in sizes) / len(sizes) < 0.3


def test_a_models_config_gives_its_rows():
    config = {"hidden_size": 8, "intermediate_size": 32, "vocab_size": 100}
    assert models.shapes_of(config, (1, 2)) == [
        (1, 8),
        (2, 8),
        (1, 32),
        (2, 32),
        (1, 100),
        (2, 100),
    ]
    assert models.shapes_of({"text_config": config}, (1,)) == [(1, 8), (1, 32), (1, 100)]
    assert models.shapes_of(config, (1, 2), 3)[1:4] == [(2, 8, 8), (1, 32, 8), (2, 32, 8)]
    for wrong in ({}, {**config, "vocab_size": "many"}):
        with pytest.raises(ValueError, match="hidden_size"):
            models.shapes_of(wrong)


def row(provider: str, us: float, shape=(8, 8), **more) -> dict:
    case = {"op": "softmax", "direction": "forward", "dtype": "bfloat16", "shape": list(shape)}
    return {**case, "options": {}, "timer": "device", "provider": provider, "time_us": us, **more}


def test_ratios_are_to_the_best_peer():
    """Compiled code is a peer of both languages. A formula is no peer, and neither is a row without
    a time.
    """
    rows = [
        row("cuda", 10, share_of_copy=0.8, chosen="near"), row("triton", 5, share_of_copy=1.0),
        row("torch", 12), row("torch.compile", 8), row("formula", 1),
        {**row("liger", 0), "time_us": 1, "shape": [9, 9]},
        row("cuda", 10, (4, 4), share_of_copy=0.5), row("torch", 20, (4, 4)),
    ]  # fmt: skip
    (cuda, triton) = model_bars.table(rows)
    assert cuda[:4] == ["softmax", "forward", "cuda", "1.265 (≥ 1.03)"]
    assert cuda[4:6] == ["0.800 (≥ 0.85) ✗", "50 % (≤ 3 %) ✗"] and cuda[8] == "0.650"
    assert triton[3:6] == ["1.600 (≥ 1.02)", "1.600 (≥ 0.8)", "0 % (≤ 5 %)"]
    first = models.worst(rows)[0]
    assert first[2:8] == ["cuda", "bfloat16", "8x8", "10.0", "torch.compile", "0.80"]
    assert first[9] == "near"


def test_bars_of_a_distribution():
    """Each bar has its value, and a mark only if it is missed."""
    large, small, short = (4096, 8192), (8, 4096), (1 << 20, 77)
    rows = [
        row("cuda", 100, large, share_of_copy=0.91), row("torch", 104, large),
        row("cuda", 10, small, share_of_copy=0.2), row("torch", 9, small),
        row("cuda", 10, short, share_of_copy=0.5), row("torch", 12, short),
    ]  # fmt: skip
    (cells,) = model_bars.table(rows)
    mean = statistics.geometric_mean([1.04, 0.9, 1.2])
    assert cells[:4] == ["softmax", "forward", "cuda", f"{mean:.3f} (≥ 1.03)"]
    assert cells[4:] == [
        "0.900 (≥ 0.85)", "33 % (≤ 3 %) ✗", "1.111 (≤ 1.05) ✗", "100 % (≤ 0 %) ✗", "0.500"
    ]  # fmt: skip
    met = [{**r, "share_of_copy": 0.92} if r["provider"] == "cuda" else r for r in rows]
    assert model_bars.table(met)[0][-2] == "0 % (≤ 0 %)"


@pytest.mark.parametrize(
    "shape, more, bar",
    [
        ((4096, 4096), {}, 0.92),
        ((4096, 4095), {}, None),  # less than 32 MB
        ((1 << 20, 255), {}, None),
        ((256, 65537), {"provider": "triton"}, 0.88),
        ((256, 65537), {}, 0.92),
        ((4096, 8192), {"direction": "backward"}, None),
        ((4096, 8192), {"direction": "backward", "op": "rms_norm"}, 0.80),
        ((8192, 8192), {"direction": "backward", "op": "rms_norm"}, 0.87),
    ],
)
def test_bars_of_copies(shape, more, bar):
    assert model_bars.copy_bar({**row("cuda", 1, shape), **more}) == bar


def test_a_run_goes_on_where_it_stopped(tmp_path):
    benchmark = load("softmax").benchmark
    cases = models.cases(benchmark, 1)[:3]
    from diglot.bench.reports import make_report
    from diglot.bench.running import row_of

    rows = [
        {"op": "softmax", "provider": "cuda", **row_of(case), "bars": [], "kernels": kernels}
        for case, kernels in zip(cases, ("now", "now", "older"), strict=True)
    ]
    (tmp_path / "softmax.json").write_text(json.dumps({**make_report("softmax", []), "rows": rows}))
    kept, left = models.known(tmp_path, "softmax", cases, "now", ["cuda"])
    assert [r["shape"] for r in kept] == [list(case.shape) for case in cases[:2]]
    assert left == cases[2:]
    assert models.known(tmp_path, "softmax", cases, "now", ["cuda", "torch"])[1] == cases
    assert models.known(tmp_path, "gelu", cases, "now", ["cuda"]) == ([], cases)
    assert models.known(None, "softmax", cases, "now", ["cuda"]) == ([], cases)


def test_what_is_printed(capsys):
    """A line for each problem, and the plans that were skipped; how many are chosen in each way."""
    from diglot.backends.choosing import Choice
    from diglot_cli import tune as command

    where = store.Problem("softmax", "softmax_forward", "cuda", ("bfloat16",) * 2, "rows", (8, 64))
    plan = "rows.cuda.skipped_shapes=1"
    skipped = {"rows.cuda.few_slots=7": "its results differ by 1"}
    command._print_found([tune.Tuned(where, {"": 3.0, plan: 2.0}, skipped)])
    text = capsys.readouterr().out
    assert "8x64" in text and "3.00" in text and "2.00" in text and plan in text
    assert "skipped rows.cuda.few_slots=7: its results differ by 1" in text
    command._print_status([Choice(where, "near", {}, None), Choice(where, "model", {}, None)])
    assert "0 measured, 1 by a near shape, 1 by the model" in capsys.readouterr().out


def test_the_command(gpu, monkeypatch, tmp_path):
    """It tunes the rows of a model, in files that a later call reads. `--status` counts them."""
    monkeypatch.setattr(measure, "why_not", lambda: None)
    monkeypatch.setattr(harness, "DEVICE", "cpu")
    monkeypatch.setattr(models, "shapes_of", lambda *_, **__: [(6, 300), (3, 12)])
    config = tmp_path / "config.json"
    config.write_text("{}")
    arguments = ["tune", "softmax", "--like", config, "--dtype", "fp32", "--backend", "triton"]
    arguments += ["--direction", "forward"]
    assert "0 measured, 0 by a near shape, 2 by the model" in run(*arguments, "--status").stdout
    assert not gpu
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    assert result.stdout.count("softmax_forward") == 2 and BEST["triton"] in result.stdout
    forget_stores()
    assert "2 measured, 0 by a near shape, 0 by the model" in run(*arguments, "--status").stdout
    near = [*arguments[:2], "--shape", "12x312", "--shape", "6x9000", *arguments[4:], "--status"]
    assert "0 measured, 1 by a near shape, 1 by the model" in run(*near).stdout


def test_launches_of_one_plan(gpu, monkeypatch):
    """There is nothing to choose, and that is said."""
    monkeypatch.setattr(measure, "why_not", lambda: None)
    monkeypatch.setattr(harness, "DEVICE", "cpu")
    result = run("tune", "standardize", "--shape", "4096", "--direction", "forward")
    assert result.exit_code == 0, result.output
    assert result.stdout == "nothing is tuned: each of these launches has one plan\n"


@pytest.mark.compiled
def test_plans_are_compiled_for_a_gpu_that_is_elsewhere(tmp_path):
    command = ["tune", "softmax", "--shape", "64x4096", "--direction", "forward"]
    command += ["--backend", "triton", "--compile-for", "NVIDIA H200"]
    run_apart(COMMAND, *command, environment={"TRITON_CACHE_DIR": str(tmp_path)}).check_returncode()
    kernels = [json.loads(path.read_text()) for path in tmp_path.glob("*/softmax_*.json")]
    assert len({kernel["num_warps"] for kernel in kernels}) >= 2
    for kernel in kernels:
        assert (kernel["target"]["backend"], kernel["target"]["arch"]) == ("cuda", 90)


def test_a_gpu_that_nobody_knows():
    with pytest.raises(ValueError, match=r"as 'NVIDIA H2000'; these are: .*NVIDIA H200,"):
        named_device("NVIDIA H2000")
