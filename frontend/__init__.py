"""Banyan: a language for multi-call LLM programs.

import banyan as bn

@bn.function
def answer(s, question):
    s += bn.user(question)
    s += bn.assistant(bn.gen("answer", max_tokens=64))

state = answer.run("What is 6 * 7?", backend=bn.Runtime())
print(state["answer"])
"""

from __future__ import annotations

from importlib import import_module
from re import findall
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from banyan.backends.base import Backend as Backend
    from banyan.backends.default import flush_cache as flush_cache
    from banyan.backends.default import get_server_info as get_server_info
    from banyan.backends.default import set_default_backend as set_default_backend
    from banyan.backends.default import using as using
    from banyan.backends.mock import Mock as Mock
    from banyan.backends.openai.backend import OpenAI as OpenAI
    from banyan.backends.replay.record import Record as Record
    from banyan.backends.replay.replay import Replay as Replay
    from banyan.backends.runtime import Engine as Engine
    from banyan.backends.runtime import Runtime as Runtime
    from banyan.backends.runtime import RuntimeEndpoint as RuntimeEndpoint
    from banyan.backends.runtime import connect as connect
    from banyan.execution.batch_file import BatchRecord as BatchRecord
    from banyan.execution.events import Events as Events
    from banyan.execution.events import ForkStart as ForkStart
    from banyan.execution.events import Token as Token
    from banyan.execution.events import VarDone as VarDone
    from banyan.execution.streaming import Stream as Stream
    from banyan.execution.streaming import stream as stream
    from banyan.lang.async_state import AsyncBranches as AsyncBranches
    from banyan.lang.async_state import AsyncState as AsyncState
    from banyan.lang.choices import ChoicesDecision as ChoicesDecision
    from banyan.lang.choices import ChoicesSamplingMethod as ChoicesSamplingMethod
    from banyan.lang.choices import greedy_token_selection as greedy_token_selection
    from banyan.lang.choices import token_length_normalized as token_length_normalized
    from banyan.lang.choices import unconditional_likelihood_normalized as unconditional_likelihood_normalized
    from banyan.lang.expr import assistant as assistant
    from banyan.lang.expr import assistant_begin as assistant_begin
    from banyan.lang.expr import assistant_end as assistant_end
    from banyan.lang.expr import gen as gen
    from banyan.lang.expr import gen_int as gen_int
    from banyan.lang.expr import gen_string as gen_string
    from banyan.lang.expr import image as image
    from banyan.lang.expr import raw as raw
    from banyan.lang.expr import role as role
    from banyan.lang.expr import select as select
    from banyan.lang.expr import separate_reasoning as separate_reasoning
    from banyan.lang.expr import system as system
    from banyan.lang.expr import system_begin as system_begin
    from banyan.lang.expr import system_end as system_end
    from banyan.lang.expr import user as user
    from banyan.lang.expr import user_begin as user_begin
    from banyan.lang.expr import user_end as user_end
    from banyan.lang.program import AsyncProgram as AsyncProgram
    from banyan.lang.program import Program as Program
    from banyan.lang.program import function as function
    from banyan.lang.sampling import Options as Options
    from banyan.lang.state import Branches as Branches
    from banyan.lang.state import State as State
    from banyan.lang.state_base import Group as Group
    from banyan.lang.state_base import StateKV as StateKV
    from banyan.runtime.engine.capacity import Capacity as Capacity
    from banyan.runtime.engine.capacity import size as size
    from banyan.runtime.errors import BadMessage as BadMessage
    from banyan.runtime.errors import BadModel as BadModel
    from banyan.runtime.errors import BadOutput as BadOutput
    from banyan.runtime.errors import BadProgram as BadProgram
    from banyan.runtime.errors import BanyanError as BanyanError
    from banyan.runtime.errors import BatchError as BatchError
    from banyan.runtime.errors import BudgetExceeded as BudgetExceeded
    from banyan.runtime.errors import Cancelled as Cancelled
    from banyan.runtime.errors import ConfigError as ConfigError
    from banyan.runtime.errors import ConnectFailed as ConnectFailed
    from banyan.runtime.errors import ConstraintBroke as ConstraintBroke
    from banyan.runtime.errors import ConstraintBusy as ConstraintBusy
    from banyan.runtime.errors import ConstraintCrashed as ConstraintCrashed
    from banyan.runtime.errors import ConstraintError as ConstraintError
    from banyan.runtime.errors import ConstraintSyntax as ConstraintSyntax
    from banyan.runtime.errors import ConstraintTimeout as ConstraintTimeout
    from banyan.runtime.errors import ConstraintTooLarge as ConstraintTooLarge
    from banyan.runtime.errors import ConstraintUnsatisfiable as ConstraintUnsatisfiable
    from banyan.runtime.errors import ConstraintUnsupported as ConstraintUnsupported
    from banyan.runtime.errors import DeadlineExceeded as DeadlineExceeded
    from banyan.runtime.errors import EngineLost as EngineLost
    from banyan.runtime.errors import ForkError as ForkError
    from banyan.runtime.errors import ModelNotFound as ModelNotFound
    from banyan.runtime.errors import OutOfMemory as OutOfMemory
    from banyan.runtime.errors import Overloaded as Overloaded
    from banyan.runtime.errors import ProgramError as ProgramError
    from banyan.runtime.errors import PromptTooLong as PromptTooLong
    from banyan.runtime.errors import Quarantined as Quarantined
    from banyan.runtime.errors import ReplayMismatch as ReplayMismatch
    from banyan.runtime.errors import RuntimeLost as RuntimeLost
    from banyan.runtime.errors import ToolError as ToolError
    from banyan.runtime.errors import UnknownVariable as UnknownVariable
    from banyan.runtime.errors import Unsupported as Unsupported
    from banyan.sglang.global_config import global_config as global_config
    from banyan.sglang.unsupported import Anthropic as Anthropic
    from banyan.sglang.unsupported import Crusoe as Crusoe
    from banyan.sglang.unsupported import LiteLLM as LiteLLM
    from banyan.sglang.unsupported import VertexAI as VertexAI
    from banyan.sglang.unsupported import video as video
    from banyan.templates.compiled import AsyncCompiled as AsyncCompiled
    from banyan.templates.compiled import Compiled as Compiled
    from banyan.templates.compiled import compile as compile
    from banyan.tools.mcp import mcp as mcp
    from banyan.tools.toolbox import Tool as Tool
    from banyan.tools.toolbox import ToolCall as ToolCall
    from banyan.tools.toolbox import tool as tool
    from banyan.views.graph import Graph as Graph
    from banyan.views.usage import Usage as Usage

with open(__file__, encoding="utf-8") as _source:  # the imports above, which only type checkers execute
    _HOME = {name: module for module, name in findall(r"(?m)^    from (\S+) import (\w+) as", _source.read())}
"""Public name -> its module."""

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    """Import the module of a public name when the name is first used, so that `import banyan` is fast."""
    if name == "__version__":
        from importlib.metadata import version  # lazily: it is slow to import

        return version("banyan")
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOME[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
