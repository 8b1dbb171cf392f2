"""Who is whose: tokens say which tenant a client is, and the root keys keep the KV of tenants apart.

A file of tokens holds one a line: the tenant's name, the token, and perhaps the word `operator`. Several lines may name
one tenant, so that its token can be changed without a pause. Without tokens all clients are one tenant, who may ask the
server anything. Only digests of tokens are kept, and each one offered is compared with all of them, in constant time.
"""

from __future__ import annotations

import hmac
import os
import re
import stat
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from banyan.runtime.config import TOKEN, Config
from banyan.runtime.errors import ConfigError, ConnectFailed
from banyan.runtime.protocol import wire

Client = bytes

LEAST_TOKEN = 16
"""Characters of a token, at least."""


class Tenant(NamedTuple):
    """Clients that share KV. name: "" where there are no tokens. salt: the server's own, of the root key. is_operator:
    may ask for what tells of others (stats, the tree and its events), and flush or check the whole."""

    name: str = ""
    salt: bytes = b""
    is_operator: bool = True


class AccessToken(NamedTuple):
    digest: bytes
    tenant: Tenant


def root_key(salt: bytes, adapter: str, weights: bytes) -> bytes:
    """The namespace of KV that `adapter` ("": none) on `weights` computed for who has `salt`. 16 bytes, different for
    whatever differs in any of the three."""
    state = blake2b(digest_size=16, person=b"banyan root key")
    for part in (salt, adapter.encode(), weights):
        state.update(len(part).to_bytes(8, "little") + part)
    return state.digest()


def read_tokens(text: str, where: str) -> tuple[AccessToken, ...]:
    """The tokens of a file. ConfigError names the line that is none, and never shows a token."""
    split = [(n, re.split(r"(?:^|\s)#", line)[0].split()) for n, line in enumerate(text.splitlines(), 1)]
    lines = [(n, words) for n, words in split if words]
    if not lines:
        raise ConfigError(f"{where} holds no tokens; write a line `TENANT TOKEN` for each")
    tokens: list[AccessToken] = []
    n_tenants = len({words[0] for _, words in lines})
    for n, words in lines:
        if len(words) not in (2, 3) or words[2:] not in ([], ["operator"]):
            raise ConfigError(f"{where}, line {n}: must be `TENANT TOKEN`, or `TENANT TOKEN operator`")
        if len(words[1]) < LEAST_TOKEN:
            raise ConfigError(f"{where}, line {n}: a token of {len(words[1])} characters; {LEAST_TOKEN} are the least")
        digest, is_operator = _digest(words[1]), len(words) == 3 or n_tenants == 1
        if any(token.digest == digest for token in tokens):
            raise ConfigError(f"{where}, line {n}: this token stands on a line before")
        tokens.append(AccessToken(digest, Tenant(words[0], _digest(words[0]), is_operator)))
    return tuple(tokens)


def configured(config: Config, environment: Mapping[str, str] = os.environ) -> tuple[AccessToken, ...]:
    """The tokens that the server takes: those of the file, or the one of the environment. (): it asks for none."""
    if not config.token_file:
        return read_tokens(f"default {environment[TOKEN]}", TOKEN) if environment.get(TOKEN) else ()
    path = Path(config.token_file)
    try:
        mode, text = path.stat().st_mode, path.read_text()
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(f"token_file {path} cannot be read: {getattr(e, 'strerror', None) or e}") from e
    if stat.S_IMODE(mode) & 0o077:
        raise ConfigError(
            f"others may read the tokens in {path} (mode {stat.S_IMODE(mode):04o}); run `chmod 600 {path}`"
        )
    return read_tokens(text, str(path))


class Tenants:
    """All clients, and whose they are. weights: of the model that runs (see wire.Ready)."""

    def __init__(self, tokens: Iterable[AccessToken] = (), isolates_connections: bool = False) -> None:
        self._tokens = tuple(tokens)
        self._isolates = isolates_connections
        self._of: dict[Client, Tenant] = {}
        self._names: dict[bytes, str] = {}
        self.weights = b""

    @property
    def asks_for_token(self) -> bool:
        return bool(self._tokens)

    def identify(self, hello: wire.Hello) -> Tenant:
        """Who says this. ConnectFailed: its token is none of ours."""
        if not self._tokens:
            return Tenant()
        offered, found = _digest(hello.token), None
        for token in self._tokens:  # all of them, whichever is the one
            if hmac.compare_digest(offered, token.digest):
                found = token.tenant
        if found is None:
            what = "the token is wrong" if hello.token else "it wants a token"
            raise ConnectFailed(f"{what}; give connect(..., token=...), or set {TOKEN} to the one you were given")
        return found

    def join(self, client: Client, tenant: Tenant) -> None:
        """A client was welcomed."""
        if self._isolates:
            tenant = tenant._replace(salt=os.urandom(16))
        self._of[client] = tenant
        self._names[self.root(client)] = client.hex() if self._isolates else tenant.name

    def leave(self, client: Client) -> None:
        """It is gone."""
        if self._isolates and client in self._of:
            self._names.pop(self.root(client), None)
        self._of.pop(client, None)

    def tenant(self, client: Client) -> Tenant:
        """Of a client that was welcomed."""
        return self._of[client]

    def root(self, client: Client) -> bytes:
        """The namespace of what its programs compute."""
        return root_key(self._of[client].salt, "", self.weights)

    def name(self, namespace: bytes) -> str:
        """Whose namespace it is, for an operator; the namespace itself, where its client is gone."""
        return self._names.get(namespace, namespace.hex())


def _digest(secret: str) -> bytes:
    return blake2b(secret.encode(), digest_size=32, person=b"banyan token").digest()
