"""The order of accesses, as the interpreter's race checks see it: of threads and of proxies."""

from __future__ import annotations

import ctypes

import pytest
from planted.library import ROOT, build_interpreted

from diglot.backends.registry import INTERPRET

pytestmark = pytest.mark.skipif(not INTERPRET, reason="DIGLOT_INTERPRET is not set")

RACE, NO_FENCE, READ_BEFORE = (
    "a race in shared memory",
    "a proxy fence is missing in shared memory",
    "a generic read before an async write without a proxy fence",
)


@pytest.fixture(scope="module")
def library():
    library = ctypes.CDLL(str(build_interpreted(ROOT / "tests/planted/orders.cu")))
    library.play.restype = library.begin_launches.restype = ctypes.c_char_p
    return library


@pytest.fixture(scope="module")
def play(library):
    return lambda script, finds_reads=True: library.play(script.encode(), 4, finds_reads).decode()


# A script, and its fault: with its last access, if anything.
SCRIPTS = {
    "a barrier": ("write 0; meet 0 1 2 3; read 1; read 2; meet 0 1 2 3; write 3", None),
    "no barrier": ("write 0; read 1", f"{RACE}: it reads what thread 0 wrote at script:1"),
    "no second barrier": (
        "write 0; meet 0 1 2 3; read 1; read 2; write 3",
        f"{RACE}: it writes what thread 1 read at script:3",
    ),
    "the third of three readers": (
        "read 0; read 1; read 2; meet 0 1 3; write 3",
        f"{RACE}: it writes what thread 2 read at script:3",
    ),
    "a barrier of others": ("write 0; meet 1 2 3; read 1", RACE),
    "a barrier of some": ("write 0; meet 0 1; read 1; meet 1 2; read 2", None),
    "an access after the barrier": ("meet 0 1; write 0; read 1", RACE),
    "a signal": ("write 0; release 0 s; acquire 1 s; write 1", None),
    "an access after the signal": ("release 0 s; write 0; acquire 1 s; read 1", RACE),
    "a signal that passes others on": (
        "write 0; release 0 s; acquire 1 s; release 1 t; acquire 2 t; read 2",
        None,
    ),
    "a signal of two": (
        "read 0; read 1; release 0 s; release 1 s; acquire 2 s; write 2",
        None,
    ),
    "a signal of one of two": ("read 0; read 1; release 0 s; acquire 2 s; write 2", RACE),
    "atomics": ("atomic 0; atomic 1; atomic 0", None),
    "an atomic and a read": ("atomic 0; atomic 1; meet 1 2; read 2", RACE),
    "a write and two atomics": ("write 0; meet 0 1; atomic 1; atomic 2", RACE),
    # Asynchronous operations.
    "a load that is waited for": ("load 0 x; complete x s; acquire 1 s; read 1", None),
    "a load that is not waited for": (
        "load 0 x; read 0",
        f"{RACE}: it reads what x wrote at script:1, and nothing orders the two",
    ),
    "a load that another waits for": ("load 0 x; complete x s; acquire 1 s; read 2", RACE),
    "two loads at once": ("load 0 x; load 0 y", RACE),
    "two loads at once, of one line": ("load 0 x; load 0 x", RACE),
    "two stores at once, of one line": ("store 0 x; store 0 x", None),
    "a load after a store that is done": (
        "store 0 x; complete x s; acquire 0 s; load 0 y",
        None,
    ),
    "a load after a store that is not done": ("store 0 x; load 0 y", RACE),
    # Generic writes, and what the async proxy reads.
    "a store with a fence": ("write 0; fence 0; store 0 x", None),
    "a store without a fence": (
        "write 0; store 0 x",
        f"{NO_FENCE}: it reads through the async proxy what thread 0 wrote at script:1",
    ),
    "a fence before the write": ("fence 0; write 0; store 0 x", NO_FENCE),
    "fences, a barrier, a store": ("write 0; fence 0; fence 1; meet 0 1; store 1 x", None),
    "a barrier, a fence, a store": ("write 0; meet 0 1; fence 1; store 1 x", None),
    "a barrier, another's fence, a store": ("write 0; meet 0 1; fence 0; store 1 x", NO_FENCE),
    "a fence passed on": (
        "write 0; release 0 s; acquire 1 s; fence 1; release 1 t; acquire 2 t; store 2 x",
        None,
    ),
    "a store that has seen less than another of its group": (
        "write 0; fence 0; store 0 x; store 1 y x",
        RACE,
    ),
    "a fence and no barrier": ("write 0; fence 0; fence 1; store 1 x", RACE),
    # Generic reads, and what the async proxy writes.
    "a refill with a fence": ("read 0; fence 0; meet 0 1; load 1 x", None),
    "a refill without a fence": (
        "read 0; meet 0 1; load 1 x",
        f"{READ_BEFORE} in shared memory: it writes through the async proxy what thread 0 read",
    ),
    "a refill after one fence of two": (
        "read 0; read 1; fence 1; meet 0 1; load 1 x",
        READ_BEFORE,
    ),
    "a read, a store's read, a refill": (
        "read 0; meet 0 1; store 1 x; complete x s; acquire 1 s; load 1 y",
        READ_BEFORE,
    ),
    "a refill whose result is read": (
        "read 0; fence 0; load 0 x; complete x s; acquire 0 s; read 0; fence 0; load 0 y",
        None,
    ),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script(play, name):
    script, fault = SCRIPTS[name]
    said = play(script)
    assert said.startswith(fault) if fault else not said, said
    assert bool(said) == (fault is not None), said
    # That class of findings alone can be left out.
    is_read_before = fault is not None and fault.startswith(READ_BEFORE)
    assert play(script, finds_reads=False) == ("" if is_read_before else said)


def test_clusters_of_a_process_that_launches_for_ever_have_numbers(library):
    assert library.begin_launches(9, 1 << 31, False) == b"1"


def test_more_clusters_than_there_are_numbers_are_refused(library):
    assert library.begin_launches(1, 1 << 31, True) == b"1"
    assert b"tell 4294967295 clusters apart" in library.begin_launches(2, 1 << 31, True)
    assert library.begin_launches(1, 1 << 31, False) == b"1"
