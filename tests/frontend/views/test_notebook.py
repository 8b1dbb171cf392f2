"""Displays in a notebook: refreshed until they are complete, and without ipywidgets."""

from __future__ import annotations

import json
import sys
import threading
import types
from pathlib import Path
from typing import Any

import pytest

import banyan as bn
from banyan.runtime.executor.generator import GenOutcome
from banyan.runtime.protocol import wire
from banyan.views import notebook
from waits import wait_until


class FakeHandle:
    """A display, as IPython's `display(..., display_id=True)` returns it."""

    def __init__(self, bundle: dict[str, str], **options: Any) -> None:
        assert options == {"raw": True, "display_id": True}
        self.shown = [bundle]

    def update(self, bundle: dict[str, str], raw: bool) -> None:
        assert raw
        self.shown.append(bundle)


@pytest.fixture
def displays(monkeypatch: pytest.MonkeyPatch) -> list[FakeHandle]:
    """A fake kernel; returns what is displayed in it."""
    found: list[FakeHandle] = []

    def display(bundle: dict[str, str], **options: Any) -> FakeHandle:
        found.append(FakeHandle(bundle, **options))
        return found[-1]

    shell = types.SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setitem(sys.modules, "IPython.display", types.SimpleNamespace(display=display))
    monkeypatch.setattr(notebook, "INTERVAL", 0.01)
    return found


def is_refreshing() -> bool:
    return any(thread.name == "banyan-display" for thread in threading.enumerate())


class HeldMock(bn.Mock):
    """Its gens end when the test ends them."""

    def __init__(self) -> None:
        super().__init__()
        self.jobs: list[Any] = []

    def start(self, job: Any) -> None:
        self.jobs.append(job)


@bn.function
def program(s: bn.State, word: str) -> None:
    s += word + bn.gen("a") + "!"


@pytest.mark.parametrize("stream", [False, True])
def test_running_state_is_refreshed_until_it_is_complete(displays: list[FakeHandle], stream: bool) -> None:
    mock = HeldMock()
    state = program.run("Q", backend=mock, stream=stream)
    state._ipython_display_()
    (display,) = displays
    assert "answer" not in display.shown[0]["text/html"]
    assert display.shown[0]["text/plain"] == "<State of program program>"
    wait_until(lambda: mock.jobs, "the gen").pop().finish(GenOutcome((wire.Sample("answer", "stop"),)))
    wait_until(lambda: not is_refreshing(), "the end of the refreshes")
    assert "answer" in display.shown[-1]["text/html"]
    assert "under way" not in display.shown[-1]["text/html"]
    assert display.shown[-1]["text/html"] == state._repr_html_()
    with pytest.raises(NotImplementedError):  # IPython then calls _repr_html_
        state._ipython_display_()


def test_streamed_text_is_shown_while_the_gen_runs(displays: list[FakeHandle]) -> None:
    state = program.run("Q", backend=HeldMock(), stream=True)
    feed = wait_until(lambda: (refs := state._lazy_values()) and refs[0].deltas, "the gen")
    state._ipython_display_()
    feed.put(wire.Delta(0, 0, 0, "so far"))
    (display,) = displays
    wait_until(lambda: "so far<em" in display.shown[-1]["text/html"], "the streamed text")
    state.cancel()
    wait_until(lambda: not is_refreshing(), "the end of the refreshes")
    assert "[a was stopped]" in display.shown[-1]["text/html"]


def test_outside_a_kernel_a_state_is_not_refreshed() -> None:
    state = program.run("Q", backend=bn.Mock("x", latency=60))
    with pytest.raises(NotImplementedError):
        state._ipython_display_()
    state.cancel()


def test_progress_bar_needs_no_ipywidgets(displays: list[FakeHandle], capsys: pytest.CaptureFixture[str]) -> None:
    program.run_batch([("Q",)] * 3, backend=bn.Mock("x"), progress_bar=True)
    (display,) = displays
    assert "3/3" in display.shown[-1]["text/html"]
    assert "<pre>" in display.shown[-1]["text/html"]
    assert not is_refreshing()
    assert capsys.readouterr() == ("", "")


CELLS = [
    """
import threading, time, banyan as bn
@bn.function
def program(s, word):
    s += word + bn.gen("a") + "!"
state = program.run("Q", backend=bn.Mock("answer", latency=1.0))
state
""",
    'program.run_batch([("Q",)], backend=bn.Mock("x"), progress_bar=True)[0]',
    'program.graph("Q")',
    """
state.sync()
while any(thread.name == "banyan-display" for thread in threading.enumerate()):
    time.sleep(0.05)
""",
]


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore")  # of the kernel's own libraries
def test_in_a_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from jupyter_client.manager import start_new_kernel

    for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    spec = tmp_path / "JUPYTER_DATA_DIR" / "kernels" / "python3"
    spec.mkdir(parents=True)
    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (spec / "kernel.json").write_text(json.dumps({"argv": argv, "display_name": "test", "language": "python"}))
    manager, client = start_new_kernel(kernel_name="python3")
    shown: dict[str, list[str]] = {}  # display id, or the number of the cell -> its HTML, each time that it is drawn
    errors = []
    try:
        for i, cell in enumerate(CELLS):
            request = client.execute(cell)
            while True:
                message = client.get_iopub_msg(timeout=60)
                content = message["content"]
                if message["msg_type"] in ("display_data", "update_display_data", "execute_result"):
                    place = content.get("transient", {}).get("display_id", str(i))
                    shown.setdefault(place, []).append(content["data"].get("text/html", ""))
                elif message["msg_type"] in ("error", "stream"):
                    errors.append(content)
                elif content.get("execution_state") == "idle" and message["parent_header"]["msg_id"] == request:
                    break
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    assert errors == [], "no error, and no warning about ipywidgets"
    state, bar, batch, graph = shown.values()
    assert "[a is under way]" in state[0]
    assert "answer" in state[-1]
    assert "under way" not in state[-1]
    assert "1/1" in bar[-1]
    assert len(batch) == len(graph) == 1
    assert "<svg" in graph[0]
