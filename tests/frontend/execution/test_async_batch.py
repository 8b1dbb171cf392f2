"""Async batches: order, concurrency, errors and deadlines."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any

import pytest

import banyan as bn
from banyan.execution import thread_pool
from banyan.execution.batch import ItemReader


@bn.function
async def item(s: bn.AsyncState, x: Any) -> Any:
    s += f"{x}" + bn.gen("a")
    await s.value("a")
    return x


@bn.function
def plain(s: bn.State, x: Any) -> Any:
    s += f"{x}" + bn.gen("a")
    s["a"]
    return x


SYNC_AND_ASYNC = pytest.mark.parametrize("program", [item, plain], ids=["async", "sync"])


def echo(*slow: int, bad: tuple[int, ...] = (), running: list[int] | None = None) -> bn.Mock:
    now, lock = [0], threading.Lock()

    def script(prompt: str, name: str) -> str:
        with lock:
            now[0] += 1
            if running is not None:
                running.append(now[0] - len(backend.calls))
        if int(prompt) in bad:
            raise OSError(f"no luck with {prompt}")
        return prompt

    backend = bn.Mock(script, latency=lambda call: 0.3 if int(call.prompt) in slow else 0.002)
    return backend


async def gather_states(batch: Any) -> list[bn.AsyncState]:
    return await batch  # type: ignore[no-any-return]


@SYNC_AND_ASYNC
def test_states_are_returned_in_order(run_loop: Any, program: bn.Program) -> None:
    states = run_loop(gather_states(program.run_batch_async([(i,) for i in range(20)], backend=echo(3), concurrency=5)))
    assert [state.ret_value for state in states] == list(range(20))
    assert [state["a"] for state in states] == [str(i) for i in range(20)]
    assert [state.index for state in states] == list(range(20))
    assert run_loop(gather_states(program.run_batch_async([], backend=echo()))) == []


@SYNC_AND_ASYNC
def test_iteration_is_ordered_or_as_completed(run_loop: Any, program: bn.Program) -> None:
    async def main(ordered: bool) -> list[int | None]:
        batch = program.run_batch_async([(i,) for i in range(4)], backend=echo(0), ordered=ordered)
        return [state.index async for state in batch]

    assert run_loop(main(ordered=True)) == [0, 1, 2, 3]
    as_completed = run_loop(main(ordered=False))
    assert as_completed[-1] == 0
    assert sorted(as_completed) == [0, 1, 2, 3]


@SYNC_AND_ASYNC
@pytest.mark.parametrize("ordered", [True, False])
def test_iteration_reads_items_as_their_runs_start(run_loop: Any, program: bn.Program, ordered: bool) -> None:
    taken = 0

    def endless() -> Iterator[tuple[int]]:
        nonlocal taken
        while True:
            taken += 1
            yield (taken,)

    async def main() -> None:
        async for state in program.run_batch_async(endless(), backend=bn.Mock("x"), concurrency=3, ordered=ordered):
            assert state["a"] == "x"
            assert taken <= 12, "at most a few for each of the three tasks"
            break
        timed = program.run_batch_async(endless(), backend=bn.Mock("x"), timeout=0.1, on_error="return")
        with pytest.raises(bn.DeadlineExceeded, match="the batch's timeout"):
            async for _ in timed:
                pass

    run_loop(main())


def test_error_of_the_iterable_comes_after_the_items_before_it(run_loop: Any) -> None:
    async def main() -> None:
        states = aiter(item.run_batch_async(((0,) * n for n in (1, 1, 2)), backend=echo()))
        assert [(await anext(states)).index, (await anext(states)).index] == [0, 1]
        with pytest.raises(TypeError, match=r"item 2 .*too many"):
            await anext(states)

    run_loop(main())
    backend = echo()
    with pytest.raises(TypeError, match=r"item 1 .*too many"):
        run_loop(gather_states(item.run_batch_async(((i,) * i for i in (1, 2)), backend=backend)))
    assert backend.calls == [], "a list of all states is refused before any run"


@SYNC_AND_ASYNC
def test_items_that_come_late_do_not_block_the_loop(run_loop: Any, program: bn.Program) -> None:
    items: SimpleQueue[tuple[int] | None] = SimpleQueue()

    async def main() -> None:
        items.put((0,))
        n_seen = 0
        async for state in program.run_batch_async(iter(items.get, None), backend=echo()):
            assert state.index == n_seen
            n_seen += 1
            await asyncio.sleep(0)
            items.put((n_seen,) if n_seen < 4 else None)
        assert n_seen == 4
        items.put((0,))
        timed = aiter(program.run_batch_async(iter(items.get, None), backend=echo(), timeout=0.2))
        assert (await anext(timed)).index == 0
        with pytest.raises(bn.DeadlineExceeded, match="the batch's timeout"):
            await anext(timed)
        items.put(None)

    run_loop(main())


def test_item_that_comes_when_the_time_is_up_is_not_lost(run_loop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    read_to, ended = ItemReader.read_to, threading.Event()

    def late(reader: ItemReader, found: list[Any]) -> None:
        read_to(reader, found)
        ended.wait(60)  # the item counts, but the loop does not know of it yet

    async def main() -> None:
        monkeypatch.setattr(ItemReader, "read_to", late)
        states = aiter(item.run_batch_async(iter([(0,)]), backend=echo(), timeout=0.1, on_error="return"))
        async with asyncio.timeout(10):
            assert (await anext(states)).index == 0
            with pytest.raises(bn.DeadlineExceeded, match="the batch's timeout"):
                await anext(states)

    run_loop(main())
    ended.set()


def test_items_that_never_come_keep_no_thread_of_the_bodies(run_loop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_pool, "_body_threads", thread_pool.ThreadPool(n_threads=2))
    is_read, end = threading.Semaphore(0), threading.Event()

    def never() -> Iterator[tuple[int]]:
        is_read.release()
        end.wait(60)
        yield (0,)

    async def read_all() -> None:
        async for _ in plain.run_batch_async(never(), backend=echo()):
            pass

    async def main() -> None:
        for _ in range(2):
            batch = asyncio.create_task(read_all())
            await asyncio.to_thread(is_read.acquire)
            batch.cancel()
            with pytest.raises(asyncio.CancelledError):
                await batch
        async with asyncio.timeout(10):
            assert (await plain.run_async(1, backend=echo())).ret_value == 1

    run_loop(main())
    end.set()


def test_batch_whose_thread_cannot_start_ends_with_the_error(run_loop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("can't start new thread")

    threads = thread_pool.ThreadPool()
    monkeypatch.setattr(thread_pool, "_item_threads", threads)
    monkeypatch.setattr(threads, "_start_thread", fail)

    async def main() -> None:
        async with asyncio.timeout(10):
            with pytest.raises(RuntimeError, match="can't start new thread"):
                async for _ in item.run_batch_async(iter([(0,)]), backend=echo()):
                    pass

    run_loop(main())


@pytest.mark.parametrize("error", [SystemExit(3), asyncio.CancelledError()], ids=repr)
def test_every_exception_of_the_iterable_reaches_the_caller(run_loop: Any, error: BaseException) -> None:
    def broken() -> Iterator[tuple[int]]:
        yield (0,)
        raise error

    async def main() -> None:
        states = aiter(item.run_batch_async(broken(), backend=echo()))
        assert (await anext(states)).index == 0
        with pytest.raises(type(error)):
            await anext(states)

    run_loop(main())


def test_batch_that_was_used_is_refused(run_loop: Any) -> None:
    async def use_again(is_iterated: bool) -> None:
        batch = item.run_batch_async([{"x": k} for k in range(3)], backend=echo())
        if is_iterated:
            async for _ in batch:
                break
        else:
            await batch
        with pytest.raises(bn.BadProgram, match="was used already"):
            await batch
        with pytest.raises(bn.BadProgram, match="was used already"):
            async for _ in batch:
                pass

    for is_iterated in (False, True):
        run_loop(use_again(is_iterated))


def test_concurrency_is_bounded(run_loop: Any) -> None:
    n_running, max_running = 0, 0

    @bn.function
    async def program(s: bn.AsyncState) -> None:
        nonlocal n_running, max_running
        n_running += 1
        max_running = max(max_running, n_running)
        s += bn.gen("a")
        await s.value("a")
        n_running -= 1

    run_loop(gather_states(program.run_batch_async([()] * 20, backend=bn.Mock("x", latency=0.01), concurrency=3)))
    assert max_running == 3


@SYNC_AND_ASYNC
def test_failed_items_do_not_affect_the_others(run_loop: Any, program: bn.Program) -> None:
    with pytest.raises(bn.BatchError, match=r"2 of 5 items failed; the first is item 1: .*no luck with 1") as raised:
        run_loop(gather_states(program.run_batch_async([(i,) for i in range(5)], backend=echo(bad=(1, 3)))))
    assert list(raised.value.errors) == [1, 3]
    assert [state["a"] for i, state in enumerate(raised.value.results) if i not in (1, 3)] == ["0", "2", "4"]

    async def main() -> list[type]:
        batch = program.run_batch_async([(i,) for i in range(5)], backend=echo(bad=(1, 3)), on_error="return")
        return [type(await state.error()) for state in await batch]

    assert run_loop(main()) == [type(None), bn.ProgramError, type(None), bn.ProgramError, type(None)]


def test_body_error_or_cancellation_fails_its_item(run_loop: Any) -> None:
    @bn.function
    async def program(s: bn.AsyncState, x: int) -> None:
        if x == 0:
            raise ZeroDivisionError
        if x == 1:
            raise asyncio.CancelledError

    async def main() -> list[Any]:
        states = await program.run_batch_async([(i,) for i in range(3)], backend=bn.Mock(), on_error="return")
        return [type(await state.error()) for state in states]

    assert run_loop(main()) == [ZeroDivisionError, bn.Cancelled, type(None)]


@SYNC_AND_ASYNC
def test_leaving_the_loop_cancels_the_remaining_items(run_loop: Any, program: bn.Program) -> None:
    backend = bn.Mock("late", latency=lambda call: 0.01 if call.prompt == "0" else 30)

    async def main() -> None:
        async for state in program.run_batch_async([(i,) for i in range(5)], backend=backend):
            assert state.index == 0
            break
        start = time.monotonic()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await program.run_batch_async([(i,) for i in range(1, 5)], backend=backend)
        assert time.monotonic() - start < 5

    run_loop(main())


@SYNC_AND_ASYNC
def test_batch_timeout_fails_unfinished_items(run_loop: Any, program: bn.Program) -> None:
    backend = bn.Mock(lambda prompt, name: prompt, latency=lambda call: 0.01 if call.prompt == "0" else 30)

    async def main() -> list[Any]:
        batch = program.run_batch_async(
            [(i,) for i in range(6)], backend=backend, concurrency=3, timeout=0.2, on_error="return"
        )
        return [await state.error() for state in await batch]

    start = time.monotonic()
    first, *others = run_loop(main())
    assert time.monotonic() - start < 10
    assert first is None
    assert {str(e).split(" [")[0] for e in others} == {"the batch's timeout of 0.2 s ran out"}


def test_stuck_body_does_not_delay_the_timeout(run_loop: Any) -> None:
    release = threading.Event()

    @bn.function
    def program(s: bn.State) -> None:
        release.wait(60)

    start = time.monotonic()
    with pytest.raises(bn.DeadlineExceeded):
        run_loop(program.run_async(backend=bn.Mock(), timeout=0.1))
    with pytest.raises(bn.BatchError):
        run_loop(gather_states(program.run_batch_async([()] * 3, backend=bn.Mock(), timeout=0.1)))
    assert time.monotonic() - start < 10
    release.set()


@pytest.mark.parametrize("option", [{"checkpoint": "out.jsonl"}, {"num_threads": 4}])
def test_options_that_only_run_batch_has_are_named(option: dict[str, Any]) -> None:
    (name,) = option
    with pytest.raises(TypeError, match=f"run_batch_async has no option '{name}'; run_batch of a `def` program has it"):
        plain.run_batch_async([(1,)], backend=bn.Mock("x"), **option)


def test_invalid_options_are_refused(run_loop: Any) -> None:
    with pytest.raises(bn.BadProgram, match="min_tokens"):
        run_loop(gather_states(item.run_batch_async([(1,)] * 3, backend=bn.Mock(), min_tokens=9, max_new_tokens=3)))
    with pytest.raises(bn.BadProgram, match="concurrency"):
        item.run_batch_async([(1,)], backend=bn.Mock(), concurrency=0)
