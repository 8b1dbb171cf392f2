"""Transfers KV to and from other engines, a few MiB at a time, between steps.

In a pull, the source leases the longest stored prefix and copies its pages into a buffer; then the lease ends. The
puller claims pages like a request, fills them from the buffer, and publishes the tokens. So a prefix enters the tree
whole or not at all. If a pull fails, the server sends the request anyway, and the engine computes the prefix.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Container, Iterable, Sequence
from contextlib import suppress
from itertools import chain, product
from typing import Literal

import msgspec
import torch
from torch import Tensor

from banyan.radix_cache.cache import Cache, Lease
from banyan.runtime.engine.model_runner import ModelRunner
from banyan.runtime.engine.scheduling.scheduler import Scheduler
from banyan.runtime.engine.transfer.chunks import Chunks
from banyan.runtime.engine.transfer.nixl import Nixl
from banyan.runtime.engine.transfer.transport import (
    Buffer,
    Buffers,
    SharedMemory,
    TransferFailed,
    TransferRead,
    Transport,
)
from banyan.runtime.protocol import wire

PIECE = 4 << 20
"""Bytes of a piece. Copying a piece takes less than 1 ms."""
FIRST_RID = 1 << 62
"""The rids of requests that compute prefixes for exports start here. The server's own rids are lower."""


class _Transfer:
    """One side of a pull. until: the time at which the engine gives it up. memory: the buffer, while pages are copied.
    pages: the pages to copy, of which n_done are copied."""

    def __init__(self, until: float) -> None:
        self.until = until
        self.memory: Tensor | None = None
        self.pages: Sequence[int] = ()
        self.n_done = 0
        self.seconds = 0.0


class _Exporting(_Transfer):
    """A pull, in the engine that sends the pages. buffer: set while pages are copied, and until EndPull."""

    def __init__(self, export: wire.Export, until: float) -> None:
        super().__init__(until)
        self.export = export
        self.lease: Lease | None = None
        self.buffer: Buffer | None = None
        self.n_tokens = 0


class _Importing(_Transfer):
    """A pull, in the engine that receives the pages. first: the number of the first of `pages` in the buffer."""

    def __init__(self, pull: wire.Pull, until: float, lease: Lease, read: TransferRead) -> None:
        super().__init__(until)
        self.pull, self.lease, self.read = pull, lease, read
        self.pages = list(lease.pages[lease.n_cached // lease.cache.page :])
        self.first = (lease.n_cached - pull.first) // lease.cache.page


class KVExchange:
    """The pulls in which an engine takes part, as source or as destination. Call `take` for each command of the server,
    and `work` between steps, and send the reports that `work` returns."""

    def __init__(
        self,
        cache: Cache,
        runner: ModelRunner,
        scheduler: Scheduler,
        kv: wire.KVFormat | None,
        clock: Callable[[], float] = time.monotonic,
        host: str = "",
        adapters: Container[bytes] = (),
        transfer: Literal["tcp", "nixl"] = "tcp",
    ) -> None:
        """kv: the format of this engine's pages; None: they cannot be moved. host: the name or address under which
        engines on other machines reach this one; "": there are no such engines. adapters: digests of the loaded
        adapters. transfer: see `Config.kv_transfer`."""
        self.cache, self.runner, self.kv, self._scheduler, self._clock = cache, runner, kv, scheduler, clock
        self._adapters = adapters
        chunks = Chunks(host) if host and kv is not None else None
        self._memory = SharedMemory(clock)
        nixl = Nixl(chunks.wake) if chunks is not None and transfer == "nixl" else None
        ways: tuple[Transport | None, ...] = (self._memory, nixl, chunks)  # the best transport first
        self._transports = tuple(way for way in ways if way is not None)
        self.wake = chunks.wake if chunks is not None else None  # readable when a read has ended
        self.buffers = Buffers(clock)
        self._exporting: dict[int, _Exporting] = {}
        self._importing: dict[int, _Importing] = {}
        self._reports: list[wire.EngineReport] = []

    @property
    def is_active(self) -> bool:
        """Whether `work` must be called: there are pulls under way, or reports to send."""
        return bool(self._exporting or self._importing or self._reports)

    @property
    def is_busy(self) -> bool:
        """Whether there is something to copy or to report now."""
        return bool(self._reports) or self._copies

    @property
    def _copies(self) -> bool:
        """Whether a page can be copied now."""
        return any(one.memory is not None for one in chain(self._exporting.values(), self._importing.values()))

    # ---- commands --------------------------------------------------------------------------------------------------

    def take(self, command: wire.Export | wire.Pull | wire.EndPull) -> None:
        match command:
            case wire.Export():
                self._end_export(command.pull)
                self._begin_export(command)
            case wire.Pull():
                self._end_import(command.pull)
                try:
                    self._begin_import(command)
                except TransferFailed as e:
                    self._reports.append(wire.Pulled(command.pull, why=str(e)))
            case wire.EndPull():
                self._end_export(command.pull)
                self._end_import(command.pull)

    def _begin_export(self, export: wire.Export) -> None:
        one = self._exporting[export.pull] = _Exporting(export, self._clock() + export.seconds)
        if self.kv is None:
            self._fail_export(one, "this engine's pages cannot be moved to or from other engines")
        elif export.compute and (run := export.run).adapter and run.adapter not in self._adapters:
            self._fail_export(one, "its adapter is not loaded here")
        elif export.compute:
            n = self._n_whole(run.ids)
            for rows in reversed(run.images):
                if rows.start < n < rows.start + rows.n:
                    n = rows.start - rows.start % self.cache.page
            if n <= export.first:
                self._fail_export(one, f"only {n} tokens can be computed; the export begins at token {export.first}")
                return
            images = tuple(rows for rows in run.images if rows.start < n)
            self._scheduler.take(
                msgspec.structs.replace(
                    run, rid=FIRST_RID + export.pull, ids=run.ids[: 4 * n], images=images,
                    sampling=wire.Sampling(temperature=0.0, max_tokens=0), n_done=0, score_from=-1, order=(),
                )
            )  # fmt: skip
        else:
            self._copy_stored(one)

    def _n_whole(self, ids: bytes) -> int:
        """How many tokens of a prompt are in whole pages. The last token does not count: every request computes it
        itself, because its row samples the next token. ids: int32."""
        return (len(ids) // 4 - 1) // self.cache.page * self.cache.page

    def _copy_stored(self, one: _Exporting) -> None:
        """Lease the longest stored prefix of the prompt, and start to copy its pages into a buffer. The export fails if
        this prefix does not reach beyond the token at which the export begins."""
        run, first, page = one.export.run, one.export.first, self.cache.page
        limit = min(self._n_whole(run.ids), first + self.buffers.room // self._page_bytes * page)
        n = self.cache.n_usable(run.ids, run.namespace, limit)
        n -= n % page
        if n > first:
            one.lease = lease = self.cache.open(run.ids[: 4 * n], run.namespace)
            self.runner.move(self.cache.take_moves())  # some may come from host memory
            n = lease.n_cached - lease.n_cached % page
            one.pages, one.n_tokens = list(lease.pages[first // page : n // page]), n
        if not one.pages:
            self._fail_export(one, f"only {n} tokens are stored, and the export begins at token {first}")
            return
        try:
            one.buffer = self.buffers.take(self.runner.store.export_bytes(len(one.pages)))
        except OSError as e:
            self._fail_export(one, f"there is no buffer for its pages: {e}")
            return
        one.memory = _tensor(one.buffer.memory)

    @property
    def _page_bytes(self) -> int:
        return self.runner.store.export_bytes(1)

    def _begin_import(self, pull: wire.Pull) -> None:
        page, n = self.cache.page, len(pull.ids) // 4
        if self.kv is None:
            raise TransferFailed("this engine's pages cannot be moved to or from other engines")
        if pull.kv != self.kv:
            ours, theirs = msgspec.structs.asdict(self.kv), msgspec.structs.asdict(pull.kv)
            differing = ", ".join(name for name in ours if ours[name] != theirs[name])
            raise TransferFailed(f"the engines differ in {differing}")
        if n % page or pull.first % page or not 0 <= pull.first < n:
            raise TransferFailed(f"tokens {pull.first} to {n} cannot be pulled: they must be whole pages")
        n_stored = self.cache.n_usable(pull.ids, pull.namespace, n)
        n_stored -= n_stored % page
        if n_stored == n:
            self._reports.append(wire.Pulled(pull.pull, n))
            return
        lease = self.cache.open(pull.ids, pull.namespace, n_stored)
        try:
            if lease.n_cached < pull.first:
                raise TransferFailed(
                    f"the pulled pages begin at token {pull.first}, but this engine has only the first "
                    f"{lease.n_cached} tokens"
                )
            if lease.n_cached % page:
                raise TransferFailed(
                    f"this engine has the first {lease.n_cached} tokens, which is not a whole number of pages of "
                    f"{page} tokens"
                )
            if not lease.grow(n):
                raise TransferFailed("no pages are free")
            n_bytes = self.runner.store.export_bytes((n - pull.first) // page)
            read = self._begin_read(pull.places, n_bytes)
            self.runner.move(self.cache.take_moves())  # what was evicted goes to host memory
        except BaseException:
            lease.close()
            raise
        self._importing[pull.pull] = _Importing(pull, self._clock() + pull.seconds, lease, read)

    def _begin_read(self, places: Iterable[str], n_bytes: int) -> TransferRead:
        """Begin to read the other engine's buffer, from the first place where that can begin. TransferFailed: there is
        none."""
        errors: list[str] = []
        for place, way in product(places, self._transports):
            try:
                if (read := way.read(place, n_bytes)) is not None:
                    return read
            except TransferFailed as e:
                errors.append(str(e))
            except (OSError, MemoryError, RuntimeError) as e:  # RuntimeError: no thread can be started
                errors.append(f"the read of the other engine's buffer cannot begin: {e!r}")
        raise TransferFailed("; ".join(errors) or "no transport of this engine reaches the other engine's buffer")

    # ---- work ------------------------------------------------------------------------------------------------------

    def work(self, until: float) -> Iterable[wire.EngineReport]:
        """Copy pages until nothing is left to copy or the clock has reached `until`, but at least one piece (PIECE
        bytes) of each pull. Ends pulls that took too long. Returns the reports for the server."""
        now = self._clock()
        for export in [one for one in self._exporting.values() if one.until < now]:
            self._fail_export(export, "it took too long")
        for one in [one for one in self._importing.values() if one.until < now]:
            self._fail_import(one, "it took too long")
        while self._copy_piece() and self._clock() < until:
            pass
        reports, self._reports = self._reports, []
        return reports

    def _copy_piece(self) -> bool:
        """Copy one piece of each pull. Returns whether more can be copied now."""
        n = max(1, PIECE // self._page_bytes) if self.is_active else 0
        for export in list(self._exporting.values()):
            if export.memory is not None:
                self._export_piece(export, n)
        for one in list(self._importing.values()):
            try:
                self._import_piece(one, n)
            except TransferFailed as e:
                self._fail_import(one, str(e))
        return self._copies

    def _export_piece(self, one: _Exporting, n: int) -> None:
        assert one.lease is not None
        assert one.memory is not None
        assert one.buffer is not None
        if not one.lease.is_open:  # its pages were withdrawn (quarantine.py)
            self._fail_export(one, "the source has lost its pages")
            return
        start = self._clock()
        pages = one.pages[one.n_done : one.n_done + n]
        self.runner.store.export(pages, one.memory, one.n_done, len(one.pages))
        one.n_done += len(pages)
        one.seconds += self._clock() - start
        if one.n_done == len(one.pages):
            one.lease.close()
            one.lease = one.memory = None
            places: list[str] = []
            for way in self._transports:
                with suppress(TransferFailed):  # peers use another transport then
                    places.append(way.describe(one.buffer))
            self._reports.append(wire.Exported(one.export.pull, one.n_tokens, tuple(places), one.seconds))

    def _import_piece(self, one: _Importing, n: int) -> None:
        if not one.lease.is_open:
            raise TransferFailed("the pages claimed for the pull were withdrawn")
        if one.memory is None:
            if (found := one.read.poll()) is None:
                return
            one.memory = _tensor(found)
        start, page = self._clock(), self.cache.page
        n_all = len(one.pull.ids) // 4 // page - one.pull.first // page
        pages = one.pages[one.n_done : one.n_done + n]
        self.runner.load(pages, one.memory, one.first + one.n_done, n_all)
        one.n_done += len(pages)
        one.seconds += self._clock() - start
        if one.n_done < len(one.pages):
            return
        one.read.confirm()
        n_tokens = len(one.pull.ids) // 4
        one.lease.publish(one.pull.ids, is_query=False)
        self._end_import(one.pull.pull)
        self._reports.append(wire.Pulled(one.pull.pull, n_tokens, one.seconds))

    # ---- ends ------------------------------------------------------------------------------------------------------

    def without_own(self, step: wire.Step, failed: list[wire.Failed]) -> wire.Step:
        """Remove this exchange's own requests from a step's report and from `failed`. Such a request computes a prefix
        that another engine wants. If it has finished, the copy of its pages begins; if it has failed, the export fails.
        Returns the report without them."""
        own = [finish for finish in step.finished if finish.rid >= FIRST_RID]
        for failure in [one for one in failed if one.program >= FIRST_RID]:
            failed.remove(failure)
            if (export := self._exporting.get(failure.program - FIRST_RID)) is not None:
                self._fail_export(export, failure.message)
        for finish in own:
            export = self._exporting.get(finish.rid - FIRST_RID)
            if export is not None and finish.reason != "abort":
                self._copy_stored(export)
        if not own:
            return step
        return msgspec.structs.replace(
            step, finished=tuple(finish for finish in step.finished if finish.rid < FIRST_RID)
        )

    def _fail_export(self, one: _Exporting, why: str) -> None:
        self._end_export(one.export.pull)
        self._reports.append(wire.Exported(one.export.pull, why=why))

    def _end_export(self, number: int) -> None:
        if (one := self._exporting.pop(number, None)) is None:
            return
        if one.export.compute and one.lease is None and one.buffer is None:
            self._scheduler.take(wire.Abort(FIRST_RID + number))
        if one.lease is not None:
            one.lease.close()
        one.memory = None
        if one.buffer is not None:
            self.buffers.give(one.buffer)

    def _fail_import(self, one: _Importing, why: str) -> None:
        self._end_import(one.pull.pull)
        self._reports.append(wire.Pulled(one.pull.pull, why=why))

    def _end_import(self, number: int) -> None:
        if (one := self._importing.pop(number, None)) is not None:
            one.memory = None
            one.read.close()
            one.lease.close()

    def clear_wake(self) -> None:
        """Make `wake` unreadable until a read ends. Called before `work`, which polls all reads, so no end of a read is
        missed."""
        if self.wake is not None:
            with suppress(BlockingIOError):
                os.eventfd_read(self.wake)

    def trim(self) -> None:
        """Free memory that has not been used for a long time. Called about once a second."""
        self.buffers.trim()
        for way in self._transports:
            way.trim()

    def close(self) -> None:
        for number in [*self._exporting]:
            self._end_export(number)
        for number in [*self._importing]:
            self._end_import(number)
        self.buffers.close()
        for way in self._transports:
            way.close()


def _tensor(memory: memoryview) -> Tensor:
    """The bytes as uint8 [n], without a copy."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a peer's memory is mapped read-only, and is only read
        return torch.frombuffer(memory, dtype=torch.uint8)
