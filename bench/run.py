"""Runs every benchmark, or those named, and regenerates the tables: `make bench`."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
# So that no worker of torch.compile's takes the host's time from what is measured first, of which
# cases of less than 100 us came out several times slower than in other runs.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

OPS = (
    "add",
    "add_layer_norm",
    "add_rms_norm",
    "clip_grad_norm",
    "dropout",
    "gaussian_pdf",
    "gelu",
    "global_softmax",
    "grid_barrier_check",
    "l2",
    "layer_norm",
    "log_softmax",
    "rms_norm",
    "softmax",
    "standardize",
    "stream_map",
)


def main(names: list[str]) -> None:
    """Benchmarks the ops named; all of them by default."""
    from bench import tables
    from bench.harness import run
    from diglot.tools import measure

    reason = measure.why_not()
    if reason is not None:
        raise SystemExit(f"error: {reason}")
    unknown = [name for name in names if name not in OPS]
    if unknown:
        raise SystemExit(f"error: no benchmark {unknown[0]!r}; there are {', '.join(OPS)}")
    for name in names or OPS:
        module = importlib.import_module(f"bench.{name}")
        # What is no op, and so no table of providers, measures by itself.
        path = run(module.benchmark) if hasattr(module, "benchmark") else module.run()
        print(tables.of_results([path]))
        print(f"written: {path}")


if __name__ == "__main__":
    main(sys.argv[1:])
