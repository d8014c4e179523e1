"""Modules, with the names and arguments of `torch.nn`: PyTorch's own, with another forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from diglot.backends.selection import check_name
from diglot.ops import dropout, gelu, layer_norm, linear, log_softmax, mlp, rms_norm, softmax
from diglot.ops.gelu import APPROXIMATIONS
from diglot.ops.products import check_precision
from diglot.reference.activations import ACTIVATIONS
from diglot.reference.layer_norm import EPS

# torch.fx records calls of these as they are; it could not trace into them.
for _op in ("dropout", "gelu", "layer_norm", "linear", "log_softmax", "mlp", "rms_norm", "softmax"):
    torch.fx.wrap(_op)


class OnBackend(torch.nn.Module):
    """A module whose forward pass is an op of diglot. It stands before PyTorch's class.

    Attributes:
        backend: as in `diglot.gelu`. The class has one too, so that `diglot.patch` can turn a
            module of PyTorch's class into one of this class.
    """

    backend: str | None = None

    def _get_name(self) -> str:
        """What `print` calls it: diglot's classes by their full names."""
        kind = type(self)
        is_ours = kind.__module__.startswith("diglot.")
        return f"{kind.__module__}.{kind.__name__}" if is_ours else kind.__name__

    def extra_repr(self) -> str:
        said = [super().extra_repr()] if super().extra_repr() else []
        return ", ".join(said if self.backend is None else [*said, f"backend={self.backend!r}"])


def _checked(backend: str | None) -> str | None:
    if backend is not None:
        check_name(backend)
    return backend


class OfProducts(OnBackend):
    """A module of products.

    Attributes:
        precision: as in `diglot.matmul`. The class has one too, as it has a backend.
    """

    precision: str | None = None

    def extra_repr(self) -> str:
        said = [super().extra_repr()] if super().extra_repr() else []
        return ", ".join(
            said if self.precision is None else [*said, f"precision={self.precision!r}"]
        )


class GELU(OnBackend, torch.nn.GELU):
    """Applies `diglot.gelu` to every element.

    Args:
        approximate: "none" or "tanh".
        backend: as in `diglot.gelu`.
    """

    def __init__(self, approximate: str = "none", *, backend: str | None = None) -> None:
        if approximate not in APPROXIMATIONS:
            raise ValueError(f"GELU: approximate must be 'none' or 'tanh', not {approximate!r}")
        super().__init__(approximate)
        self.backend = _checked(backend)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return gelu(input, self.approximate, backend=self.backend)


class Softmax(OnBackend, torch.nn.Softmax):
    """Applies `diglot.softmax` along a dimension.

    Args:
        dim: the dimension.
        backend: as in `diglot.gelu`.
    """

    dim: int

    def __init__(self, dim: int = -1, *, backend: str | None = None) -> None:
        super().__init__(dim)
        self.backend = _checked(backend)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return softmax(input, self.dim, backend=self.backend)


class LogSoftmax(OnBackend, torch.nn.LogSoftmax):
    """Applies `diglot.log_softmax` along a dimension. Arguments are those of `Softmax`."""

    dim: int

    def __init__(self, dim: int = -1, *, backend: str | None = None) -> None:
        super().__init__(dim)
        self.backend = _checked(backend)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return log_softmax(input, self.dim, backend=self.backend)


class Dropout(OnBackend, torch.nn.Dropout):
    """Applies `diglot.dropout` to its input while training.

    Args:
        p: the probability that an element is zeroed.
        inplace: whether to write the result over the input.
        backend: as in `diglot.gelu`.
    """

    def __init__(
        self, p: float = 0.5, inplace: bool = False, *, backend: str | None = None
    ) -> None:
        if not 0 <= p <= 1:
            raise ValueError(f"Dropout: p must be from 0 to 1, not {p}")
        super().__init__(p, inplace)
        self.backend = _checked(backend)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return dropout(input, self.p, self.training, self.inplace, backend=self.backend)


class Linear(OfProducts, torch.nn.Linear):
    """Applies `diglot.linear`.

    Args:
        in_features: of the input's last dimension.
        out_features: of the output's.
        bias: whether a bias is added.
        device: of the weight and the bias.
        dtype: of both, and of the input.
        precision: as in `diglot.matmul`.
        backend: as in `diglot.matmul`.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        precision: str | None = None,
        backend: str | None = None,
    ) -> None:
        super().__init__(in_features, out_features, bias, device, dtype)
        check_precision("Linear", precision)
        self.precision = precision
        self.backend = _checked(backend)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return linear(input, self.weight, self.bias, precision=self.precision, backend=self.backend)


class MLP(OfProducts):
    """Applies `diglot.mlp`: two linear layers with an activation between them.

    Args:
        in_features: of the input's last dimension.
        hidden_features: between the layers.
        out_features: of the output's last dimension; by default `in_features`.
        activation: "gelu", "gelu_tanh", "relu" or "silu".
        bias: whether both layers add a bias.
        device: of the parameters.
        dtype: of them, and of the input.
        precision: as in `diglot.matmul`.
        backend: as in `diglot.matmul`.
    """

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        out_features: int | None = None,
        activation: str = "gelu",
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        precision: str | None = None,
        backend: str | None = None,
    ) -> None:
        if activation not in ACTIVATIONS[1:]:
            raise ValueError(
                f"MLP: activation must be one of {ACTIVATIONS[1:]}, not {activation!r}"
            )
        super().__init__()
        out_features = in_features if out_features is None else out_features
        options: dict[str, Any] = {"bias": bias, "device": device, "dtype": dtype}
        self.fc1 = torch.nn.Linear(in_features, hidden_features, **options)
        self.fc2 = torch.nn.Linear(hidden_features, out_features, **options)
        self.activation = activation
        check_precision("MLP", precision)
        self.precision = precision
        self.backend = _checked(backend)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        first, second = self.fc1, self.fc2
        return mlp(
            input,
            first.weight,
            first.bias,
            second.weight,
            second.bias,
            self.activation,
            precision=self.precision,
            backend=self.backend,
        )


class LayerNorm(OnBackend, torch.nn.LayerNorm):
    """Applies `diglot.layer_norm` to the last dimensions.

    Args:
        normalized_shape: the shape of a row.
        eps: added to the variance.
        elementwise_affine: whether there is a weight, initially ones.
        bias: whether there is a bias too, initially zeros.
        device: of both.
        dtype: of both: the input's, or float32 for an input of 16 bits.
        backend: as in `diglot.gelu`.
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = EPS,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        backend: str | None = None,
    ) -> None:
        shape = _as_list(normalized_shape)
        super().__init__(shape, eps, elementwise_affine, bias, device, dtype)
        self.backend = _checked(backend)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        shape, backend = self.normalized_shape, self.backend
        return layer_norm(input, shape, self.weight, self.bias, self.eps, backend=backend)


class RMSNorm(OnBackend, torch.nn.RMSNorm):
    """Applies `diglot.rms_norm` to the last dimensions.

    Args:
        normalized_shape: the shape of a row.
        eps: added to the mean square; the default is that of `diglot.rms_norm`.
        elementwise_affine: whether there is a weight, initially ones.
        device: of the weight.
        dtype: of the weight: the input's, or float32 for an input of 16 bits.
        backend: as in `diglot.gelu`.
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        backend: str | None = None,
    ) -> None:
        super().__init__(_as_list(normalized_shape), eps, elementwise_affine, device, dtype)
        self.backend = _checked(backend)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return rms_norm(input, self.normalized_shape, self.weight, self.eps, backend=self.backend)


def _as_list(shape: int | Sequence[int]) -> list[int]:
    return [shape] if isinstance(shape, int) else list(shape)
