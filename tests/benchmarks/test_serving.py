"""benchmarks/serving.py: names of systems, and systems that die, hang or cannot start are named and ended."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from unittest.mock import MagicMock

import psutil
import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"
HANGS = "import time; print('{}', flush=True); time.sleep(1000)"


@pytest.fixture(scope="module")
def serving(module_at: Callable[[Path], ModuleType]) -> ModuleType:
    return module_at(FOLDER / "serving.py")


@pytest.fixture
def peers(serving: ModuleType) -> ModuleType:
    return sys.modules["peer_process"]


def test_peer_that_hangs_or_dies_is_named(peers: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    hangs = peers.PeerProcess([sys.executable, "-c", HANGS])
    monkeypatch.setattr(peers, "LONGEST", 0.1)
    with pytest.raises(SystemExit, match=r"time\.sleep.* has not answered within 0\.1 s"):
        hangs.ask("")
    hangs.close()
    monkeypatch.undo()
    with pytest.raises(SystemExit, match="ended with status 3"):
        peers.PeerProcess([sys.executable, "-c", "raise SystemExit(3)"])


def test_signal_reaches_children_of_a_process_that_it_ends(peers: ModuleType) -> None:
    parent = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {HANGS!r}]); time.sleep(1000)"
    with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()  # both run
        found = psutil.Process(process.pid).children()
        tree = peers.ProcessTree(process.pid)
        tree.signal(peers.signal.SIGKILL)
        assert psutil.wait_procs(found, 60)[1] == []
    tree.signal(peers.signal.SIGKILL)  # nobody is there any more
    assert tree.peak == 0


def test_page_names_the_conditions(serving: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plots = MagicMock()
    plots.pyplot.subplots.return_value = MagicMock(), MagicMock()
    monkeypatch.setitem(sys.modules, "matplotlib", plots)
    (page := tmp_path / "page.md").write_text("<!-- serving M -->\n<!-- end of serving M -->\n")
    report = serving.Report("serving", "M, 2 cores, median of 1, threads=1, peers in float32")
    report.row("W1 floor", "s", 0.5)
    run = serving.Run(1.0, 8, 1, [1.0], [1.0], ["a"])
    serving.write_page(page, "M", {"W1": {"banyan": [run], "vllm": [run]}}, report)
    text = page.read_text()
    assert f"{report.shape}. {report.machine}, commit {report.commit}. Wall seconds." in text
    assert "| 0.50 | 1.00 | 1.00, 1.00 x |" in text


def test_computed_prompt_tokens_are_unknown_if_cached_ones_are(serving: ModuleType) -> None:
    assert serving.n_computed([(9, 4), (5, 0)]) == 10
    assert serving.n_computed([(9, 4), (5, None)]) is None
    known, unknown = (serving.Run(1.0, 8, n, [1.0], [1.0], ["a"]) for n in (3, None))
    for theirs, n_rows in ((known, 1), (unknown, 0)):
        report = serving.Report("serving", "")
        runs = {"banyan": [known], "transformers": [theirs]}
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(serving, "agreement", lambda calls, ours, theirs: (1.0, 1))
            serving.compare(report, "W1", "banyan", "transformers", runs, [" a"])
        assert sum("computed" in row["name"] for row in report.rows) == n_rows


@pytest.mark.parametrize("others", [["--vllm", "python"], ["--server", "vllm", "x"]])
@pytest.mark.parametrize("name", ["vllm", "completions"])
def test_server_with_the_name_of_another_system_is_refused(
    serving: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    others: list[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["serving.py", "no-model", "--server", name, "x", *others])
    with pytest.raises(SystemExit):
        serving.main()
    assert f"--server needs a name other than {name}, which another system has" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("code", "why"), [("raise SystemExit(3)", "can no longer come"), (HANGS, "the time is up")], ids=["dies", "hangs"]
)
def test_server_that_does_not_start_is_ended(
    serving: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: str, why: str
) -> None:
    monkeypatch.setattr(serving.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(serving, "LONGEST", 1.0)
    before = psutil.Process().children()
    with pytest.raises(AssertionError, match=f"an answer of it, which writes to .*serving-it.log: .*{why}"):
        serving.Server("it", f"{sys.executable} -c {serving.shlex.quote(code.replace('{}', 'here'))}", tmp_path, [])
    assert psutil.Process().children() == before
