"""CUDA graphs: functions and training steps captured, served by buckets, checked and looked into.

    encode = diglot.graphs.capture(
        model, example, dims=({0: "batch"},), buckets={"batch": (1, 4, 16)}
    )
    step = diglot.graphs.training_step(model, loss, optimizer, (inputs, targets))

docs/graphs.md explains them.
"""

from diglot.graphs.capture import GraphedCallable, capture
from diglot.graphs.errors import GraphError, GraphWarning
from diglot.graphs.inspection import Inspection, inspect
from diglot.graphs.pool import Pool
from diglot.graphs.report import GraphReport, Report
from diglot.graphs.training import TrainingStep, training_step

__all__ = [
    "GraphError",
    "GraphReport",
    "GraphWarning",
    "GraphedCallable",
    "Inspection",
    "Pool",
    "Report",
    "TrainingStep",
    "capture",
    "inspect",
    "training_step",
]
