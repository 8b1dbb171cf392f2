"""The life of a server's engines, without processes. tests/runtime/test_replicas.py has real ones."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from banyan.runtime import config
from banyan.runtime.errors import ConfigError
from banyan.runtime.fleet.scaling import LoadScaler
from banyan.runtime.model.images import ImageSpec, image_spec
from banyan.runtime.protocol import wire
from banyan.runtime.server.engine_link.changes import EngineChanges, WeightsRoll
from banyan.runtime.server.engine_link.remote import RemoteLink
from banyan.runtime.server.engine_link.replica_process import ReplicaProcess
from banyan.runtime.server.text.image_process import ProcessStart
from banyan.runtime.server.text.images import Images


def offload(client: Any, n: int, work: Callable[[], Any], then: Callable[[Any], None], has_images: bool) -> None:
    try:
        result = work()
    except Exception as e:
        result = e
    then(result)


def make(replicas: Any = (), options: dict[str, Any] | None = None, directory: Path = Path(), **given: Any) -> Any:
    """The changes of these replicas. given: parts of the server in place of those that do nothing."""
    server = SimpleNamespace(log=lambda level, text: None, offload=offload, make_poller=lambda: None)
    requests = SimpleNamespace(routes=SimpleNamespace(fleet=SimpleNamespace(queued_seconds=0.0)))
    observer = SimpleNamespace(goodput=SimpleNamespace(counts=Counter()))
    names = ("questions", "programs", "adapters", "tenants", "images", "ray")
    parts: Any = {"server": server, "requests": requests, "observer": observer, **dict.fromkeys(names)} | given
    return EngineChanges(config=config.make(**(options or {})), directory=directory, replicas=replicas, **parts)


def test_weights_with_another_image_processor_are_refused(tmp_path: Path) -> None:
    def write(name: str, mean: float, **options: Any) -> Path:
        (path := tmp_path / name).mkdir()
        config = {"model_type": "llava", "vision_config": {}, "image_token_index": 7} | options
        (path / "config.json").write_text(json.dumps(config))
        (path / "tokenizer.json").write_text("{}")
        (path / "preprocessor_config.json").write_text(json.dumps({"image_mean": [mean] * 3}))
        return path

    old, same = write("old", 0.5), write("same", 0.5)
    spec = image_spec(old, json.loads((old / "config.json").read_text()))
    assert isinstance(spec, ImageSpec)
    images = Images(old, spec, str)
    changes = make(SimpleNamespace(model=""), directory=old, images=images)
    for other in (write("mean", 0.4), write("mark", 0.5, image_token_index=8), write("text", 0.5, vision_config=None)):
        with pytest.raises(ConfigError, match=f"{other} uses a different image processor from old"):
            changes._find_weights(str(other))
    assert changes._find_weights(str(same)) == same
    changes.end_roll(SimpleNamespace(directory=same, name="same", model=str(same), then=lambda error: None))
    assert changes.name == "same"
    assert msgspec.msgpack.decode(images._helper.hello, type=ProcessStart).directory == str(same)


def test_the_model_keeps_its_name_when_a_link_to_it_changes(tmp_path: Path) -> None:
    """The link names the next model before a change of weights, or without one."""
    link = tmp_path / "current"
    link.symlink_to(tmp_path / "v1")
    replica: Any = SimpleNamespace(is_open=True, is_ready=True, is_rolled=False, weights=b"v1", is_empty=False)
    requests: Any = SimpleNamespace(routes=SimpleNamespace(weights=b"v1"), vacate=lambda one: None)
    replicas: Any = SimpleNamespace(model="")
    changes = make(replicas, directory=link)
    link.unlink()
    link.symlink_to(tmp_path / "v2")
    assert changes.name == "v1"
    roll = WeightsRoll(changes, [replica, replica], requests, link, "", lambda error: None)
    link.unlink()
    link.symlink_to(tmp_path / "v3")
    changes.end_roll(roll)
    assert changes.name == "v2"


def test_engine_gets_an_error_for_an_image_on_which_the_server_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(images: Images, digest: bytes) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(Images, "pixels", fail)
    changes = make(images=Images(tmp_path, ImageSpec("qwen", 7, 7), str))
    sent: list[wire.ImagePixels] = []
    replica: Any = SimpleNamespace(name="0", link=SimpleNamespace(pid=1, send=sent.append))
    changes.handle(replica, wire.WantImages((b"a", b"b")))
    assert [one.image for one in sent] == [b"a", b"b"]
    assert all("the server failed on the image: MemoryError('no room')" in one.error for one in sent)
    assert "MemoryError: no room" in capsys.readouterr().err


def test_engine_for_prompts_is_the_last_to_be_removed_by_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no requests of its own, so by its load it would be the first."""
    monkeypatch.setattr(LoadScaler, "decide", lambda *_: -1)
    drained: list[str] = []

    class Engines(list[Any]):
        drained = ()

        def drain(self, name: str, then: Any) -> None:
            drained.append(name)

    common = {"is_open": True, "is_ready": True}
    engines = Engines(SimpleNamespace(name=str(k), is_prefill=k == 0, n_running=k, **common) for k in range(2))
    changes = make(engines, {"replicas": 2, "max_replicas": 2})
    changes.scale()
    assert drained == ["1"]
    del engines[1]
    changes.scale()
    assert drained == ["1", "0"]


def test_engine_that_was_added_may_take_the_place_of_a_lost_one() -> None:
    """Otherwise its `add` is never answered, and counts for ever as an engine that will come."""
    replica = ReplicaProcess("0", RemoteLink(lambda host, frames: None, config.make, 1.0))
    answers: list[str] = []
    with closing(replica.link):
        changes = make([replica], ray=SimpleNamespace(add=lambda: None))
        changes.change(wire.Ask(0, "add"), answers.append)
        assert changes.host_joined("host") is replica.link
        replica.settle()  # it is ready
    assert answers == [""]
