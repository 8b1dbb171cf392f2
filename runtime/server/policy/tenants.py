"""Tenants: an access token tells which tenant a client belongs to, and root keys keep the KV of tenants apart.

A token file has one token per line: the tenant's name, the token, and optionally the word `operator`. A tenant may have
several tokens, so that they can be changed without downtime. Without tokens, all clients are one tenant, which has all
rights. Only digests of tokens are kept, and a given token is compared with all of them in constant time.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from banyan.runtime.config import TOKEN, Config, read_private, token_lines
from banyan.runtime.errors import ConfigError, ConnectFailed
from banyan.runtime.protocol import wire

Client = bytes

MIN_TOKEN = 16
"""Minimum length of a token in characters."""
MAX_TOKEN = 4096
"""Maximum length of a token in characters. If a client gives a longer one, it is not even hashed."""


class WrongToken(ConnectFailed):
    """The client's token is missing or wrong."""


class Tenant(NamedTuple):
    """Clients that share KV. name: "" without tokens. salt: part of the root key. is_operator: its clients may ask for
    data of all tenants (stats, the tree, its events), and flush or check the whole server."""

    name: str = ""
    salt: bytes = b""
    is_operator: bool = True


def root_key(salt: bytes, weights: bytes) -> bytes:
    """The namespace (16 bytes) of KV that a tenant with `salt` computes on `weights`."""
    state = blake2b(digest_size=16, person=b"banyan root key")
    for part in (salt, weights):
        state.update(len(part).to_bytes(8, "little") + part)
    return state.digest()


def salted(namespace: bytes, salt: str) -> bytes:
    """Returns the namespace (16 bytes) of programs that set `salt` in their limits, within the namespace of their
    tenant. They share KV only with programs of the same salt. "": `namespace` itself."""
    return blake2b(salt.encode(), key=namespace, digest_size=16, person=b"banyan salt").digest() if salt else namespace


def adapted(namespace: bytes, adapter: bytes) -> bytes:
    """The namespace (16 bytes) of KV that an adapter computes for programs of `namespace`. adapter: the adapter's
    digest; b"": no adapter."""
    return blake2b(adapter, key=namespace, digest_size=16, person=b"banyan adapter").digest() if adapter else namespace


def read_tokens(text: str, where: str) -> dict[bytes, Tenant]:
    """Read the tokens of a file. Returns digest of a token -> its tenant. ConfigError: a line is invalid; the message
    names the line and never contains a token."""
    if not (lines := token_lines(text)):
        raise ConfigError(f"{where} holds no tokens; write a line `TENANT TOKEN` for each")
    tokens: dict[bytes, Tenant] = {}
    n_tenants = len({words[0] for _, words in lines})
    for n, words in lines:
        if len(words) not in (2, 3) or words[2:] not in ([], ["operator"]):
            raise ConfigError(f"{where}, line {n}: must be `TENANT TOKEN`, or `TENANT TOKEN operator`")
        if not MIN_TOKEN <= len(words[1]) <= MAX_TOKEN:
            lengths = f"has {len(words[1])} characters, but must have {MIN_TOKEN} to {MAX_TOKEN}"
            raise ConfigError(f"{where}, line {n}: the token {lengths}")
        digest, is_operator = _digest(words[1]), len(words) == 3 or n_tenants == 1
        if digest in tokens:
            raise ConfigError(f"{where}, line {n}: an earlier line has the same token")
        tokens[digest] = Tenant(words[0], _digest(words[0]), is_operator)
    return tokens


def configured(config: Config, environment: Mapping[str, str] = os.environ) -> dict[bytes, Tenant]:
    """The tokens of `token_file`, or the one in the environment; {}: the server asks for no token."""
    if not config.token_file:
        return read_tokens(f"default {environment[TOKEN]}", TOKEN) if environment.get(TOKEN) else {}
    return read_tokens(read_private(Path(config.token_file), "token_file"), config.token_file)


class Tenants:
    """Knows the tenant of each connected client. weights: the fingerprint of the weights with which new programs
    begin."""

    def __init__(self, tokens: Mapping[bytes, Tenant], isolates_connections: bool = False) -> None:
        """tokens: as from `read_tokens`. isolates_connections: each connection is its own tenant."""
        self._tokens = tokens
        # An operator may also act for tenants that are not in this set.
        self._known = {"", *(tenant.name for tenant in tokens.values())}
        self._isolates = isolates_connections
        self._of: dict[Client, Tenant] = {}
        self._names: dict[bytes, str] = {}
        self.weights = b""

    def set_weights(self, weights: bytes) -> None:
        """Set the fingerprint of the weights on which new programs run. It is a part of all root keys, so KV of other
        weights is not found."""
        self.weights = weights
        for client, tenant in self._of.items():
            self._names[self.root(client)] = client.hex() if self._isolates else tenant.name

    def identify(self, hello: wire.Hello) -> Tenant:
        """Returns the tenant of a client that connects. Raises WrongToken if the client's token is missing or wrong,
        and ConnectFailed if the client names a tenant for which it may not act."""
        tenant = self._authenticate(hello)
        if not hello.tenant:
            return tenant
        if not tenant.is_operator:
            raise ConnectFailed(f"only an operator may act for another tenant, but {tenant.name!r} is not one")
        return Tenant(hello.tenant, _digest(hello.tenant), is_operator=False)

    def _authenticate(self, hello: wire.Hello) -> Tenant:
        if not self._tokens:
            return Tenant()
        digest, found = _digest(hello.token if len(hello.token) <= MAX_TOKEN else ""), None
        for known, tenant in self._tokens.items():  # does not stop at the matching token: the time is constant
            if hmac.compare_digest(digest, known):
                found = tenant
        if found is None:
            what = "the token is wrong" if hello.token else "this server requires a token"
            raise WrongToken(f"{what}; give connect(..., token=...), or set {TOKEN} to the one you were given")
        return found

    def join(self, client: Client, tenant: Tenant) -> None:
        """Record the tenant of an accepted client; a client may join again with another tenant."""
        self.leave(client)
        if self._isolates:
            tenant = tenant._replace(salt=os.urandom(16))
        self._of[client] = tenant
        self._names[self.root(client)] = client.hex() if self._isolates else tenant.name

    def leave(self, client: Client) -> bytes | None:
        """Forget a client that is gone. Returns the namespace of its tenant if the tenant has no other clients."""
        if client not in self._of:
            return None
        root = self.root(client)
        tenant = self._of.pop(client)
        if tenant in self._of.values():
            return None
        if self._isolates or tenant.name not in self._known:
            self._names.pop(root, None)
        return root

    def tenant(self, client: Client) -> Tenant:
        return self._of[client]

    def root(self, client: Client) -> bytes:
        """The namespace of a client's KV."""
        return root_key(self._of[client].salt, self.weights)

    def name(self, namespace: bytes) -> str:
        """The name of the tenant with this namespace; the namespace in hex if all clients of the tenant are gone."""
        return self._names.get(namespace, namespace.hex())


def _digest(secret: str) -> bytes:
    return blake2b(secret.encode(), digest_size=32, person=b"banyan token").digest()
