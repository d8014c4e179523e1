"""Threads that copy chunks for the ring that Python drives."""

from __future__ import annotations

import gc
import threading
import time
import weakref

import pytest

from diglot.pipeline.workers import Workers


@pytest.fixture
def workers():
    of = Workers(3, "diglot-test")
    yield of
    of.finish()


def running():
    return [thread for thread in threading.enumerate() if thread.name.startswith("diglot-test")]


def test_results_and_errors(workers):
    assert running() == []
    tasks = [workers.submit(divmod, 7, of) for of in (1, 2, 0, 5)]
    assert len(running()) == 3
    assert [tasks[i].result() for i in (0, 1, 3)] == [(7, 0), (3, 1), (1, 2)]
    with pytest.raises(ZeroDivisionError):
        tasks[2].result()
    assert all(task.done() for task in tasks)


def test_several_at_once(workers):
    barrier = threading.Barrier(3)
    for task in [workers.submit(barrier.wait, 10) for _ in range(3)]:
        task.result()


def test_what_has_not_begun_is_left_undone(workers):
    go, begun, done = threading.Event(), threading.Barrier(4), []

    def work(number):
        if number < 3:
            begun.wait(10)
        go.wait(10)
        done.append(number)

    tasks = [workers.submit(work, number) for number in range(20)]
    begun.wait(10)
    assert not tasks[0].done()
    threading.Timer(0.05, go.set).start()
    workers.finish()
    assert running() == []
    assert len(done) == 3
    assert sum(task.done() for task in tasks) == 3


def test_they_keep_nothing(workers):
    class Thing:
        pass

    thing = Thing()
    ref = weakref.ref(thing)
    workers.submit(lambda of: None, thing).result()
    del thing
    for _ in range(100):
        gc.collect()
        if ref() is None:
            break
        time.sleep(0.01)
    assert ref() is None
