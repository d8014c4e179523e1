"""diglot.compare: a wrong result is found, where it is and how wrong; right ones are not blamed."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import re

import pytest
import torch
from backends import needs_cuda, needs_interpreters

import diglot
from diglot.backends import runs
from diglot.reference.gelu import gelu_derivative_oracle
from diglot.reference.specs import Expected, find_spec, op_names
from diglot.tools import accuracy, drawing, inputs, plots
from diglot.tools import compare as comparing
from diglot.tools.accuracy import ProfileBuilder, measure_agreement, measure_error, pieces, ulp_of
from diglot.tools.resources import Call, kernels_of_calls

FLOATING = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def torch_only(op, *tensors, **options):
    return diglot.compare(op, *tensors, backends=["torch"], resources=False, timed=False, **options)


def sample(*shape, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype)


def expected(values, dtype):
    exact = torch.as_tensor(values, dtype=torch.float64)
    return Expected(lambda t: t, (exact,), {"x": exact}, dtype)


@pytest.mark.parametrize("dtype", FLOATING)
def test_ulp_is_the_distance_to_the_next_number(dtype):
    info = torch.finfo(dtype)
    values = torch.tensor([1.0, 1.5, 2.0, 3.0, 1e-3, -7.0, info.tiny, info.max / 2], dtype=dtype)
    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
    following = (values.abs().view(bits) + 1).view(dtype)
    distance = following.double() - values.abs().double()
    assert torch.equal(ulp_of(values.double(), dtype), distance)
    assert (
        ulp_of(torch.tensor([0.0, info.tiny / 4]).double(), dtype).tolist()
        == [info.tiny * info.eps] * 2
    )


def test_pieces_cover_every_element_once():
    for shape in [(), (0,), (7,), (5, 0, 3), (3, 5, 7), (1, 40), (40, 1)]:
        for limit in (1, 4, 8, 1000):
            seen = torch.zeros(shape)
            for piece in pieces(seen.shape, limit):
                seen[piece] += 1
                assert seen[piece].numel() <= max(limit, 1)
            assert (seen == 1).all()


@pytest.mark.parametrize("limit", [3, 1 << 20])
@pytest.mark.parametrize("dtype", FLOATING)
def test_worst_element_is_found(dtype, limit, monkeypatch):
    monkeypatch.setitem(accuracy.PIECE_ELEMENTS, "cpu", limit)
    exact = torch.linspace(1, 2, 24, dtype=torch.float64).reshape(2, 3, 4).to(dtype).double()
    result = exact.to(dtype).clone()
    result[1, 0, 2] += 3 * torch.finfo(dtype).eps
    error = measure_error(result, expected(exact, dtype), tolerance_ulp=2)
    assert error.index == (1, 0, 2)
    assert error.worst_ulp == 3
    assert error.worst_absolute == 3 * torch.finfo(dtype).eps
    assert error.failing == 1 / 24
    assert error.at == {"x": exact[1, 0, 2].item()}
    assert error.expected == exact[1, 0, 2].item()
    assert error.result == result[1, 0, 2].item()


def test_nan_and_infinity():
    nan, inf = math.nan, math.inf
    exact = [nan, inf, -inf, 1e300, 1.0]
    good = torch.tensor([nan, inf, -inf, inf, 1.0])
    assert measure_error(good, expected(exact, torch.float32)).worst_ulp == 0
    for index, wrong in enumerate([1.0, nan, inf, 1.0, nan]):
        bad = good.clone()
        bad[index] = wrong
        error = measure_error(bad, expected(exact, torch.float32))
        assert (error.worst_ulp, error.index, error.failing) == (inf, (index,), 0.2)


def test_results_below_normal_may_be_flushed():
    tiny = torch.finfo(torch.float32).tiny
    error = measure_error(torch.zeros(2), expected([tiny / 2, 0.0], torch.float32))
    assert error.worst_ulp == 2**22
    assert error.failing == 0
    error = measure_error(torch.zeros(2), expected([tiny * 2, 0.0], torch.float32))
    assert error.failing == 0.5


def test_wrong_dtype_is_refused():
    with pytest.raises(ValueError, match=r"must have dtype torch\.float16"):
        measure_error(torch.zeros(2), expected([0.0, 0.0], torch.float16))


def test_agreement():
    a = torch.tensor([1.0, -1.0, 0.0, math.nan, 4.0])
    b = a.clone()
    same = measure_agreement(("a", {"output": a}), ("b", {"output": b}))
    assert (same.max_ulp, same.bit_equal) == (0, 1)
    b[4] = torch.nextafter(torch.nextafter(b[4], b[0]), b[0])
    b[2] = -0.0
    apart = measure_agreement(("a", {"output": a}), ("b", {"output": b}))
    assert (apart.max_ulp, apart.bit_equal, apart.index) == (2, 3 / 5, (4,))
    b[0] = math.nan
    assert measure_agreement(("a", {"o": a}), ("b", {"o": b})).max_ulp == math.inf


def test_profile_puts_errors_where_x_is():
    x = torch.tensor([-4.0, 0.0, 0.0, 4.0])
    builder = ProfileBuilder(x)
    builder.add(x, torch.tensor([1.0, 5.0, 7.0, 2.0], dtype=torch.float64))
    profile = builder.profile()
    filled = {i: w for i, w in enumerate(profile.worst_ulp) if w is not None}
    assert list(filled.values()) == [1, 7, 2]
    for i, x in zip(filled, (-4, 0, 4), strict=True):
        assert profile.edges[i] <= x <= profile.edges[i + 1]


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_planted_error_is_reported(approximate, backward, monkeypatch):
    """A kernel that is wrong in one element is found out, with the element's index."""
    direction = "backward" if backward else "forward"
    launcher = getattr(diglot.reference.gelu, f"gelu_{direction}")

    def wrong(*arguments):
        launcher(*arguments)
        arguments[-2][2, 1] *= 1.01  # before the scratch
        return "planted"

    x = sample(3, 5).abs() + 1
    good = torch_only("gelu", x, approximate=approximate, backward=backward).row("torch")
    monkeypatch.setitem(runs._launchers, ("torch", f"gelu_{direction}"), wrong)
    row = torch_only("gelu", x, approximate=approximate, backward=backward).row("torch")
    assert row.variants == ("planted",)
    assert row.error.index == (2, 1)
    assert row.error.at["input"] == x[2, 1].item()
    assert row.error.worst_ulp > 1e4 > 1e2 > good.error.worst_ulp
    assert row.error.failing == pytest.approx(good.error.failing + 1 / 15)


def test_wrong_oracle_is_reported(monkeypatch):
    """Nothing passes by comparing a result with itself."""
    spec = find_spec("gelu")

    def shifted(x, approximate="none"):
        right = spec.forward(x, approximate)
        return dataclasses.replace(right, function=lambda x: right.function(x) + 1e-3)

    monkeypatch.setattr(
        comparing, "find_spec", lambda op: dataclasses.replace(spec, forward=shifted)
    )
    error = torch_only("gelu", sample(100)).row("torch").error
    assert error.failing == 1
    assert error.worst_absolute == pytest.approx(1e-3, rel=1e-3)


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("alpha", [1, 0.3])
@pytest.mark.parametrize("dtype", FLOATING)
def test_torch_is_right_on_add(dtype, alpha, backward):
    a, b = sample(40, 30, dtype=dtype), sample(40, 30, dtype=dtype).t().reshape(30, 40).t()
    comparison = torch_only(diglot.add, a, b, alpha=alpha, backward=backward)
    assert comparison.row("torch").error.failing == 0
    size = a.numel() * dtype.itemsize
    assert comparison.bytes == (size * (0 if alpha == 1 else 2) if backward else 3 * size)
    assert {e.output for e in comparison.row("torch").errors} == (
        {"grad_input", "grad_other"} if backward else {"output"}
    )


def test_broadcast_gradient_is_judged_as_a_sum():
    comparison = torch_only("add", sample(300, 20), sample(20), alpha=2, backward=True)
    assert [e.elements for e in comparison.row("torch").errors] == [6000, 20]
    assert comparison.row("torch").error.failing == 0


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool])
def test_integers_are_compared_exactly(dtype, monkeypatch):
    a = torch.arange(6).to(dtype)
    assert torch_only("add", a, a).row("torch").error.worst_ulp == 0

    def wrong(input, other, alpha, out, scratch):
        torch.add(input, other, out=out)
        out[3] = 0
        return "planted"

    monkeypatch.setitem(runs._launchers, ("torch", "add_forward"), wrong)
    error = torch_only("add", a, a).row("torch").error
    assert error.index == (3,)
    assert error.worst_ulp == (1 if dtype == torch.bool else 6)


@needs_cuda
@needs_interpreters
@pytest.mark.parametrize("backward", [False, True])
def test_rows_of_every_backend(backward):
    x = sample(33, 20, dtype=torch.bfloat16)[:, ::2]  # not contiguous
    result = diglot.compare(
        diglot.add, x, x.clone().t().contiguous().t(), alpha=3, backward=backward, resources=False
    )
    assert [row.backend for row in result.rows] == ["cuda", "triton", "torch"]
    *kernels, reference = result.rows
    for row in kernels:
        assert row.reason is None and row.interpreted and row.variants
    assert reference.variants == ("aten",) and not reference.interpreted
    assert [row.error.failing for row in result.rows] == [0, 0, 0]
    pairs = [(a.first, a.second) for a in result.agreement]
    assert pairs == [("cuda", "triton"), ("cuda", "torch"), ("triton", "torch")]
    assert all(a.max_ulp <= 1 for a in result.agreement)
    assert all(row.speed is None for row in result.rows) and result.ceiling is None
    assert "add(bfloat16[33, 10], bfloat16[33, 10], alpha=3)" in str(result)


def test_a_backend_that_cannot_run(refused_cuda):
    result = diglot.compare(diglot.gelu, sample(3), resources=False)
    cuda = result.row("cuda")
    assert cuda.reason == refused_cuda and cuda.error is None and cuda.variants == ()
    assert f"cuda: did not run: {refused_cuda}" in str(result)


@pytest.mark.parametrize("op", ["gelu", "softmax", "layer_norm"])
@pytest.mark.parametrize("backward", [False, True])
def test_the_verdict_is_the_checks(op, backward, monkeypatch):
    """What it is by is above 1 just where an element fails."""
    spec = find_spec(op)
    data = inputs.load(spec, shape=(5, 40))
    (right,) = torch_only(op, *data, backward=backward).rows
    assert all(e.failing == 0 and 0 < e.worst_of_allowed <= 1 for e in right.errors) or op == "gelu"
    monkeypatch.setitem(accuracy.TOLERANCE_ULP, torch.float32, 0.0)
    strict = torch_only(op, *data, backward=backward).rows[0].errors
    assert [e.worst_of_allowed > 1 for e in strict] == [e.failing > 0 for e in strict]


def test_the_verdict_names_the_result(monkeypatch):
    data = inputs.load(find_spec("layer_norm"), shape=(5, 40))
    right = torch_only("layer_norm", *data, backward=True)
    line = str(right).splitlines()[0]
    assert re.fullmatch(
        r"torch: within tolerance \(worst error 0\.\d+ of the allowed, in grad_\w+\)", line
    )
    assert "grad_input, grad_weight, grad_bias: an element may be off the float64" in str(right)
    (row,) = right.rows
    wrong = dataclasses.replace(row.errors[1], failing=0.25, worst_of_allowed=3e4)
    rows = (dataclasses.replace(row, errors=(row.errors[0], wrong)),)
    lines = str(dataclasses.replace(right, rows=rows)).splitlines()
    assert lines[0] == (
        "torch: beyond tolerance in 25 % of the elements "
        "(worst error 30,000 of the allowed, in grad_weight)"
    )
    (cells,) = [line.split() for line in lines if "grad_weight" in line and "[" in line]
    assert cells[:2] == ["torch", "grad_weight"] and cells[-2:] == ["25", "%"]


def test_gradients_are_not_the_inputs():
    """By the same seed as random inputs', the output's gradient would equal the input."""
    (data,) = inputs.load(find_spec("gelu"), shape=(5, 40), seed=3)
    case = comparing._Case(find_spec("gelu"), (data,), {}, True, 3)
    assert not torch.equal(case.grads[0], data)


def test_failure_of_one_backend_is_a_finding(monkeypatch):
    def broken(*arguments):
        raise RuntimeError("no good\nsecond line")

    monkeypatch.setitem(runs._launchers, ("torch", "gelu_forward"), broken)
    row = torch_only("gelu", sample(3)).row("torch")
    assert row.reason == "failed: RuntimeError: no good"


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (
            ("nothing", torch.ones(2)),
            {},
            "op must be one of add, .*dropout, gaussian_pdf, gelu, .*, not 'nothing'",
        ),
        (("gelu",), {}, "gelu takes 1 inputs"),
        (("add", torch.ones(2)), {}, r"takes 2 inputs \(input, other\), not 1"),
        (("gelu", torch.ones(2)), {"alpha": 2}, "gelu has no option 'alpha'"),
        (("gelu", torch.ones(2)), {"approximate": "erf"}, "must be 'none' or 'tanh', not 'erf'"),
        (("gelu", torch.ones(2)), {"arch": "hopper"}, "arch must be like 'sm_90'"),
        (("gelu", torch.ones(2)), {"backends": ["rocm"]}, "a backend must be one of .* not 'rocm'"),
        (("add", torch.ones(2).int(), torch.ones(2).int()), {"backward": True}, "floating-point"),
        (("add", torch.ones(2), torch.ones(3)), {}, "do not broadcast"),
    ],
)
def test_bad_arguments(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        diglot.compare(*arguments, **options)


def test_integer_gelu_is_the_ops_own_error():
    with pytest.raises(TypeError, match="gelu: input must have one of the dtypes"):
        torch_only("gelu", torch.arange(3))


def test_json(tmp_path):
    x = torch.tensor([1.0, -2.0, math.inf, math.nan, -20.0])
    result = torch_only("gelu", x, approximate="tanh")
    path = tmp_path / "report.json"
    result.save(path)
    with pytest.raises(ValueError, match="exists and is not overwritten"):
        result.save(path)
    result.save(path, force=True)

    def reject(constant):
        raise AssertionError(f"{constant} is not JSON")

    report = json.loads(path.read_text(), parse_constant=reject)
    assert (report["schema"], report["schema_version"]) == ("diglot.comparison", 1)
    assert (report["op"], report["direction"]) == ("gelu", "forward")
    assert report["options"] == {"approximate": "tanh"}
    assert report["inputs"][0]["dtype"] == "float32" and report["inputs"][0]["shape"] == [5]
    (row,) = report["rows"]
    assert row["backend"] == "torch" and row["reason"] is None and row["speed"] is None
    assert row["error"]["elements"] == 5 and len(row["error"]["index"]) == 1
    assert len(row["profile"]["edges"]) == len(row["profile"]["worst_ulp"]) + 1
    assert report["versions"]["torch"] == torch.__version__


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_picture(suffix, tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / f"report{suffix}"
    result = torch_only("gelu", sample(500) * 5)
    row = result.row("torch")
    rows = tuple(dataclasses.replace(row, backend=name) for name in ("cuda", "triton", "torch"))
    all_three = dataclasses.replace(result, rows=rows)
    all_three.plot(path, force=True)
    assert len(path.read_bytes()) > 5000
    with drawing.drawn(plots.picture(all_three)) as figure:
        (errors,) = figure.axes
        assert all_three.device in figure.get_suptitle()
        legend = [text.get_text() for text in figure.legends[0].get_texts()]
    # Words stand beside what they explain, and a scale that changes says where.
    assert not errors.texts
    assert len(legend) == 4 and any("tolerance" in text for text in legend)
    assert "linear below the line at 1, logarithmic above" in errors.get_ylabel()
    assert "logarithmic beyond ±1" not in errors.get_xlabel()
    with drawing.drawn(plots.picture(torch_only("gelu", sample(500) * 50))) as figure:
        assert "logarithmic beyond ±1" in figure.axes[0].get_xlabel()
    with pytest.raises(ValueError, match="exists"):
        result.plot(path)
    with pytest.raises(ValueError, match="must end in one of"):
        result.plot(tmp_path / "report.txt")


@pytest.mark.parametrize("size", [0, 1])
def test_small_tensors(size, tmp_path):
    pytest.importorskip("matplotlib")
    result = torch_only("gelu", torch.ones(size))
    assert result.row("torch").error.elements == size
    assert str(result)
    result.plot(tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 1000
    assert torch_only("gelu", torch.tensor(0.5)).row("torch").error.index == ()


def test_random_inputs_are_seeded():
    spec = find_spec("add")
    first = inputs.load(spec, shape=(4, 5), seed=3, dtype=torch.bfloat16)
    again = inputs.load(spec, shape=(4, 5), seed=3, dtype=torch.bfloat16)
    other = inputs.load(spec, shape=(4, 5), seed=4, dtype=torch.bfloat16)
    assert [t.dtype for t in first] == [torch.bfloat16] * 2
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], other[0]) and not torch.equal(first[0], first[1])


@needs_cuda
@needs_interpreters
@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("op", op_names())
def test_kernels_are_not_blamed_in_float64(op, backward):
    """Of `diglot compare OP --dtype float64`, with every option's other values."""
    spec = find_spec(op)
    tensors = inputs.load(spec, shape=(40, 65), seed=0, dtype=torch.float64)
    choices = [{}] + [
        {name: value}
        for name, option in spec.options.items()
        for value in (option.allowed or (option.another,))
        if name != "dim"
    ]
    for options in choices:
        comparison = diglot.compare(
            op,
            *tensors,
            backward=backward,
            backends=["cuda", "triton"],
            resources=False,
            timed=False,
            **options,
        )
        for row in comparison.rows:
            assert row.reason is None, row.reason
            assert [error.failing for error in row.errors] == [0] * len(row.errors), str(comparison)


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_a_wrong_float64_gradient_is_blamed(approximate, monkeypatch):
    """By a hundred ulp next to the root of gelu's derivative, where its terms cancel."""
    root = -0.75179152469356447 if approximate == "none" else -0.75246142207101629
    x = root + torch.linspace(-1e-4, 1e-4, 100, dtype=torch.float64)

    def within(ulp):
        def backward(grad_output, input, approximate, out, *scratch):
            out.copy_(grad_output * gelu_derivative_oracle(input, approximate))
            out[7] *= 1 + ulp * 2**-52
            return "planted"

        return backward

    for ulp, failing in ((0, 0), (100, 1 / 100)):
        monkeypatch.setitem(runs._launchers, ("torch", "gelu_backward"), within(ulp))
        row = torch_only("gelu", x, approximate=approximate, backward=True).row("torch")
        assert row.error.failing == failing
    assert row.error.index == (7,)


@pytest.mark.gpu
@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_on_a_gpu(dtype, backward):
    x = torch.randn(1 << 24, device="cuda").to(dtype)
    result = diglot.compare("gelu", x, backward=backward)
    assert [row.reason for row in result.rows] == [None] * 3
    assert result.ceiling.gb_per_s > 0
    for row in result.rows:
        assert row.speed.median_us > 0 and 0 < row.speed.of_ceiling < 1.2
    for row in result.rows[:2]:
        assert row.error.failing == 0, str(result)
        assert row.kernels and not row.kernels_reason


@pytest.mark.gpu
def test_the_kernel_looked_at_is_the_one_that_ran():
    """What launchers record without a GPU, of calls without data, against what ran on one.

    All calls are asked about at once: each question is another process, which takes seconds.
    """
    calls, ran = [], []
    for dtype, backward in itertools.product((torch.float32, torch.bfloat16), (False, True)):
        base = torch.randn(5000, 1000, device="cuda").to(dtype)
        cases = {
            "gelu": [(base,), (base[:3],), (base.view(-1)[1:],), (base[:, ::2],)],
            "add": [
                (base, base),
                (base, base[0]),
                (base, base[:, :1]),
                (base[:3], base.view(-1)[1:3001].view(3, 1000)),
                (base[:150], base[150:300]),
                (base[:150], base.view(-1)[1:150001].view(150, 1000)),
            ],
        }
        for op, tensors in [(op, case) for op, of_op in cases.items() for case in of_op]:
            options = {"alpha": 2} if op == "add" else {}
            result = diglot.compare(
                op,
                *tensors,
                backward=backward,
                backends=["cuda"],
                timed=False,
                resources=False,
                **options,
            )
            row = result.row("cuda")
            assert row.reason is None, str(result)
            calls.append(Call(op, result.inputs, options, backward))
            # A split sum is two kernels.
            ran.append(
                [v.removesuffix(", split") for v in row.variants for _ in v.split(", split")]
            )
    answers = kernels_of_calls(calls, languages=["cuda"])
    for call, answer, variants in zip(calls, answers, ran, strict=True):
        assert answer["cuda"].reason is None, (call, answer)
        names = [kernel.name for kernel in answer["cuda"].kernels]
        assert [_variant(name) for name in names] == variants, (call, names)


def _variant(name):
    """What the launcher says of a kernel; in types of 4 and 2 bytes, every shape is another."""
    if "_sum<" in name:
        return "sum"
    shape = re.findall(r"FlatShape<(\d+), (\d+)>", name)
    accesses, elements = map(int, shape[0]) if shape else (1, 1)
    if "_flat<" not in name:
        wide = "16-byte accesses, " if elements > 1 else ""
        return f"strided, {wide}{64 if ', long>' in name else 32}-bit offsets"
    if elements == 1:
        return "flat, 1 element per thread"
    many = f"{accesses * elements} elements"
    return f"flat, {'1 access' if accesses == 1 else many} per thread"


@needs_interpreters
@pytest.mark.parametrize("backward", [False, True])
def test_backends_drop_the_same_elements(backward):
    comparison = diglot.compare(
        diglot.dropout, sample(7, 33), p=0.3, backward=backward, resources=False, timed=False
    )
    assert [row.reason for row in comparison.rows] == [None] * 3
    assert all(of.bit_equal == 1 for of in comparison.agreement)
    assert all(error.failing == 0 for row in comparison.rows for error in row.errors)
