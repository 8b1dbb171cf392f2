"""The file of API keys."""

from __future__ import annotations

from pathlib import Path

import pytest

from banyan.runtime.errors import ConfigError
from banyan.runtime.gateway import keys
from banyan.runtime.gateway.errors import HTTPError
from banyan.runtime.gateway.keys import Keys


@pytest.mark.parametrize(
    ("text", "mode", "message"),
    [
        ("ann:key-of-ann-0123456789", 0o644, "other users may read"),
        ("ann:short", 0o600, "line 1: the key has 5 characters"),
        ("ann", 0o600, "line 1: must be NAME:KEY"),
        ("# nobody", 0o600, "holds no API keys"),
        ("a:key-of-ann-0123456789\nb:key-of-ann-0123456789", 0o600, "line 2: an earlier line has the same key"),
    ],
)
def test_a_bad_file_of_keys_is_named(tmp_path: Path, text: str, mode: int, message: str) -> None:
    path = tmp_path / "keys"
    path.write_text(text)
    path.chmod(mode)
    with pytest.raises(ConfigError, match=message) as raised:
        Keys(path)
    assert "key-of-ann" not in str(raised.value)


def test_spaces_around_names_and_keys_do_not_count(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(" ann : key-of-ann-0123456789 \n")
    path.chmod(0o600)
    assert Keys(path).identify({b"authorization": b"Bearer key-of-ann-0123456789"}) == "ann"


def test_a_file_of_keys_is_read_again_after_a_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(keys, "CHECK_SECONDS", 0.0)
    path = tmp_path / "keys"

    def write(text: str) -> None:
        path.write_text(text)
        path.chmod(0o600)

    def identify(key: str) -> str:
        try:
            return found.identify({b"x-api-key": key.encode()})
        except HTTPError as e:
            return str(e.status)

    write("ann:key-of-ann-0123456789")
    found = Keys(path)
    assert (identify("key-of-ann-0123456789"), identify("key-of-bob-0123456789")) == ("ann", "401")
    write("bob:key-of-bob-0123456789")
    assert (identify("key-of-ann-0123456789"), identify("key-of-bob-0123456789")) == ("401", "bob")
    for change in (lambda: write("bob"), lambda: path.chmod(0o644), path.unlink):
        change()
        assert identify("key-of-bob-0123456789") == "bob"
        assert "the API keys stay as they are: " in capsys.readouterr().err
        assert identify("key-of-bob-0123456789") == "bob"
        assert not capsys.readouterr().err, "it is said once for each change"
    write("ann:key-of-ann-0123456789")
    assert identify("key-of-ann-0123456789") == "ann"
