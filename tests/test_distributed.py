"""diglot.distributed without a GPU: groups of processes, whose workspaces are files they share."""

from __future__ import annotations

import pytest
import torch
import torch.distributed
from backends import BACKENDS, DEVICE, KERNELS
from peers import in_group
from test_all_reduce import inputs, same_bits

import diglot
from diglot import distributed
from diglot.reference.distributed.all_reduce import all_reduce_oracle
from diglot.reference.rms_norm import rms_norm_oracle

pytestmark = pytest.mark.skipif(DEVICE == "cuda", reason="test_distributed_on_gpu.py has GPUs")

SIZES = {"most_pushed": 4096, "most_staged": 8192, "timeout": 60.0}
OPS = ["sum", "avg", "max", "min"]


def message(error: type[Exception], function, *arguments, **options) -> str:
    """What an error of this type says."""
    with pytest.raises(error) as raised:
        function(*arguments, **options)
    return str(raised.value)


@pytest.mark.parametrize("backend", BACKENDS)
def test_all_reduce(backend):
    def work(rank):
        space = distributed.Workspace(**SIZES)
        results = []
        for op in OPS:
            for case, n in enumerate((0, 1, 1001, 5000)):
                x = inputs(2, case, n, torch.bfloat16)[rank]
                results.append(distributed.all_reduce(x, op, backend=backend))
                assert diglot.last_run().backend == backend
                distributed.barrier(backend=backend)
        shaped = distributed.all_reduce(torch.ones(2, 3, 4), backend=backend)
        assert shaped.shape == (2, 3, 4) and (shaped == 2).all()
        space.synchronize()
        space.close()
        return results

    for results in in_group(2, work):
        made = iter(results)
        for op in OPS:
            for case, n in enumerate((0, 1, 1001, 5000)):
                expected = all_reduce_oracle(inputs(2, case, n, torch.bfloat16), op)
                result = next(made)
                if backend == "torch":  # gloo rounds each sum, and drops some NaN
                    is_there = ~expected.isnan()
                    close = torch.isclose(result.float(), expected.float(), rtol=2**-7)
                    assert close[is_there].all()
                else:
                    assert same_bits(result, expected)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_other_collectives(backend):
    """Small tensors, whose sums are exact, so that gloo's are the same."""

    def work(rank):
        space = distributed.Workspace(**SIZES)
        results = []
        for shape in [(2,), (6, 3), (4, 500), (2, 3001)]:
            x = exact(rank, shape)
            gathered = distributed.all_gather(x, backend=backend)
            part = distributed.reduce_scatter(x, backend=backend)
            assert diglot.last_run().backend == backend
            mean = distributed.reduce_scatter(x, "avg", backend=backend)
            normed = distributed.all_reduce_add_rms_norm(
                x, exact(7, shape), exact(8, shape[-1:]), 1e-6, backend=backend
            )
            results.append((gathered, part, mean, *normed))
        scalar = distributed.all_gather(torch.tensor(rank), backend=backend)
        empty = distributed.all_gather(torch.empty(0, 3), backend=backend)
        assert scalar.tolist() == [0, 1] and empty.shape == (0, 3)
        assert distributed.reduce_scatter(torch.empty(0, 3), backend=backend).shape == (0, 3)
        space.synchronize()
        space.close()
        return results

    for rank, results in enumerate(in_group(2, work)):
        for shape, result in zip([(2,), (6, 3), (4, 500), (2, 3001)], results, strict=True):
            gathered, part, mean, normed, residual = result
            xs = [exact(r, shape) for r in range(2)]
            total = xs[0] + xs[1]
            assert torch.equal(gathered, torch.cat(xs))
            assert torch.equal(part, total.chunk(2)[rank])
            assert torch.equal(mean, total.chunk(2)[rank] / 2)
            assert torch.equal(residual, total + exact(7, shape))
            expected = rms_norm_oracle(residual, exact(8, shape[-1:]), 1e-6)
            assert torch.allclose(normed.double(), expected, rtol=1e-5)


def exact(seed: int, shape: tuple[int, ...]) -> torch.Tensor:
    """Small integers in float32."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-8, 9, shape, generator=generator).float()


@pytest.mark.parametrize("backend", KERNELS)
def test_a_backward_pass_keeps_the_backend_of_its_scope(backend):
    def work(rank):
        distributed.Workspace(**SIZES)
        x = exact(rank, (4, 8)).requires_grad_()
        with diglot.use_backend(backend):
            y = distributed.all_reduce(x)
        y.sum().backward()
        return diglot.last_run().backend, x.grad

    for ran, grad in in_group(2, work):
        assert ran == backend and (grad == 2).all()


def train(rank: int, hook) -> list[torch.Tensor]:
    """The weights of a small model after three steps."""
    torch.manual_seed(rank)  # DistributedDataParallel gives all ranks the weights of rank 0
    layers = [torch.nn.Linear(40, 40), torch.nn.GELU(), torch.nn.Linear(40, 3)]
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers))
    if hook is not None:
        model.register_comm_hook(None, hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        x = exact(10 * step + rank, (16, 40))
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [p.detach().clone() for p in model.parameters()]


@pytest.mark.parametrize("backend", KERNELS)
def test_ddp_hook(backend):
    """Weights are those of PyTorch's own averages, and have the same bits on all ranks."""

    def work(rank):
        distributed.Workspace(most_pushed=16384, timeout=60.0)
        with diglot.backends.record_runs() as runs:
            made = train(rank, distributed.ddp_hook(backend=backend))
        return made, train(rank, None), [run.backend for run in runs]

    (one, expected, ran), (other, _, _) = in_group(2, work)
    assert ran == [backend] * 3
    assert all(map(torch.equal, one, other))
    for made, right in zip(one, expected, strict=True):
        torch.testing.assert_close(made, right, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("backend", KERNELS)
def test_gradients(backend, compiled):
    """Each collective's gradient is its transpose, over the ranks. Also of a compiled function."""

    def work(rank):
        distributed.Workspace(**SIZES)
        shapes = {"x": (4, 6), "residual": (4, 6), "weight": (6,)}
        at = {name: exact(10 * rank + len(name), s).requires_grad_() for name, s in shapes.items()}

        def step(x, residual, weight):
            a = distributed.all_reduce(x, backend=backend)
            b = distributed.all_reduce(x * 2, "avg", backend=backend)
            c = distributed.all_gather(x, backend=backend)
            d = distributed.reduce_scatter(x, backend=backend)
            e = distributed.reduce_scatter(x, "avg", backend=backend)
            f, g = distributed.all_reduce_add_rms_norm(x, residual, weight, 1e-5, backend=backend)
            return a, b, c, d, e, f, g

        run = torch.compile(step, backend="aot_eager", fullgraph=True) if compiled else step
        outputs = run(**at)
        along = [exact(100 * rank + i, out.shape) for i, out in enumerate(outputs)]
        grads = torch.autograd.grad(outputs, list(at.values()), along)
        values = [value.detach() for value in at.values()]
        return values, [out.detach() for out in outputs], along, grads

    results = in_group(2, work)
    xs, residuals, weights = (
        [results[r][0][i].clone().requires_grad_() for r in range(2)] for i in range(3)
    )
    total, leaves, along, expected = xs[0] + xs[1], [*xs, *residuals, *weights], [], []
    for rank in range(2):
        summed = total + residuals[rank]
        normed = torch.nn.functional.rms_norm(summed, (6,), weights[rank], 1e-5)
        made = [total, total, torch.cat(xs), total.chunk(2)[rank], total.chunk(2)[rank] / 2]
        expected += [*made, normed, summed]
        along += results[rank][2]
    for one, other in zip([o for r in results for o in r[1]], expected, strict=True):
        assert torch.allclose(one, other, rtol=1e-5, atol=1e-6)
    wanted = torch.autograd.grad(expected, leaves, along)
    for i, grad in enumerate(wanted):
        made = results[i % 2][3][i // 2]
        assert torch.allclose(made, grad, rtol=1e-4, atol=1e-4), (i, made, grad)


@pytest.mark.parametrize("backend", KERNELS)
def test_rows_that_take_two_launches(backend):
    """Of a number of bytes that is no multiple of 16, or longer than a buffer."""

    def work(rank):
        space = distributed.Workspace(**SIZES)
        fused, separate, ran = [], [], []
        for columns in (6, 3000):
            x, residual = exact(rank, (2, columns)), exact(9, (2, columns))
            with diglot.record_runs() as runs:
                fused.append(distributed.all_reduce_add_rms_norm(x, residual, backend=backend))
            ran.append([run.launcher for run in runs])
            reduced = distributed.all_reduce(x, backend=backend)
            separate.append(diglot.add_rms_norm(reduced, residual, columns, backend=backend))
        space.close()
        return fused, separate, ran

    for fused, separate, ran in in_group(2, work):
        assert ran == [["all_reduce", "add_rms_norm_forward"]] * 2
        for one, other in zip(fused, separate, strict=True):
            assert all(map(torch.equal, one, other))


@pytest.mark.parametrize("backend", KERNELS)
def test_symmetric_tensors(backend):
    def work(rank):
        space = distributed.Workspace(symmetric=1 << 23, **SIZES)
        long = space.empty(1100, 1000, dtype=torch.float16).fill_(rank + 1)
        short = space.empty(3, dtype=torch.float32).fill_(rank + 1)
        sums = []
        for x in (long, short, short[1:]):
            sums.append((distributed.all_reduce(x, backend=backend), diglot.last_run().variant))
        full = message(RuntimeError, space.empty, 1 << 23, dtype=torch.float32)
        space.close()
        return [(out.flatten()[0].item(), variant) for out, variant in sums], full

    for sums, full in in_group(2, work):
        assert sums == [(3.0, "pull in place"), (3.0, "push"), (3.0, "push")]
        assert "bytes are left for symmetric tensors, and 33554432 are needed" in full


@pytest.mark.parametrize("backend", KERNELS)
def test_two_shots_by_the_bytes_that_they_save(backend):
    """Three ranks save a third of what two peers' tensors have."""

    def work(rank):
        space = distributed.Workspace(**SIZES, symmetric=1 << 15, blocks=2)
        space.saved_bytes = 8000
        place = space.empty(3000, dtype=torch.float32)
        runs = []
        for x in (torch.empty(2999), torch.empty(3000), place):
            out = distributed.all_reduce(x.fill_(rank), backend=backend)
            runs.append((diglot.last_run().variant, out.unique().tolist()))
        rows = torch.full((2, 1500), float(rank))
        _, total = distributed.all_reduce_add_rms_norm(rows, rows * 0 + 1, backend=backend)
        runs.append((diglot.last_run().op, total.unique().tolist()))
        space.synchronize()
        space.close()
        return runs

    expected = [("pull", [3.0]), ("two shots", [3.0]), ("two shots in place", [3.0])]
    assert in_group(3, work) == [[*expected, ("add_rms_norm", [4.0])]] * 3


@pytest.mark.parametrize("backend", KERNELS)
def test_two_shots_of_two_ranks_outside_the_workspace(backend):
    def work(rank):
        space = distributed.Workspace(**SIZES, symmetric=1 << 15)
        assert space.two_shots_bytes == 8 << 20
        space.two_shots_bytes = 8000
        runs = []
        for x in (torch.empty(1999), torch.empty(2000), space.empty(2000, dtype=torch.float32)):
            out = distributed.all_reduce(x.fill_(rank), backend=backend)
            runs.append((diglot.last_run().variant, out.unique().tolist()))
        space.synchronize()
        space.close()
        return runs

    assert in_group(2, work) == [[("pull", [1.0]), ("two shots", [1.0]), ("pull", [1.0])]] * 2


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
def test_an_output_of_the_caller(backend, compiled):
    """A new tensor, or the input itself; in the workspace or not."""

    def work(rank):
        space = distributed.Workspace(**SIZES, symmetric=1 << 16)

        def step(x, out):
            distributed.all_reduce(x, out=out, backend=backend)
            return out

        run = torch.compile(step, backend="aot_eager", fullgraph=True) if compiled else step
        results = []
        for make in (torch.empty, space.empty):
            for n in (1, 3000):
                x, other = (make(n, dtype=torch.float32).fill_(rank + 1.0) for _ in range(2))
                odd = torch.empty(n + 1)[1:]
                for out in (other, odd, x):
                    assert run(x, out) is out
                    results.append(out.unique().tolist())
        space.synchronize()
        space.close()
        return results

    assert in_group(2, work) == [[[3.0]] * 12] * 2


@pytest.mark.parametrize("backend", KERNELS)
def test_protocols_of_an_output(backend):
    """Direct shots take long tensors from the workspace into it, perhaps in place."""
    asked = ["push", "pull", "two shots", "in place", "two shots in place", "direct shots"]

    def work(rank):
        space = distributed.Workspace(**SIZES, symmetric=1 << 17)
        assert space.direct_bytes == 4 << 20
        space.direct_bytes, space.staged_bytes = 12000, 5000
        runs = []
        for n in (2900, 3000):
            x, other = (space.empty(n, dtype=torch.float32) for _ in range(2))
            for out in (None, torch.empty(n), other, x):
                made = distributed.all_reduce(x.fill_(rank), out=out, backend=backend)
                runs.append((diglot.last_run().variant, made.unique().tolist()))
        for protocol in asked:
            x, other = (space.empty(1000, dtype=torch.float32) for _ in range(2))
            made = distributed.all_reduce(
                x.fill_(rank), out=other, backend=backend, protocol=protocol
            )
            runs.append((diglot.last_run().variant, made.unique().tolist()))
        with torch.no_grad():
            distributed.all_reduce(x.requires_grad_(), out=other, backend=backend)
        space.synchronize()
        space.close()
        return runs

    place, direct = "pull in place", "direct shots"
    expected = [place] * 3 + ["pull"] + [place] * 2 + [direct] * 2
    expected += ["pull in place" if protocol == "in place" else protocol for protocol in asked]
    for runs in in_group(2, work):
        assert runs == [(variant, [1.0]) for variant in expected]


@pytest.mark.parametrize("backend", KERNELS)
def test_an_output_that_autograd_has_saved(backend):
    """Its change is found, as that of PyTorch's own functions is."""

    def work(rank):
        space = distributed.Workspace(**SIZES)
        weight, saved = torch.ones(8, requires_grad=True), torch.ones(8)
        made = (weight * saved).sum()
        with torch.no_grad():
            distributed.all_reduce(torch.ones(8), out=saved, backend=backend)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            made.backward()
        space.synchronize()
        space.close()
        return True

    assert in_group(2, work) == [True] * 2


@pytest.mark.parametrize("backend", KERNELS)
def test_outputs_at_different_places(backend):
    """Found at the first meeting, before a rank writes to another."""

    def work(rank):
        space = distributed.Workspace(**SIZES, symmetric=1 << 16)
        x, one, other = (space.empty(3000, dtype=torch.float32).fill_(5) for _ in range(3))
        torch.distributed.barrier()
        out, kept = (other, one) if rank == 0 else (one, other)
        distributed.all_reduce(x, out=out, backend=backend, protocol="direct shots")
        said = message(RuntimeError, space.synchronize)
        return said, out.isnan().all().item(), x.unique().tolist() + kept.unique().tolist()

    for said, is_nan, untouched in in_group(2, work):
        assert "came with another call" in said
        assert is_nan and untouched == [5.0, 5.0]


def test_a_workspace_and_its_group():
    def work(rank):
        x, all_reduce = torch.ones(3), distributed.all_reduce
        said = [message(diglot.BackendUnavailable, all_reduce, x, backend="triton")]
        with diglot.use_backend("torch"):
            assert (all_reduce(x) == 2).all()
        space = distributed.Workspace(**SIZES)
        said.append(message(RuntimeError, distributed.Workspace))
        half = torch.distributed.new_group([0, 1])
        said.append(message(diglot.BackendUnavailable, all_reduce, x, group=half, backend="triton"))
        said.append(message(diglot.BackendUnavailable, all_reduce, x))
        other = distributed.Workspace(half, **SIZES)
        assert (all_reduce(x, group=half, backend="triton") == 2).all()
        other.close()
        space.close()
        space.close()
        said.append(message(RuntimeError, space.empty, 0, dtype=torch.float32))
        space = distributed.Workspace(**SIZES)  # a group may have another one later
        assert (all_reduce(x, backend="triton") == 2).all()
        return said

    for without, second, other, auto, closed in in_group(2, work):
        assert "needs a workspace, and the group has none" in without
        assert "has one already" in second
        assert "needs a workspace" in other
        assert "'auto' takes no interpreter" in auto
        assert "closed" in closed


def test_ranks_whose_workspaces_differ():
    def work(rank):
        options = SIZES | {"most_pushed": 4096 * (rank + 1)}
        return message(RuntimeError, distributed.Workspace, **options)

    for rank, said in enumerate(in_group(2, work)):
        assert f"rank {rank} has" in said and f"rank {1 - rank} has" in said


@pytest.mark.parametrize("backend", KERNELS)
def test_the_call_after_a_lost_peer_raises(backend):
    def work(rank):
        space = distributed.Workspace(**SIZES)
        if rank == 1:
            torch.distributed.barrier()
            space.close()
        else:
            out = distributed.all_reduce(torch.ones(5), "max", backend=backend, timeout=0.2)
            assert out.isnan().all()
            said = [
                message(RuntimeError, distributed.all_reduce, out, backend=backend),
                message(RuntimeError, distributed.barrier, backend=backend),
                message(RuntimeError, space.synchronize),
            ]
            torch.distributed.barrier()
            space.close()
        space = distributed.Workspace(**SIZES)  # another one works
        assert (distributed.all_reduce(torch.ones(5), backend=backend) == 2).all()
        return said if rank == 0 else None

    for said in in_group(2, work)[0]:
        assert said.startswith("all_reduce(max): rank 1 did not come in time. Rank 0 waited for it")


def test_bad_arguments():
    def work(rank):
        distributed.Workspace(**SIZES)
        all_reduce, x = distributed.all_reduce, torch.ones(4, 4)
        norm = distributed.all_reduce_add_rms_norm
        return [
            message(TypeError, all_reduce, x.double()),
            message(TypeError, all_reduce, [1.0]),
            message(ValueError, all_reduce, x, "mean"),
            message(ValueError, all_reduce, x.t()[:2]),
            message(ValueError, all_reduce, x, backend="nccl"),
            message(RuntimeError, all_reduce, torch.ones(2, requires_grad=True), "max"),
            message(RuntimeError, all_reduce, torch.ones(2, requires_grad=True), out=torch.ones(2)),
            message(RuntimeError, all_reduce, x[1:], out=x[:3], backend="triton"),
            message(TypeError, all_reduce, x, out=[1.0]),
            message(ValueError, all_reduce, x, out=x[:2]),
            message(ValueError, all_reduce, x, out=x.half()),
            message(ValueError, all_reduce, x, out=torch.ones(4, 8)[:, ::2]),
            message(ValueError, all_reduce, x, protocol="shots"),
            message(ValueError, all_reduce, x, protocol="in place", backend="triton"),
            message(ValueError, all_reduce, x, protocol="direct shots", out=x, backend="triton"),
            message(ValueError, all_reduce, torch.ones(5000), protocol="push", backend="triton"),
            message(
                ValueError, distributed.Workspace, torch.distributed.new_group(), most_staged=0
            ),
            message(TypeError, distributed.all_gather, [1.0]),
            message(ValueError, distributed.all_gather, x.t()[:2]),
            message(TypeError, distributed.reduce_scatter, x.double()),
            message(ValueError, distributed.reduce_scatter, torch.tensor(1.0), backend="triton"),
            message(ValueError, norm, torch.tensor(1.0), x),
            message(ValueError, norm, x, x[:2]),
            message(ValueError, norm, x, x, x[0].half()),
            message(TypeError, norm, x, [1.0]),
        ]

    said = in_group(1, work)[0]
    expected = [
        "float16, bfloat16 or float32", "float16, bfloat16 or float32", "sum, avg, max, min",
        "must be contiguous", "backend must be one of", "has no gradient",
        "don't support automatic differentiation", "out overlaps x",
        "out must be a dense tensor", "out must have the shape", "out must have the shape",
        "out must be contiguous", "protocol must be one of", "does not serve x and out",
        "does not serve x and out", "does not serve x and out", "at least 256",
        "all_gather: x must be a dense tensor", "must be contiguous",
        "float16, bfloat16 or float32",
        "first dimension of x must be divisible", "at least one dimension", "residual must have",
        "weight must have", "residual must be a dense tensor",
    ]  # fmt: skip
    assert len(said) == len(expected)
    for text, part in zip(said, expected, strict=True):
        assert part in text


def test_without_torch_distributed():
    with pytest.raises(RuntimeError, match="not initialized"):
        distributed.Workspace()
    with pytest.raises(RuntimeError, match="not initialized"):
        distributed.all_reduce(torch.ones(3))
