"""Tokens, tenants and root keys: access, sharing of KV, and permissions."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from banyan.cli.check import check
from banyan.runtime import config, launch
from banyan.runtime.client import client
from banyan.runtime.errors import BanyanError, ConfigError, ConnectFailed
from banyan.runtime.protocol import ipc, wire
from banyan.runtime.server.policy import tenants
from banyan.runtime.server.policy.tenants import Tenant, Tenants, adapted, read_tokens, root_key
from banyan.runtime.server.policy.token_throttle import FREE
from forms import in_short

ANN, ANN_NEW, BOB, OPERATOR = (f"{name}-0123456789abcdef" for name in ("ann", "ann-new", "bob", "ops"))
TOKENS = f"# a comment\n\nann {ANN}\nann {ANN_NEW}  # the next one\nbob {BOB}\nops {OPERATOR} operator\n"
PROMPT = "the quick brown fox jumps over the lazy dog, and the other answer is in the text. " * 2


# ---- root keys -----------------------------------------------------------------------------------------------------


def test_root_keys_differ_if_any_part_differs() -> None:
    parts = [
        (salt, adapter, weights) for salt in (b"", b"a", b"ab") for adapter in (b"", b"b") for weights in (b"", b"b")
    ]
    keys = {adapted(root_key(salt, weights), adapter): (salt, adapter, weights) for salt, adapter, weights in parts}
    assert len(keys) == len(parts), "no two combinations have the same key"
    assert {len(key) for key in keys} == {16}
    assert root_key(b"a", b"c") == root_key(b"a", b"c") == adapted(root_key(b"a", b"c"), b"")


def test_fingerprint_depends_only_on_the_weights(fake_weights: Callable[[bytes], Path]) -> None:
    from banyan.runtime.model.weights import fingerprint

    first, same, other = (fingerprint(fake_weights(data)) for data in (b"\0" * 4096, b"\0" * 4096, b"\1" * 4096))
    assert first == same, "times and paths of the files do not matter"
    assert first != other
    middle = bytearray(4096)
    middle[2100] = 1
    assert fingerprint(fake_weights(bytes(middle))) != first


@pytest.fixture
def fake_weights(tmp_path: Path) -> Callable[[bytes], Path]:
    """`fake_weights(data)`: a model directory with one tensor of these bytes."""
    numbers = itertools.count()

    def make(data: bytes) -> Path:
        path = tmp_path / str(next(numbers))
        path.mkdir()
        header = b'{"x":{"dtype":"U8","shape":[%d],"data_offsets":[0,%d]}}' % (len(data), len(data))
        (path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + data)
        (path / "config.json").write_text("{}")
        return path

    return make


def test_unknown_adapter_is_refused_by_name(bench: Any) -> None:
    b = bench()
    b.adapters.add("songs", "/songs", b"digest")
    b.submit(wire.Append(0, ("a",)), wire.Gen(0, 0, adapter="poems"), wire.Select(0, 1, ("x", "y"), adapter="poems"))
    assert b.failed(0).code == b.failed(1).code == "bad_program"
    assert b.failed(0).message == "there is no adapter 'poems'; the adapters are songs"
    b.submit(wire.Append(0, ("a",)), wire.Select(0, 1, ("x", "y"), adapter="poems"), program=1)
    assert b.failed(1, program=1).code == "bad_program"
    assert not b.engine.runs


def test_engine_commands_carry_the_tenants_namespace(bench: Any) -> None:
    b = bench(root_key=lambda tenant: root_key(tenant, b""))
    short = wire.Sampling(max_tokens=2, temperature=0.0)
    ops = (
        wire.Append(0, ("one two",)), wire.CacheHint(0, pin=9.0, prefetch=True), wire.Gen(0, 0, short),
        wire.Fork(0, (1,)), wire.Append(1, (" three",)), wire.Gen(1, 1, short), wire.Select(0, 2, ("x", "y")),
    )  # fmt: skip
    for k, tenant in enumerate((b"ann", b"bob")):
        b.send(wire.Submit(k, 0, ops), tenant)
        b.run()
        b.send(wire.Submit(k, 1, (wire.Drop(1),)), tenant)
    commands = [*b.engine.runs, *(command for command in b.engine.steered if not isinstance(command, wire.Release))]
    assert {type(command) for command in commands} == {wire.Run, wire.Hold, wire.EvictFirst}
    for kind in (wire.Run, wire.Hold, wire.EvictFirst):
        found = {command.namespace for command in commands if isinstance(command, kind)}
        assert found == {root_key(b"ann", b""), root_key(b"bob", b"")}


def cached_tokens(c: client.Client) -> int:
    """The number of PROMPT's tokens found in the radix tree."""
    program = c.program()
    ops = [wire.Append(0, (PROMPT,)), wire.Gen(0, 0, wire.Sampling(max_tokens=2, temperature=0.0))]
    program.submit(ops, last=True)
    return program.future(0).result(100).usage.cached


def test_kv_is_shared_within_a_tenant_only(real: Callable[..., Callable[[str], client.Client]]) -> None:
    join = real(tokens=TOKENS)
    ann, second_token, bob = join(ANN), join(ANN_NEW), join(BOB)
    assert cached_tokens(ann) == 0
    assert cached_tokens(second_token) == (n := cached_tokens(ann)) > 40, "another token of the same tenant"
    assert cached_tokens(bob) == 0
    assert cached_tokens(bob) == n
    names = {node["namespace"] for node in join(OPERATOR).ask("tree", limit=100)["nodes"] if node["parent"] < 0}
    assert names == {"ann", "bob"}


@pytest.mark.parametrize("isolate", in_short(["connection"], ["tenant", "connection"]))
def test_connections_without_tokens_share_kv_unless_isolated(
    real: Callable[..., Callable[[str], client.Client]], isolate: str
) -> None:
    join = real(isolate=isolate)
    first, second = join("one"), join("two")
    assert cached_tokens(first) == 0
    assert cached_tokens(first) > 40
    assert (cached_tokens(second) == 0) == (isolate == "connection")


@pytest.fixture
def real(
    tiny_model: Callable[..., Path], token_file: Callable[..., str]
) -> Iterator[Callable[..., Callable[[str], client.Client]]]:
    """`real(tokens=..., **options)("a token")`: a client of a server with a tiny model."""
    with contextlib.ExitStack() as stack:

        def start(tokens: str = "", **options: Any) -> Callable[[str], client.Client]:
            if tokens:
                options["token_file"] = token_file(tokens)
            server_config = config.make(
                model=str(tiny_model("llama")), threads=1, kv_memory="16MB", device="cpu", **options
            )
            server = stack.enter_context(contextlib.closing(launch.start(server_config, timeout=100)))
            return lambda token: stack.enter_context(contextlib.closing(client.connect(server.socket, 60, token)))

        yield start


# ---- tokens --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "holds no tokens"),
        ("# none\n", "holds no tokens"),
        ("ann", "line 1: must be `TENANT TOKEN`"),
        (f"ann {ANN} king", "line 1: must be"),
        (f"ann {ANN} operator too", "line 1: must be"),
        ("ann short", "line 1: the token has 5 characters"),
        (f"ann {ANN}\n\nbob {ANN}", "line 3: an earlier line has the same token"),
    ],
)
def test_invalid_token_file_error_names_the_line_but_no_token(text: str, error: str) -> None:
    with pytest.raises(ConfigError, match=error) as caught:
        read_tokens(text, "tokens")
    assert "0123456789abcdef" not in str(caught.value)


def test_only_tenant_is_operator_else_the_named_ones() -> None:
    assert all(tenant.is_operator for tenant in read_tokens(f"ann {ANN}\nann {ANN_NEW}", "tokens").values())
    found = [(tenant.name, tenant.is_operator) for tenant in read_tokens(TOKENS, "tokens").values()]
    assert found == [("ann", False), ("ann", False), ("bob", False), ("ops", True)]


def test_all_tokens_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared_lengths: list[tuple[int, int]] = []
    compare = tenants.hmac.compare_digest

    def recording(a: bytes, b: bytes) -> bool:
        compared_lengths.append((len(a), len(b)))
        return compare(a, b)

    monkeypatch.setattr(tenants.hmac, "compare_digest", recording)
    tenants_of_file = Tenants(read_tokens(TOKENS, "tokens"))
    for token, name in ((ANN, "ann"), (OPERATOR, "ops")):
        assert tenants_of_file.identify(wire.Hello(1, token=token)).name == name
        assert compared_lengths == [(32, 32)] * 4
        compared_lengths.clear()
    for wrong in ("", ANN[:-1], ANN + "x", "x" * 100_000):
        with pytest.raises(ConnectFailed, match="token"):
            tenants_of_file.identify(wire.Hello(1, token=wrong))
        assert compared_lengths == [(32, 32)] * 4
        compared_lengths.clear()


def test_environment_token_is_used_without_a_token_file(token_file: Callable[..., str]) -> None:
    (only,) = tenants.configured(config.make(), {config.TOKEN: ANN}).values()
    assert only.is_operator
    assert tenants.configured(config.make(), {}) == {}
    server_config = config.make(token_file=token_file(f"bob {BOB}"))
    assert [tenant.name for tenant in tenants.configured(server_config, {config.TOKEN: ANN}).values()] == ["bob"]


def test_missing_or_readable_token_file_is_refused(token_file: Callable[..., str]) -> None:
    path = token_file(TOKENS, mode=0o640)
    with pytest.raises(ConfigError, match="chmod 600"):
        tenants.configured(config.make(token_file=path))
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        tenants.configured(config.make(token_file=path + "x"))


def test_wrong_token_is_refused_at_once(
    serve: Callable[..., launch.ServerProcess], token_file: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(options={"token_file": token_file(TOKENS)}, say={"a": "b"})
    with contextlib.closing(client.connect(server.socket, 30, ANN)) as good:
        for token, error in (("", "requires a token"), ("x" * 30, "the token is wrong"), (ANN[:-1], "is wrong")):
            start = time.monotonic()
            with pytest.raises(ConnectFailed, match=error):
                client.connect(server.socket, 30, token)
            assert time.monotonic() - start < 10
        program = good.program()
        program.submit([wire.Append(0, ("a",)), wire.Gen(0, 0)], last=True)
        assert program.future(0).result(30).samples[0].text == "b"
        monkeypatch.setenv(config.TOKEN, ANN)
        assert client.connect(server.socket) is good, "the environment's token is the default"
        assert ANN not in repr(good.address)


def test_guessing_is_slow_and_the_loop_goes_on(
    serve: Callable[..., launch.ServerProcess], token_file: Callable[..., str]
) -> None:
    server = serve(options={"token_file": token_file(TOKENS)}, say={"a": "b"})
    context: Any = zmq.Context()
    guesser = ipc.connect(context, server.socket)[0]
    with contextlib.closing(client.connect(server.socket, 30, OPERATOR)) as ops:
        for n in range(1, FREE + 2):
            guesser.send(wire.encode(wire.Hello(wire.VERSION, token=f"guess {n}" * 9)))
            while ops.ask("stats")["server"]["wrong_tokens"] < n:  # answered while the guesser waits
                pass
            assert guesser.poll(30_000)
            assert isinstance(wire.decode_server(guesser.recv()), wire.Failed)
        guesser.send(wire.encode(wire.Hello(wire.VERSION, token="guess" * 9)), zmq.NOBLOCK)
        guesser.send(wire.encode(wire.Hello(wire.VERSION, token=ANN)))
        assert "a second Hello" in wire.decode_server(guesser.recv()).message
        client.connect(server.socket, 30, ANN).close()  # a right token waits too, and not longer than MAX_PAUSE
    context.destroy(linger=0)


def test_long_token_is_refused_and_not_hashed(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[int] = []
    monkeypatch.setattr(tenants, "_digest", lambda secret: lengths.append(len(secret)) or b"")
    with pytest.raises(ConnectFailed, match="the token is wrong"):
        Tenants({b"x": Tenant()}).identify(wire.Hello(1, token="x" * (1 << 20)))
    assert max(lengths) <= tenants.MAX_TOKEN


def test_global_queries_and_other_tenants_need_an_operator(
    serve: Callable[..., launch.ServerProcess], token_file: Callable[..., str]
) -> None:
    server = serve(options={"token_file": token_file(TOKENS)})
    with (
        contextlib.closing(client.connect(server.socket, 30, ANN)) as ann,
        contextlib.closing(client.connect(server.socket, 30, OPERATOR)) as ops,
    ):
        shown, all_of_it = ann.ask("info"), ops.ask("info")
        assert shown["protocol"] == wire.VERSION
        assert set(shown) == {"model", "adapters", "special_tokens", "protocol", "engine", "limits"}
        assert set(shown["engine"]) == {"page", "max_context"}
        assert set(shown["limits"]) == {"max_programs", "max_width", "max_program", "max_client", "max_message"}
        assert set(all_of_it) > set(shown)
        for secret in (all_of_it["model_path"], all_of_it["config"]["token_file"]):
            assert secret not in repr(shown)
        with pytest.raises(ConnectFailed, match="only an operator"):
            client.connect(server.socket, 30, ANN, tenant="bob")
        stats = ops.ask("stats")["server"]
        assert (stats["clients"], stats["wrong_tokens"]) == (2, 0), "its token is right"
        for query in ("stats", "flush", "check", "tree", "events"):
            with pytest.raises(BanyanError, match="'ann' is not an operator"):
                ann.ask(query)
        with pytest.raises(BanyanError, match="only an operator may check"):
            check(ann, is_private=False)


@pytest.mark.parametrize("isolates", [False, True])
def test_last_client_of_a_tenant_that_leaves_ends_it(isolates: bool) -> None:
    tenants = Tenants({}, isolates_connections=isolates)
    for client_ in (b"1", b"2"):
        tenants.join(client_, Tenant())
    roots = [tenants.root(b"1"), tenants.root(b"2")]
    assert (roots[0] == roots[1]) is not isolates
    assert tenants.leave(b"1") == (roots[0] if isolates else None)
    assert tenants.leave(b"1") is None
    assert tenants.leave(b"2") == roots[1]


def test_an_operator_acts_for_a_tenant() -> None:
    found = Tenants(read_tokens(TOKENS, "tokens"))
    acting = found.identify(wire.Hello(1, token=OPERATOR, tenant="ann"))
    assert acting == found.identify(wire.Hello(1, token=ANN))
    assert not acting.is_operator
    assert Tenants({}).identify(wire.Hello(1, tenant="ann")) == acting  # without tokens all clients are operators
    with pytest.raises(ConnectFailed, match="only an operator"):
        found.identify(wire.Hello(1, token=ANN, tenant="bob"))


def test_salt_separates_programs_of_a_tenant() -> None:
    root = tenants.root_key(b"ann", b"weights")
    assert tenants.salted(root, "") == root
    assert len({root, tenants.salted(root, "a"), tenants.salted(root, "b"), tenants.salted(b"x" * 16, "a")}) == 4


def test_a_tenant_that_an_operator_named_is_forgotten_with_its_last_client() -> None:
    found = Tenants(read_tokens(TOKENS, "tokens"))
    for name in ("new", "ann"):
        for one in (b"1", b"2"):
            found.join(one, found.identify(wire.Hello(1, token=OPERATOR, tenant=name)))
        root = found.root(b"1")
        assert found.leave(b"1") is None
        assert found.name(root) == name
        assert found.leave(b"2") == root
        assert found.name(root) == (name if name == "ann" else root.hex())
