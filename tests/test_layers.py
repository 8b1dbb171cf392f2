"""The law of the house: which room may import what, inside functions too, and nobody in a circle."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent


class Room(NamedTuple):
    """What a module may import. ours: modules or packages of ours (itself and below it go without saying);
    others: top-level names beyond the standard library."""

    ours: tuple[str, ...] = ()
    others: tuple[str, ...] = ()


RUNTIME = "banyan.runtime"
PROTOCOL = f"{RUNTIME}.protocol"
CORE = (
    *(f"{RUNTIME}.{name}" for name in ("config", "errors", "future", "reasoning", "waiting")),
    *(f"{PROTOCOL}.{name}" for name in ("op_template", "wire")),
)
"""What both ends of a socket share."""
EXECUTOR = f"{RUNTIME}.executor"
PUBLIC = (*CORE, EXECUTOR, f"{RUNTIME}.client", f"{RUNTIME}.launch")
"""What the language may import of the runtime."""

SCHEDULING = f"{RUNTIME}.engine.scheduling"
SPECULATION = f"{RUNTIME}.engine.speculation"
MODEL_DRAFTERS = tuple(f"{SPECULATION}.{name}" for name in ("drafters", "heads", "model"))
"""Drafters that run a model."""

# The longest prefix of a module's name decides.
LAW = {
    "banyan": Room((*PUBLIC, "banyan.execution.progress", "banyan.lang.output_types"), ("msgspec",)),
    # Loaded when a type needs outlines.
    "banyan.lang.outlines_terms": Room(PUBLIC, ("jsonschema", "msgspec", "outlines")),
    # Loaded at the first typed gen.
    "banyan.lang.output_types": Room((*PUBLIC, "banyan.lang.outlines_terms"), ("msgspec", "pydantic", "pydantic_core")),
    # Loaded when a progress bar is asked for.
    "banyan.execution.progress": Room(PUBLIC, ("rich",)),
    "banyan.cli": Room((*PUBLIC, "banyan"), ("msgspec", "rich")),
    RUNTIME: Room(),
    f"{RUNTIME}.config": Room((f"{RUNTIME}.errors",), ("msgspec",)),
    f"{RUNTIME}.errors": Room(),
    f"{RUNTIME}.future": Room((f"{RUNTIME}.waiting",)),
    f"{RUNTIME}.launch": Room((*CORE, f"{PROTOCOL}.ipc", f"{RUNTIME}.client"), ("msgspec", "psutil", "zmq")),
    f"{RUNTIME}.reasoning": Room((f"{PROTOCOL}.wire",)),
    PROTOCOL: Room(CORE, ("msgspec",)),
    f"{PROTOCOL}.wire": Room((), ("msgspec",)),
    f"{PROTOCOL}.ipc": Room(CORE, ("msgspec", "zmq")),
    f"{PROTOCOL}.tcp_auth": Room((*CORE, f"{PROTOCOL}.ipc"), ("zmq",)),
    f"{RUNTIME}.client": Room((*CORE, PROTOCOL), ("msgspec",)),
    f"{RUNTIME}.client.client": Room((*CORE, PROTOCOL, f"{RUNTIME}.client"), ("msgspec", "zmq")),
    # Both the server and the user's process execute programs: no torch, zmq, tokenizers or jinja2.
    EXECUTOR: Room(CORE, ("msgspec",)),
    f"{RUNTIME}.constraint": Room(
        CORE, ("jsonschema", "jsonschema_specifications", "llguidance", "msgspec", "numpy", "outlines_core")
    ),
    f"{RUNTIME}.server": Room(
        (*CORE, EXECUTOR, PROTOCOL, f"{RUNTIME}.constraint.limits", f"{RUNTIME}.launch"),
        ("jinja2", "msgspec", "psutil", "re2", "tokenizers", "zmq"),
    ),
    # A process of its own.
    f"{RUNTIME}.server.constraints.preflight": Room(
        (*CORE, f"{RUNTIME}.constraint", f"{RUNTIME}.launch"), ("msgspec", "numpy", "zmq")
    ),
    # Scheduling runs without a device, and so is tested without one.
    SCHEDULING: Room((*CORE, f"{RUNTIME}.constraint.guide", SPECULATION, "banyan.radix_cache")),
    # Drafting runs without a device too.
    SPECULATION: Room((f"{RUNTIME}.config", f"{SCHEDULING}.request"), ("numpy",)),
    **dict.fromkeys(
        MODEL_DRAFTERS,
        Room(
            (*CORE, f"{RUNTIME}.engine", f"{RUNTIME}.model", "banyan.radix_cache", "banyan.kernels"), ("numpy", "torch")
        ),
    ),
    f"{RUNTIME}.engine": Room(
        (*CORE, PROTOCOL, f"{RUNTIME}.constraint", f"{RUNTIME}.model", "banyan.radix_cache", "banyan.kernels"),
        ("msgspec", "numpy", "psutil", "torch", "zmq"),
    ),
    f"{RUNTIME}.model": Room(
        (*CORE, "banyan.kernels"), ("huggingface_hub", "msgspec", "numpy", "rich", "safetensors", "torch")
    ),
    f"{RUNTIME}.model.hf": Room(
        (*CORE, f"{RUNTIME}.model", "banyan.kernels"), ("msgspec", "numpy", "torch", "transformers")
    ),
    f"{RUNTIME}.model.pocket": Room(),
    "banyan.radix_cache": Room((), ("numpy",)),
    "banyan.kernels": Room((), ("numpy", "torch", "triton")),
}

# module -> import -> why it may, all the same.
EXCEPTIONS = {
    "banyan.cli.main": {f"{RUNTIME}.protocol.tcp_auth": "`banyan keys` makes them"},
    "banyan.backends.runtime": {"transformers": "Runtime.get_tokenizer gives the tokenizer that transformers has"},
    "banyan.backends.openai.backend": {"openai": "an extra, loaded where that backend is made"},
    "banyan.cli.kernels": {"banyan.kernels.dispatch_report": "`banyan kernels` tells what computes here: torch knows"},
    "banyan.cli.models": {
        f"{RUNTIME}.model.families": "`banyan models` lists what the native decoder runs; no torch in it",
        f"{RUNTIME}.model.spec": "`banyan models` reads headers of local models; no torch in it",
    },
    f"{RUNTIME}.server.worker": {f"{RUNTIME}.model.spec": "a hub id becomes a directory before there is an engine"},
    f"{RUNTIME}.server.telemetry.traces": dict.fromkeys(
        (
            "opentelemetry",
            *(f"opentelemetry.sdk.{name}" for name in ("resources", "trace", "trace.export")),
            "opentelemetry.exporter.otlp.proto.http.trace_exporter",
        ),
        "an extra, loaded where --traces asks for it",
    ),
    f"{RUNTIME}.server.telemetry.metrics": {"prometheus_client": "an extra, loaded where --metrics asks for it"},
    f"{RUNTIME}.server.text.tokenizer": {
        "transformers": "formats before tokenizer.json need its converters, loaded then"
    },
}


class Import(NamedTuple):
    target: str
    is_typing: bool  # under `if TYPE_CHECKING:`
    where: str


@cache
def modules() -> dict[str, Path]:
    """Every module of the package, through pyproject's package-dir map."""
    folders = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-dir"]
    found = {}
    for package, folder in folders.items():
        for path in sorted((ROOT / folder).glob("*.py")):
            found[package if path.stem == "__init__" else f"{package}.{path.stem}"] = path
    return found


@cache
def imports(path: Path) -> list[Import]:
    """All imports of a file; `from package import module` names the module."""
    found: list[Import] = []
    tree = ast.parse(path.read_text())
    guarded = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for child in node.body
        for inner in ast.walk(child)
    }
    for node in ast.walk(tree):
        where = f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{where}: imports are absolute here"
            assert node.module
            full = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name in modules() else node.module for name in full]
        else:
            continue
        found += [Import(name, node in guarded, where) for name in names]
    return found


def is_within(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def room_of(module: str) -> tuple[str, Room]:
    name = max((prefix for prefix in LAW if is_within(module, prefix)), key=len)
    return name, LAW[name]


def is_allowed(module: str, target: str) -> bool:
    name, room = room_of(module)
    if target in EXCEPTIONS.get(module, ()) or target.split(".")[0] in sys.stdlib_module_names:
        return True
    if not is_within(target, "banyan"):
        return target.split(".")[0] in room.others
    # "banyan" as a room is the frontend: its own files, not all that lies below the name.
    is_own = room_of(target)[0] == name if name == "banyan" else is_within(target, name)
    return is_own or any(
        is_within(target, ours) if ours != "banyan" else room_of(target)[0] == ours for ours in room.ours
    )


def test_a_room_imports_only_what_the_law_allows() -> None:
    broken = [
        f"{found.where}: {module} may not import {found.target}"
        for module, path in modules().items()
        for found in imports(path)
        if not is_allowed(module, found.target)
    ]
    assert not broken, "\n".join(broken)


@pytest.mark.parametrize(
    ("module", "target"),
    [
        ("banyan.lang.state", "torch"),
        ("banyan.lang.state", "zmq"),
        ("banyan.lang.state", "banyan.runtime.engine.loop"),
        ("banyan.radix_cache.tree", "torch"),
        ("banyan.radix_cache.tree", "banyan.runtime.protocol.wire"),
        ("banyan.kernels.ops", "banyan.runtime.protocol.wire"),
        ("banyan.runtime.engine.scheduling.scheduler", "torch"),
        ("banyan.runtime.engine.loop", "tokenizers"),
        ("banyan.runtime.server.worker", "banyan.runtime.engine.loop"),
        ("banyan.runtime.server.worker", "torch"),
        ("banyan.runtime.server.worker", "banyan"),
    ],
)
def test_the_law_forbids(module: str, target: str) -> None:
    assert not is_allowed(module, target)


def test_every_exception_is_used() -> None:
    used = {(module, found.target) for module, path in modules().items() for found in imports(path)}
    assert {(module, target) for module, targets in EXCEPTIONS.items() for target in targets} <= used


def test_no_module_imports_itself_by_way_of_others() -> None:
    graph = {
        module: {found.target for found in imports(path) if found.target in modules() and not found.is_typing}
        - {module}
        for module, path in modules().items()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as e:
        pytest.fail(" -> ".join(reversed(e.args[1])))


@pytest.mark.parametrize("folder", ["examples", "benchmarks"])
def test_examples_and_benchmarks_use_public_names(folder: str) -> None:
    for path in sorted((ROOT / folder).rglob("*.py")):
        private = [
            f"{path.relative_to(ROOT)}:{node.lineno}: {node.value.id}.{node.attr}"
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id in ("bn", "banyan")
            and node.attr.startswith("_")
        ]
        deep = [i.where for i in imports(path) if is_within(i.target, "banyan") and i.target != "banyan"]
        assert not private
        assert folder == "benchmarks" or not deep, f"an example needs `import banyan` and no more: {deep}"


def in_a_fresh_process(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd="/", timeout=60)
    return done.stdout.strip()


HEAVY = ("torch", "triton", "transformers", "outlines", "numpy", "ray", "rich")


def test_the_door_is_light() -> None:
    code = f"""
import sys, time
start = time.process_time()
import banyan
for name in banyan.__all__: getattr(banyan, name)
spent = time.process_time() - start
print(spent, *(name for name in {HEAVY} if name in sys.modules))
"""
    best = min((in_a_fresh_process(code).split() for _ in range(3)), key=lambda words: float(words[0]))
    assert best[1:] == [], "heavy packages came in with `import banyan`"
    assert float(best[0]) < 0.3, "`import banyan` must cost less than 300 ms of CPU"


@pytest.mark.parametrize("room", ["banyan.radix_cache", "banyan.runtime.protocol.wire", "banyan.kernels.ops"])
def test_a_room_loads_no_frontend_file(room: str) -> None:
    folder = ROOT / "frontend"
    frontend = sorted(name for name, path in modules().items() if path.is_relative_to(folder) and name != "banyan")
    code = f"import sys, {room}; print(*(name for name in {frontend} if name in sys.modules))"
    assert in_a_fresh_process(code) == ""
