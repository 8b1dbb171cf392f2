"""Repository checks: packages, forbidden code and paths, and untested options."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections import Counter
from functools import cache
from pathlib import Path

import msgspec
import pytest

from banyan.runtime.config import Config
from banyan.runtime.protocol.wire import Sampling

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("frontend", "runtime", "radix_cache", "kernels")


def files(*folders: str) -> list[Path]:
    ignored = ROOT / "training/pocket/work"  # by git too
    found = (path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    return sorted(path for path in found if not path.is_relative_to(ignored))


SOURCES = files(*FOLDERS, "tests", "examples", "benchmarks", "training")


# ---- packages ------------------------------------------------------------------------------------------------------


def test_links_make_the_rooms_one_package() -> None:
    """An editable install puts src/ on sys.path; a folder without __init__.py would be missing in a wheel."""
    links = {
        str(path.relative_to(ROOT)): str(path.resolve().relative_to(ROOT))
        for path in (ROOT / "src").glob("*")
        if path.is_symlink()
    }
    links |= {f"frontend/{room}": str((ROOT / "frontend" / room).resolve().relative_to(ROOT)) for room in FOLDERS[1:]}
    assert links == {"src/banyan": "frontend"} | {f"frontend/{room}": room for room in FOLDERS[1:]}
    with_code = {path.parent for path in files(*FOLDERS)}
    assert [folder for folder in with_code if not (folder / "__init__.py").exists()] == []


def test_repository_root_is_not_on_sys_path() -> None:
    """The folder `kernels` would shadow the Hugging Face package of that name."""
    assert str(ROOT) not in sys.path
    assert "" not in sys.path


@pytest.mark.long
@pytest.mark.timeout(300)
def test_wheel_contains_weights_and_type_marker(tmp_path: Path) -> None:
    source = tmp_path / "source"
    names = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    ).stdout.decode()
    for name in filter(None, names.split("\0")):
        if os.path.lexists(ROOT / name):
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, source / name, follow_symlinks=False)
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), str(source)],
        check=True,
    )
    (wheel,) = tmp_path.glob("banyan-*.whl")
    members = {info.filename: info.file_size for info in zipfile.ZipFile(wheel).infolist()}
    assert "banyan/py.typed" in members
    weights = {name: size for name, size in members.items() if name.endswith(".safetensors")}
    assert len(weights) == 2, "the pocket model and its draft model"
    assert sum(weights.values()) <= 16 << 20
    assert not [name for name in members if name.split("/")[0] not in ("banyan", f"banyan-{version()}.dist-info")]
    code = {str(path.relative_to(ROOT)) for path in files(*FOLDERS)}
    assert len([name for name in members if name.endswith(".py")]) == len(code)


def version() -> str:
    return str(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"])


def test_changelog_has_the_current_version() -> None:
    assert re.search(rf"^## {re.escape(version())}\b", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)


# ---- names and folders ---------------------------------------------------------------------------------------------

MAX_FILES = 20
"""Maximum number of files in one folder of the product."""


def classes(path: Path) -> list[str]:
    """The names of the classes that a file defines."""
    return re.findall(r"^ *class (\w+)[\[(:]", path.read_text(), re.MULTILINE)


def test_no_class_name_is_used_twice() -> None:
    where: dict[str, list[str]] = {}
    for path in files(*FOLDERS):
        for name in classes(path):
            where.setdefault(name, []).append(str(path.relative_to(ROOT)))
    assert {name: found for name, found in where.items() if len(found) > 1} == {}


def test_no_folder_has_too_many_files() -> None:
    counts = Counter(path.parent.relative_to(ROOT) for path in files(*FOLDERS))
    assert {str(folder): n for folder, n in counts.items() if n > MAX_FILES} == {}


def glossary() -> list[tuple[str, str, str, str]]:
    """Rows of the glossary in docs/architecture.md: term, meaning, where it lives, words that it replaces."""
    page = (ROOT / "docs/architecture.md").read_text().split("## Glossary", 1)[1].split("\n## ", 1)[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line.startswith("|")]
    return [(term, meaning, where, old) for term, meaning, where, old in rows[2:]]


@pytest.mark.parametrize("row", glossary(), ids=lambda row: row[0])
def test_the_glossary_says_where_each_term_lives(row: tuple[str, str, str, str]) -> None:
    """The column is `path` or `path:name`. The path must exist, and the file must define the name."""
    path, _, name = row[2].strip("`").partition(":")
    assert (ROOT / path).exists(), f"{path} is not there"
    if name:
        assert name in defined(ROOT / path), f"{path} defines no {name}"


@cache
def defined(path: Path) -> set[str]:
    """The names of classes, functions and variables that a file defines."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


def test_replaced_words_are_gone() -> None:
    """No class or module of the product has a name that the glossary says was replaced."""
    replaced = {word.strip("` ").lower() for *_, old in glossary() for word in old.split(",")} - {""}
    found = []
    for path in files(*FOLDERS):
        names = [path.stem, *classes(path)]
        found += [f"{path.relative_to(ROOT)}: {name}" for name in names if name.strip("_").lower() in replaced]
    assert found == []


# ---- forbidden code and text ---------------------------------------------------------------------------------------


def test_pickle_is_not_used() -> None:
    """Data from files or sockets must not execute code."""
    forbidden = re.compile(
        r"\b(import|from)\s+(pickle|cloudpickle|dill|marshal|shelve)\b|torch\.load\((?![^)]*weights_only=True)"
    )
    found = [f"{path.relative_to(ROOT)}" for path in files(*FOLDERS) if forbidden.search(path.read_text())]
    assert not found


def test_no_text_is_executed_as_code() -> None:
    """Neither data from sockets or files nor model output: nothing in the code can execute text."""
    functions = {"eval", "exec", "compile", "__import__"}
    modules = {"pickle", "cloudpickle", "dill", "marshal", "shelve", "yaml", "code", "codeop"}
    others = ("system", "popen", "recv_pyobj", "send_pyobj", "shell", "trust_remote_code")
    is_suspect = re.compile(rf"\b({'|'.join((*functions, *modules, *others))})\b").search
    found = []
    for path in files(*FOLDERS):
        if not is_suspect(text := path.read_text()):
            continue  # parsing takes its time
        for node in ast.walk(ast.parse(text)):
            match node:
                case ast.Call(func=ast.Name(id=name)) if name in functions:
                    forbidden = name
                case ast.Call(func=ast.Attribute(value=ast.Name(id="os"), attr="system" | "popen" as name)):
                    forbidden = f"os.{name}"
                case ast.Call(func=ast.Attribute(attr="recv_pyobj" | "send_pyobj" as name)):
                    forbidden = name
                case ast.keyword(arg="shell", value=ast.Constant(value=True)):
                    forbidden = "shell=True"
                case ast.keyword(arg="trust_remote_code", value=value) if not (
                    isinstance(value, ast.Constant) and value.value is False
                ):
                    forbidden = "trust_remote_code"
                case ast.Import(names=names) if modules & {alias.name.split(".")[0] for alias in names}:
                    forbidden = "import"
                case ast.ImportFrom(module=str(module)) if module.split(".")[0] in modules:
                    forbidden = module
                case _:
                    continue
            found.append(f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', '?')}: {forbidden}")
    assert not found


def test_templates_are_rendered_only_in_the_sandbox() -> None:
    """Model files are untrusted: jinja2 is imported in one module, and only its sandbox."""
    found = {
        (str(path.relative_to(ROOT)), module)
        for path in files(*FOLDERS)
        if "jinja2" in path.read_text()
        for node in ast.walk(ast.parse(path.read_text()))
        for module in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [f"{node.module}.{alias.name}" for alias in node.names]
            if isinstance(node, ast.ImportFrom)
            else []
        )
        if module.split(".")[0] == "jinja2"
    }
    assert {path for path, _ in found} == {"runtime/server/text/template_sandbox.py"}
    assert not [module for _, module in found if module.endswith(".Environment")]
    assert [module for _, module in found if module.startswith("jinja2.sandbox.")]


def test_no_machine_specific_paths() -> None:
    forbidden = re.compile(r"/(home|root|work|Users|mnt)/\w")
    texts = [
        *SOURCES,
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "runtime").rglob("*.md"),
        ROOT / "Makefile",
    ]
    this_file = Path(__file__)
    assert not [
        str(path.relative_to(ROOT)) for path in texts if path != this_file and forbidden.search(path.read_text())
    ]


# ---- untested options ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [Config, Sampling])
def test_every_option_is_named_in_a_test(options: type[msgspec.Struct]) -> None:
    this_file = Path(__file__)
    words = {word for path in files("tests") if path != this_file for word in re.findall(r"\w+", path.read_text())}
    assert [field.name for field in msgspec.structs.fields(options) if field.name not in words] == []
