"""What `diglot profile` starts: a script or a module, profiled from its start to its end.

Its arguments are the options of `diglot.profile` as JSON, "script" or "module", its name, and
further arguments, which are passed on.
"""

from __future__ import annotations

import importlib.util
import json
import runpy
import signal
import sys
import traceback
from pathlib import Path
from types import FrameType, TracebackType
from typing import NoReturn

from diglot.tools.profiling import profile

INTERRUPTED = 128 + signal.SIGINT  # as shells say it


def main() -> NoReturn:
    """Runs it, prints the profile, and exits as it did."""
    options, kind, target, *arguments = sys.argv[1:]
    try:
        if kind == "module" and importlib.util.find_spec(target) is None:
            raise ValueError(f"there is no module {target}")
        done = profile(**json.loads(options))
        done.__enter__()
    except (ValueError, RuntimeError, ImportError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2)
    sys.argv = [target, *arguments]
    failure: BaseException | None = None
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        if kind == "module":
            runpy.run_module(target, run_name="__main__", alter_sys=True)
        else:
            if not getattr(sys.flags, "safe_path", False):
                sys.path[0] = str(Path(target).resolve().parent)
            runpy.run_path(target, run_name="__main__")
    except BaseException as error:
        failure = error
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # another Ctrl-C does not lose the profile
    sys.stdout.flush()
    status = _finish(done, failure)
    if isinstance(failure, SystemExit):
        raise failure
    if failure is not None:
        traceback.print_exception(type(failure), failure, _of_script(failure.__traceback__))
        status = INTERRUPTED if isinstance(failure, KeyboardInterrupt) else 1
    sys.exit(status)


def _finish(done: profile, failure: BaseException | None) -> int:
    """Ends the profile, and shows it; the exit status that this alone would give."""
    status = 0
    try:
        done.__exit__(type(failure) if failure else None, failure, None)
    except ValueError as error:  # an output was not written, and the others were
        print(f"error: {error}", file=sys.stderr)
        status = 2
    except RuntimeError as error:  # nothing was recorded
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    print(f"\n{done}", flush=True)
    for path in done.written:
        print(f"wrote {path}", file=sys.stderr)
    return status


def _of_script(trace: TracebackType | None) -> TracebackType | None:
    """A traceback from the script's own first frame on."""
    while trace is not None and _is_starter(trace.tb_frame):
        trace = trace.tb_next
    return trace


def _is_starter(frame: FrameType) -> bool:
    return frame.f_globals.get("__name__") in (__name__, "runpy")
