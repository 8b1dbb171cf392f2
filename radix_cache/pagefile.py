"""Host memory in a file, so that it outlives the process.

Each page has a label: its tokens, a digest of the whole prefix up to its end, the digest of the prefix before it, and
checksums of the label and of the page. A label is erased before its page is written, and written after it. So if the
process dies, every valid label belongs to a complete page. If the machine crashes, writes may be lost in any order; the
page's checksum, which is compared before its first use, detects that. There is no log and no repair. A page file of
another model, layout or version is overwritten; any other file is refused.

    file header   one block of 4 KiB
    labels        one per page, of equal size
    pages         starting at the next border of 4 KiB
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import stat
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from banyan.radix_cache.digests import N_NAMESPACE, prefix_digests
from banyan.radix_cache.node import Node, namespace_of

_KIND = b"BANYANKV"
"""The first bytes of page files of all versions."""
_MAGIC = _KIND + b"1"
_BLOCK = 4096
_FILE = struct.Struct("<16sIIQ32s")  # magic, page, n_pages, page_bytes, identity
_HEAD = struct.Struct("<IIIB3x16s16s64s")  # crc of the rest, crc of the page, n_tokens, n_namespace, digests, namespace


class NotAPageFile(Exception):
    """There is something at the path that must not be overwritten."""


class Label(NamedTuple):
    """The label of a page in the file: which tokens the page holds, after which prefix. digest: the digest of the
    prefix that ends with the page. parent: the digest of the prefix before the page."""

    digest: bytes
    parent: bytes
    namespace: bytes
    ids: bytes


def label_node(node: Node, page: int) -> list[bytes]:
    """The encoded label of each page of a node, without the page's checksum. b"" stands for a page that the file does
    not keep, because the page is not full or its namespace is too long."""
    namespace = namespace_of(node)
    n = -(-len(node.key) // (4 * page))
    if len(namespace) > N_NAMESPACE:
        return [b""] * n
    first, ids = node.start // page, node.path
    digests = prefix_digests(namespace, ids, first, 4 * page)
    labels = [
        Label(digests[i + 1], digests[i], namespace, ids[4 * page * (first + i) : 4 * page * (first + i + 1)])
        for i in range(len(digests) - 1)
    ]
    return [_pack(label) for label in labels] + [b""] * (n - len(labels))


class PageFile:
    """A file of `n_pages` pages of `page_bytes` bytes each, for `page` tokens each, mapped into memory. One process at
    a time can open it: the file is locked with flock.

    identity: 32 bytes that stand for the model, weights and layout of the pages. A file with another identity or other
    sizes is cleared. Raises OSError if the file cannot be created or another process has locked it, and NotAPageFile if
    there is a file that no PageFile wrote.
    """

    def __init__(self, path: Path, n_pages: int, page: int, page_bytes: int, identity: bytes) -> None:
        self.path, self.n_pages, self.page, self.page_bytes = path, n_pages, page, page_bytes
        self._label_bytes = -(-(_HEAD.size + 4 * page) // 8) * 8
        self._o_pages = -(-(_BLOCK + n_pages * self._label_bytes) // _BLOCK) * _BLOCK
        size = self._o_pages + n_pages * page_bytes
        head = _FILE.pack(_MAGIC, page, n_pages, page_bytes, identity)
        self._fd = _open(path)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _check_ours(self._fd, path)
            os.fchmod(self._fd, 0o600)  # another program may have made the file, and left it empty
            is_current = os.fstat(self._fd).st_size == size and os.pread(self._fd, _FILE.size, 0) == head
            if not is_current:
                os.ftruncate(self._fd, 0)
                os.pwrite(self._fd, head, 0)
                os.fsync(self._fd)  # after a crash of the machine, the file is still known to be a page file
            os.posix_fallocate(self._fd, 0, size)  # a full disk raises OSError here, not SIGBUS in a later write
            self._map = mmap.mmap(self._fd, size)
        except BaseException:
            os.close(self._fd)
            raise

    @property
    def pages(self) -> memoryview:
        """The writable memory of all pages, one after the other."""
        return memoryview(self._map)[self._o_pages :]

    def begin(self, i: int) -> None:
        """Erases the label of page i. Call before writing the page."""
        o = self._o_label(i)
        self._map[o : o + 4] = bytes(4)

    def seal(self, i: int, label: bytes) -> None:
        """Writes the label of page i. Call after writing the page."""
        if label:
            o = self._o_label(i)
            rest = struct.pack("<I", self._crc(i)) + label[8:]
            self._map[o + 4 : o + len(label)] = rest
            self._map[o : o + 4] = struct.pack("<I", crc32(rest) or 1)

    def is_sound(self, i: int) -> bool:
        """Whether the content of page i matches its checksum."""
        (crc,) = struct.unpack_from("<I", self._map, self._o_label(i) + 4)
        return bool(crc == self._crc(i))

    def labels(self) -> Iterator[tuple[int, Label]]:
        """The index and the label of each page whose label is valid."""
        for i in range(self.n_pages):
            o = self._o_label(i)
            if (label := _unpack(self._map[o : o + self._label_bytes], self.page)) is not None:
                yield i, label

    def wipe(self) -> None:
        """Erases the labels of all pages, so no page is valid any more."""
        self._map[_BLOCK : _BLOCK + self.n_pages * self._label_bytes] = bytes(self.n_pages * self._label_bytes)

    def close(self) -> None:
        """Unlocks the file. `pages` must not be used any more."""
        with contextlib.suppress(BufferError):  # a view of `pages` still exists; the map ends with it
            self._map.close()
        os.close(self._fd)

    def _o_label(self, i: int) -> int:
        return _BLOCK + i * self._label_bytes

    def _crc(self, i: int) -> int:
        o = self._o_pages + i * self.page_bytes
        with memoryview(self._map)[o : o + self.page_bytes] as view:
            return crc32(view)


def _open(path: Path) -> int:
    """Opens the file at `path`, or creates it, and returns its file descriptor. Raises NotAPageFile if `path` is a
    symbolic link or not a regular file."""
    try:  # O_NONBLOCK: opening a pipe or a device must not wait
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    except OSError as e:
        if e.errno == errno.ELOOP and path.is_symlink():
            raise NotAPageFile(f"{path} is a symbolic link, which is not followed; name the file itself") from e
        raise
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise NotAPageFile(f"{path} is not a regular file; name another path")
    return fd


def _check_ours(fd: int, path: Path) -> None:
    """Raises NotAPageFile if the file belongs to another user, has a second name (a hard link), or has content that no
    PageFile wrote."""
    status = os.fstat(fd)
    if status.st_uid != os.geteuid():
        raise NotAPageFile(f"{path} belongs to user {status.st_uid}; name a file of your own")
    if status.st_nlink > 1:
        raise NotAPageFile(f"{path} has another name too (a hard link); name another path")
    if status.st_size and os.pread(fd, len(_KIND), 0) != _KIND:
        raise NotAPageFile(f"{path} is another kind of file, which is not overwritten; name another path, or delete it")


def _pack(label: Label) -> bytes:
    head = _HEAD.pack(0, 0, len(label.ids) // 4, len(label.namespace), label.digest, label.parent, label.namespace)
    return head + label.ids


def _unpack(data: bytes, page: int) -> Label | None:
    """The label in `data`, or None if it is not valid."""
    crc, _, n_tokens, n_namespace, digest, parent, namespace = _HEAD.unpack_from(data)
    end = _HEAD.size + 4 * page
    if n_tokens != page or crc != (crc32(data[4:end]) or 1):
        return None
    return Label(digest, parent, namespace[:n_namespace], data[_HEAD.size : end])
