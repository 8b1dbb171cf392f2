"""The house is in order: packages, sizes, words that must not stand in it, and options that nobody tests."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import msgspec
import pytest

from banyan.runtime.config import Config
from banyan.runtime.protocol.wire import Sampling

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("frontend", "runtime", "radix_cache", "kernels")
SETUP = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]


def files(*folders: str) -> list[Path]:
    ignored = ROOT / "training/pocket/work"  # by git too
    found = (path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    return sorted(path for path in found if not path.is_relative_to(ignored))


OURS = files(*ROOMS, "tests", "examples", "benchmarks", "training")


# ---- packages ------------------------------------------------------------------------------------------------------


def test_the_package_list_is_what_stands_on_disk() -> None:
    on_disk = {str(path.parent.relative_to(ROOT)) for room in ROOMS for path in (ROOT / room).rglob("__init__.py")}
    with_code = {str(path.parent.relative_to(ROOT)) for path in files(*ROOMS)}
    assert with_code == on_disk, "a folder with code lacks its __init__.py"
    assert set(SETUP["package-dir"].values()) == on_disk
    assert set(SETUP["packages"]) == set(SETUP["package-dir"])
    for package, folder in SETUP["package-dir"].items():
        tail = folder.removeprefix("frontend").strip("/").replace("/", ".")
        assert package == f"banyan.{tail}".rstrip("."), f"{folder} is imported as {package}"


def test_the_root_is_not_on_the_path() -> None:
    """A bare `kernels` there would be taken for the Hugging Face package of that name."""
    assert str(ROOT) not in sys.path
    assert "" not in sys.path


@pytest.mark.long
@pytest.mark.timeout(300)
def test_the_wheel_holds_the_weights_and_the_types(tmp_path: Path) -> None:
    source = tmp_path / "source"
    names = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    ).stdout.decode()
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), str(source)],
        check=True,
    )
    (wheel,) = tmp_path.glob("banyan-*.whl")
    held = {info.filename: info.file_size for info in zipfile.ZipFile(wheel).infolist()}
    assert "banyan/py.typed" in held
    weights = {name: size for name, size in held.items() if name.endswith(".safetensors")}
    assert len(weights) == 2, "the pocket model and its draft"
    assert sum(weights.values()) <= 16 << 20
    assert not [name for name in held if name.split("/")[0] not in ("banyan", f"banyan-{version()}.dist-info")]
    code = {str(path.relative_to(ROOT)) for path in files(*ROOMS)}
    assert len([name for name in held if name.endswith(".py")]) == len(code)


def version() -> str:
    return str(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"])


def test_the_changelog_knows_the_version() -> None:
    assert re.search(rf"^## {re.escape(version())}\b", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)


# ---- what must not stand here --------------------------------------------------------------------------------------


def test_no_pickle() -> None:
    """Nothing that is read from a file or a socket may run code."""
    wrong = re.compile(
        r"\b(import|from)\s+(pickle|cloudpickle|dill|marshal|shelve)\b|torch\.load\((?![^)]*weights_only=True)"
    )
    found = [f"{path.relative_to(ROOT)}" for path in files(*ROOMS) if wrong.search(path.read_text())]
    assert not found


def test_no_text_is_run_as_code() -> None:
    """Neither what is read from a socket or a file, nor what a model says: there is nothing that could."""
    runs = {"eval", "exec", "compile", "__import__"}
    modules = {"pickle", "cloudpickle", "dill", "marshal", "shelve", "yaml", "code", "codeop"}
    found = []
    for path in files(*ROOMS):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(func=ast.Name(id=name)) if name in runs:
                    wrong = name
                case ast.Call(func=ast.Attribute(value=ast.Name(id="os"), attr="system" | "popen" as name)):
                    wrong = f"os.{name}"
                case ast.Call(func=ast.Attribute(attr="recv_pyobj" | "send_pyobj" as name)):
                    wrong = name
                case ast.keyword(arg="shell", value=ast.Constant(value=True)):
                    wrong = "shell=True"
                case ast.keyword(arg="trust_remote_code", value=value) if not (
                    isinstance(value, ast.Constant) and value.value is False
                ):
                    wrong = "trust_remote_code"
                case ast.Import(names=names) if modules & {alias.name.split(".")[0] for alias in names}:
                    wrong = "import"
                case ast.ImportFrom(module=str(module)) if module.split(".")[0] in modules:
                    wrong = module
                case _:
                    continue
            found.append(f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', '?')}: {wrong}")
    assert not found


def test_every_template_is_rendered_in_the_sandbox() -> None:
    """A model's files come from strangers: jinja2 is reached in one place, and only its sandbox."""
    found = {
        (str(path.relative_to(ROOT)), module)
        for path in files(*ROOMS)
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
    assert {path for path, _ in found} == {"runtime/server/text/chat_template.py"}
    assert not [module for _, module in found if module.endswith(".Environment")]
    assert [module for _, module in found if module.startswith("jinja2.sandbox.")]


def test_no_path_of_one_machine() -> None:
    wrong = re.compile(r"/(home|root|work|Users|mnt)/\w")
    texts = [
        *OURS,
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "runtime").rglob("*.md"),
        ROOT / "Makefile",
    ]
    here = Path(__file__)
    assert not [str(path.relative_to(ROOT)) for path in texts if path != here and wrong.search(path.read_text())]


# ---- options that nobody tests -------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [Config, Sampling])
def test_every_option_is_named_in_a_test(options: type[msgspec.Struct]) -> None:
    here = Path(__file__)
    words = {word for path in files("tests") if path != here for word in re.findall(r"\w+", path.read_text())}
    assert [field.name for field in msgspec.structs.fields(options) if field.name not in words] == []
