"""What the benchmarks of the norms share: tensors, providers, what is counted and checked.

Shapes and bars are those of bench/rows.py. A backward pass is timed by its operator, with the
gradients of the weight and the bias; of bytes, the weight and the bias and what is of a row are
left out. Peers are called by the functions below their autograd functions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

import diglot
from diglot.bench.harness import (
    OURS,
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
class Kind:
    """One of the four ops.

    Attributes:
        centered: whether it is the layer norm.
        fused: whether a residual is added first.
    """

    centered: bool
    fused: bool

    @property
    def plain(self) -> str:
        return "layer_norm" if self.centered else "rms_norm"

    @property
    def op(self) -> str:
        return f"add_{self.plain}" if self.fused else self.plain


@dataclass(frozen=True)
class Operands:
    """The tensors of a case, by name, and of a backward pass what the forward one saved.

    Attributes:
        arrays: the input, and the residual if there is one; of a backward pass the gradient of the
            output, that of the sum or None, and the input or the sum.
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


# Functions are from operands to the outputs, or to the gradients of the input (or the sum) and the
# parameters.


def operands(kind: Kind, case: Case, tensors: Tensors) -> Operands:
    """What the functions of a case take."""
    split = len(tensors) - 1 - kind.centered
    arrays, (weight, bias) = tensors[:split], (*tensors[split:], None)[:2]
    if case.direction != "backward":
        return Operands(arrays, weight, bias)
    grad, *sums, x = arrays
    # Row by row in double precision, of which a few at a time take little memory.
    exact = Exact(x, None, None, 1, EPS, kind.centered)
    mean, rstd = (of.flatten().float() for of in (exact.mean, exact.rstd))
    more = sums[0] if sums else None
    stacked = torch.stack([mean, rstd] if kind.centered else [rstd])
    return Operands((grad, more, x), weight, bias, mean if kind.centered else None, rstd, stacked)


def _forward_eager(kind: Kind) -> Function:
    """PyTorch's op, after an addition where there is one."""

    def function(of: Operands) -> Any:
        x = of.arrays[0] + of.arrays[1] if kind.fused else of.arrays[0]
        if kind.centered:
            out = F.layer_norm(x, (of.n,), of.weight, of.bias, EPS)
        else:
            out = F.rms_norm(x, (of.n,), of.weight, EPS)
        return (out, x) if kind.fused else (out,)

    return function


def _forward_formula(kind: Kind) -> Function:
    """The definition written out."""
    formula = FORMULAS[kind.op]["forward"]

    def function(of: Operands) -> Any:
        made = formula(*of.arrays, *of.parameters)
        return made if kind.fused else (made,)

    return function


def _backward_eager(kind: Kind) -> Function:
    """PyTorch's operator, and an addition of the sum's gradient."""

    def function(of: Operands) -> Any:
        grad, more, x = of.arrays
        rows = [s[:, None] for s in of.statistics]
        if kind.centered:
            made = torch.ops.aten.native_layer_norm_backward(
                grad, x, [of.n], *rows, of.weight, of.bias, [True, True, True]
            )
        else:
            made = torch.ops.aten._fused_rms_norm_backward(
                grad, x, [of.n], *rows, of.weight, [True, True]
            )
        return made if more is None else (made[0] + more, *made[1:])

    return function


def _backward_formula(kind: Kind) -> Function:
    """The definition written out."""
    formula = FORMULAS[kind.op]["backward"]

    def function(of: Operands) -> Any:
        grad, more, x = of.arrays
        return formula(grad, *([more] if kind.fused else []), x, *of.statistics, of.weight)

    return function


def _ours(kind: Kind, direction: str, backend: str) -> Function:
    if direction != "backward":
        function = getattr(diglot, kind.op)

        def forward(of: Operands) -> Any:
            made = function(*of.arrays, of.n, *of.parameters, eps=EPS, backend=backend)
            return made if kind.fused else (made,)

        return forward
    backward = getattr(torch.ops.diglot, f"{kind.plain}_backward")

    def differentiate(of: Operands) -> Any:
        dtypes = [p.dtype for p in of.parameters]
        return backward(*of.arrays, of.stacked, of.weight, *dtypes, EPS, backend)

    return differentiate


class _Judge:
    """The worst error of all results of calls; what is expected of a case is computed once."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.tensors: Tensors | None = None
        self.expected: list[Expected] = []

    def __call__(self, case: Case, tensors: Tensors, call: Call) -> ErrorOf:
        if tensors is not self.tensors:
            self.expected = []
            self.expected = self._expect(case, operands(self.kind, case, tensors))
            self.tensors = tensors
        results = call()
        if len(results) < len(self.expected):
            raise ValueError(f"{len(results)} of {len(self.expected)} results")
        # What peers return beyond these, such as statistics, is left out.
        return ErrorOf.of(
            [
                measure_error(result.detach().to(expected.dtype), expected)
                for result, expected in zip(results, self.expected, strict=False)
            ]
        )

    def _expect(self, case: Case, of: Operands) -> list[Expected]:
        if case.direction == "backward":
            grad, more, x = of.arrays
            exact = Exact(x, of.weight, of.bias, 1, EPS, self.kind.centered)
            return list(exact.gradients(grad, more).values())
        x = of.arrays[0] + of.arrays[1] if self.kind.fused else of.arrays[0]
        output = Exact(x, of.weight, of.bias, 1, EPS, self.kind.centered).output()
        same = Expected(lambda x: x.double(), (x,), {}, x.dtype)
        return [output, same] if self.kind.fused else [output]


def benchmark_of(centered: bool, fused: bool) -> Benchmark:
    """The benchmark of one of the four ops.

    Args:
        centered: whether it is a layer norm.
        fused: whether a residual is added first.
    """
    kind = Kind(centered, fused)

    def inputs(case: Case) -> Tensors:
        arrays = (2 if case.direction == "backward" else 1) + fused
        row = case.shape[-1:]
        return recorded(case, normal([case.shape] * arrays + [row] * (1 + centered), case.dtype))

    def bytes_moved(case: Case, tensors: Tensors) -> int:
        """Each array that is read once, each that is written once."""
        read = [t for t in tensors if t.dim() == 2]
        written = 2 if fused and case.direction != "backward" else 1
        return sum(map(nbytes, read)) + written * nbytes(tensors[0])

    made = Benchmark(
        op=kind.op,
        cases=cases(),
        inputs=inputs,
        expected=None,
        error=_Judge(kind),
        bytes_moved=bytes_moved,
        bars=[*BARS, host_bar(cuda=(8, 14), triton=(18, 26))],
        shape=rows_of,
        takes=is_matrix,
        operands=lambda case, tensors: (operands(kind, case, tensors),),
    )
    for backend in OURS:
        made.way(backend, {d: _ours(kind, d, backend) for d in ("forward", RECORDED, "backward")})
    eager, gradient = _forward_eager(kind), _backward_formula(kind)
    forward, backward = FORMULAS[kind.op].values()
    called = [F.layer_norm if centered else F.rms_norm, *([torch.add] if fused else [])]
    made.way(
        "torch",
        {"forward": eager, RECORDED: eager, "backward": _backward_eager(kind)},
        code=called,
    )
    # As softmax, the op itself is what is compiled.
    made.compiled({"forward": eager, "backward": gradient}, code=[*called, backward])
    made.way(
        "formula",
        {"forward": _forward_formula(kind), "backward": gradient},
        code=[forward, backward],
    )
    return made
