"""Programs over a line that loses messages and repeats them: every value comes, and nothing stays behind."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

import banyan as bn
from banyan.runtime.client.client import Client
from banyan.runtime.protocol import ipc, resend_window
from waits import wait_until


@pytest.fixture
def faults(module_at: Callable[[Path], ModuleType]) -> ModuleType:
    return module_at(Path(__file__).parents[1] / "faults.py")


@pytest.fixture
def join(join_shared: Callable[..., Client]) -> Callable[..., Client]:
    return join_shared


@pytest.fixture(autouse=True)
def _quick_heart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ipc, "HEARTBEAT", 0.05)
    monkeypatch.setattr(ipc, "MISSED", 1000)  # Pongs are lost too


@bn.function
def fork_and_join(s: bn.State, i: int) -> list[str]:
    s += f"start {i}: " + bn.gen("first", max_tokens=4)
    forks = s.fork(3)
    forks += lambda k: f" branch {k}" + bn.gen("branch", max_tokens=6)
    assert forks[1]["branch"]
    forks += " again" + bn.gen("again", max_tokens=3)
    forks.join("concate_and_append")
    s += bn.gen("last", max_tokens=5)
    return [s["first"], *(fork["again"] for fork in forks), s["last"], s.text()]


@bn.function
def asks(s: bn.State, what: str) -> None:
    s += f"start {what}: " + bn.gen("a", max_tokens=4) + " again" + bn.gen("b", max_tokens=4)


def settled(client: Client) -> None:
    wait_until(
        lambda: not (client.ask("stats")["server"]["programs"] or client._inboxes),
        "the end of all programs",
        seen=lambda: (client.ask("stats")["server"], client._inboxes),
    )
    assert client.ask("check") is not None


@pytest.mark.parametrize("seed", range(3))
def test_every_value_comes(join: Callable[..., Client], faults: ModuleType, seed: int) -> None:
    client = join()
    expected = [fork_and_join.run(i, backend=client, temperature=0).ret_value for i in range(3)]
    with faults.lossy(client, seed, loss=0.25, twice=0.2) as lost:
        for _ in range(10):  # how many messages there are is up to how fast the server is
            states = fork_and_join.run_batch([(i,) for i in range(3)], backend=client, temperature=0)
            assert [state.ret_value for state in states] == expected
            del states
            settled(client)
            if len(lost) > 5:
                break
    assert len(lost) > 5


@pytest.mark.parametrize("seed", range(2))
def test_templates_come_with_the_programs_that_use_them(
    join: Callable[..., Client], faults: ModuleType, seed: int
) -> None:
    client = join()
    items = [(str(i),) for i in range(6)]
    expected = [state.text() for state in asks.run_batch(items, backend=client, temperature=0)]
    with faults.lossy(client, seed, loss=0.4, twice=0.2) as lost:
        compiled = bn.compile(asks)  # the template is sent with its first use, and is lost as likely as not
        states = compiled.run_batch(items, backend=client, temperature=0)
        assert [state.text() for state in states] == expected
        assert compiled.explain().startswith("asks has 1 template")
        del compiled, states
    settled(client)
    assert lost


def test_a_template_that_is_forgotten_while_its_use_is_on_its_way(join: Callable[..., Client]) -> None:
    client = join()
    compiled = bn.compile(asks)
    expected = asks.run("x", backend=client, temperature=0).text()
    send = client.send_now
    client.send_now = lambda data: None  # type: ignore[method-assign]  # all is lost, until the client compares
    state = compiled.run("x", backend=client, temperature=0)
    del compiled
    gc.collect()
    client.send_now = send  # type: ignore[method-assign]
    assert state.text() == expected
    del state
    settled(client)


def test_a_stream_is_whole(join: Callable[..., Client], faults: ModuleType) -> None:
    client = join(say={"a": "one two three four five six"}, step_ms=2)
    program = bn.function(lambda s: s.__iadd__("a" + bn.gen("x")))
    with faults.lossy(client, 1, loss=0.3, twice=0.3), bn.stream(program, backend=client) as st:
        assert "".join(st.state.text_iter("x")) == "one two three four five six"
        texts = [event.text for event in st.events() if isinstance(event, bn.Token)]
        assert "".join(texts) == "one two three four five six"


def test_cancelling_gets_through(join: Callable[..., Client], faults: ModuleType) -> None:
    client = join(step_ms=5)

    @bn.function
    def program(s: bn.State) -> None:
        s += "a" + bn.gen("x", max_tokens=400, ignore_eos=True)

    states = [program.run(backend=client) for _ in range(5)]
    wait_until(
        lambda: client.ask("stats")["server"]["requests"] >= 5,
        "all five to run at once",
        alive=lambda: not any(state._record.is_settled for state in states),
    )
    with faults.lossy(client, 2, loss=0.5):
        for state in states:
            state.cancel()
        wait_until(lambda: not client.ask("stats")["server"]["requests"], "the end of the requests")


def test_where_all_is_lost_the_deadline_holds(join: Callable[..., Client], faults: ModuleType) -> None:
    client = join()
    start = time.monotonic()
    with faults.lossy(client, 3, loss=1.0), pytest.raises(bn.DeadlineExceeded, match="the run's timeout"):
        fork_and_join.run(0, backend=client, timeout=0.5)
    assert time.monotonic() - start < 5
    settled(client)


def test_what_is_kept_no_longer_is_an_error(
    join: Callable[..., Client], faults: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resend_window, "N_KEPT", 2)
    client = join()

    @bn.function
    def program(s: bn.State) -> None:
        for _ in range(8):
            s += "a"
            s._record.flush()
        s += bn.gen("x", max_tokens=2)
        s["x"]

    with faults.lossy(client, 4, loss=1.0) as lost:
        st = bn.stream(program, backend=client)
        wait_until(lambda: len(lost) >= 9, "nine messages to be lost", seen=lambda: lost)
    with pytest.raises(bn.RuntimeLost, match="kept no longer"):
        st.state["x"]
    settled(client)
