"""Engines on a Ray cluster of this machine: needs the extra `ray`, and runs in `make test-long`."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest

from banyan.runtime import config, launch
from banyan.runtime.client import client
from disturbance import disturb

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(1200),
    pytest.mark.filterwarnings("default"),  # those of Ray
]


@pytest.fixture(scope="module")
def cluster() -> Any:
    """The address of a cluster with one node of 8 CPUs."""
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 8, "include_dashboard": False})
    yield made.address
    made.shutdown()


def test_values_after_kills_drains_and_joins_through_ray_equal_those_of_calm_engines(
    native: object, cluster: str
) -> None:
    options = config.make(
        ray=cluster, replicas=2, dtype="float32", deterministic=True, context=512, threads=1, kv_memory="4096 tokens",
        device="cpu", max_running=12,
    )  # fmt: skip
    server = launch.start(options, timeout=600)
    try:
        with closing(client.connect(server.socket, timeout=60)) as c:
            disturb(c, 2, n_kills=10, n_drains=5, n_joins=5, add=lambda: c.ask("add", 300))
            assert {engine["host"].split()[0] for engine in c.ask("info")["replicas"].values()} == {"ray"}
    finally:
        server.close()
