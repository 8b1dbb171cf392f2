"""The files of deploy/: metrics that a server serves, options that it has, a unit that systemd accepts."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
import yaml

from banyan.cli import main
from banyan.runtime import config
from banyan.runtime.server.telemetry.metrics import Metrics

ROOT = Path(__file__).resolve().parents[3]
DEPLOY = ROOT / "deploy"
PARTS = {"histogram": ("_bucket", "_sum", "_count"), "counter": ("",), "gauge": ("",)}


@pytest.fixture(scope="module")
def dashboard() -> Any:
    return json.loads((DEPLOY / "grafana-dashboard.json").read_text())


def expressions(value: Any) -> Iterable[str]:
    """The queries in a dashboard or in rules."""
    if isinstance(value, dict):
        yield from (one for name, one in value.items() if name in ("expr", "query") and isinstance(one, str))
        value = list(value.values())
    for one in value if isinstance(value, list) else ():
        yield from expressions(one)


@pytest.fixture
def served(url: str, stats: Callable[[], Any]) -> dict[str, set[str]]:
    """Each series that the server's port for metrics and the HTTP process serve, with the names of its labels."""
    urlopen(f"{url}/health", timeout=30).close()
    with closing(Metrics("0")) as metrics:
        metrics.update(stats())
        pages = [f"http://127.0.0.1:{metrics.port}/metrics", f"{url}/metrics"]
        text = "".join(urlopen(page, timeout=30).read().decode() for page in pages)
    kinds = re.findall(r"^# TYPE (\w+) (\w+)$", text, re.M)
    found: dict[str, set[str]] = {name + part: set() for name, kind in kinds for part in PARTS[kind]}
    for name, labels in re.findall(r"^(\w+)(?:\{(.*)\})? \S+$", text, re.M):
        found.setdefault(name, set()).update(re.findall(r'(\w+)="', labels))
    return found


def test_metrics_that_prometheus_asks_for_are_served(dashboard: Any, served: dict[str, set[str]]) -> None:
    used = list(expressions(dashboard)) + list(expressions(yaml.safe_load((DEPLOY / "alerts.yml").read_text())))
    names = {name for one in used for name in re.findall(r"banyan_\w+", one)}
    names |= set(re.findall(r"banyan_\w+", (DEPLOY / "prometheus.yml").read_text()))
    assert len(names) > 20
    assert names <= set(served)
    for one in used:
        name = re.findall(r"banyan_\w+", one)
        labels = {label for group in re.findall(r"by \((.*?)\)", one) for label in group.split(", ")}
        labels |= set(re.findall(r'(\w+)=~?"', one)) - {"instance", "job"}
        known = set().union(*(served[each] for each in name)) | {"instance"}
        assert labels <= known or "banyan_evicted_pages_total" in name, one  # no page is evicted here


def test_panels_of_the_dashboard_do_not_overlap(dashboard: Any) -> None:
    cells = [
        (column, row)
        for panel in dashboard["panels"]
        for column in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for row in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(column for column, _ in cells) < 24


def commands() -> dict[str, list[str]]:
    """The arguments of `banyan` in the container and in the unit."""
    container = re.findall(r"^(?:ENTRYPOINT|CMD) (\[.*\])$", (DEPLOY / "Dockerfile").read_text(), re.M)
    unit = re.findall(r"^ExecStart=(.*)$", (DEPLOY / "banyan.service").read_text(), re.M)
    health = re.findall(r"^HEALTHCHECK .*CMD (\[.*\])$", (DEPLOY / "Dockerfile").read_text(), re.M)
    return {
        "container": [word for part in container for word in json.loads(part)],
        "unit": shlex.split(unit[0]),
        "health": json.loads(health[0]),
    }


@pytest.mark.parametrize("name", ["container", "unit", "health"])
def test_commands_are_those_that_banyan_has(name: str) -> None:
    program, *arguments = commands()[name]
    assert Path(program).name == "banyan"
    options = main._parser().parse_args(arguments)
    if name != "health":
        config.make(**main.given(options))
        assert config.address(options.metrics)
        assert options.http_keys  # it listens for others, or everyone of the machine


def test_the_container_installs_extras_that_exist() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (named,) = re.findall(r'"/source\[(.*)\]"', (DEPLOY / "Dockerfile").read_text())
    assert set(named.split(",")) <= set(extras)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / "banyan.service"
    unit.write_text((DEPLOY / "banyan.service").read_text().replace("/opt/banyan/bin/banyan", "/bin/true"))
    found = subprocess.run(["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    assert "banyan.service" not in found.stderr
