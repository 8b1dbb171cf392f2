"""Modules import only what the rules for their package allow, also inside functions, and there are no import cycles."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

from forms import in_short

ROOT = Path(__file__).resolve().parent.parent


class Rule(NamedTuple):
    """What a module may import besides its own package and the standard library.

    ours: modules or packages of this project; others: top-level names of third-party packages.
    """

    ours: tuple[str, ...] = ()
    others: tuple[str, ...] = ()


RUNTIME = "banyan.runtime"
PROTOCOL = f"{RUNTIME}.protocol"
CORE = (
    *(
        f"{RUNTIME}.{name}"
        for name in ("config", "errors", "future", "malloc", "reasoning", "server_metrics", "waiting")
    ),
    *(
        f"{PROTOCOL}.{name}"
        for name in ("http_frames", "limits", "op_template", "reasoning_formats", "roles", "text_forms", "wire")
    ),
)
"""Shared by both ends of a socket."""
EXECUTOR = f"{RUNTIME}.executor"
PUBLIC = (*CORE, EXECUTOR, f"{RUNTIME}.client", f"{RUNTIME}.launch")
"""The parts of the runtime that the language may import."""

SCHEDULING = f"{RUNTIME}.engine.scheduling"
SPECULATION = f"{RUNTIME}.engine.speculation"
MODEL_DRAFTERS = tuple(f"{SPECULATION}.{name}" for name in ("drafters", "heads", "model"))
"""Drafters that run a model."""

# The longest matching prefix of a module's name applies.
RULES = {
    "banyan": Rule(
        (*PUBLIC, "banyan.execution.progress", *(f"banyan.lang.{one}_types" for one in ("json", "output", "pydantic"))),
        ("msgspec",),
    ),
    # Loaded when a type needs outlines.
    "banyan.lang.outlines_terms": Rule(PUBLIC, ("jsonschema", "msgspec", "outlines")),
    # Loaded at the first typed gen.
    "banyan.lang.output_types": Rule(
        (
            *PUBLIC,
            *(
                "banyan.lang.fstring",
                "banyan.lang.json_types",
                "banyan.lang.outlines_terms",
                "banyan.lang.schema_check",
            ),
        ),
        ("msgspec", "pydantic_core", "typing_extensions"),
    ),
    "banyan.lang.json_types": Rule((*PUBLIC, "banyan.lang.fstring", "banyan.lang.pydantic_types"), ("msgspec",)),
    # Loaded when a type needs pydantic.
    "banyan.lang.pydantic_types": Rule(PUBLIC, ("annotated_types", "pydantic")),
    # Loaded when a value is validated.
    "banyan.lang.schema_check": Rule(PUBLIC, ("jsonschema", "jsonschema_specifications", "msgspec", "referencing")),
    # Loaded when a progress bar is requested.
    "banyan.execution.progress": Rule((*PUBLIC, "banyan.views.notebook"), ("rich",)),
    "banyan.__main__": Rule(("banyan.cli.main",)),
    "banyan.cli": Rule((*PUBLIC, "banyan"), ("argcomplete", "msgspec", "rich")),
    RUNTIME: Rule(),
    f"{RUNTIME}.config": Rule((f"{RUNTIME}.errors",), ("msgspec",)),
    f"{RUNTIME}.errors": Rule(),
    f"{RUNTIME}.future": Rule((f"{RUNTIME}.waiting",)),
    f"{RUNTIME}.launch": Rule((*CORE, f"{PROTOCOL}.ipc", f"{RUNTIME}.client"), ("msgspec", "psutil", "zmq")),
    f"{RUNTIME}.reasoning": Rule((f"{PROTOCOL}.wire",)),
    f"{RUNTIME}.server_metrics": Rule(),
    PROTOCOL: Rule(CORE, ("msgspec",)),
    f"{PROTOCOL}.limits": Rule(),
    f"{PROTOCOL}.text_forms": Rule(),
    f"{PROTOCOL}.wire": Rule((f"{PROTOCOL}.limits",), ("msgspec",)),
    f"{PROTOCOL}.ipc": Rule(CORE, ("msgspec", "zmq")),
    f"{PROTOCOL}.tcp_auth": Rule((*CORE, f"{PROTOCOL}.ipc"), ("zmq",)),
    f"{RUNTIME}.client": Rule((*CORE, PROTOCOL), ("msgspec",)),
    f"{RUNTIME}.client.client": Rule((*CORE, PROTOCOL, f"{RUNTIME}.client"), ("msgspec", "zmq")),
    f"{RUNTIME}.client.http_transport": Rule((*CORE, PROTOCOL), ("zmq",)),
    # Both the server and the user's process execute programs: no torch, zmq, tokenizers or jinja2.
    EXECUTOR: Rule(CORE, ("msgspec",)),
    f"{RUNTIME}.constraint": Rule(
        CORE, ("jsonschema", "jsonschema_specifications", "llguidance", "msgspec", "numpy", "outlines_core")
    ),
    f"{RUNTIME}.server": Rule(
        (
            *CORE,
            EXECUTOR,
            PROTOCOL,
            f"{RUNTIME}.constraint.limits",
            f"{RUNTIME}.fleet",
            f"{RUNTIME}.launch",
            "banyan.radix_cache.digests",
        ),
        ("jinja2", "msgspec", "psutil", "re2", "tokenizers", "zmq"),
    ),
    # The server and the simulator place programs with the same code: no socket, no clock.
    f"{RUNTIME}.fleet": Rule(("banyan.radix_cache.digests",)),
    # A client of the server, in its own process.
    f"{RUNTIME}.gateway": Rule(
        (*CORE, f"{RUNTIME}.client", f"{RUNTIME}.launch"), ("httptools", "msgspec", "starlette", "uvicorn")
    ),
    # The gateway's connections to the server, which pass messages on.
    f"{RUNTIME}.gateway.programs.sessions": Rule(
        (*CORE, f"{PROTOCOL}.ipc", f"{RUNTIME}.client", f"{RUNTIME}.gateway"), ("zmq",)
    ),
    # Runs in its own process.
    f"{RUNTIME}.server.constraints.preflight": Rule(
        (*CORE, f"{PROTOCOL}.decoders", f"{RUNTIME}.constraint", f"{RUNTIME}.launch"), ("msgspec", "numpy", "zmq")
    ),
    # Runs in its own process.
    f"{RUNTIME}.server.text.image_process": Rule(
        (*CORE, f"{RUNTIME}.model.images", f"{RUNTIME}.server.text.helper_process"), ("PIL", "msgspec", "transformers")
    ),
    # Scheduling runs, and is tested, without a device.
    SCHEDULING: Rule((*CORE, f"{RUNTIME}.constraint.guide", SPECULATION, "banyan.radix_cache"), ("numpy",)),
    # Drafting runs without a device too.
    SPECULATION: Rule((f"{RUNTIME}.config", f"{SCHEDULING}.request"), ("numpy",)),
    **dict.fromkeys(
        MODEL_DRAFTERS,
        Rule(
            (*CORE, f"{RUNTIME}.engine", f"{RUNTIME}.model", "banyan.radix_cache", "banyan.kernels"), ("numpy", "torch")
        ),
    ),
    f"{RUNTIME}.engine": Rule(
        (*CORE, PROTOCOL, f"{RUNTIME}.constraint", f"{RUNTIME}.model", "banyan.radix_cache", "banyan.kernels"),
        ("msgspec", "numpy", "psutil", "torch", "zmq"),
    ),
    f"{RUNTIME}.model": Rule(
        (*CORE, "banyan.kernels"), ("huggingface_hub", "msgspec", "numpy", "rich", "safetensors", "torch")
    ),
    f"{RUNTIME}.model.recurrent": Rule(CORE, ("torch", "transformers")),
    f"{RUNTIME}.model.hf": Rule(
        (*CORE, f"{RUNTIME}.model", "banyan.kernels"), ("msgspec", "numpy", "torch", "transformers")
    ),
    f"{RUNTIME}.model.pocket": Rule(),
    # The server imports a part of it, so no numpy, which takes a third of the CPU time of a server's imports.
    "banyan.radix_cache": Rule(),
    "banyan.kernels": Rule((), ("numpy", "torch", "triton")),
}

# module -> import -> reason for the exception.
EXCEPTIONS = {
    "banyan": {f"{RUNTIME}.engine.capacity": "bn.size; loads torch when it is called"},
    "banyan.cli.size": {f"{RUNTIME}.engine.capacity": "`banyan size` prints what bn.size returns"},
    "banyan.views.notebook": {"IPython.display": "only called by a notebook, which has IPython"},
    "banyan.lang.run_types": {
        "typing_extensions": "defaults of type parameters, which the typing of Python 3.11 lacks"
    },
    "banyan.cli.main": {
        f"{RUNTIME}.protocol.tcp_auth": "`banyan keys` creates them",
        f"{RUNTIME}.server.engine_link.engine_host": "`banyan engine` runs it; without torch",
    },
    "banyan.backends.runtime": {"transformers": "Runtime.get_tokenizer returns the transformers tokenizer"},
    "banyan.backends.openai.backend": {"openai": "an extra, loaded when the backend is created"},
    "banyan.backends.openai.format": {
        "banyan.lang.schema_check": "the references of a schema are checked before a request is sent"
    },
    "banyan.backends.openai.bounds": {"openai": "an extra, loaded when the backend is created"},
    "banyan.tools.mcp": {"mcp": "an extra, loaded by bn.mcp"},
    "banyan.cli.kernels": {
        "banyan.kernels.dispatch_report": "`banyan kernels` reports the kernels in use, which needs torch"
    },
    "banyan.cli.models": {
        f"{RUNTIME}.model.families": "`banyan models` lists the families of the native decoder; without torch",
        f"{RUNTIME}.model.spec": "`banyan models` reads headers of local models; without torch",
    },
    "banyan.cli.quantise": {
        f"{RUNTIME}.model.spec": "`banyan quantise` reads a model",
        f"{RUNTIME}.model.quantised.convert": "writes it in few bits, which needs torch",
        f"{RUNTIME}.model.quantised.rounding": "names the methods",
        f"{RUNTIME}.server.text.tokenizer": "and tokenises a text",
    },
    f"{RUNTIME}.model.quantised.config": {"re2": "a checkpoint brings patterns, which must not take for ever"},
    f"{RUNTIME}.server.engine_link.changes": dict.fromkeys(
        (f"{RUNTIME}.model.spec", f"{RUNTIME}.model.images"), "whether a model can replace another; without torch"
    ),
    f"{RUNTIME}.server.engine_link.ray_launcher": dict.fromkeys(
        ("ray", *(f"ray.{name}" for name in ("exceptions", "util.placement_group", "util.scheduling_strategies"))),
        "an extra; a process of its own, with --ray",
    ),
    f"{RUNTIME}.engine.transfer.nixl": {"nixl._api": "an extra, loaded with --kv-transfer nixl"},
    f"{RUNTIME}.server.worker": {
        f"{RUNTIME}.model.spec": "a hub id is resolved before the engine starts",
        f"{RUNTIME}.model.images": "how the model takes images; without torch",
    },
    f"{RUNTIME}.server.text.encoder": {f"{RUNTIME}.model.gguf.tokenizer": "regexes that GGUF names; without torch"},
    f"{RUNTIME}.server.text.images": {f"{RUNTIME}.model.images": "how the model takes images; without torch"},
    f"{RUNTIME}.server.telemetry.traces": dict.fromkeys(
        (
            "opentelemetry",
            *(f"opentelemetry.sdk.{name}" for name in ("resources", "trace", "trace.export")),
            "opentelemetry.exporter.otlp.proto.http.trace_exporter",
        ),
        "an extra, loaded with --traces",
    ),
    f"{RUNTIME}.server.telemetry.metrics": {"prometheus_client": "an extra, loaded with --metrics"},
    f"{RUNTIME}.server.text.tokenizer": {
        f"{RUNTIME}.model.gguf.model": "a .gguf file holds its tokenizer; without torch",
        "transformers": "converts tokenizer formats older than tokenizer.json; loaded on demand",
    },
}


class Import(NamedTuple):
    target: str
    where: str


@cache
def modules() -> dict[str, Path]:
    """All modules of the package."""
    found = {}
    for room in ("frontend", "runtime", "kernels", "radix_cache"):
        for path in sorted((ROOT / room).rglob("*.py")):
            parts = path.relative_to(ROOT / "frontend" if room == "frontend" else ROOT).with_suffix("").parts
            found[".".join(("banyan", *parts)).removesuffix(".__init__")] = path
    return found


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """All statements below a node. `ast.walk` would visit their expressions too."""
    for part in ("body", "orelse", "handlers", "finalbody", "cases"):
        for child in getattr(node, part, ()):
            yield child
            yield from statements(child)


@cache
def imports(path: Path) -> list[Import]:
    """All imports of a file; `from package import module` counts as the module."""
    found: list[Import] = []
    for node in statements(ast.parse(path.read_text())):
        if not isinstance(node, (ast.Import, ast.ImportFrom)):
            continue
        where = f"{path.relative_to(ROOT)}:{node.lineno}"
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            assert node.level == 0, f"{where}: relative import"
            assert node.module
            full = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name in modules() else node.module for name in full]
        found += [Import(name, where) for name in names]
    return found


def is_within(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def rule_of(module: str) -> tuple[str, Rule]:
    name = max((prefix for prefix in RULES if is_within(module, prefix)), key=len)
    return name, RULES[name]


def is_allowed(module: str, target: str) -> bool:
    name, rule = rule_of(module)
    if target in EXCEPTIONS.get(module, ()) or target.split(".")[0] in sys.stdlib_module_names:
        return True
    if not is_within(target, "banyan"):
        return target.split(".")[0] in rule.others
    # The rule "banyan" covers the frontend's own files, not everything below that name.
    is_own = rule_of(target)[0] == name if name == "banyan" else is_within(target, name)
    return is_own or any(
        is_within(target, ours) if ours != "banyan" else rule_of(target)[0] == ours for ours in rule.ours
    )


def test_modules_import_only_what_the_rules_allow() -> None:
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
def test_rules_forbid_import(module: str, target: str) -> None:
    assert not is_allowed(module, target)


def test_every_exception_is_used() -> None:
    used = {(module, found.target) for module, path in modules().items() for found in imports(path)}
    assert {(module, target) for module, targets in EXCEPTIONS.items() for target in targets} <= used


def test_there_are_no_import_cycles() -> None:
    """Imports inside functions and under `if TYPE_CHECKING:` count: a reader follows those too."""
    graph = {
        module: {found.target for found in imports(path) if found.target in modules()} - {module}
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
        assert folder == "benchmarks" or not deep, f"examples may import only `banyan`: {deep}"


def run_in_new_process(code: str) -> str:
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd="/", timeout=60
    )
    return result.stdout.strip()


HEAVY = ("torch", "triton", "transformers", "outlines", "numpy", "ray", "rich")


def test_import_banyan_loads_few_modules_and_no_heavy_package() -> None:
    """`benchmarks/language.py` measures the time."""
    code = f"""
import sys
import banyan
for name in banyan.__all__: getattr(banyan, name)
print(len(sys.modules), *(name for name in {HEAVY} if name in sys.modules))
"""
    n_modules, *heavy = run_in_new_process(code).split()
    assert not heavy, "`import banyan` loaded heavy packages"
    assert int(n_modules) < 350, "`import banyan` loads modules that it need not"


@pytest.mark.parametrize(
    "module",
    in_short(
        ["banyan.radix_cache", "banyan.runtime.protocol.wire"],
        ["banyan.radix_cache", "banyan.runtime.protocol.wire", "banyan.kernels.ops"],
    ),
)
def test_lower_layers_load_no_frontend_module(module: str) -> None:
    folder = ROOT / "frontend"
    frontend = sorted(name for name, path in modules().items() if path.is_relative_to(folder) and name != "banyan")
    code = f"import sys, {module}; print(*(name for name in {frontend} if name in sys.modules))"
    assert run_in_new_process(code) == ""
