"""The process of a rank other than 0: it runs its part of the model on the steps that rank 0 sends, and decides
nothing.

    python -m banyan.runtime.engine.rank FD

FD: its socket to rank 0. It ends when rank 0 does, at EOF of the socket or by a SIGKILL from the kernel."""

from __future__ import annotations

import gc
import signal
import sys
from socket import socket

import msgspec
import torch

from banyan.runtime.engine.hardware import use_huge_pages
from banyan.runtime.engine.kv_pool import KVPool
from banyan.runtime.engine.model_runner import use_threads
from banyan.runtime.engine.process import end_with_parent, settle
from banyan.runtime.engine.ranks import PoolSize, RankReport, RankStart, read, store
from banyan.runtime.engine.step_message import batch_of, make, receive
from banyan.runtime.errors import BanyanError
from banyan.runtime.model import load
from banyan.runtime.model.parallel import Shard
from banyan.runtime.model.size import tensors_of


def main(fd: int) -> int:
    """Run a rank. Returns 0 when rank 0 has ended; 1 when this rank could not load its part of the model or allocate
    its KV pool, which it reports."""
    gc.disable()  # garbage collection is off until `settle`
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()
    with socket(fileno=fd) as peer:
        if (start := read(peer, RankStart)) is None:
            return 0
        config, (device_name, dtype, context) = start.config, start.placement
        device = torch.device(device_name)
        if device.type == "cuda":
            torch.cuda.set_device(start.rank)
        shard = Shard(start.rank, config.tp, config.deterministic)
        try:
            model = load.load(
                start.path, device=device_name, dtype=dtype, max_context=context,
                deterministic=config.deterministic, weight_dtype=config.weight_dtype, shard=shard,
            )  # fmt: skip
            if device.type == "cpu":
                use_threads(start.threads, model)
                use_huge_pages(tensors_of(getattr(model, "module", model)))
            peer.sendall(msgspec.json.encode(RankReport()) + b"\n")
            if (size := read(peer, PoolSize)) is None:
                return 0
            pool = KVPool(
                model.spec, size.n_pages, size.page, device_name, size.n_host, None, size.kv_dtype, size.n_window_pages
            )
        except BanyanError as e:
            peer.sendall(msgspec.json.encode(RankReport(e.code, e.message)) + b"\n")
            return 1
        peer.sendall(msgspec.json.encode(RankReport()) + b"\n")
        shard.connect(store(start.store_fd, config.tp), device)
        settle()
        run(peer, model, pool, shard)
    return 0


@torch.inference_mode()
def run(peer: socket, model: load.Model, pool: KVPool, shard: Shard) -> None:
    """Compute each step that rank 0 computes, until rank 0 ends."""
    while (message := receive(peer)) is not None:
        make(message.changes, pool)
        batch = batch_of(message.layout, pool.device)
        n_rows = len(batch.slots)
        if message.numbers is None:
            empty = torch.empty(n_rows + message.n_wanted, dtype=torch.int64, device=pool.device)
            numbers = shard.share(empty)
        else:
            numbers = torch.from_numpy(message.numbers)
        assert batch.position is not None
        model.forward(numbers[:n_rows], batch.position.long(), batch, pool.kv, numbers[n_rows:])


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
