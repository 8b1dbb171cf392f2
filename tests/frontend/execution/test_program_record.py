"""Records: what goes out when, from any thread, and what is left when a process forks."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest

import banyan as bn
from banyan.execution.program_record import ProgramRecord
from banyan.lang.lazy_value import LazyValue
from banyan.lang.sampling import Options
from banyan.runtime.protocol import wire


def test_text_side_by_side_is_one_op(mock: bn.Mock) -> None:
    kept = ProgramRecord("p", mock, Options())
    a, b = kept.new_handle(), kept.new_handle()
    kept.add(wire.Fork(0, (1,)))
    kept.add_text(a.number, ["1", "2"])
    kept.add_text(a.number, ["3"])
    kept.add_text(b.number, ["4"])
    kept.add_text(a.number, [])
    kept.add_text(a.number, ["5"])
    kept.flush()
    kept.flush()
    appended = (wire.Append(0, ("1", "2", "3")), wire.Append(1, ("4",)), wire.Append(0, ("5",)))
    assert mock.submits == [(wire.Fork(0, (1,)), *appended)]


def test_dropping_a_state_is_worth_no_message_where_nothing_runs(mock: bn.Mock) -> None:
    kept = ProgramRecord("p", mock, Options())
    a, b = kept.new_handle(), kept.new_handle()
    kept.add(wire.Fork(0, (1,)))
    ref = LazyValue(kept, b, None)
    kept.add(wire.Gen(1, ref.number))
    kept.flush()
    del b, ref
    kept.flush()
    assert len(mock.submits) == 1
    kept.add_text(a.number, ["x"])
    kept.flush()
    assert mock.submits[1] == (wire.Append(0, ("x",)), wire.Drop(1)), "it goes along with the next one"


def test_appends_from_many_threads_all_arrive(mock: bn.Mock) -> None:
    @bn.function
    def program(s: bn.State) -> None:
        forks = s.fork(8)

        def work(branch: bn.State) -> None:
            for _ in range(20):
                branch += "x" + bn.gen()
                if branch.text().count("x") % 5 == 0:
                    branch.sync()

        threads = [threading.Thread(target=work, args=(branch,)) for branch in forks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert [branch.text() for branch in forks] == ["x<>" * 20] * 8

    program.run()
    assert len(mock.calls) == 160


def test_a_backend_that_refuses_a_message_says_so_at_every_look() -> None:
    class Full(bn.Mock):
        def program(self, name: str = "") -> object:  # type: ignore[override]
            made = super().program(name)

            def submit(ops: object, last: bool = False) -> None:
                raise bn.BadMessage("too large")

            made.submit = submit  # type: ignore[method-assign]
            return made

    @bn.function
    def program(s: bn.State) -> None:
        s += bn.gen("x")
        for _ in range(2):
            with pytest.raises(bn.BadMessage, match="too large"):
                s["x"]

    with pytest.raises(bn.BadMessage):
        program.run(backend=Full())


def test_an_error_that_is_none_of_ours_is_no_hang_either(mock: bn.Mock) -> None:
    class Buggy(bn.Mock):
        def program(self, name: str = "") -> object:  # type: ignore[override]
            made = super().program(name)
            made.submit = lambda ops, last=False: {}["a bug"]  # type: ignore[method-assign, assignment, return-value]
            return made

    @bn.function
    def program(s: bn.State) -> None:
        s += bn.gen("x")
        for _ in range(2):
            with pytest.raises(KeyError, match="a bug"):
                s["x"]

    with pytest.raises(KeyError, match="a bug"):
        program.run(backend=Buggy())


def test_programs_leave_no_garbage(mock: bn.Mock) -> None:
    @bn.function
    def program(s: bn.State) -> None:
        s += bn.user("x") + bn.assistant(bn.gen("a"))
        forks = s.fork(2)
        forks += bn.gen("b")
        forks.join()
        assert s["b"]

    gc.disable()
    try:
        state = program.run()
        alive = [weakref.ref(state), weakref.ref(state._record)]
        del state
        assert [one() for one in alive] == [None, None], "no cycle keeps them: the server hears of it at once"
    finally:
        gc.enable()


def test_a_state_that_still_runs_is_dropped_at_once() -> None:
    """And so is what it generates, though nothing else is there to be sent."""

    class Late(bn.Mock):
        def program(self, name: str = "") -> object:  # type: ignore[override]
            made = super().program(name)
            made.submit = lambda ops, last=False: self.submits.append(tuple(ops))  # type: ignore[method-assign]
            return made

    late = Late()
    kept = ProgramRecord("p", late, Options())
    a, b = kept.new_handle(), kept.new_handle()
    kept.add(wire.Fork(0, (1,)))
    ref = LazyValue(kept, b, None)
    kept.add(wire.Gen(1, ref.number))
    kept.flush()
    del b, ref
    kept.flush()
    assert late.submits[1:] == [(wire.Drop(1),)]
    assert a.number == 0
