"""How an op is defined: registration, derivatives, batching, and the ways of calling it."""

from diglot.define.operator import Operator
from diglot.define.pair import DifferentiablePair

__all__ = ["DifferentiablePair", "Operator"]
