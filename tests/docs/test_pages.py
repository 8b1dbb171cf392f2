"""The pages of docs/ say what happens: their Python runs and prints what they show; the reference is of today."""

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
def test_every_example_runs_and_prints_what_is_shown(refresh: ModuleType, page: str) -> None:
    path = ROOT / "docs" / page
    assert str(path.relative_to(ROOT)) in refresh.PAGES
    try:
        for block, printed in refresh.played(path):
            where = f"{page}:{block.line}"
            assert printed == "" or block.output is not None, f"{where} prints, and the page does not show it"
            if block.output is not None and not block.is_example:
                assert block.output.rstrip() == printed, f"{where}: `make readme` writes what it prints now"
            elif block.output is not None:
                assert block.output.strip(), f"{where}: the page shows nothing of what it may print"
    finally:
        bn.set_default_backend(None)


def test_a_page_has_no_other_python(refresh: ModuleType) -> None:
    for name in ("language.md", "migrating-from-sglang.md"):
        text = (ROOT / "docs" / name).read_text()
        assert text.count("```python") == len(refresh.blocks(text))
        assert text.count("```text") == sum(block.output is not None for block in refresh.blocks(text))


def test_a_block_that_is_wrong_is_found(refresh: ModuleType, tmp_path: Path) -> None:
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


def test_the_reference_is_up_to_date(reference: ModuleType) -> None:
    assert reference.PAGE.read_text() == reference.page(), "run `python docs/reference.py`"


def test_every_public_name_stands_in_it_once(reference: ModuleType) -> None:
    names = [name for names in reference.grouped().values() for name in names]
    assert sorted(names) == sorted(bn.__all__)
    assert "Others" not in reference.grouped(), "name them in GROUPS"


@pytest.mark.parametrize("name", bn.__all__)
def test_every_public_name_has_a_docstring(reference: ModuleType, name: str) -> None:
    thing = getattr(bn, name)
    assert not isinstance(thing, types.ModuleType), "a module of the same name hides it"
    if isinstance(thing, type) or callable(thing):
        assert reference.documented(thing) or issubclass(thing, Exception)
    if isinstance(thing, type) and not issubclass(thing, Exception):
        without = [
            method
            for method, value in reference.members(thing)
            if not (value.fget if isinstance(value, property) else getattr(value, "__func__", value)).__doc__
            and not reference.shared_doc(method)
        ]
        assert not without
    if not callable(thing):
        assert reference.attribute_docs(__import__("sys").modules[bn._HOME[name]]).get(name) or type(thing).__doc__


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


def test_the_migration_page_knows_every_name_of_sglang() -> None:
    page = (ROOT / "docs/migrating-from-sglang.md").read_text()
    named = set(re.findall(r"`(\w+)`", page))
    assert set(SGLANG) <= named
    assert set(SGLANG) <= set(bn.__all__)
    for method in METHODS:
        assert re.search(rf"[`.]{method}\b", page), method


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    text = (ROOT / "docs" / page).read_text()
    targets = re.findall(r"\]\(([^)#:]+)\)", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    assert not [target for target in targets if not (ROOT / "docs" / target).exists()]
