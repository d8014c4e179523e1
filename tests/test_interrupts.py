"""Ctrl-C while a run is under way and must end in order."""

from __future__ import annotations

import signal
import threading

import pytest

from diglot.pipeline.interrupts import called_on_interrupt


def test_it_is_raised_at_the_end():
    done = []
    with pytest.raises(KeyboardInterrupt):  # noqa: SIM117
        with called_on_interrupt(lambda: done.append("asked")) as is_held:
            assert is_held
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
            done.append("ended")
    assert done == ["asked", "asked", "ended"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_without_it_nothing_happens():
    with called_on_interrupt(pytest.fail):
        pass
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_error_goes_before():
    with pytest.raises(ValueError, match="mine"):  # noqa: SIM117
        with called_on_interrupt(lambda: None):
            signal.raise_signal(signal.SIGINT)
            raise ValueError("mine")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_handler_of_the_users_stays():
    def handler(*_):
        raise TimeoutError

    before = signal.signal(signal.SIGINT, handler)
    try:
        with called_on_interrupt(pytest.fail) as is_held:
            assert not is_held
            with pytest.raises(TimeoutError):
                signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_get_none():
    seen = []

    def work():
        with called_on_interrupt(pytest.fail) as is_held:
            seen.append(is_held)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [True]
