"""Write docs/reference.md from the docstrings and signatures of the public names: `python docs/reference.py`."""

import inspect
import re
import sys
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

import banyan
from banyan.cli import main as cli
from banyan.lang.expr import NOTHING
from banyan.lang.sampling import RENAMED
from banyan.runtime.config import Config, HTTPConfig
from banyan.runtime.protocol.limits import MESSAGE_LIMITS
from banyan.runtime.protocol.wire import Sampling

PAGE = Path(__file__).with_name("reference.md")
HEAD = """# Reference

Every public name of `banyan`, by subject. `python docs/reference.py` writes this page from the docstrings; a test
checks that it is up to date. The tutorial is [language.md](language.md).
"""

GROUPS: dict[str, tuple[str, ...]] = {
    "Programs": (
        *(
            "function",
            "Program",
            "AsyncProgram",
            "compile",
            "Compiled",
            "AsyncCompiled",
            "Options",
            "stream",
            "Stream",
            "Events",
        ),
        *("Token", "VarDone", "ForkStart"),
    ),
    "States": ("State", "AsyncState", "Group", "Branches", "AsyncBranches", "BatchRecord", "StateKV", "Graph", "Usage"),
    "Expressions": (
        *("gen", "gen_int", "gen_string", "select", "raw", "image", "video", "separate_reasoning", "role"),
        *("system", "user", "assistant", "system_begin", "system_end", "user_begin", "user_end"),
        *("assistant_begin", "assistant_end"),
        *("token_length_normalized", "greedy_token_selection", "unconditional_likelihood_normalized"),
        *("ChoicesSamplingMethod", "ChoicesDecision"),
    ),
    "Tools": ("tool", "Tool", "ToolCall", "mcp"),
    "Backends": (
        *("Backend", "Runtime", "RuntimeEndpoint", "connect", "Engine", "OpenAI", "Mock", "Record", "Replay"),
        *("set_default_backend", "using", "flush_cache", "get_server_info", "global_config", "size", "Capacity"),
        *("Anthropic", "LiteLLM", "VertexAI", "Crusoe"),
    ),
    "Errors": (),  # filled by `grouped`
}


def public(name: str) -> Any:
    return getattr(banyan, name)


def grouped() -> dict[str, list[str]]:
    """The public names by group; names without a group are in "Others"."""
    errors = [name for name in banyan.__all__ if _is_error(public(name))]
    named = {name for names in GROUPS.values() for name in names} | set(errors)
    found = {group: [name for name in names if name in banyan.__all__] for group, names in GROUPS.items()}
    found["Errors"] = sorted(errors, key=lambda name: (len(public(name).__mro__), name))
    found["Others"] = [name for name in banyan.__all__ if name not in named]
    return {group: names for group, names in found.items() if names}


def _is_error(thing: Any) -> bool:
    return isinstance(thing, type) and issubclass(thing, BaseException)


def documented(thing: Any) -> str:
    """Its own docstring; "" if it has none."""
    if isinstance(thing, str | int | float) or thing is None:
        return ""
    return inspect.cleandoc(thing.__dict__.get("__doc__") or "" if isinstance(thing, type) else thing.__doc__ or "")


def attribute_docs(module: types.ModuleType) -> dict[str, str]:
    """The docstrings below assignments in a module and in its classes ("Class.name")."""
    import ast

    found: dict[str, str] = {}

    def walk(body: list[ast.stmt], prefix: str) -> None:
        for node, after in zip(body, [*body[1:], None], strict=True):
            if isinstance(node, ast.ClassDef):
                walk(node.body, f"{node.name}.")
            if isinstance(node, ast.FunctionDef) and node.name == "__init__":
                walk(node.body, prefix)
            target = node.target if isinstance(node, ast.AnnAssign) else None
            if isinstance(node, ast.Assign) and len(node.targets) == 1:
                target = node.targets[0]
            name = getattr(target, "id", None) or getattr(target, "attr", None)
            text = after.value if isinstance(after, ast.Expr) else None
            if name and isinstance(text, ast.Constant) and isinstance(text.value, str):
                found[prefix + name] = inspect.cleandoc(text.value)

    walk(ast.parse(inspect.getsource(module)).body, "")
    return found


def signature(name: str, thing: Any) -> str:
    """A call signature without annotations."""
    try:
        parameters = inspect.signature(thing).parameters.values()
    except (TypeError, ValueError):
        return name
    plain = [
        parameter.replace(annotation=parameter.empty, default=_default(parameter.default))
        for parameter in parameters
        if parameter.name != "self"
    ]
    return f"{name}{inspect.Signature(plain)}"


def _default(value: Any) -> Any:
    class Shown:
        def __init__(self, text: str) -> None:
            self.text = text

        def __repr__(self) -> str:
            return self.text

    if value is inspect.Parameter.empty or value is None or isinstance(value, bool | int | float | str | tuple):
        return value
    if value == NOTHING:
        return Shown("NOTHING")
    return Shown(getattr(value, "__name__", "..."))


def members(cls: type) -> Iterator[tuple[str, Any]]:
    """Its public methods and properties, including those of bases that are not public, sorted by name."""
    elsewhere = {base for base in cls.__mro__[1:] if base.__name__ in banyan.__all__}
    for name, value in inspect.getmembers_static(cls):
        owner = next(c for c in cls.__mro__ if name in c.__dict__)
        is_ours = owner.__module__.startswith("banyan") and owner not in elsewhere
        if is_ours and not name.startswith("_") and isinstance(value, types.FunctionType | property | classmethod):
            yield name, value


def shared_doc(method: str) -> str:
    """The docstring of a method in the Backend protocol, which all backends share."""
    thing = vars(banyan.Backend).get(method)
    return (thing.fget if isinstance(thing, property) else thing).__doc__ or "" if thing is not None else ""


def about_class(name: str, cls: type, docs: dict[str, str]) -> Iterator[str]:
    yield documented(cls) + "\n"
    init = cls.__dict__.get("__init__")
    if isinstance(init, types.FunctionType) and init.__doc__ and not issubclass(cls, msgspec.Struct):
        yield inspect.cleandoc(init.__doc__) + "\n"
    fields = list(cls.__struct_fields__) if issubclass(cls, msgspec.Struct) else []
    homes = [base.__name__ for base in cls.__mro__]
    descriptions = {
        field: next((docs[f"{home}.{field}"] for home in homes if f"{home}.{field}" in docs), "") for field in fields
    }
    if cls is banyan.Options:
        yield from option_table({field: (option_default(field), text) for field, text in descriptions.items()})
        descriptions = {}
    rows = [(f"`{field}`", text) for field, text in descriptions.items()]
    for method, value in members(cls):
        if method in fields:
            continue
        func = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
        text = inspect.cleandoc(func.__doc__ or shared_doc(method))
        call = method if isinstance(value, property) else signature(method, func)
        rows.append((f"`{'async ' if inspect.iscoroutinefunction(func) else ''}{call}`", text))
    if rows:
        yield "| | |\n|---|---|"
        for call, text in rows:
            yield f"| {call.replace('|', chr(92) + '|')} | {_cell(text)} |"
        yield ""


def option_default(name: str) -> Any:
    """The value of an option that nobody gives."""
    field = {**RENAMED, "max_new_tokens": "max_tokens"}.get(name, name)
    if field in Sampling.__struct_fields__:
        return getattr(Sampling(), field)
    return {"retries": 0, "priority": 0, "return_text_in_logprobs": False}.get(name, getattr(banyan.Options(), name))


def option_table(options: dict[str, tuple[Any, str]]) -> Iterator[str]:
    """options: name -> (default, description)"""
    yield "| option | default | |\n|---|---|---|"
    for name, (default, text) in options.items():
        shown = "none" if default in (None, "", (), {}) else f"`{default}`"
        yield f"| `{name}` | {shown} | {_cell(text)} |"
    yield ""


def _cell(text: str) -> str:
    return re.sub(r"\s*\n\s*", " ", text.replace("\n\n", "<br>")).replace("|", "\\|")


def about(name: str) -> Iterator[str]:
    thing = public(name)
    module = sys.modules[banyan._HOME[name]]
    docs = attribute_docs(module)
    if isinstance(thing, type):
        is_plain = _is_error(thing) or issubclass(thing, msgspec.Struct) or getattr(thing, "_is_protocol", False)
        yield f"### `{name if is_plain else signature(name, thing)}`\n"
        if _is_error(thing):
            parents = ", ".join(f"`{base.__name__}`" for base in thing.__bases__)
            yield f"Subclass of {parents}: {in_the_tree(name)}.\n"
            yield documented(thing) + "\n"
            return
        yield from about_class(name, thing, docs)
    elif callable(thing):
        yield f"### `{signature(name, thing)}`\n"
        yield documented(thing) + "\n"
    else:
        yield f"### `{name}`\n"
        yield docs.get(name, documented(type(thing))) + "\n"


def in_the_tree(name: str) -> str:
    """The description of an error in the tree at the head of runtime/errors.py."""
    drawing = inspect.getmodule(banyan.BanyanError).__doc__ or ""
    found = re.search(rf"[├└]── {name} +(?:\.\.\. )?(.*)", drawing)
    return found[1] if found else "the base of all errors of Banyan"


def server_options() -> dict[str, tuple[Any, str]]:
    """Option of a server -> (default, help text)."""
    hints = typing.get_type_hints(Config, include_extras=True)
    defaults = msgspec.structs.asdict(Config())
    of_command = vars(cli._parser().parse_args(["serve"]))
    for name in defaults.keys() & of_command.keys():
        defaults[name] = f"{defaults[name]}`; `banyan serve`: `{of_command[name]}"
    return {name: (default, typing.get_args(hints[name])[1]) for name, default in defaults.items()}


def http_options() -> dict[str, tuple[Any, str]]:
    """Flag of the HTTP process -> (default, help text)."""
    hints = typing.get_type_hints(HTTPConfig, include_extras=True)
    of_command = vars(cli._parser().parse_args(["serve"]))
    return {
        flag: (of_command[flag[2:].replace("-", "_")], typing.get_args(hints[name])[1])
        for flag, name, _ in cli._HTTP_FLAGS
    }


def limits() -> Iterator[str]:
    """The options of a server, and the limits of messages."""
    yield "## Options of a server\n"
    yield "For `Runtime(...)` as keywords, and for `banyan serve` as flags: `--kv-memory 2GiB` is `kv_memory='2GiB'`.\n"
    yield from option_table(server_options())
    yield "For `banyan serve` only: the options of its HTTP process ([http](http.md)).\n"
    yield from option_table(http_options())
    yield "## Limits\n"
    yield "What one message may contain, on all servers. A program whose message contains more fails.\n"
    yield "| | at most |\n|---|---|"
    for limit in MESSAGE_LIMITS:
        yield f"| {limit.text} | {limit.most:,} {limit.unit} |"


def page() -> str:
    """The whole page."""
    lines = [HEAD]
    groups = grouped()
    for group, names in groups.items():
        lines.append(f"- [{group}](#{group.lower()}): " + ", ".join(f"`{name}`" for name in names))
    lines.append("")
    for group, names in groups.items():
        lines.append(f"## {group}\n")
        for name in names:
            lines += about(name)
    lines += limits()
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip() + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
