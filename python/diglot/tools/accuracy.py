"""How far results are from the float64 oracle, and from each other.

Everything is done in pieces, so that a tensor that fills a good part of a GPU can be judged there.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from diglot.reference.specs import Expected

# Elements in a piece: some float64 copies of one exist at a time.
PIECE_ELEMENTS = {"cpu": 1 << 20, "cuda": 1 << 24}

# Errors that count as within tolerance, in ulps of the exact value: one ulp of the *rounded* exact
# value is one and a half of these. In float64, kernels of both languages need less than 2.
TOLERANCE_ULP = {
    torch.float16: 1.5,
    torch.bfloat16: 1.5,
    torch.float32: 2.0,
    torch.float64: 4.0,
}

PROFILE_BINS = 256
LINEAR_RANGE = 20.0

_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class Error:
    """The error of one result against the oracle.

    Attributes:
        output: which result: "output", or "grad_<input>".
        worst_ulp: the largest error, in ulps of the result's dtype at the exact value; below the
            least normal number the ulp is that number's. For integers and bool, the difference.
            Infinite where one of the two is NaN or infinite and the other is not the same.
        worst_absolute: the largest absolute error, wherever it is.
        largest: the largest exact value, without its sign, of those that are finite.
        index: index of the element whose error is `worst_ulp`; None for an empty tensor.
        at: values of the inputs there, by name.
        tolerance_ulp: error in ulps that an element may have. Below the least normal number one may
            also be off by that number, because results there may be flushed to zero.
        failing: share of elements beyond the tolerance, from 0 to 1.
        worst_of_allowed: the largest error as a multiple of what the check allows that element:
            `tolerance_ulp`, plus the rounding of sums. Above 1 it is beyond the tolerance.
        has_sums: whether the check allows for the rounding of sums.
    """

    output: str
    elements: int
    worst_ulp: float
    worst_absolute: float
    largest: float
    index: tuple[int, ...] | None
    at: dict[str, float]
    result: float
    expected: float
    tolerance_ulp: float
    failing: float
    worst_of_allowed: float
    has_sums: bool

    @property
    def worst_share(self) -> float:
        """The largest absolute error, as a share of the largest exact value."""
        if self.worst_absolute == 0:
            return 0.0
        return self.worst_absolute / self.largest if self.largest > 0 else math.inf


@dataclass(frozen=True)
class Agreement:
    """How far two results of the same call are from each other.

    Attributes:
        max_ulp: the largest distance in representable numbers; infinite where only one is NaN.
        bit_equal: share of elements that are equal in every bit (any NaN equals any NaN).
        index: index of the element with `max_ulp`; None for empty tensors.
        output: which result that element is of.
    """

    first: str
    second: str
    max_ulp: float
    bit_equal: float
    index: tuple[int, ...] | None
    output: str


@dataclass(frozen=True)
class Profile:
    """Error as a function of an input's value: the largest one in each bin.

    Attributes:
        worst_ulp: the largest error in each bin, in ulps; None for an empty bin.
    """

    edges: tuple[float, ...]
    worst_ulp: tuple[float | None, ...]


def pieces(shape: torch.Size, limit: int) -> Iterator[tuple[slice, ...]]:
    """Slices that cut a tensor of this shape into pieces of at most `limit` elements, about."""
    inner, split = 1, len(shape)
    while split > 0 and inner * shape[split - 1] <= limit:
        split -= 1
        inner *= max(shape[split], 1)
    if split == 0:
        yield (slice(None),) * len(shape)
        return
    step = max(1, limit // inner)
    outer = [[slice(i, i + 1) for i in range(size)] for size in shape[: split - 1]]
    cuts = [slice(i, i + step) for i in range(0, shape[split - 1], step)]
    for chosen in itertools.product(*outer, cuts):
        yield (*chosen, *(slice(None),) * (len(shape) - split))


def ulp_of(exact: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The ulp of `dtype` at float64 values, in float64; below the least normal number, of that."""
    info = torch.finfo(dtype)
    _, exponent = torch.frexp(exact.abs().clamp(info.tiny, info.max))
    # frexp's fraction is in [1/2, 1); eps is the ulp of 1 = 1/2 * 2^1.
    return torch.ldexp(torch.full_like(exact, info.eps), exponent - 1)


def _errors(
    result: torch.Tensor, exact: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Absolute errors, ulps and errors in ulps, in float64."""
    dtype = result.dtype
    if not dtype.is_floating_point:
        apart = (result.double() - exact.double()).abs()
        apart = torch.where((apart == 0) & (result != exact), 1.0, apart)
        return apart, torch.ones_like(apart), apart
    rounded = exact.to(dtype)
    same = (result == rounded) | (result.isnan() & rounded.isnan())
    unequal = torch.where(same, 0.0, math.inf)
    both_finite = result.isfinite() & rounded.isfinite()
    absolute = torch.where(both_finite, (result.double() - exact).abs(), unequal)
    ulp = ulp_of(exact.nan_to_num(), dtype)
    return absolute, ulp, absolute / ulp


class ProfileBuilder:
    """Collects errors by the value of an input, in bins between its finite extremes.

    All bins are equally wide. Where the values are not moderate, that is on a scale that is linear
    near zero and logarithmic far from it.
    """

    def __init__(self, input: torch.Tensor) -> None:
        low, high = _finite_extremes(input)
        self.linear = max(abs(low), abs(high)) <= LINEAR_RANGE
        scale = torch.tensor([low, high], dtype=torch.float64)
        low, high = (scale if self.linear else scale.asinh()).tolist()
        if high <= low:
            low, high = low - 0.5, high + 0.5
        self.low, self.width = low, (high - low) / PROFILE_BINS
        self.worst = torch.full((PROFILE_BINS,), -1.0, dtype=torch.float64, device=input.device)

    def add(self, values: torch.Tensor, ulps: torch.Tensor) -> None:
        """Counts a piece: values of the input, and the errors there."""
        values, ulps = values.double().flatten(), ulps.flatten()
        known = values.isfinite()
        values, ulps = values[known], ulps[known]
        if not self.linear:
            values = values.asinh()
        bins = ((values - self.low) / self.width).long().clamp(0, PROFILE_BINS - 1)
        self.worst.scatter_reduce_(0, bins, ulps, "amax")

    def profile(self) -> Profile:
        """The collected errors."""
        edges = self.low + self.width * torch.arange(PROFILE_BINS + 1, dtype=torch.float64)
        if not self.linear:
            edges = edges.sinh()
        worst = [None if w < 0 else w for w in self.worst.tolist()]
        return Profile(tuple(edges.tolist()), tuple(worst))


def _finite_extremes(input: torch.Tensor) -> tuple[float, float]:
    low, high = math.inf, -math.inf
    for piece in pieces(input.shape, _piece_elements(input)):
        values = input[piece]
        values = values[values.isfinite()]
        if values.numel():
            low, high = min(low, float(values.min())), max(high, float(values.max()))
    return (0.0, 0.0) if low > high else (low, high)


def _piece_elements(tensor: torch.Tensor) -> int:
    return PIECE_ELEMENTS.get(tensor.device.type, PIECE_ELEMENTS["cpu"])


@torch.no_grad()
def measure_error(
    result: torch.Tensor,
    expected: Expected,
    *,
    output: str = "output",
    tolerance_ulp: float | None = None,
    profile: ProfileBuilder | None = None,
) -> Error:
    """Compares a result with the oracle.

    Args:
        result: any shape, strides and device.
        tolerance_ulp: error in ulps that an element may have; by default what `expected` says, or
            TOLERANCE_ULP of the dtype, or 0 for integers and bool.
        profile: also counts the errors by the value of the first shown input.

    Raises:
        ValueError: the result does not have the dtype that it should.
    """
    if result.dtype != expected.dtype:
        raise ValueError(f"{output} must have dtype {expected.dtype}, not {result.dtype}")
    tolerance = TOLERANCE_ULP.get(result.dtype, 0.0) if tolerance_ulp is None else tolerance_ulp
    if tolerance_ulp is None and result.dtype == torch.float64:
        tolerance = expected.float64_ulp or tolerance
    shape = result.shape
    tensors = [t.expand(shape) for t in expected.tensors]
    shown = {name: t.expand(shape) for name, t in expected.shown.items()}
    first = next(iter(shown.values()), None)
    allowance = None if expected.allowance is None else expected.allowance.expand(shape)
    tiny = torch.finfo(result.dtype).tiny if result.is_floating_point() else 0.0

    worst_ulp, worst_absolute, worst_of_allowed, largest, failing = -1.0, 0.0, 0.0, 0.0, 0
    index: tuple[int, ...] | None = None
    for piece in pieces(shape, _piece_elements(result)):
        got, exact = result[piece], expected.function(*(t[piece] for t in tensors))
        if got.numel() == 0:
            continue
        absolute, ulp, in_ulps = _errors(got, exact)
        allowed = tolerance * ulp
        if tiny:
            allowed = allowed + tiny * (exact.abs() < tiny)
        if allowance is not None:
            allowed = allowed + allowance[piece]
        failing += int((absolute > allowed).sum())
        of_allowed = torch.where(absolute > 0, absolute / allowed, 0.0)
        worst_of_allowed = max(worst_of_allowed, float(of_allowed.max()))
        worst_absolute = max(worst_absolute, float(absolute.max()))
        finite = exact.double().nan_to_num(0.0, 0.0, 0.0)
        largest = max(largest, *(abs(float(of)) for of in torch.aminmax(finite)))
        at = int(in_ulps.argmax())
        if float(in_ulps.flatten()[at]) > worst_ulp:
            worst_ulp = float(in_ulps.flatten()[at])
            index = _global_index(at, got.shape, piece)
        if profile is not None and first is not None:
            profile.add(first[piece], in_ulps)

    if index is None:
        nan = math.nan
        has_sums = allowance is not None
        return Error(output, 0, 0.0, 0.0, 0.0, None, {}, nan, nan, tolerance, 0.0, 0.0, has_sums)
    here = tuple(slice(i, i + 1) for i in index)
    return Error(
        output=output,
        elements=result.numel(),
        worst_ulp=worst_ulp,
        worst_absolute=worst_absolute,
        largest=largest,
        index=index,
        at={name: t[index].item() for name, t in shown.items()},
        result=result[index].item(),
        expected=expected.function(*(t[here] for t in tensors)).item(),
        tolerance_ulp=tolerance,
        failing=failing / result.numel(),
        worst_of_allowed=worst_of_allowed,
        has_sums=allowance is not None,
    )


def _global_index(flat: int, shape: torch.Size, piece: tuple[slice, ...]) -> tuple[int, ...]:
    index = []
    for size, part in zip(reversed(shape), reversed(piece), strict=True):
        index.append(flat % size + (part.start or 0))
        flat //= size
    return tuple(reversed(index))


def _ordered(values: torch.Tensor) -> torch.Tensor:
    """Numbers that are as far apart as values are in representable numbers, in float64."""
    if not values.is_floating_point():
        return values.double()
    bits = values.contiguous().view(_BITS[values.element_size()])
    magnitude = (bits & torch.iinfo(bits.dtype).max).double()
    return torch.where(bits < 0, -magnitude, magnitude)


@torch.no_grad()
def measure_agreement(
    first: tuple[str, dict[str, torch.Tensor]], second: tuple[str, dict[str, torch.Tensor]]
) -> Agreement:
    """Compares the results of two backends: for each, its name and its tensors by name."""
    max_ulp, equal, elements = 0.0, 0, 0
    index: tuple[int, ...] | None = None
    worst_output = ""
    for output, a in first[1].items():
        b = second[1][output]
        elements += a.numel()
        for piece in pieces(a.shape, _piece_elements(a)):
            x, y = a[piece], b[piece]
            if x.numel() == 0:
                continue
            x_nan, y_nan = x.isnan(), y.isnan()
            apart = (_ordered(x) - _ordered(y)).abs()
            apart = torch.where(x_nan | y_nan, math.inf, apart)
            apart = torch.where(x_nan & y_nan, 0.0, apart)
            same = x_nan & y_nan
            kind = _BITS[x.element_size()]
            same = same | (x.contiguous().view(kind) == y.contiguous().view(kind))
            equal += int(same.sum())
            at = int(apart.argmax())
            here = float(apart.flatten()[at])
            if index is None or here > max_ulp:
                max_ulp, worst_output = here, output
                index = _global_index(at, x.shape, piece)
    share = equal / elements if elements else 1.0
    return Agreement(first[0], second[0], max_ulp, share, index, worst_output)
