"""diglot in a model: modules replaced (`patch`), functions of PyTorch replaced (`override`)."""

from diglot.models.outcome import LeftAlone, Patch, Replaced
from diglot.models.overriding import LeftAloneCall, override
from diglot.models.patching import patch

__all__ = ["LeftAlone", "LeftAloneCall", "Patch", "Replaced", "override", "patch"]
