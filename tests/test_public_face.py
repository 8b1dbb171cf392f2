"""The public API: names and signatures. A change here is a change of the API."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import banyan as bn
from banyan.runtime import errors

NAMES = [
    "Anthropic",
    "AsyncBranches",
    "AsyncCompiled",
    "AsyncProgram",
    "AsyncState",
    "Backend",
    "BadMessage",
    "BadModel",
    "BadOutput",
    "BadProgram",
    "BanyanError",
    "BatchError",
    "BatchRecord",
    "Branches",
    "BudgetExceeded",
    "Cancelled",
    "Capacity",
    "ChoicesDecision",
    "ChoicesSamplingMethod",
    "Compiled",
    "ConfigError",
    "ConnectFailed",
    "ConstraintBroke",
    "ConstraintBusy",
    "ConstraintCrashed",
    "ConstraintError",
    "ConstraintSyntax",
    "ConstraintTimeout",
    "ConstraintTooLarge",
    "ConstraintUnsatisfiable",
    "ConstraintUnsupported",
    "Crusoe",
    "DeadlineExceeded",
    "Engine",
    "EngineLost",
    "Events",
    "ForkError",
    "ForkStart",
    "Graph",
    "Group",
    "LiteLLM",
    "Mock",
    "ModelNotFound",
    "OpenAI",
    "Options",
    "OutOfMemory",
    "Overloaded",
    "Program",
    "ProgramError",
    "PromptTooLong",
    "Quarantined",
    "Record",
    "Replay",
    "ReplayMismatch",
    "Runtime",
    "RuntimeEndpoint",
    "RuntimeLost",
    "State",
    "StateKV",
    "Stream",
    "Token",
    "Tool",
    "ToolCall",
    "ToolError",
    "UnknownVariable",
    "Unsupported",
    "Usage",
    "VarDone",
    "VertexAI",
    "assistant",
    "assistant_begin",
    "assistant_end",
    "compile",
    "connect",
    "flush_cache",
    "function",
    "gen",
    "gen_int",
    "gen_string",
    "get_server_info",
    "global_config",
    "greedy_token_selection",
    "image",
    "mcp",
    "raw",
    "role",
    "select",
    "separate_reasoning",
    "set_default_backend",
    "size",
    "stream",
    "system",
    "system_begin",
    "system_end",
    "token_length_normalized",
    "tool",
    "unconditional_likelihood_normalized",
    "user",
    "user_begin",
    "user_end",
    "using",
    "video",
]


def test_public_names() -> None:
    assert sorted(NAMES) == bn.__all__, "sorted and complete"
    assert set(NAMES) <= set(dir(bn))
    for name in NAMES:
        assert getattr(bn, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        bn.nothing  # noqa: B018


def test_no_module_has_the_name_of_a_public_object() -> None:
    """Else importing the module would replace the object."""
    folder = Path(bn.__file__).parent
    modules = {path.stem for path in folder.iterdir() if path.suffix == ".py" or path.is_dir()}
    assert not modules & set(NAMES)


def test_type_checking_imports_match_the_names() -> None:
    tree = ast.parse(Path(bn.__file__).read_text())
    type_checking_names = {
        (alias.asname, f"{node.module}.{alias.name}")
        for block in tree.body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert {(name, f"{bn._HOME[name]}.{name}") for name in NAMES} == type_checking_names


def test_every_error_is_public_and_documented() -> None:
    tree = [errors.BanyanError]
    for cls in tree:
        tree += cls.__subclasses__()
    error_names = {cls.__name__ for cls in tree if cls.__module__ == errors.__name__}
    assert error_names <= set(NAMES)
    documented = (errors.__doc__ or "").split()
    assert error_names <= set(documented), "errors.py must draw it in its docstring"


GEN = [
    "name",
    "max_tokens",
    "min_tokens",
    "n",
    "stop",
    "stop_token_ids",
    "stop_regex",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "ignore_eos",
    "return_logprob",
    "logprob_start_len",
    "top_logprobs_num",
    "return_text_in_logprobs",
    "dtype",
    "choices",
    "choices_method",
    "regex",
    "json_schema",
]
LIMITS = ["*max_rounds", "*tool_timeout", "*max_tool_output"]
SIGNATURES = {
    "function": ["func", "num_api_spec_tokens"],
    "gen": [
        *[*GEN, "*max_new_tokens", "*schema", "*whitespace", "*order", "*repetition_penalty", "*logit_bias", "*seed"],
        *["*adapter", "*chat_template_kwargs", "*timeout", "*budget", "*priority", "*deadline"],
        *["*type", "*grammar", "*retries", "*tools", *LIMITS],
    ],
    "select": [
        *["name", "choices", "temperature", "choices_method", "*seed", "*timeout", "*adapter"],
        "*chat_template_kwargs",
    ],
    "role": ["name", "expr"],
    "user": ["expr"],
    "image": ["expr"],
    "separate_reasoning": ["expr", "model_type"],
    "connect": ["socket", "timeout", "*token", "*server_key"],
    "compile": ["program"],
    "set_default_backend": ["backend"],
    "Runtime": ["model", "*launch_timeout", "*model_path", "*log_level", "**options"],
    "Engine": ["model", "*launch_timeout", "*model_path", "*log_level", "**options"],
    "Runtime.generate": [
        *["self", "prompt", "sampling_params", "return_logprob", "logprob_start_len", "top_logprobs_num", "lora_path"],
    ],
    "RuntimeEndpoint": [
        *["base_url", "api_key", "verify", "chat_template_name", "*timeout", "*token", "*server_key"],
    ],
    "Mock": ["script", "*chat", "*latency", "*refuses"],
    "OpenAI": [
        *["model_name", "is_chat_model", "chat_template", "is_azure", "*args", "*extensions", "*max_in_flight"],
        "**kwargs",
    ],
    "Record": ["backend", "path"],
    "Replay": ["path"],
    "stream": ["program", "*args", "**kwargs"],
    "Stream.events": ["self"],
    "Stream.cancel": ["self"],
    "Program.run": ["self", "*args", "*opts", "**kwargs"],
    "Program.run_async": ["self", "*args", "*opts", "**kwargs"],
    "Program.run_batch": [
        *["self", "batch_kwargs", "*num_threads", "*concurrency", "*progress_bar", "*generator_style", "*ordered"],
        *["*on_error", "*timeout", "*budget", "*deadline", "*checkpoint", "*opts", "**kwargs"],
    ],
    "Program.run_batch_async": [
        *["self", "batch_kwargs", "*concurrency", "*progress_bar", "*ordered", "*on_error", "*timeout", "*budget"],
        *["*deadline", "*opts", "**kwargs"],
    ],
    "Program.bind": ["self", "*opts", "**arguments"],
    "Program.inline": ["self", "state", "*args", "**kwargs"],
    "Program.graph": ["self", "*args", "*backend", "*opts", "**kwargs"],
    "Compiled.explain": ["self"],
    "Graph.explain": ["self"],
    "Graph.mermaid": ["self"],
    "Program.trace": ["self", "*backend", "**kwargs"],
    "Program.cache": ["self", "backend"],
    "State.__iadd__": ["self", "what"],
    "State.__getitem__": ["self", "name"],
    "State.__setitem__": ["self", "name", "value"],
    "State.__contains__": ["self", "name"],
    "State.get_var": ["self", "name"],
    "State.value": ["self", "name", "type"],
    "State.partials": ["self", "name"],
    "State.set_var": ["self", "name", "value"],
    "State.ref": ["self", "name"],
    "tool": ["func", "*name", "*description"],
    "Tool": ["func", "name", "description", "schema"],
    "mcp": ["server", "*env", "*prefix", "*timeout"],
    "State.tool_calls": ["self", "name"],
    "State.get_meta_info": ["self", "name"],
    "State.role": ["self", "name", "expr"],
    "State.system": ["self", "expr"],
    "State.user": ["self", "expr"],
    "State.assistant": ["self", "expr"],
    "State.var_scope": ["self", "name"],
    "State.fork": ["self", "size", "position_ids_offset"],
    "State.copy": ["self", "position_ids_offset"],
    "State.text": ["self"],
    "State.messages": ["self"],
    "State.sync": ["self"],
    "State.error": ["self"],
    "State.cancel": ["self"],
    "State.timeline": ["self", "path"],
    "State.show": ["self", "path"],
    "State.text_iter": ["self", "var_name"],
    "State.text_async_iter": ["self", "var_name", "return_meta_data"],
    "State.adopt": ["self", "branch"],
    "State.drop": ["self"],
    "StateKV.pin": ["self", "ttl"],
    "StateKV.expect": ["self", "steps"],
    "StateKV.prefetch": ["self"],
    "State.dist": ["self", "name"],
    "State.beam": ["self", "k", "step", "*depth", "*width", "*key"],
    "Group.join": ["self", "mode", "on_error"],
    "Group.drop": ["self"],
    "Branches.best": ["self", "key", "on_error"],
    "Branches.first": ["self", "k"],
    "Branches.vote": ["self", "name", "key", "on_error"],
    "Branches.as_completed": ["self"],
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_signature_is_unchanged(name: str) -> None:
    api_object = bn
    for part in name.split("."):
        api_object = getattr(api_object, part)
    prefixes = {
        inspect.Parameter.KEYWORD_ONLY: "*",
        inspect.Parameter.VAR_POSITIONAL: "*",
        inspect.Parameter.VAR_KEYWORD: "**",
    }
    actual = [prefixes.get(p.kind, "") + p.name for p in inspect.signature(api_object).parameters.values()]  # type: ignore[arg-type]
    assert actual == SIGNATURES[name]


def test_state_has_no_other_public_names() -> None:
    tested = {name.partition(".")[2] for name in SIGNATURES if name.startswith("State.")}
    assert {name for name in dir(bn.State) if not name.startswith("_")} == {
        *(name for name in tested if not name.startswith("_")),
        "index",
        "kv",
        "ret_value",
        "usage",
    }


def test_import_loads_no_heavy_modules() -> None:
    code = (
        "import sys, banyan; for_mock = banyan.function(lambda s: s.__iadd__(banyan.gen('x')))\n"
        "assert for_mock.run(backend=banyan.Mock('hi'))['x'] == 'hi'\n"
        "print(*sorted({'torch', 'transformers', 'zmq', 'outlines', 'numpy', 'rich', 'asyncio'} & set(sys.modules)))"
    )
    completed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd="/", timeout=60
    )
    assert completed.stdout.strip() == ""


def test_version_is_public_but_not_in_all() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+.*", bn.__version__)
    assert "__version__" not in bn.__all__, "`from banyan import *` must not overwrite another __version__"
