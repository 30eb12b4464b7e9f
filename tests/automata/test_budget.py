"""A budget's seconds are those of the processor, in the thread that compiles."""

from __future__ import annotations

import threading
import time

import pytest

import maskwright as mw


def spin(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def test_waiting_costs_nothing_and_work_does():
    meter = mw.Budget(seconds=0.05).begin()
    time.sleep(0.1)
    meter.check(doing="waiting")
    spin(0.06)
    with pytest.raises(mw.errors.BudgetError) as raised:
        meter.check(doing="working")
    assert (raised.value.limit, raised.value.allowed) == ("seconds", 0.05)
    assert raised.value.reached > 0.05


def test_the_seconds_of_threads_that_go_on_are_added():
    meter = mw.Budget().begin()
    spin(0.02)
    first = meter.seconds
    thread = threading.Thread(target=lambda: (meter.seconds, spin(0.02), meter.seconds))
    thread.start()
    thread.join()
    spin(0.02)
    assert meter.seconds >= first + 0.02
    before = meter.seconds
    spin(0.02)
    assert before + 0.02 <= meter.seconds < 5


def test_a_thread_s_work_for_others_costs_nothing():
    meter = mw.Budget().begin()
    thread = threading.Thread(target=lambda: spin(0.1))
    thread.start()
    thread.join()
    assert meter.seconds < 0.05
