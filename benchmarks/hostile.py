"""Hostile clients beside a client that streams: errors, latency, and memory of a real server with the pocket model.

    python benchmarks/hostile.py [--quick] [--only CASE ...] [--json FILE]

For each case a server is started. A neighbour streams a long output alone and then beside the hostile client, in turns.
The text must not change, the hostile client must get the errors of CASES, and the engine must live. The p99 of the
neighbour's gaps between messages is compared in the best of the rounds, because other load of the machine only adds.
Memory is the server's resident set size before the hostile client came and after it left, each time after the same
honest programs, which use all kinds of ops, and without what bounded caches hold. The time of the loop's
pieces of work is CPU time.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import zmq

sys.path.insert(0, str(Path(__file__).resolve().parent))
from report import Report, parser, percentile

from banyan.runtime import config, launch
from banyan.runtime.model.spec import resolve
from banyan.runtime.protocol import ipc, wire
from banyan.runtime.protocol.limits import MAX_OPS
from banyan.runtime.protocol.wire import (
    Append,
    BeginTurn,
    CacheHint,
    Define,
    EndTurn,
    Fork,
    Gen,
    Hello,
    Join,
    Read,
    Reasoning,
    Ref,
    Select,
    Submit,
    Use,
    WireToolCall,
)

N_TOKENS, N_TOKENS_QUICK = 1900, 400
N_BEFORE = 20
"""The hostile client sends after the neighbour has received so many messages."""
MESSAGE = 1 << 19
"""Maximum number of bytes of ops in one message, if it has several ops."""
SERVER = (sys.executable, "-c", """
import sys, time
from banyan.runtime.server.telemetry import loop_times
loop_times.CLOCK = time.thread_time
from banyan.runtime.server import worker
sys.exit(worker.main(sys.argv[1:]))
""")  # fmt: skip
TOKEN = "a-token-that-is-long-enough"
SECONDS = 120.0
"""The longest wait for an answer."""
LONGEST = 1800.0
"""The longest wait until the server has no programs."""
SILENCE = 20.0
"""A client that receives no message for so many seconds, not even a Pong, has been dropped by the server, for example
because 100,000 messages to it were unread."""


def program(ops: Iterable[wire.Op], last: bool = True, number: int = 0) -> list[bytes]:
    """The messages that submit a program."""
    messages: list[bytes] = []
    part: list[wire.Op] = []
    n_bytes = 0

    def close(is_last: bool) -> None:
        messages.append(wire.encode(Submit(number, len(messages), tuple(part), is_last)))
        part.clear()

    for op in ops:
        size = len(wire.encode(op))
        if part and (n_bytes + size > MESSAGE or len(part) == MAX_OPS):
            close(False)
            n_bytes = 0
        part.append(op)
        n_bytes += size
    close(last)
    return messages


def sampling(**options: Any) -> wire.Sampling:
    return wire.Sampling(**{"max_tokens": 2, "temperature": 0.0} | options)


def gen(state: int = 0, ref: int = 0, **options: Any) -> Gen:
    return Gen(state, ref, sampling(**options))


def text(n_chars: int) -> list[wire.Op]:
    """Appends with n_chars characters in all."""
    return [Append(0, ("word " * 2000,)) for _ in range(n_chars // 10_000)]


def turns(n: int, between: str = "") -> list[wire.Op]:
    turn = (BeginTurn("user"), "hello", EndTurn(), *([between] if between else []))
    return [Append(0, turn) for _ in range(n)]


def use(**numbers: int) -> list[bytes]:
    """A template with a fork, and a Use of it."""
    ops = (Gen(0, 0, sampling()), Fork(0, (1,)), Gen(1, 1, sampling()))
    return [wire.encode(Define(1, ops)), *program([Append(0, ("a",)), Use(0, 1, **numbers)])]


def fan(n: int) -> list[wire.Op]:
    return [Fork(0, tuple(range(1, n + 1))), *(Append(k, ("a",)) for k in range(1, n + 1))]


def letters(n: int) -> list[wire.Op]:
    return [Append(0, tuple("abcdefgh "[k % 9] for k in range(at, min(n, at + 4096)))) for at in range(0, n, 4096)]


def stops() -> list[bytes]:
    """Programs with stop strings, each of which occurs only once."""
    return [
        message
        for p in range(100)
        for message in program([Append(0, ("a",)), gen(stop=tuple(f"s{p} {k}" for k in range(64)))], number=p)
    ]


def honest() -> list[bytes]:
    """Programs that use all kinds of ops."""
    shapes: list[list[wire.Op]] = [
        [*turns(20, "and"), gen()],
        [Append(0, ("word " * 1000,)), Read(0, 0, tokens=True)],
        [Append(0, ("a",)), Select(0, 0, tuple(f"case {k}" for k in range(200))), gen(0, 1, stop=("xx",))],
        [*fan(4), *(gen(k, k) for k in range(1, 5)), Join(0, (1, 2)), Join(0, (3,), adopt=True), gen(0, 9)],
        [Append(0, ("a",)), gen(constraint=wire.ConstraintSpec("regex", "[ab]{1,3}"))],
    ]
    return [message for p, ops in enumerate(4 * shapes) for message in program(ops, number=p)]


def backtracking(folder: Path) -> dict[str, Any]:
    """Options of a server: the pocket model, with a tokenizer whose regex takes exponential time."""
    shutil.copytree(resolve("pocket"), folder, dirs_exist_ok=True)
    path = folder / "tokenizer.json"
    found = json.loads(path.read_text())
    split = {"type": "Split", "pattern": {"Regex": "(x+x+)+y"}, "behavior": "Isolated", "invert": False}
    found["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, found["pre_tokenizer"]]}
    path.chmod(0o600)
    path.write_text(json.dumps(found))
    return {"model": str(folder)}


def tokens(folder: Path) -> dict[str, Any]:
    """Options of a server that requires a token."""
    path = folder / "tokens"
    path.touch(0o600)
    path.write_text(f"someone {TOKEN} operator\n")
    return {"token_file": str(path)}


class Case(NamedTuple):
    """messages: returns what the hostile client sends. errors: the codes that it must get; "value": results of
    programs. options: returns options of the server, whose files may be in the given empty folder."""

    messages: Callable[[], list[bytes]]
    errors: tuple[str, ...] = ("value",)
    options: Callable[[Path], dict[str, Any]] = lambda folder: {}


CASES = {
    # These once stopped the engine or the server.
    "child 2**64 - 1": Case(lambda: use(child=2**64 - 1), ("bad_message",)),
    "child 2**63 - 1": Case(lambda: use(child=2**63 - 1)),
    "ref 2**64 - 1": Case(lambda: use(ref=2**64 - 1), ("bad_message",)),
    "empty marks of reasoning": Case(
        lambda: program([Append(0, ("a",)), Gen(0, 0, sampling(), reasoning=Reasoning("", ""))]), ("bad_program",)
    ),
    "empty output": Case(
        lambda: program([Append(0, ("x",)), gen(constraint=wire.ConstraintSpec("regex", "b?"), max_tokens=8)])
    ),
    "stop token 2**31": Case(lambda: program([Append(0, ("a",)), gen(stop_token_ids=(2**31,))]), ("bad_message",)),
    # These once held up the server's loop.
    "600 turns, text between": Case(lambda: program([*turns(600, "x" * 20), gen()]), ("prompt_too_long",)),
    "200,000 stops": Case(
        lambda: program([Append(0, ("a",)), gen(stop=tuple(map(str, range(60_000))))]), ("bad_message",)
    ),
    "a message of 48 MB": Case(lambda: [b"x" * (48 << 20)], ("disconnected",)),
    "a prompt of 10 MB": Case(lambda: program([*text(10 << 20), gen()]), ("prompt_too_long",)),
    "30,000 turns": Case(lambda: program([*turns(30_000), gen()]), ("prompt_too_long",)),
    "40 x 65,000 ops": Case(
        lambda: [m for p in range(40) for m in program([Append(0, ("a",))] * 65_000, number=p)], ()
    ),
    "a role of 1 MB": Case(lambda: program([Append(0, (BeginTurn("a" * 1_000_000),))]), ("bad_message",)),
    "a role with a token": Case(lambda: program([Append(0, (BeginTurn("user<|im_end|>"),)), gen()]), ("bad_program",)),
    # These once stayed in memory.
    "20 names of 1 MB": Case(
        lambda: [wire.encode(Submit(p, 0, (), name="a" * 1_000_000)) for p in range(20)], ("bad_message",)
    ),
    "300,000 gaps": Case(lambda: [wire.encode(Submit(p, 5, ())) for p in range(300_000)], ()),  # dropped, if it is late
    "a client's name of 1 MB": Case(lambda: [wire.encode(Hello(wire.VERSION, "a\n" * 500_000))], ("bad_message",)),
    # Other shapes of large work.
    "appends of 4,096 parts": Case(lambda: program(letters(4096 * 100)), ()),
    "1,000 letters, a select": Case(
        lambda: program([Append(0, ("ab cd " * 100,)), *letters(1000), Select(0, 0, ("a", "b", "c"))])
    ),
    "reads of tokens": Case(
        lambda: program([*text(200_000), *(Read(0, k, tokens=True) for k in range(20))]), ("prompt_too_long",)
    ),
    "6,400 new stops": Case(stops),
    "adoptions": Case(
        lambda: program([
            *[Append(0, ("a",))] * 20_000,
            *(op for k in range(1, 15) for op in (Fork(0, (k,)), Join(0, (k,), adopt=True))),
        ]),
        (),
    ),
    "4,096 choices": Case(
        lambda: program([Append(0, ("a",)), Select(0, 0, tuple(f"choice {k}" for k in range(4096)))])
    ),
    "1,000 forks that generate": Case(
        lambda: program([*fan(1000), *(gen(k, k, max_tokens=20) for k in range(1, 1001))]), ("value",)
    ),
    "deadlocks": Case(lambda: program([*fan(2000), *(Append(k, (Ref(9999),)) for k in range(1, 2000))]), ()),
    "5,120 calls": Case(
        lambda: program([
            *[Append(0, (BeginTurn("assistant"), EndTurn((WireToolCall("000000000", "f"),) * 1024)))] * 5,
            Append(0, (BeginTurn("user"),)),
            gen(),
        ]),
        ("prompt_too_long",),
    ),
    "200 hints about 1 MB": Case(lambda: program([*text(1 << 20), *[CacheHint(0, pin=1.0)] * 200]), ()),
    "statistics": Case(lambda: [wire.encode(wire.Ask(k, "stats")) for k in range(250)], ("answer",)),
    "trees": Case(
        lambda: [wire.encode(wire.Ask(k, what, 5000)) for k in range(50) for what in ("tree", "check")], ("answer",)
    ),
    # A hostile tokenizer, and guesses of a token.
    "a regex that backtracks": Case(
        lambda: program([Append(0, ("x" * 34,)), gen()]), ("bad_program",), options=backtracking
    ),
    "1,000 wrong tokens": Case(
        lambda: [wire.encode(Hello(wire.VERSION, token=f"guess {k}")) for k in range(1000)], ("connect_failed",), tokens
    ),
}  # fmt: skip


class Peer:
    """A client that sends any bytes."""

    def __init__(self, context: Any, path: Path) -> None:
        self._socket, self._monitor = ipc.connect(context, path)
        ipc.connected(self._monitor)
        self._pinged = time.monotonic()
        self.send(wire.encode(Hello(wire.VERSION, token=TOKEN)))
        assert isinstance(self.receive(), wire.Welcome)

    def send(self, *messages: bytes) -> None:
        with contextlib.suppress(zmq.Again):  # the server has closed the connection
            for message in messages:
                self._socket.send(message, zmq.NOBLOCK)

    def ping(self) -> None:
        """Send a heartbeat, if it is time for one."""
        if time.monotonic() > self._pinged + ipc.HEARTBEAT:
            self._pinged = time.monotonic()
            self.send(wire.encode(wire.Ping()))

    def receive(self) -> wire.ServerMessage | None:
        """The next message but Pong. None: the server closed the connection, or dropped this client."""
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._monitor, zmq.POLLIN)
        start = heard = time.monotonic()
        while time.monotonic() < start + SECONDS:
            self.ping()
            ready = dict(poller.poll(1000))
            if self._socket in ready:
                heard = time.monotonic()
                if not isinstance(message := wire.decode_server(self._socket.recv()), wire.Pong):
                    return message
            elif (self._monitor in ready and ipc.drain(self._monitor)) or time.monotonic() > heard + SILENCE:
                return None
        raise TimeoutError(f"no message in {SECONDS} s")

    def outcomes(self, stats: Callable[[], Any]) -> Counter[str]:
        """Count the answers by code, until the server has no programs or closes the connection."""
        found: Counter[str] = Counter()
        self.send(wire.encode(wire.Ask(10**6, "info")))
        is_open, is_idle, end = True, False, time.monotonic() + LONGEST
        while is_open:
            match self.receive():
                case None:
                    found["disconnected"] += 1
                    is_open = False
                case wire.Failed(program=program, code=code):
                    found[code] += 1
                    is_open = program != -1
                case wire.Value():
                    found["value"] += 1
                case wire.Answer(id=number) if number == 10**6:
                    assert time.monotonic() < end, f"programs still run after {LONGEST:g} s: {found}"
                    is_open = not is_idle
                    is_idle = not stats()["programs"]  # then the next answer comes after all results
                    time.sleep(0.05)
                    self.send(wire.encode(wire.Ask(10**6, "info")))
                case wire.Answer(ok=ok):
                    found["answer" if ok else "refusal"] += 1
        return found

    def close(self) -> None:
        self._socket.disable_monitor()
        self._monitor.close(0)
        self._socket.close(0)


class Stream(NamedTuple):
    """The neighbour's stream. p99: of the seconds between its messages."""

    text: str
    p99: float


class Measured(NamedTuple):
    """What a case did to a server. alone, beside: p99 of the seconds between the neighbour's messages, without the
    hostile client and beside it. longest: kind of work -> CPU seconds of its longest piece in the server's loop.
    memory: the server's MiB before and after."""

    outcomes: Counter[str]
    alone: float
    beside: float
    longest: dict[str, float]
    memory: tuple[float, float]


def stream(neighbour: Peer, n_tokens: int, hostile: Peer | None = None, messages: Sequence[bytes] = ()) -> Stream:
    """Have the neighbour generate `n_tokens`. The hostile client sends `messages` when the neighbour has received
    N_BEFORE."""
    options = sampling(max_tokens=n_tokens, ignore_eos=True, temperature=1.0, seed=3)
    neighbour.send(*program([Append(0, ("Once upon a time",)), Gen(0, 0, options, stream=True)]))
    times: list[float] = []
    while isinstance(message := neighbour.receive(), wire.Delta):
        times.append(time.perf_counter())
        if hostile is not None:
            hostile.ping()
            if len(times) == N_BEFORE:
                hostile.send(*messages)
    assert isinstance(message, wire.Value), message
    gaps = [after - before for before, after in zip(times[N_BEFORE:], times[N_BEFORE + 1 :], strict=False)]
    neighbour.close()
    return Stream(message.samples[0].text, percentile(gaps, 0.99))


def measure(case: Case, n_tokens: int, n_rounds: int) -> Measured:
    """Run a case on its own server. AssertionError: the server harmed the neighbour, or the engine died."""
    messages = case.messages()
    context: Any = zmq.Context()
    folder = tempfile.TemporaryDirectory()
    options = {"log": "quiet", "threads": 1, "kv_memory": "64MiB", "speculate": "off"}
    server = launch.start(config.make(**options | case.options(Path(folder.name))), command=SERVER)

    def join() -> Peer:
        return Peer(context, server.socket)

    def ask(what: Any) -> Any:
        with contextlib.closing(join()) as peer:
            peer.send(wire.encode(wire.Ask(0, what)))
            answer = peer.receive()
            assert isinstance(answer, wire.Answer)
            assert answer.ok, answer.body
            return json.loads(answer.body)

    def stats() -> Any:
        found = ask("stats")
        return found["server"] | {"kept": sum(now for now, _ in found["kept_by_server"].values())}

    outcomes: Counter[str] = Counter()
    alone: list[float] = []
    beside: list[float] = []
    try:
        expected = stream(join(), n_tokens).text
        before = usual(join, stats, server.pid)
        for _ in range(n_rounds):
            alone.append(stream(join(), n_tokens).p99)
            hostile = join()
            got = stream(join(), n_tokens, hostile, messages)
            assert got.text == expected, "the neighbour's text changed"
            beside.append(got.p99)
            outcomes += hostile.outcomes(stats)
            hostile.close()
            after = usual(join, stats, server.pid)
        found = stats()
        assert found["engine_starts"] == 1, "the engine died"
        assert ask("check") == {}
        return Measured(outcomes, min(alone), min(beside), found["longest"], (before, after))
    finally:
        context.destroy(linger=0)
        server.close()
        folder.cleanup()


def usual(join: Callable[[], Peer], stats: Callable[[], Any], pid: int) -> float:
    """Memory of the server, in MiB, after the programs of `honest`."""
    with contextlib.closing(join()) as peer:
        peer.send(*honest())
        assert set(found := peer.outcomes(stats)) == {"value"}, found
    return settled(stats, pid)


def settled(stats: Callable[[], Any], pid: int) -> float:
    """Memory of the server without its bounded caches, in MiB, after programs and clients, except the one that asks for
    `stats`, are gone, and two more heartbeats have passed."""
    end = time.monotonic() + SECONDS
    while (found := stats())["clients"] > 1 or found["programs"] or found["requests"]:
        assert time.monotonic() < end, found
        time.sleep(0.05)
    time.sleep(2.5 * ipc.HEARTBEAT)
    return (psutil.Process(pid).memory_info().rss - stats()["kept"]) / 2**20


def main() -> int:
    options = parser(__doc__, quick="a shorter stream, in one round")
    options.add_argument("--only", nargs="+", choices=CASES, metavar="CASE", help="run these cases only")
    args = options.parse_args()
    n_tokens, n_rounds = (N_TOKENS_QUICK, 1) if args.quick else (N_TOKENS, 3)
    report = Report("hostile", f"a stream of {n_tokens} tokens of the pocket model, best of {n_rounds} rounds")
    for name in args.only or CASES:
        case = CASES[name]
        found = measure(case, n_tokens, n_rounds)
        kind = max(found.longest, key=found.longest.__getitem__)
        report.row(f"{name}: p99 of gaps", "ms", 1e3 * found.beside, 1e3 * found.alone, "alone", target="ratio >= 0.5")
        report.row(f"{name}: longest piece ({kind})", "ms", 1e3 * found.longest[kind], target="<= 5")
        report.row(f"{name}: memory after", "MiB", found.memory[1], found.memory[0], "before", target="ratio >= 0.95")
        n_wrong = len(set(found.outcomes) ^ set(case.errors)) if case.errors else 0
        got = ", ".join(f"{n} {code}" for code, n in found.outcomes.items())
        report.row(f"{name}: wrong answers ({got})", "kinds", n_wrong, target="<= 0")
    return report.end(args.json)


if __name__ == "__main__":
    sys.exit(main())
