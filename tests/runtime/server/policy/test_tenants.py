"""Tokens, tenants, and root keys: who may come in, who shares KV with whom, and who may ask what."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from banyan.runtime import config, launch
from banyan.runtime.client import client
from banyan.runtime.errors import BanyanError, ConfigError, ConnectFailed
from banyan.runtime.protocol import wire
from banyan.runtime.server.policy import tenants
from banyan.runtime.server.policy.tenants import Tenants, read_tokens, root_key

ANN, ANN_NEW, BOB, OPS = (f"{name}-0123456789abcdef" for name in ("ann", "ann-new", "bob", "ops"))
TOKENS = f"# who may come in\n\nann {ANN}\nann {ANN_NEW}  # the next one\nbob {BOB}\nops {OPS} operator\n"
PROMPT = "the quick brown fox jumps over the lazy dog, and the other answer is in the text. " * 2


# ---- root keys -----------------------------------------------------------------------------------------------------


def test_root_keys_differ_wherever_any_part_does() -> None:
    parts = [
        (salt, adapter, weights) for salt in (b"", b"a", b"ab") for adapter in ("", "b") for weights in (b"", b"b")
    ]
    keys = {root_key(*each): each for each in parts}
    assert len(keys) == len(parts), "what one part lacks another does not make up for"
    assert {len(key) for key in keys} == {16}
    assert root_key(b"a", "b", b"c") == root_key(b"a", "b", b"c")


def test_other_weights_are_another_root(fake_weights: Callable[[bytes], Path]) -> None:
    from banyan.runtime.model.weights import fingerprint

    one, same, other = (fingerprint(fake_weights(data)) for data in (b"\0" * 4096, b"\0" * 4096, b"\1" * 4096))
    assert one == same, "whenever and wherever they were written"
    assert one != other
    middle = bytearray(4096)
    middle[2100] = 1
    assert fingerprint(fake_weights(bytes(middle))) != one


@pytest.fixture
def fake_weights(tmp_path: Path) -> Callable[[bytes], Path]:
    """A directory with one tensor of these bytes."""
    numbers = itertools.count()

    def make(data: bytes) -> Path:
        path = tmp_path / str(next(numbers))
        path.mkdir()
        header = b'{"x":{"dtype":"U8","shape":[%d],"data_offsets":[0,%d]}}' % (len(data), len(data))
        (path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + data)
        (path / "config.json").write_text("{}")
        return path

    return make


def test_an_adapter_is_refused_by_name_and_not_ignored(bench: Any) -> None:
    b = bench()
    b.submit(wire.Append(0, ("a",)), wire.Gen(0, 0, adapter="poems"), wire.Select(0, 1, ("x", "y"), adapter="poems"))
    assert b.failed(0).code == b.failed(1).code == "unsupported"
    assert "'poems'" in b.failed(0).message
    b.submit(wire.Append(0, ("a",)), wire.Select(0, 1, ("x", "y"), adapter="poems"), program=1)
    assert b.failed(1, program=1).code == "unsupported"
    assert not b.engine.runs


def test_all_that_a_program_has_the_engine_do_is_in_its_tenants_namespace(bench: Any) -> None:
    b = bench(root_key=lambda who: root_key(who, "", b""))
    short = wire.Sampling(max_tokens=2, temperature=0.0)
    ops = (
        wire.Append(0, ("one two",)), wire.CacheHint(0, pin=9.0, prefetch=True), wire.Gen(0, 0, short),
        wire.Fork(0, (1,)), wire.Append(1, (" three",)), wire.Gen(1, 1, short), wire.Select(0, 2, ("x", "y")),
    )  # fmt: skip
    for k, who in enumerate((b"ann", b"bob")):
        b.programs.submit(who, wire.Submit(k, 0, ops))
        b.run()
        b.programs.submit(who, wire.Submit(k, 1, (wire.Drop(1),)))
    orders = [*b.engine.runs, *(order for order in b.engine.steered if not isinstance(order, wire.Release))]
    assert {type(order) for order in orders} == {wire.Run, wire.Hold, wire.EvictFirst}
    for kind in (wire.Run, wire.Hold, wire.EvictFirst):
        found = {order.namespace for order in orders if isinstance(order, kind)}
        assert found == {root_key(b"ann", "", b""), root_key(b"bob", "", b"")}


def cached(c: client.Client) -> int:
    """Tokens of PROMPT that were found in the tree."""
    program = c.program()
    ops = [wire.Append(0, (PROMPT,)), wire.Gen(0, 0, wire.Sampling(max_tokens=2, temperature=0.0))]
    program.submit(ops, last=True)
    return program.future(0).result(100).usage.cached


def test_two_tenants_never_share_and_one_does(real: Callable[..., Callable[[str], client.Client]]) -> None:
    join = real(tokens=TOKENS)
    ann, again, bob = join(ANN), join(ANN_NEW), join(BOB)
    assert cached(ann) == 0
    assert cached(again) == (n := cached(ann)) > 40, "another token of the same tenant"
    assert cached(bob) == 0
    assert cached(bob) == n
    names = {node["namespace"] for node in join(OPS).ask("tree", limit=100)["nodes"] if node["parent"] < 0}
    assert names == {"ann", "bob"}


@pytest.mark.parametrize("isolate", ["tenant", "connection"])
def test_without_tokens_all_are_one_tenant_unless_connections_are_kept_apart(
    real: Callable[..., Callable[[str], client.Client]], isolate: str
) -> None:
    join = real(isolate=isolate)
    one, two = join("one"), join("two")
    assert cached(one) == 0
    assert cached(one) > 40
    assert (cached(two) == 0) == (isolate == "connection")


@pytest.fixture
def real(tiny_model: Callable[..., Path], tmp_path: Path) -> Iterator[Callable[..., Callable[[str], client.Client]]]:
    """`real(tokens=..., **options)("a token")`: a client of a server with a tiny model."""
    with contextlib.ExitStack() as stack:

        def start(tokens: str = "", **options: Any) -> Callable[[str], client.Client]:
            if tokens:
                options["token_file"] = token_file(tmp_path, tokens)
            made = config.make(model=str(tiny_model("llama")), threads=1, kv_memory="16MB", device="cpu", **options)
            server = stack.enter_context(contextlib.closing(launch.start(made, timeout=100)))
            return lambda token: stack.enter_context(contextlib.closing(client.connect(server.socket, 60, token)))

        yield start


def token_file(folder: Path, text: str, mode: int = 0o600) -> str:
    path = folder / "tokens"
    path.write_text(text)
    path.chmod(mode)
    return str(path)


# ---- tokens --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "holds no tokens"),
        ("# none\n", "holds no tokens"),
        ("ann", "line 1: must be `TENANT TOKEN`"),
        (f"ann {ANN} king", "line 1: must be"),
        (f"ann {ANN} operator too", "line 1: must be"),
        ("ann short", "line 1: a token of 5 characters"),
        (f"ann {ANN}\n\nbob {ANN}", "line 3: this token is on an earlier line too"),
    ],
)
def test_a_file_of_tokens_that_is_none_names_the_line_and_no_token(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        read_tokens(text, "tokens")
    assert "0123456789abcdef" not in str(caught.value)


def test_who_is_alone_is_the_operator_and_else_who_is_called_so() -> None:
    assert read_tokens(f"ann {ANN}\nann {ANN_NEW}", "tokens")[1].tenant.is_operator
    found = [(token.tenant.name, token.tenant.is_operator) for token in read_tokens(TOKENS, "tokens")]
    assert found == [("ann", False), ("ann", False), ("bob", False), ("ops", True)]


def test_every_token_is_compared_in_constant_time_whichever_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[int, int]] = []
    compare = tenants.hmac.compare_digest

    def counted(a: bytes, b: bytes) -> bool:
        compared.append((len(a), len(b)))
        return compare(a, b)

    monkeypatch.setattr(tenants.hmac, "compare_digest", counted)
    some = Tenants(read_tokens(TOKENS, "tokens"))
    for token, name in ((ANN, "ann"), (OPS, "ops")):
        assert some.identify(wire.Hello(1, token=token)).name == name
        assert compared == [(32, 32)] * 4
        compared.clear()
    for wrong in ("", ANN[:-1], ANN + "x", "x" * 100_000):
        with pytest.raises(ConnectFailed, match="token"):
            some.identify(wire.Hello(1, token=wrong))
        assert compared == [(32, 32)] * 4
        compared.clear()


def test_the_environment_names_the_token_where_no_file_does(tmp_path: Path) -> None:
    (only,) = tenants.configured(config.make(), {config.TOKEN: ANN})
    assert only.tenant.is_operator
    assert tenants.configured(config.make(), {}) == ()
    made = config.make(token_file=token_file(tmp_path, f"bob {BOB}"))
    assert [token.tenant.name for token in tenants.configured(made, {config.TOKEN: ANN})] == ["bob"]


def test_a_file_that_others_may_read_or_that_is_not_there_is_refused(tmp_path: Path) -> None:
    path = token_file(tmp_path, TOKENS, mode=0o640)
    with pytest.raises(ConfigError, match="chmod 600"):
        tenants.configured(config.make(token_file=path))
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        tenants.configured(config.make(token_file=path + "x"))


def test_a_wrong_token_is_one_clear_error_at_once_and_no_harm_to_others(
    serve: Callable[..., launch.ServerProcess], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(options={"token_file": token_file(tmp_path, TOKENS)}, say={"a": "b"})
    with contextlib.closing(client.connect(server.socket, 30, ANN)) as good:
        for token, says in (("", "it wants a token"), ("x" * 30, "the token is wrong"), (ANN[:-1], "is wrong")):
            began = time.monotonic()
            with pytest.raises(ConnectFailed, match=says):
                client.connect(server.socket, 30, token)
            assert time.monotonic() - began < 10
        program = good.program()
        program.submit([wire.Append(0, ("a",)), wire.Gen(0, 0)], last=True)
        assert program.future(0).result(30).samples[0].text == "b"
        monkeypatch.setenv(config.TOKEN, ANN)
        assert client.connect(server.socket) is good, "the environment's is taken where none is given"
        assert ANN not in repr(good.address)


def test_what_tells_of_all_is_for_operators(serve: Callable[..., launch.ServerProcess], tmp_path: Path) -> None:
    server = serve(options={"token_file": token_file(tmp_path, TOKENS)})
    with (
        contextlib.closing(client.connect(server.socket, 30, ANN)) as ann,
        contextlib.closing(client.connect(server.socket, 30, OPS)) as ops,
    ):
        assert ann.ask("info")["protocol"] == wire.VERSION
        assert ops.ask("stats")["server"]["clients"] == 2
        for what in ("stats", "flush", "check", "tree", "events"):
            with pytest.raises(BanyanError, match="'ann' is no operator"):
                ann.ask(what)
