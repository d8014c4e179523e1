"""The ops' contracts: public functions, validation, differentiation, registration."""

from diglot.ops.add import add
from diglot.ops.gelu import gelu

__all__ = ["add", "gelu"]
