"""Starts engine hosts on a Ray cluster, and replaces those that end.

    python -m banyan.runtime.server.engine_link.ray_launcher --options JSON --adds-fd N --alive-fd M

Each engine has a placement group and an actor, which starts a host (engine_host.py) on its node and waits for its end.
The host itself connects to the server, so their messages do not go through Ray. When a host or its node dies, another
actor starts in the same placement group. A host that the server has dismissed is not replaced.
"""

from __future__ import annotations

import argparse
import os
import select
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import ray
from ray.exceptions import RayError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from banyan.runtime import launch
from banyan.runtime.server.engine_link.ray_engines import LauncherOptions

HOST = ("-m", "banyan.runtime.server.engine_link.engine_host")
LOOK = 0.2
"""Seconds between two checks of the actors."""
PAUSE = 1.0
"""Seconds between the death of an actor and the start of another."""


class EngineActor:
    """Starts an engine host on its node, and waits for its end."""

    def run(self, options: str, key: str) -> int:
        """Run the host, and return its exit status. options: HostOptions as JSON. key: the content of the file with the
        host's secret key."""
        with tempfile.TemporaryDirectory(prefix="banyan-") as folder:
            path = Path(folder) / "ray.key_secret"
            path.touch(mode=0o600)
            path.write_text(key)
            child = launch.ChildProcess([sys.executable, *HOST, "--options", options, "--key", str(path)])
            status = child.wait()
            assert status is not None
            return status


class PlacedEngine(NamedTuple):
    """An engine on the cluster. run: the Ray future of its host's exit status."""

    group: Any
    actor: Any
    run: Any


class Launcher:
    """Starts engines on the cluster, and replaces those that end."""

    def __init__(self, options: LauncherOptions) -> None:
        self._key = Path(options.key).read_text()
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        ray.init(address=options.ray, log_to_driver=True, logging_level="ERROR")
        server = f"tcp://{ray.util.get_node_ip_address()}:{options.port}"
        host = {"servers": [(server, options.server_key)], "own": options.own, "command": options.command}
        self._host = msgspec.json.encode(host).decode()
        tp, device = options.own["tp"], options.own["device"]
        has_gpus = device != "cpu" and ray.cluster_resources().get("GPU", 0) > 0
        self._bundle = {"CPU": float(options.own["threads"] or 1)} | ({"GPU": float(tp)} if has_gpus else {})
        self._engines: list[PlacedEngine] = []

    def add(self) -> None:
        """Start one more engine. Its placement group waits until the cluster has room."""
        self._start(placement_group([self._bundle], strategy="STRICT_PACK"))

    def _start(self, group: Any) -> None:
        actor = ray.remote(EngineActor).options(
            num_cpus=self._bundle["CPU"],
            num_gpus=self._bundle.get("GPU", 0),
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, 0),
        ).remote()  # fmt: skip
        self._engines.append(PlacedEngine(group, actor, actor.run.remote(self._host, self._key)))

    def look(self) -> None:
        """Replace engines that have ended."""
        done, _ = ray.wait([engine.run for engine in self._engines], timeout=0) if self._engines else ([], [])
        for engine in [engine for engine in self._engines if engine.run in done]:
            self._engines.remove(engine)
            try:
                status = ray.get(engine.run)
            except RayError as e:
                self._log(f"an engine's actor died: {str(e).splitlines()[0]}")
                status = -1
            ray.kill(engine.actor)
            if status in (0, 1):  # the server does not need the host, or cannot use it
                self._log("an engine ended" if status == 0 else "an engine was refused; see above")
                remove_placement_group(engine.group)
            else:
                time.sleep(PAUSE)
                self._start(engine.group)

    def _log(self, text: str) -> None:
        print(f"banyan: Ray: {text}", file=sys.stderr, flush=True)

    def close(self) -> None:
        for engine in self._engines:
            ray.kill(engine.actor)
            remove_placement_group(engine.group)
        ray.shutdown()


def main(argv: list[str]) -> int:
    """Run the launcher until the server ends. Returns 0."""
    parser = argparse.ArgumentParser(prog="python -m banyan.runtime.server.engine_link.ray_launcher")
    parser.add_argument("--options", required=True, help="LauncherOptions as JSON")
    parser.add_argument("--adds-fd", type=int, required=True, help="each byte in this pipe asks for one more engine")
    parser.add_argument("--alive-fd", type=int, required=True, help="end at EOF of this file descriptor")
    args = parser.parse_args(argv)
    options = msgspec.json.decode(args.options, type=LauncherOptions)
    launcher = Launcher(options)
    try:
        n_wanted = options.n
        while True:
            for _ in range(n_wanted):
                launcher.add()
            launcher.look()
            ready, _, _ = select.select([args.alive_fd, args.adds_fd], [], [], LOOK)
            if args.alive_fd in ready:
                return 0
            n_wanted = len(os.read(args.adds_fd, 256)) if args.adds_fd in ready else 0
    finally:
        launcher.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
