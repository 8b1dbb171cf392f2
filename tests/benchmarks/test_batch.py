"""A batch whose client and server are killed, with a real server, through the command line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.long
@pytest.mark.timeout(600)
def test_each_row_has_one_result_after_kills_of_client_and_server(module_at: Callable[[Path], ModuleType]) -> None:
    batch = module_at(ROOT / "benchmarks" / "batch.py")
    report = batch.Report("batch", "")
    batch.run(report, None, 4000, ["server", "client", "both"], 1)
    rows = {row["name"]: row["ours"] for row in report.rows}
    assert rows["rows with one result"] == 4000
    assert {name.partition(":")[0] for name in rows if "peak" in name} == {"client", "server", "engine"}
