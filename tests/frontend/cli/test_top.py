"""`banyan top`: rates from two snapshots, the view, and what happens when the engine or the server goes away."""

from __future__ import annotations

from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from banyan.cli import main as cli
from banyan.cli import top
from banyan.runtime.errors import EngineLost, RuntimeLost


def stats(seconds: float, steps: int = 0, computed: int = 0, starts: int = 1, evicted: int = 0) -> dict[str, Any]:
    engine = {"steps": steps, "computed_tokens": computed, "generated_tokens": computed // 4, "cached_tokens": 0,
              "forced_tokens": 0, "running": 12, "waiting": 345, "retractions": 2}  # fmt: skip
    cache = {"n_pages": 100, "n_leased": 25, "n_cached": 50, "n_free": 25, "n_hit_tokens": 30, "n_query_tokens": 40,
             "n_evicted_pages": evicted}  # fmt: skip
    server = {"seconds": seconds, "programs": 1234, "clients": 3, "engine_starts": starts}
    row = {"state": "ready", "starts": starts, "engine": engine, "cache": cache}
    return {"engine": engine, "cache": cache, "server": server, "replicas": {"0": row}}


def test_rates_cover_the_time_between_snapshots() -> None:
    actual = top.rates(stats(10.0, 100, 1000, evicted=7), stats(12.0, 120, 1400, evicted=9))
    assert (actual.steps, actual.rows, actual.evicted) == (10.0, 20.0, 1.0)
    assert actual.tokens == {"generated": 50.0, "computed": 200.0, "cached": 0.0, "forced": 0.0}


@pytest.mark.parametrize("now", [stats(12.0, 5, 10, starts=2), stats(10.0, 200)])
def test_rates_are_zero_after_an_engine_restart_or_without_elapsed_time(now: dict[str, Any]) -> None:
    actual = top.rates(stats(10.0, 100, 1000), now)
    assert (actual.steps, actual.rows, set(actual.tokens.values())) == (0.0, 0.0, {0.0})


def render(view: Any) -> str:
    stream = StringIO()
    Console(file=stream, width=120, highlight=False).print(view)
    return stream.getvalue()


def test_view_shows_clients_and_pages() -> None:
    text = render(top.view(stats(10.0, 100, 1000), stats(12.0, 120, 1400), "/a/socket"))
    for word in ("/a/socket", "1,234", "345", "75.0%", "25 in use, 50 cached, 25 free"):
        assert word in text
    assert (text.count("█"), text.count("░")) == (36, 12)
    assert "good requests" not in text


def test_view_shows_each_of_several_engines() -> None:
    before, now = stats(10.0, 100), stats(12.0, 130)
    for one in (before, now):
        one["replicas"]["7"] = one["replicas"]["0"] | {"state": "draining"}
        one["replicas"]["8"] = {"state": "starting", "starts": 1, "engine": {}, "cache": {}}
    lines = [line.split() for line in render(top.view(before, now)).splitlines()]
    assert ["0", "ready", "12", "345", "75", "of", "100", "75.0%", "15.0"] in lines
    assert ["7", "draining", "12", "345", "75", "of", "100", "75.0%", "15.0"] in lines
    assert ["8", "starting", *"-----"] in lines


def test_view_shows_service_levels_if_configured() -> None:
    now = stats(12.0)
    now["server"] |= {"slo_requests": 8, "slo_good_requests": 6, "slo_programs": 0, "slo_good_programs": 0}
    lines = [line.split() for line in render(top.view(stats(10.0), now)).splitlines()]
    assert ["good", "requests", "75.0%", "good", "programs", "-"] in lines


def test_show_survives_an_engine_restart_and_ends_with_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    errors = [EngineLost("gone"), RuntimeLost("no answer within 30 s"), stats(4.0, 50), RuntimeLost("the end")]
    answers: Iterator[Any] = iter([stats(1.0), stats(2.0), *errors])

    def ask(what: str) -> Any:
        answer = next(answers)
        if isinstance(answer, Exception):
            client.lost = "the end" if str(answer) == "the end" else None
            raise answer
        return answer

    client = SimpleNamespace(ask=ask, lost=None)
    runtime = SimpleNamespace(client=client)
    stream = StringIO()
    with pytest.raises(RuntimeLost, match="the end"):
        top.show(runtime, "s", 1.0, False, Console(file=stream, width=100))
    assert next(answers, None) is None
    assert "up 4 s" in stream.getvalue()


def test_bad_arguments_and_missing_server_are_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["top", "--socket", str(tmp_path / "nobody"), "--once"]) == 1
    for seconds in ("0", "nan", "soon", "inf", "1e10"):
        with pytest.raises(SystemExit):
            cli.main(["top", "--socket", "s", "--seconds", seconds])
    assert "Traceback" not in capsys.readouterr().err
