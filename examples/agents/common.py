"""What the examples share: the choice of the runtime, and a count of the tokens that the radix tree saved."""

import argparse
import time
from collections.abc import Iterable

import banyan as bn


def choose_runtime(about: str) -> None:
    """Set the default backend of all programs from the command line.

    Default: a private runtime with the pocket model. `--model`: another model for it. `--socket`: a running server.
    """
    parser = argparse.ArgumentParser(description=about.partition("\n")[0])
    place = parser.add_mutually_exclusive_group()
    place.add_argument(
        "--model", default="pocket", help="a directory, .gguf file, hub id or smol (default: %(default)s)"
    )
    place.add_argument("--socket", help="connect to the server that `banyan serve` runs there")
    options = parser.parse_args()
    backend = bn.connect(options.socket) if options.socket else bn.Runtime(options.model)
    bn.set_default_backend(backend)
    engine = backend.ask("info")["engine"] or {}
    print(*engine.get("report", ()), sep="\n", end="\n\n")  # the report is only for operators


class Saved:
    """Counts the tokens of finished states and the time they took.

    computed = prompt - cached: the prompt tokens whose KV the tree did not hold.
    """

    def __init__(self) -> None:
        self.start = time.perf_counter()
        self.prompt = self.cached = self.generated = 0

    def add(self, *states: bn.State) -> "Saved":
        for state in states:
            self.prompt += state.usage.prompt
            self.cached += state.usage.cached
            self.generated += state.usage.generated
        return self

    @property
    def computed(self) -> int:
        return self.prompt - self.cached

    def __str__(self) -> str:
        seconds = time.perf_counter() - self.start
        return (
            f"prompt {self.prompt} tokens = {self.cached} cached + {self.computed} computed; "
            f"generated {self.generated} tokens in {seconds:.1f} s, {self.generated / seconds:.0f} tokens/s"
        )


def verdict(right: Iterable[bool]) -> None:
    """Print how many answers are right, and exit with status 1 unless all are."""
    results = list(right)
    print(f"{sum(results)} of {len(results)} right")
    if not all(results):
        raise SystemExit(1)
