"""Tensor parallel: several processes, the ranks, each compute a part of every layer (Shoeybi et al., 2019).

Queries, keys, values, gate and up are cut by outputs (column parallel), so a rank has whole heads and their KV. `out`
and `down` are cut by inputs (row parallel), and the ranks' results are added (all-reduce). Embedding and head are cut
by tokens of the vocabulary. Every rank has the whole hidden states, and only rank 0 has all logits.
"""

from __future__ import annotations

from datetime import timedelta
from functools import reduce
from typing import Any

import msgspec
import torch
from torch import Tensor
from torch import distributed as _distributed
from torch.nn import functional as F

from banyan.kernels.linear.grouped import Grouped
from banyan.runtime.errors import ConfigError, Unsupported
from banyan.runtime.model.linear import Linear
from banyan.runtime.model.spec import ModelSpec

dist: Any = _distributed  # its type stubs are incomplete

TIMEOUT = timedelta(minutes=10)
"""Time limit for one exchange (collective operation) between ranks. It is longer than any step. If a rank dies, an
exchange fails immediately."""


class Shard:
    """The part of a model that this rank has, and its exchanges with the other ranks. Call `connect` before the first
    exchange.

    deterministic: sums are added in the order of the ranks, so that their bits do not depend on the number of rows."""

    def __init__(self, rank: int, n_ranks: int, deterministic: bool = False) -> None:
        self.rank, self.n_ranks, self._deterministic = rank, n_ranks, deterministic
        self._group: Any = None

    def connect(self, store: Any, device: torch.device) -> None:
        """Connect to the other ranks, which must call this too. store: a torch.distributed.Store for these ranks only.
        RuntimeError: they could not connect."""
        if device.type == "cuda":
            self._group = dist.ProcessGroupNCCL(store, self.rank, self.n_ranks, dist.ProcessGroupNCCL.Options())
        else:
            options = dist.ProcessGroupGloo._Options()
            options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
            options._timeout = TIMEOUT
            self._group = dist.ProcessGroupGloo(store, self.rank, self.n_ranks, options)
        self.add(torch.zeros(1, device=device))

    # ---- the part of this rank -------------------------------------------------------------------------------------

    def of(self, n: int, width: int = 1) -> slice:
        """This rank's slice of a dimension that consists of n heads of `width` numbers each. With fewer heads than
        ranks, several ranks have the same slice."""
        first, count = self.rank * n // self.n_ranks, max(1, n // self.n_ranks)
        return slice(first * width, (first + count) * width)

    def of_vocabulary(self, n: int) -> slice:
        """This rank's slice of a vocabulary of n tokens. The last ranks may have fewer tokens."""
        each = -(-n // self.n_ranks)
        return slice(min(n, self.rank * each), min(n, (self.rank + 1) * each))

    # ---- exchanges: all ranks call them in the same order, with the same shapes ------------------------------------

    def add(self, x: Tensor) -> Tensor:
        """Returns the sum of all ranks' x. May overwrite x."""
        if not len(x):
            return x
        if not self._deterministic:
            self._group.allreduce([x]).wait()
            return x
        parts = [torch.empty_like(x) for _ in range(self.n_ranks)]
        self._group.allgather([parts], [x]).wait()
        return reduce(torch.add, parts)

    def embed(self, ids: Tensor, table: Tensor, n_vocab: int) -> Tensor:
        """Returns the embeddings of `ids` on every rank: [n] -> [n, hidden]. table: this rank's rows of the embedding
        matrix, which has n_vocab rows in all."""
        own = self.of_vocabulary(n_vocab)
        at = ids - own.start
        is_own = (at >= 0) & (at < len(table))
        x = F.embedding(at.where(is_own, 0), table)
        return self.add(x.masked_fill_(~is_own[:, None], 0))

    def join(self, y: Tensor, n_vocab: int) -> Tensor:
        """Gather the logits of all ranks on rank 0. y: this rank's part, [n, its part of the vocabulary]. Returns the
        logits [n, n_vocab] on rank 0. On other ranks the result has no meaning."""
        if not len(y):
            return y.new_empty(0, n_vocab)
        y = F.pad(y, (0, -(-n_vocab // self.n_ranks) - y.shape[1]))
        parts = [torch.empty_like(y) for _ in range(self.n_ranks)] if self.rank == 0 else []
        options = dist.GatherOptions()
        options.rootRank = 0
        self._group.gather([parts] if parts else [], [y], options).wait()
        return torch.cat(parts, 1)[:, :n_vocab].contiguous() if parts else y

    def share(self, x: Tensor) -> Tensor:
        """Overwrite x with rank 0's x (broadcast)."""
        self._group.broadcast([x], dist.BroadcastOptions()).wait()
        return x


class SummedLinear(Linear):
    """A linear layer that is cut by inputs (row parallel). Returns the sum of all ranks' results. Only rank 0 has the
    bias."""

    __slots__ = ("_shard",)

    def __init__(self, shard: Shard, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._shard = shard

    def __call__(self, x: Tensor) -> Tensor:
        return self._shard.add(super().__call__(x))


class JoinedLinear(Linear):
    """The output head. Each rank computes the logits of its part of the vocabulary. Rank 0 returns all logits."""

    __slots__ = ("_n_out", "_shard")

    def __init__(self, shard: Shard, n_out: int, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._shard, self._n_out = shard, n_out

    def __call__(self, x: Tensor) -> Tensor:
        return self._shard.join(super().__call__(x), self._n_out)


def cut(weight: Tensor | Grouped, at: slice, name: str, by_inputs: bool = False) -> Any:
    """A copy of a part of a weight [n_out, n_in], of the same type. at: the outputs of the part; with `by_inputs`, its
    inputs. Unsupported: a group of a quantised weight would be cut."""
    if isinstance(weight, Tensor):
        return (weight[:, at] if by_inputs else weight[at]).clone(memory_format=torch.contiguous_format)
    numbers, scale, minimum, n_bits, is_w8a8 = weight
    of_scale = at
    if by_inputs:
        group = numbers.shape[1] // scale.shape[1]
        if scale.shape[1] == 1:
            of_scale = slice(0, 1)
        elif at.start % group or at.stop % group:
            raise Unsupported(
                f"{name} has groups of {group} inputs, which tp would cut at {at.start} and {at.stop}; choose a "
                "smaller tp, or weight_dtype='dtype'"
            )
        else:
            of_scale = slice(at.start // group, at.stop // group)
    minimum = None if minimum is None else cut(minimum, of_scale, name, by_inputs)
    return Grouped(cut(numbers, at, name, by_inputs), cut(scale, of_scale, name, by_inputs), minimum, n_bits, is_w8a8)


def sharded(spec: ModelSpec, tp: int) -> ModelSpec:
    """The dimensions of the part of a model that each of `tp` ranks has. ConfigError: the model cannot be cut into `tp`
    parts; Unsupported: the model is not of a native family."""
    if tp == 1:
        return spec
    c = spec.native("tp", "which has no tp")

    def fits(n: int) -> bool:
        heads = spec.n_heads % n == 0 and (spec.n_kv_heads % n == 0 or n % spec.n_kv_heads == 0)
        return heads and c.intermediate_size % n == 0

    if not fits(tp):
        possible = ", ".join(str(n) for n in range(1, spec.n_heads + 1) if fits(n))
        raise ConfigError(
            f"tp is {tp}, which does not fit {spec.n_heads} heads, {spec.n_kv_heads} key-value heads and "
            f"{c.intermediate_size} intermediate features of {spec.name}; tp can be {possible}"
        )
    return msgspec.structs.replace(
        spec, n_heads=spec.n_heads // tp, n_kv_heads=max(1, spec.n_kv_heads // tp),
        n_parameters=spec.n_parameters // tp, n_ranks=tp,
    )  # fmt: skip
