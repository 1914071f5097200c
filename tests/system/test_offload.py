"""Work apart: beside an event loop, one at a time, and never in a thread that is gone."""

from __future__ import annotations

import asyncio
import os
import threading
import time

from oncekey._system.offload import OffloadThread


async def test_the_event_loop_goes_on_meanwhile() -> None:
    apart, leave, entered = OffloadThread("oncekey-computes"), threading.Event(), threading.Event()

    def work() -> str:
        entered.set()
        assert leave.wait(10)
        return threading.current_thread().name

    working = asyncio.create_task(apart.run(work))
    assert await asyncio.to_thread(entered.wait, 10)
    leave.set()
    assert (await working).startswith("oncekey-computes")


async def test_p11_one_thread_does_all_of_it() -> None:
    apart = OffloadThread("oncekey-computes")
    threads = await asyncio.gather(*(apart.run(threading.get_ident) for _ in range(20)))
    assert len(set(threads)) == 1 != threading.get_ident()


async def test_what_it_raises_is_raised_here() -> None:
    apart = OffloadThread("oncekey-computes")
    try:
        await apart.run(lambda: 1 // 0)
    except ZeroDivisionError:
        return
    raise AssertionError("nothing was raised")


def test_p11_threads_that_block_anyway_do_it_one_at_a_time() -> None:
    apart = OffloadThread("oncekey-computes")
    inside, most = 0, 0

    def work() -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        time.sleep(0.001)
        inside -= 1

    threads = [threading.Thread(target=apart.run_sync, args=(work,)) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1


def test_a_forked_child_has_a_thread_of_its_own() -> None:
    apart = OffloadThread("oncekey-computes")
    assert asyncio.run(_in_child(apart)) == os.getpid()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:  # it must not raise into pytest
        told = b"0"
        try:
            pid = asyncio.run(_in_child(apart))
            told = b"1" if pid == os.getpid() else b"2"
        finally:
            os.write(write, told)
            os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 1) == b"1"
    os.close(read)
    os.close(write)


async def _in_child(apart: OffloadThread) -> int:
    return await asyncio.wait_for(apart.run(os.getpid), 5)
