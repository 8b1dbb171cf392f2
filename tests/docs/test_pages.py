"""The examples of docs/ run and print the shown output, and the reference is up to date."""

from __future__ import annotations

import re
import types
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

import banyan as bn

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(path.name for path in (ROOT / "docs").glob("*.md"))


@pytest.fixture(scope="session")
def refresh(module_at: Callable[[Path], ModuleType]) -> ModuleType:
    return module_at(ROOT / "docs/refresh.py")


@pytest.fixture(scope="session")
def reference(module_at: Callable[[Path], ModuleType]) -> ModuleType:
    return module_at(ROOT / "docs/reference.py")


@pytest.mark.parametrize("page", ["language.md", "migrating-from-sglang.md"])
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
    for name in ("language.md", "migrating-from-sglang.md"):
        text = (ROOT / "docs" / name).read_text()
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


def test_reference_has_every_public_name_once(reference: ModuleType) -> None:
    names = [name for names in reference.grouped().values() for name in names]
    assert sorted(names) == sorted(bn.__all__)
    assert "Others" not in reference.grouped(), "add them to GROUPS"


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


@pytest.mark.parametrize("page", PAGES)
def test_links_of_a_page_exist(page: str) -> None:
    text = (ROOT / "docs" / page).read_text()
    targets = re.findall(r"\]\(([^)#:]+)\)", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    assert not [target for target in targets if not (ROOT / "docs" / target).exists()]
