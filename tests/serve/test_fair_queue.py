"""Whose turn it is among clients that want places."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

pytest.importorskip("fastapi")

from hypothesis import given
from hypothesis import strategies as st

from maskwright.serve.fair_queue import Turns
from maskwright.serve.refusals import Refused


async def settle():
    for _ in range(5):
        await asyncio.sleep(0)


def test_a_client_with_many_requests_lets_one_with_few_go_first():
    async def main():
        turns, order = Turns(1, 100), []

        async def work(client):
            await turns.take(client)
            order.append(client)
            await asyncio.sleep(0)
            turns.give(client)

        await asyncio.gather(*(work(client) for client in ["a"] * 32 + ["b", "c", "b"]))
        return order

    order = asyncio.run(main())
    assert order[:6] == ["a", "b", "c", "a", "b", "a"]
    assert Counter(order) == {"a": 32, "b": 2, "c": 1}


@pytest.mark.parametrize(("places", "alone"), [(1, 1), (2, 1), (3, 2), (4, 2), (8, 4)])
def test_one_client_has_half_of_the_places_at_most(places, alone):
    async def main():
        turns = Turns(places, 100)
        mine = [asyncio.create_task(turns.take("a")) for _ in range(50)]
        await settle()
        assert sum(task.done() for task in mine) == alone
        if places > 1:
            await asyncio.wait_for(turns.take("b"), 1)  # at once
        for task in mine:
            task.cancel()

    asyncio.run(main())


def test_a_client_that_has_enough_waiting_is_told_to_come_back_and_others_are_not():
    async def main():
        turns = Turns(1, 5)
        await turns.take("a")
        waiting = [asyncio.create_task(turns.take("a", 2)) for _ in range(2)]
        await settle()
        with pytest.raises(Refused) as found:
            await turns.take("a", 2)
        assert (found.value.status, found.value.code) == (429, "compile_queue_full")
        assert found.value.headers == {"Retry-After": "1"}
        large = asyncio.create_task(turns.take("b", 6))  # the first of a client always waits
        await settle()
        assert turns.waiting == 3
        waiting[0].cancel()  # which leaves room
        await settle()
        assert turns.waiting == 2
        again = asyncio.create_task(turns.take("a", 2))
        await settle()
        assert not again.done()
        for name, task in (("b", large), ("a", waiting[1]), ("a", again)):
            turns.give("a" if name == "b" else "b" if task is waiting[1] else "a")
            await asyncio.wait_for(task, 1)

    asyncio.run(main())


def test_a_place_given_to_one_who_leaves_at_that_moment_goes_to_the_next():
    async def main():
        turns = Turns(1, 5)
        await turns.take("a")
        leaving, staying = (asyncio.create_task(turns.take(name)) for name in "bc")
        await settle()
        turns.give("a")
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        await asyncio.wait_for(staying, 1)
        turns.give("c")
        assert (turns.waiting, turns.free, turns.clients) == (0, 1, 0)

    asyncio.run(main())


@pytest.mark.parametrize("again", [False, True])
def test_a_place_passes_over_one_who_is_cancelled_before_it_comes(again):
    async def main():
        turns = Turns(1, 5)
        await turns.take("a")
        leaving, staying = (asyncio.create_task(turns.take(name)) for name in "bc")
        await settle()
        leaving.cancel()
        turns.give("a")  # before the task that leaves runs
        back = [asyncio.create_task(turns.take("b"))] if again else []
        assert isinstance((await asyncio.gather(leaving, return_exceptions=True))[0], asyncio.CancelledError)
        for name, task in zip("cb", [staying, *back], strict=False):
            await asyncio.wait_for(task, 1)
            turns.give(name)
        assert (turns.waiting, turns.free, turns.clients) == (0, 1, 0)

    asyncio.run(main())


@given(st.integers(1, 5), st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3), st.booleans()), max_size=40))
def test_no_place_is_lost_or_given_twice(places, asked):
    async def main():
        turns, running, most = Turns(places, 1000), 0, 0

        async def work(client, steps):
            nonlocal running, most
            await turns.take(client)
            running += 1
            most = max(most, running)
            for _ in range(steps):
                await asyncio.sleep(0)
            running -= 1
            turns.give(client)

        tasks = []
        for client, steps, leaves in asked:
            task = asyncio.create_task(work(client, steps))
            tasks += [] if leaves else [task]
            await asyncio.sleep(0)
            if leaves and not task.done() and not running:
                task.cancel()
            elif leaves:
                tasks.append(task)
        await asyncio.wait_for(asyncio.gather(*tasks), 5)
        await settle()
        assert most <= places
        assert (turns.waiting, turns.free, turns.clients) == (0, places, 0)

    asyncio.run(main())
