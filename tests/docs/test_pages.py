"""The examples of docs/ run and print the shown output, and the reference is up to date."""

from __future__ import annotations

import gc
import inspect
import re
import shlex
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import msgspec
import pytest
from tiny_images import MODELS as IMAGE_MODELS

import banyan as bn
from banyan.cli import main
from banyan.cli.other_servers import hint
from banyan.runtime.config import Config
from banyan.runtime.model.families import FAMILIES
from banyan.runtime.server.telemetry.metrics import Metrics
from forms import in_short

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(path.name for path in (ROOT / "docs").glob("*.md"))


@pytest.fixture(scope="session")
def refresh(module_at: Callable[[Path], ModuleType]) -> ModuleType:
    return module_at(ROOT / "docs/refresh.py")


@pytest.fixture
def reference(module_at: Callable[[Path], ModuleType]) -> Iterator[ModuleType]:
    """Without garbage collection: CPython 3.11's `ast.parse` fails with "AST constructor recursion depth mismatch" if a
    finaliser that runs in it parses code too, as the formatting of its traceback does."""
    gc.disable()
    yield module_at(ROOT / "docs/reference.py")
    gc.enable()


@pytest.mark.parametrize(
    "page",
    in_short(
        ["deployment.md", "migrating-from-sglang.md", "migrating-from-vllm.md"],
        [
            *("deployment.md", "language.md", "migrating-from-guidance-and-outlines.md", "migrating-from-sglang.md"),
            "migrating-from-vllm.md",
        ],
    ),
)
@pytest.mark.timeout(300)
def test_examples_of_a_page_print_the_shown_output(refresh: ModuleType, page: str) -> None:
    path = ROOT / "docs" / page
    assert str(path.relative_to(ROOT)) in refresh.PAGES
    try:
        for block, printed in refresh.played(path):
            location = f"{page}:{block.line}"
            assert printed == "" or block.output is not None, f"{location} prints, but the page shows no output"
            if block.output is not None and not block.is_example:
                assert block.output.rstrip() == printed, f"{location}: `make readme` updates the output"
            elif block.output is not None:
                assert block.output.strip(), f"{location}: the page shows no example of its output"
    finally:
        bn.set_default_backend(None)


def test_every_python_block_of_a_page_is_tested(refresh: ModuleType) -> None:
    for name in refresh.PAGES:
        text = (ROOT / name).read_text()
        assert text.count("```python") == len(refresh.blocks(text))
        assert text.count("```text") == sum(block.output is not None for block in refresh.blocks(text))


def test_wrong_output_and_exceptions_of_a_block_are_found(refresh: ModuleType, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A page\n\n```python\nprint(1 + 1)\n```\n```text\n3\n```\n\n```python\n1 / 0\n```\n")
    played = refresh.played(page)
    block, printed = next(played)
    assert (block.line, block.output, printed) == (4, "3\n", "2")
    with pytest.raises(ZeroDivisionError) as raised:
        next(played)
    last = raised.traceback[-1]
    assert (str(last.path), last.lineno + 1) == (str(page), 11)
    page.write_text(page.read_text().replace("1 / 0", "pass"))
    refresh.refresh(page)
    assert "```text\n2\n```" in page.read_text()


# ---- the reference -------------------------------------------------------------------------------------------------


def test_reference_is_up_to_date(reference: ModuleType) -> None:
    assert reference.PAGE.read_text() == reference.page(), "run `python docs/reference.py`"


def test_signature_shows_no_part_of_an_object(reference: ModuleType) -> None:
    assert reference.signature("Mock", bn.Mock) == "Mock(script='', *, chat=..., latency=0.0, refuses=('image',))"


def test_reference_has_every_public_name_once(reference: ModuleType) -> None:
    names = [name for names in reference.grouped().values() for name in names]
    assert sorted(names) == sorted(bn.__all__)
    assert "Others" not in reference.grouped(), "add them to GROUPS"


def test_language_page_names_each_kind_of_program_error() -> None:
    (row,) = re.findall(r"^\| `ProgramError` \|.*", (ROOT / "docs/language.md").read_text(), re.MULTILINE)
    kinds = (bn.ProgramError, *bn.ProgramError.__subclasses__())
    assert set(re.findall(r"`(\w+)`", row)) == {kind.__name__ for kind in kinds}


def test_reference_has_the_default_of_serve_where_it_differs(reference: ModuleType) -> None:
    assert "| `log` | `quiet`; `banyan serve`: `info` |" in reference.PAGE.read_text()


def test_reference_has_the_options_of_the_http_process(reference: ModuleType) -> None:
    rows = re.findall(r"^\| `(--\S+)` \| (\S+) \| (.*) \|$", reference.PAGE.read_text(), re.MULTILINE)
    assert [name for name, _, _ in rows] == [flag for flag, _, _ in main._HTTP_FLAGS]
    assert {name: default for name, default, _ in rows} == {
        "--http": "none", "--http-keys": "none", "--http-isolate": "`key`", "--http-cors": "none",
        "--http-models": "none",
    }  # fmt: skip


UNITS = re.compile(
    r"(?i)tokens?|bytes|memory|disk|seconds?|number|maximum|budget|probability|share|logit|factor|requests|threads|slots|"
    r"integer|-100 to 100|power of two|time limit"
)


def test_every_option_has_a_description_a_unit_and_a_default(reference: ModuleType) -> None:
    rows = re.findall(r"^\| `(\w+)` \| (`.+?`|none) \| (.*) \|$", reference.PAGE.read_text(), re.MULTILINE)
    names = [name for name, _, _ in rows]
    assert names == [*bn.Options.__struct_fields__, *Config.__struct_fields__]
    assert [name for name, _, text in rows if len(text) < 20] == [], "no description"
    fields = {field.name: str(field.type) for kind in (bn.Options, Config) for field in msgspec.structs.fields(kind)}
    numbers = {name for name, kind in fields.items() if re.search(r"\b(int|float)\b", kind)}
    sizes = {"kv_memory", "host_memory", "durable_bytes"}
    assert [name for name, _, text in rows if name in numbers | sizes and not UNITS.search(text)] == []


@pytest.mark.parametrize("function", [bn.gen, bn.select, bn.Program.run_batch, bn.Program.run_batch_async])
def test_every_parameter_is_described(reference: ModuleType, function: Callable[..., object]) -> None:
    text = function.__doc__ or ""
    if function is bn.Program.run_batch_async:
        text += bn.Program.run_batch.__doc__ or ""
    known = {*bn.Options.__struct_fields__, "self", "name", "kwargs", "opts", "batch_kwargs"}
    parameters = inspect.signature(function).parameters.keys() - known
    assert [one for one in parameters if not re.search(rf"\b{one}\b", text)] == []


# ---- the other pages -----------------------------------------------------------------------------------------------


def test_tables_of_families_are_what_the_tests_of_models_test() -> None:
    tables = re.findall(r"\|---\|.*\n((?:\|.*\n)+)", (ROOT / "docs/models.md").read_text())
    native, others, refused, latent, recurrent = tables[:5]
    images = next(table for table in tables if table.startswith("| `gemma3` |"))
    assert sorted(re.findall(r"^\| `(\w+)`", images, re.MULTILINE)) == sorted(IMAGE_MODELS)
    source = (ROOT / "tests/runtime/model/test_hf.py").read_text()
    assert set(re.findall(r"^\| `(\w+)`", native, re.MULTILINE)) == set(FAMILIES)
    assert re.findall(r"^\| `(\w+)`", others, re.MULTILINE) == re.findall(r'^    "(\w+)": \[', source, re.MULTILINE)
    for table, tests in ((latent, "test_latents.py"), (recurrent, "test_recurrent.py")):
        source_of_table = (ROOT / "tests/runtime/engine" / tests).read_text()
        tested = re.findall(r'^    "(\w+)": "(?:long)?",', source_of_table, re.MULTILINE)
        assert re.findall(r"^\| `(\w+)`", table, re.MULTILINE) == tested
    listed = re.findall(r"`([\w-]+)`", " ".join(row.split("|")[1] for row in refused.splitlines()))
    assert set(listed) == set(re.findall(r'^        \("([\w-]+)", .*"\),', source, re.MULTILINE))


COMMANDS = [
    (path.name, line)
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
    for block in re.findall(r"```\n(.*?)```", path.read_text(), re.DOTALL)
    for line in re.findall(r"^(?:until |\w+=\S+ |\S*/)?banyan (.*?)(?:;.*| *#.*)?$", block, re.MULTILINE)
]


@pytest.mark.parametrize(("page", "line"), COMMANDS)
def test_commands_of_a_page_exist(page: str, line: str) -> None:
    main._parser().parse_args(shlex.split(line))  # SystemExit: no such command or flag


def test_metrics_of_the_deployment_page_exist() -> None:
    page = (ROOT / "docs/deployment.md").read_text()
    named = set(re.findall(r"`(banyan_\w+)[`{]", page))
    metrics = Metrics("0")
    try:
        counters = dict.fromkeys(("slo_requests", "slo_good_requests"), 1)
        replicas = {"0": {"starts": 1, "engine": {}}}
        metrics.update({"engine": {}, "cache": {}, "server": {"engine_starts": 1, **counters}, "replicas": replicas})
        there = {family.name for family in metrics._registry.collect()}
    finally:
        metrics.close()
    assert named - there == {"banyan_http_responses"}, "this one is of the HTTP process"
    described = named | {f"banyan_{kind}_{what}" for kind in ("slo", "good") for what in ("tokens", "programs")}
    assert there - described == {"banyan_requests", "banyan_steps_ahead", "banyan_waits"}, "not on the page"


@pytest.mark.parametrize("name", bn.__all__)
def test_every_public_name_has_a_docstring(reference: ModuleType, name: str) -> None:
    value = getattr(bn, name)
    assert not isinstance(value, types.ModuleType), "hidden by a module of the same name"
    if isinstance(value, type) or callable(value):
        assert reference.documented(value) or issubclass(value, Exception)
    if isinstance(value, type) and not issubclass(value, Exception):
        undocumented = [
            method
            for method, member in reference.members(value)
            if not (member.fget if isinstance(member, property) else getattr(member, "__func__", member)).__doc__
            and not reference.shared_doc(method)
        ]
        assert not undocumented
    if not callable(value):
        assert reference.attribute_docs(__import__("sys").modules[bn._HOME[name]]).get(name) or type(value).__doc__


# ---- the migration page --------------------------------------------------------------------------------------------

SGLANG = (
    *("function", "gen", "gen_int", "gen_string", "select", "system", "user", "assistant", "image", "video"),
    *("separate_reasoning", "set_default_backend", "flush_cache", "get_server_info", "global_config", "Runtime"),
    *("RuntimeEndpoint", "OpenAI", "Anthropic", "LiteLLM", "VertexAI", "Crusoe", "Engine", "token_length_normalized"),
    *("greedy_token_selection", "unconditional_likelihood_normalized"),
)


METHODS = (
    *("run", "run_batch", "bind", "trace", "cache", "text_iter", "text_async_iter", "get_meta_info", "fork", "copy"),
    *("join", "var_scope", "ret_value", "messages", "sync", "error", "text", "get_var", "set_var"),
)


def test_migration_page_has_every_name_of_sglang() -> None:
    page = (ROOT / "docs/migrating-from-sglang.md").read_text()
    named = set(re.findall(r"`(\w+)`", page))
    assert set(SGLANG) <= named
    assert set(SGLANG) <= set(bn.__all__)
    for method in METHODS:
        assert re.search(rf"[`.]{method}\b", page), method


def test_migration_page_names_the_flags_that_the_command_names() -> None:
    page = (ROOT / "docs/migrating-from-vllm.md").read_text().split("## Flags of the server", 1)[1].split("\n## ")[0]
    commands = next(one.choices for one in main._parser()._actions if one.metavar == "COMMAND")
    assert commands
    known = {flag for action in commands["serve"]._actions for flag in action.option_strings}
    rows = [re.findall(r"--[\w-]+", row) for row in re.findall(r"^\| *`--.*", page, re.MULTILINE)]
    for flags in rows:
        ours = [flag for flag in flags if flag in known] or ["out"]
        hints = [hint(flag, known) for flag in flags if flag not in known]
        assert hints
        assert all(any(f" {one}" in text for one in ours) for text in hints), flags


@pytest.mark.parametrize("page", PAGES)
def test_links_of_a_page_exist(page: str) -> None:
    text = (ROOT / "docs" / page).read_text()
    targets = re.findall(r"\]\(([^)#:]+)\)", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    assert not [target for target in targets if not (ROOT / "docs" / target).exists()]
