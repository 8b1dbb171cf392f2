"""A new page file may replace an older page file or an empty file, and no other file."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from banyan.radix_cache.pagefile import NotAPageFile, PageFile

IDENTITY = bytes(32)


def make(path: Path, n_pages: int = 4, identity: bytes = IDENTITY) -> PageFile:
    return PageFile(path, n_pages, 4, 64, identity)


def test_page_file_of_another_model_or_size_is_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "kv"
    make(path).close()
    make(path, n_pages=8).close()
    make(path, n_pages=8, identity=b"\1" * 32).close()
    old = bytearray(path.read_bytes())
    old[: len(b"BANYANKV1")] = b"BANYANKV0"  # of an older version
    path.write_bytes(old)
    make(path).close()
    assert path.read_bytes().startswith(b"BANYANKV1")


def test_empty_file_becomes_a_page_file_of_mode_0600(tmp_path: Path) -> None:
    path = tmp_path / "kv"
    path.touch(mode=0o644)
    make(path).close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("content", ["my thesis\n", "BANYA", "\0" * 5000])
def test_any_other_file_is_refused_and_unchanged(tmp_path: Path, content: str) -> None:
    path = tmp_path / "kv"
    path.write_text(content)
    path.chmod(0o644)
    with pytest.raises(NotAPageFile, match="another kind of file"):
        make(path)
    assert path.read_text() == content
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_links_are_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "target"
    make(target).close()
    before = target.read_bytes()
    (tmp_path / "soft").symlink_to(target)
    (tmp_path / "dangling").symlink_to(tmp_path / "new")
    for name in ("soft", "dangling"):
        with pytest.raises(NotAPageFile, match="symbolic link"):
            make(tmp_path / name, n_pages=8)
    (tmp_path / "hard").hardlink_to(target)
    with pytest.raises(NotAPageFile, match="hard link"):
        make(tmp_path / "hard", n_pages=8)
    assert target.read_bytes() == before
    assert not (tmp_path / "new").exists()


def test_pipe_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(NotAPageFile, match="not a regular file"):
        make(tmp_path / "pipe")


def test_refused_file_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "kv"
    path.write_text("text")
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(NotAPageFile):
        make(path)
    assert len(os.listdir("/proc/self/fd")) == before
