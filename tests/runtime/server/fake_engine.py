"""An engine without a model, as an object and as a process. A function of the prompt's ids gives its output.

    python fake_engine.py --socket ipc://... --config JSON --alive-fd N --flight-fd M

The process reads its options from the file `fake.json` in the model directory:
    {"say": {"end of a prompt": "output"}, "die_on": "text", "hang_on": "text", "babble_on": "text",
     "fail": ["code", "message"], "is_late": false, "step_ms": 0, "pause": 0, "context": 512, "weights": "",
     "load_seconds": 0, "end_seconds": 0, "adapters": {"name": "digest"}}
It dies, hangs, or sends an invalid report in a step with a prompt that contains the text; with "once": true, only the
first time. With "fail", it fails at its start with this code and message. With "is_late", what it sends arrives after
the end of the process that was started. With "pause", each process generates for that many steps, then waits for a
file `go` in that directory. It takes "load_seconds" to be ready, "step_ms" for each step and "end_seconds" to end. The
digest of an adapter is its name unless "adapters" has another one; an adapter with the digest "" cannot be loaded.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import sys
import time
from array import array
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

import msgspec
import zmq

from banyan.runtime.protocol import decoders, wire
from banyan.runtime.protocol.flight_record import LOOP, FlightRecord

MAX_RUNNING = 64
"""The most requests in one step, like Config.max_running."""

Speak = Callable[[list[int]], Iterable[int]]
"""The prompt's ids -> the ids of the whole output."""


class FakeEngine:
    """Takes commands, returns reports: `burst` tokens of each request per step. A token's score is -(id % 7) / 4."""

    def __init__(
        self,
        speak: Speak,
        max_context: int = 512,
        burst: int = 1,
        weights: bytes = b"",
        adapters: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.speak, self.max_context, self.burst, self.weights = speak, max_context, burst, weights
        self.adapters = adapters
        self.runs: list[wire.Run] = []
        self.aborted: list[int] = []
        self.steered: list[wire.Hold | wire.Release | wire.EvictFirst] = []
        self.running: dict[int, tuple[wire.Run, list[int]]] = {}
        self.reports: list[wire.EngineReport] = []
        self.finished: list[wire.Finish] = []

    @property
    def ready(self) -> wire.Ready:
        return wire.Ready(
            n_pages=64, page=16, max_context=self.max_context, report=("fake engine",), weights=self.weights
        )

    def take(self, command: wire.EngineCommand) -> None:
        match command:
            case wire.Run():
                self.runs.append(command)
                ids = array("i", command.ids).tolist()
                if len(ids) + 1 > self.max_context:
                    message = f"the prompt has {len(ids)} tokens, the context {self.max_context}"
                    self.reports.append(
                        wire.Failed(program=command.rid, seq=0, code="prompt_too_long", message=message)
                    )
                    return
                output = list(self.speak(ids[: len(ids) - command.n_done]))[command.n_done :]
                self.running[command.rid] = command, output
            case wire.Abort(rid=rid):
                if self.running.pop(rid, None):
                    self.aborted.append(rid)
                    self.finished.append(wire.Finish(rid=rid, reason="abort", n_prompt=7, n_cached=3))
            case wire.Hold() | wire.Release() | wire.EvictFirst():
                self.steered.append(command)
            case wire.Ping():
                self.reports.append(wire.EnginePong())
            case wire.Ask(id=number, what="tree"):
                self.reports.append(wire.Answer(id=number, ok=True, body=b'{"nodes": []}'))
            case wire.Ask(id=number, what="load_adapter", name=name):
                digest = self.adapters.get(name, name)
                body = json.dumps(digest.encode().hex()) if digest else f"adapter {name!r}: no such directory"
                self.reports.append(wire.Answer(id=number, ok=bool(digest), body=body.encode()))
            case wire.Ask(id=number, what="events"):
                body = b'{"next": 0, "is_all": true, "events": []}'
                self.reports.append(wire.Answer(id=number, ok=True, body=body))
            case wire.Ask(id=number, what="check" | "flush"):
                self.reports.append(wire.Answer(id=number, ok=True, body=b"{}"))
            case wire.Ask(id=number):
                engine = {"steps": 1, "running": len(self.running), "waiting": 0}
                names = ("n_pages", "n_free", "n_hit_tokens", "n_query_tokens", "n_programs", "program_hit_rate")
                body = json.dumps({"engine": engine, "cache": dict.fromkeys(names, 0)}).encode()
                self.reports.append(wire.Answer(id=number, ok=True, body=body))

    def step(self) -> list[wire.EngineReport]:
        rids, counts, out, logprobs = array("q"), array("i"), array("i"), {}
        for rid, (run, output) in list(self.running.items())[:MAX_RUNNING]:
            n_prompt = len(run.ids) // 4 - run.n_done
            n_max = run.sampling.max_tokens - run.n_done
            stops, generated, finish = set(array("i", run.stop_ids)), array("i"), None
            for _ in range(self.burst):
                if n_max <= len(generated) or (not output and n_max <= len(generated)):
                    finish = wire.Finish(rid=rid, reason="length", n_prompt=n_prompt, scores=_scores(run))
                elif not output or output[0] in stops:
                    stop = output[0] if output else next(iter(stops), -1)
                    finish = wire.Finish(rid=rid, reason="stop", stop_id=stop, n_prompt=n_prompt, scores=_scores(run))
                else:
                    generated.append(output.pop(0))
                    continue
                break
            if generated:
                rids.append(rid), counts.append(len(generated))
                out.extend(generated)
                if run.sampling.logprobs:
                    logprobs[rid] = tuple(wire.TopLogprobs(-(i % 7) / 4) for i in generated)
                sampling = msgspec.structs.replace(run.sampling, max_tokens=run.sampling.max_tokens - len(generated))
                self.running[rid] = msgspec.structs.replace(run, sampling=sampling), output
            if finish:
                del self.running[rid]
                self.finished.append(finish)
        reports, self.reports = self.reports, []
        finished, self.finished = tuple(self.finished), []
        if rids or finished:
            reports.append(wire.Step(rids.tobytes(), counts.tobytes(), out.tobytes(), logprobs, finished))
        return reports


def _scores(run: wire.Run) -> bytes:
    if run.score_from < 0:
        return b""
    n_prompt = len(run.ids) // 4 - run.n_done
    return array("f", (-(i % 7) / 4 for i in array("i", run.ids)[run.score_from : n_prompt])).tobytes()


def speak_by_table(
    say: dict[str, str], encode: Callable[[str], list[int]], decode: Callable[[list[int]], str]
) -> Speak:
    """The value of the longest key that ends the prompt, then a stop; without a match, the prompt's last 8 ids,
    repeated."""

    def speak(ids: list[int]) -> list[int]:
        text = decode(ids)
        for key in sorted(say, key=len, reverse=True):
            if text.endswith(key):
                return encode(say[key])
        return ids[-8:] * 64

    return speak


def main() -> None:
    import tokenizers

    parser = argparse.ArgumentParser()
    for name in ("--socket", "--config"):
        parser.add_argument(name, required=True)
    for name in ("--alive-fd", "--flight-fd"):
        parser.add_argument(name, type=int, required=True)
    for name in ("--replica", "--host"):
        parser.add_argument(name)
    args = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    config = json.loads(args.config)
    model = Path(config["model"])
    options = json.loads((model / "fake.json").read_text()) if (model / "fake.json").exists() else {}
    tokenizer = tokenizers.Tokenizer.from_file(str(model / "tokenizer.json"))

    def decode(ids: list[int]) -> str:
        return tokenizer.decode(ids, skip_special_tokens=False)

    flight = FlightRecord(args.flight_fd)
    speak = speak_by_table(options.get("say", {}), lambda text: tokenizer.encode(text).ids, decode)
    weights, adapters = options.get("weights", "").encode(), options.get("adapters", {})
    engine = FakeEngine(speak, options.get("context", 512), weights=weights, adapters=adapters)
    if options.get("is_late"):
        if os.fork():
            os._exit(1)
        time.sleep(0.1)
    with zmq.Context() as context, context.socket(zmq.PAIR) as socket:
        socket.setsockopt(zmq.LINGER, 1000)
        socket.connect(args.socket)
        if "fail" in options:
            code, message = options["fail"]
            socket.send(wire.encode(wire.Failed(program=-1, seq=0, code=code, message=message)))
            sys.exit(1)
        time.sleep(options.get("load_seconds", 0))
        adapters = {name: engine.adapters.get(name, name).encode() for name in config.get("adapters", {})}
        socket.send(wire.encode(msgspec.structs.replace(engine.ready, adapters=adapters)))
        poller = zmq.Poller()
        poller.register(socket, zmq.POLLIN)
        poller.register(args.alive_fd, zmq.POLLIN)
        n_left = options.get("pause") or math.inf
        while True:
            busy = engine.running or engine.reports or engine.finished
            is_paused = n_left <= 0 and not (model / "go").exists()
            engine.burst = 0 if is_paused else 1
            events = dict(poller.poll(5 if is_paused else 0 if busy else None))
            if args.alive_fd in events:
                time.sleep(options.get("end_seconds", 0))
                return
            while socket in events and socket.poll(0):
                engine.take(decoders.decode_command(socket.recv()))
            if options.get("step_ms"):
                time.sleep(options["step_ms"] / 1000)
            flight.note(LOOP, list(engine.running))
            has_died = model / "died"
            for run, _ in engine.running.values():
                text = decode(array("i", run.ids).tolist())
                for fault in ("die_on", "hang_on", "babble_on"):
                    if options.get(fault, "\0") in text and not (options.get("once") and has_died.exists()):
                        has_died.touch()
                        if fault == "babble_on":
                            socket.send_multipart([b"\xc1" * 9])
                            continue
                        time.sleep(0 if fault == "die_on" else 1000)
                        os._exit(3)
            n_left -= bool(engine.running)
            for report in engine.step():
                socket.send(wire.encode(report))


if __name__ == "__main__":
    main()
