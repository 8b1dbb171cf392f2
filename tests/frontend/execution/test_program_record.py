"""Program records: when ops are sent, appends from many threads, and the release of states."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest

import banyan as bn
from banyan.execution.program_record import ProgramRecord, StateHandle
from banyan.lang.lazy_value import LazyValue
from banyan.lang.sampling import Options
from banyan.runtime.protocol import wire


def test_adjacent_text_is_one_op(mock: bn.Mock) -> None:
    record = ProgramRecord("p", mock, Options())
    a, b = record.new_handle(), record.new_handle()
    record.add(wire.Fork(0, (1,)))
    record.add_text(a.number, ["1", "2"])
    record.add_text(a.number, ["3"])
    record.add_text(b.number, ["4"])
    record.add_text(a.number, [])
    record.add_text(a.number, ["5"])
    record.flush()
    record.flush()
    appended = (wire.Append(0, ("1", "2", "3")), wire.Append(1, ("4",)), wire.Append(0, ("5",)))
    assert mock.submits == [(wire.Fork(0, (1,)), *appended)]


def drop_a_branch(record: ProgramRecord) -> StateHandle:
    """Fork a state, run a gen in the branch, and drop the branch. Returns the handle of the state."""
    a, b = record.new_handle(), record.new_handle()
    record.add(wire.Fork(0, (1,)))
    ref = LazyValue(record, b, None)
    record.add(wire.Gen(1, ref.number))
    record.flush()
    del b, ref
    record.flush()
    return a


def test_dropping_an_idle_state_sends_no_message(mock: bn.Mock) -> None:
    record = ProgramRecord("p", mock, Options())
    a = drop_a_branch(record)
    assert len(mock.submits) == 1
    record.add_text(a.number, ["x"])
    record.flush()
    assert mock.submits[1] == (wire.Append(0, ("x",)), wire.Drop(1)), "the drop is sent with the next message"


def test_appends_from_many_threads_are_all_sent(mock: bn.Mock) -> None:
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


@pytest.mark.parametrize(("error", "text"), [(bn.BadMessage, "too large"), (KeyError, "a bug")])
def test_submit_error_is_raised_at_every_read(error: type[Exception], text: str) -> None:
    class RefusingMock(bn.Mock):
        def program(self, name: str = "") -> object:  # type: ignore[override]
            program = super().program(name)

            def submit(ops: object, last: bool = False) -> None:
                raise error(text)

            program.submit = submit  # type: ignore[method-assign]
            return program

    @bn.function
    def program(s: bn.State) -> None:
        s += bn.gen("x")
        for _ in range(2):
            with pytest.raises(error, match=text):
                s["x"]

    with pytest.raises(error, match=text):
        program.run(backend=RefusingMock())


def test_programs_are_freed_without_garbage_collection(mock: bn.Mock) -> None:
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
        assert [one() for one in alive] == [None, None], "no reference cycle keeps them alive"
    finally:
        gc.enable()


def test_dropping_a_running_state_is_sent_immediately() -> None:
    """The drop also cancels its gens, with no other op to send."""

    class SilentMock(bn.Mock):
        def program(self, name: str = "") -> object:  # type: ignore[override]
            program = super().program(name)
            program.submit = lambda ops, last=False: self.submits.append(tuple(ops))  # type: ignore[method-assign]
            return program

    silent = SilentMock()
    a = drop_a_branch(ProgramRecord("p", silent, Options()))
    assert silent.submits[1:] == [(wire.Drop(1),)]
    assert a.number == 0
