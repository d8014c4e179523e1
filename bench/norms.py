"""What the benchmarks of the norms share: tensors, providers, counts and checks.

Shapes and bars are those of bench/rows.py. A backward pass is timed by its operator, with the
gradients of the weight and the bias. The count of bytes leaves out the weight, the bias and numbers
of whole rows. Peers are called by the functions below their autograd functions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

import diglot
from diglot.bench.harness import (
    RECORDED,
    Benchmark,
    Call,
    Case,
    ErrorOf,
    Function,
    Tensors,
    host_bar,
    normal,
    recorded,
    rows_of,
)
from diglot.bench.norm_formulas import EPS, FORMULAS
from diglot.bench.rows import BARS, cases, is_matrix
from diglot.reference.norm import Exact
from diglot.reference.specs import Expected, nbytes
from diglot.tools.accuracy import measure_error


@dataclass(frozen=True)
class Operands:
    """The tensors of a case, by name, and of a backward pass what the forward one saved.

    Attributes:
        arrays: the input, and the residual if there is one. A backward pass has the output's
            gradient, the sum's or None, and the input or the sum.
        weight: (n,).
        bias: (n,); None of an RMS norm.
        mean: (rows,); of a backward pass of a layer norm.
        rstd: (rows,); of a backward pass.
        stacked: (fields, rows): mean and rstd, or rstd, as ours take them.
    """

    arrays: tuple[Any, ...]
    weight: Any
    bias: Any
    mean: Any = None
    rstd: Any = None
    stacked: Any = None

    @property
    def n(self) -> int:
        return self.weight.numel()

    @property
    def parameters(self) -> list[torch.Tensor]:
        return [p for p in (self.weight, self.bias) if p is not None]

    @property
    def statistics(self) -> list[torch.Tensor]:
        return [s for s in (self.mean, self.rstd) if s is not None]


class _Norm:
    """One of the four ops: the ways to compute it, from operands, and how results are judged.

    A way returns the outputs, or the gradients of the input (or the sum) and the parameters.
    """

    def __init__(self, centered: bool, fused: bool) -> None:
        self.centered, self.fused = centered, fused
        self.plain = "layer_norm" if centered else "rms_norm"
        self.op = f"add_{self.plain}" if fused else self.plain
        self.formula, self.formula_gradient = FORMULAS[self.op].values()
        self.function = getattr(diglot, self.op)
        self.backward = getattr(torch.ops.diglot, f"{self.plain}_backward")
        self.judged: Tensors | None = None  # of what the expected results are known
        self.expected: list[Expected] = []

    def inputs(self, case: Case) -> Tensors:
        """The arrays of a case, the weight, and the bias if there is one."""
        arrays = (2 if case.direction == "backward" else 1) + self.fused
        shapes = [case.shape] * arrays + [case.shape[-1:]] * (1 + self.centered)
        return recorded(case, normal(shapes, case.dtype))

    def bytes_moved(self, case: Case, tensors: Tensors) -> int:
        """Each array that is read once, each that is written once."""
        read = [t for t in tensors if t.dim() == 2]
        written = 2 if self.fused and case.direction != "backward" else 1
        return sum(map(nbytes, read)) + written * nbytes(tensors[0])

    def operands(self, case: Case, tensors: Tensors) -> Operands:
        """What the functions of a case take."""
        split = len(tensors) - 1 - self.centered
        arrays, (weight, bias) = tensors[:split], (*tensors[split:], None)[:2]
        if case.direction != "backward":
            return Operands(arrays, weight, bias)
        grad, *sums, x = arrays
        # Row by row in double precision: a few rows at a time take little memory.
        exact = Exact(x, None, None, 1, EPS, self.centered)
        mean, rstd = (of.flatten().float() for of in (exact.mean, exact.rstd))
        saved = (grad, sums[0] if sums else None, x)
        if not self.centered:
            return Operands(saved, weight, bias, None, rstd, torch.stack([rstd]))
        return Operands(saved, weight, bias, mean, rstd, torch.stack([mean, rstd]))

    def eager(self, of: Operands) -> Any:
        """PyTorch's op, after an addition where there is one."""
        x = of.arrays[0] + of.arrays[1] if self.fused else of.arrays[0]
        if self.centered:
            out = F.layer_norm(x, (of.n,), of.weight, of.bias, EPS)
        else:
            out = F.rms_norm(x, (of.n,), of.weight, EPS)
        return (out, x) if self.fused else (out,)

    def eager_gradient(self, of: Operands) -> Any:
        """PyTorch's operator, and an addition of the sum's gradient."""
        grad, more, x = of.arrays
        rows = [s[:, None] for s in of.statistics]
        if self.centered:
            made = torch.ops.aten.native_layer_norm_backward(
                grad, x, [of.n], *rows, of.weight, of.bias, [True, True, True]
            )
        else:
            made = torch.ops.aten._fused_rms_norm_backward(
                grad, x, [of.n], *rows, of.weight, [True, True]
            )
        return made if more is None else (made[0] + more, *made[1:])

    def written_out(self, of: Operands) -> Any:
        """The definition."""
        made = self.formula(*of.arrays, *of.parameters)
        return made if self.fused else (made,)

    def gradient_written_out(self, of: Operands) -> Any:
        """That of the backward pass."""
        grad, *more, x = (array for array in of.arrays if array is not None)
        return self.formula_gradient(grad, *more, x, *of.statistics, of.weight)

    def ours(self, of: Operands, backend: str) -> Any:
        """The public function."""
        made = self.function(*of.arrays, of.n, *of.parameters, eps=EPS, backend=backend)
        return made if self.fused else (made,)

    def our_gradient(self, of: Operands, backend: str) -> Any:
        """The operator of its backward pass."""
        dtypes = [p.dtype for p in of.parameters]
        return self.backward(*of.arrays, of.stacked, of.weight, *dtypes, EPS, backend)

    def judge(self, case: Case, tensors: Tensors, call: Call) -> ErrorOf:
        """The worst error of all results. The right results of a case are computed once."""
        if tensors is not self.judged:
            self.expected = []
            self.expected = self._expect(case, self.operands(case, tensors))
            self.judged = tensors
        results = call()
        if len(results) < len(self.expected):
            raise ValueError(f"{len(results)} of {len(self.expected)} results")
        # What peers return beyond these, such as statistics, is left out.
        pairs = zip(results, self.expected, strict=False)
        return ErrorOf.of([measure_error(of.detach().to(to.dtype), to) for of, to in pairs])

    def _expect(self, case: Case, of: Operands) -> list[Expected]:
        if case.direction == "backward":
            grad, more, x = of.arrays
            exact = Exact(x, of.weight, of.bias, 1, EPS, self.centered)
            return list(exact.gradients(grad, more).values())
        x = of.arrays[0] + of.arrays[1] if self.fused else of.arrays[0]
        output = Exact(x, of.weight, of.bias, 1, EPS, self.centered).output()
        same = Expected(lambda x: x.double(), (x,), {}, x.dtype)
        return [output, same] if self.fused else [output]


def benchmark_of(centered: bool, fused: bool) -> Benchmark:
    """The benchmark of one of the four ops."""
    norm = _Norm(centered, fused)
    made = Benchmark(
        op=norm.op,
        cases=cases(),
        inputs=norm.inputs,
        expected=None,
        error=norm.judge,
        bytes_moved=norm.bytes_moved,
        bars=[*BARS, host_bar(cuda=(8, 14), triton=(18, 26))],
        shape=rows_of,
        takes=is_matrix,
        operands=lambda case, tensors: (norm.operands(case, tensors),),
    )

    def ways(forward: Function, backward: Function) -> dict[str, Function]:
        return {"forward": forward, RECORDED: forward, "backward": backward}

    called = [F.layer_norm if centered else F.rms_norm, *([torch.add] if fused else [])]
    # The formula of a fused op calls that of the plain one.
    parts = [FORMULAS[op] for op in dict.fromkeys((norm.plain, norm.op))]
    formulas = [function for part in parts for function in part.values()]
    made.ours(ways(norm.ours, norm.our_gradient))
    made.way("torch", ways(norm.eager, norm.eager_gradient), code=called)
    # The op itself is compiled, as of softmax.
    made.compiled(
        {"forward": norm.eager, "backward": norm.gradient_written_out},
        code=[*called, *(part["backward"] for part in parts)],
    )
    made.way(
        "formula",
        {"forward": norm.written_out, "backward": norm.gradient_written_out},
        code=formulas,
    )
    return made
