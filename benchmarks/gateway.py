"""CPU time of the HTTP process per streamed token and per request, on the pocket model.

    python benchmarks/gateway.py [--quick] [--peer URL PID]

Concurrent streams of chat completions are read over plain sockets, so the client costs little. The figure is the CPU
time of the HTTP process (user and system) between the first request and the last, over the tokens in the streams; the
server, which has the tokenizer, and its engine have their own processes. Rows "with the server" add the server's
CPU time. `--peer` measures another OpenAI-compatible server on the same machine as the baseline: PID is its HTTP
process, and its first model answers. vLLM's HTTP process has the tokenizer too.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import urllib.request
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent))
from report import Report, parser

from banyan.runtime import config, launch

N_TOKENS = 100
PATH = "/v1/chat/completions"


class Cost(NamedTuple):
    """CPU time in us: per streamed token, per event, and per request that is not streamed. tokens_per_event: how many
    tokens an event carries on average."""

    token: float
    event: float
    request: float
    tokens_per_event: float


async def ask(url: str, body: dict[str, object]) -> tuple[int, int]:
    """Send one request. Returns (events with text, tokens) of its answer; each answer is checked to be whole."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    data = json.dumps(body).encode()
    head = f"POST {PATH} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n"
    writer.write(f"{head}content-length: {len(data)}\r\n\r\n".encode() + data)
    answer = await reader.read()
    writer.close()
    assert answer.startswith(b"HTTP/1.1 200"), answer[:500]
    if not body.get("stream"):
        return 1, 1
    assert answer.count(b"[DONE]") == 1
    n_tokens = int(re.findall(rb'"completion_tokens": ?(\d+)', answer)[-1])
    return answer.count(b'"content":"') - 1, n_tokens


async def together(url: str, n: int, body: dict[str, object]) -> tuple[int, int]:
    done = await asyncio.gather(*(ask(url, body | {"seed": k}) for k in range(n)))
    return sum(one for one, _ in done), sum(one for _, one in done)


def cost(url: str, pids: Sequence[int], n_streams: int, n_requests: int) -> list[Cost]:
    """The CPU time of each process per streamed token, per event and per request."""
    with urllib.request.urlopen(f"{url}/v1/models") as answer:
        model = json.load(answer)["data"][0]["id"]
    processes = [psutil.Process(pid) for pid in pids]

    def spent() -> list[float]:
        return [float(one.user + one.system) for one in (process.cpu_times() for process in processes)]

    question = [{"role": "user", "content": "Tell me anything."}]
    body: dict[str, object] = {"model": model, "messages": question, "temperature": 1.0, "max_tokens": N_TOKENS}
    streamed = body | {"stream": True, "stream_options": {"include_usage": True}, "ignore_eos": True}
    asyncio.run(together(url, 4, streamed))  # warm
    start = spent()
    n_events, n_tokens = asyncio.run(together(url, n_streams, streamed))
    middle = spent()
    for _ in range(n_requests // 50):
        asyncio.run(together(url, 50, body | {"max_tokens": 1}))
    costs = []
    for at_start, at_middle, at_end in zip(start, middle, spent(), strict=True):
        streams = 1e6 * (at_middle - at_start)
        one = 1e6 * (at_end - at_middle) / n_requests
        costs.append(Cost(streams / n_tokens, streams / n_events, one, n_tokens / n_events))
    return costs


def main() -> int:
    options = parser(__doc__, quick="fewer streams and requests")
    options.add_argument("--peer", nargs=2, metavar=("URL", "PID"), help="another server, for the baseline")
    args = options.parse_args()
    sizes = (50, 200) if args.quick else (200, 1000)
    with closing(launch.start(config.make())) as server:
        http = config.HTTPConfig(socket=str(server.socket), address="0")
        with closing(launch.start_gateway(http)) as gateway:
            ours, server_only = cost(gateway.url, [gateway.pid, server.pid], *sizes)
    theirs = cost(args.peer[0].rstrip("/"), [int(args.peer[1])], *sizes)[0] if args.peer else None
    report = Report("gateway", f"{sizes[0]} streams at once of {N_TOKENS} tokens, then {sizes[1]} requests of 1 token")
    for name, what, target in (
        ("token", "CPU per streamed token", "ratio >= 2"),
        ("event", f"CPU per event of {ours.tokens_per_event:.2f} tokens", ""),
        ("request", "CPU per request", ""),
    ):
        baseline, peer = None, ""
        if theirs is not None:
            baseline, peer = getattr(theirs, name), args.peer[0]
            peer += f", {theirs.tokens_per_event:.2f} tokens" if name == "event" else ""
        report.row(what, "us", getattr(ours, name), baseline, peer, target)
        both = getattr(ours, name) + getattr(server_only, name)
        report.row(f"{what}, with the server", "us", both, baseline, peer)
    return report.end(args.json)


if __name__ == "__main__":
    sys.exit(main())
