"""Programs that could hang: after an error, after a fork, in a stream.

The same code runs in SGLang's language and in ours. Most of the programs should end with an error.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

LIMIT = 5.0
"""A program that has not ended after so many seconds counts as hanging. Others take milliseconds."""
BAD = "bad:"
"""A gen fails if its prompt ends with this text."""
SLOW = "slow:"
"""A gen takes 0.2 s if its prompt ends with this text."""


def answer(prompt: str) -> str:
    """The model's answer to a prompt."""
    if prompt.endswith(BAD):
        raise OSError("no luck")
    time.sleep(0.2 * prompt.endswith(SLOW))
    return "<think>hm</think>yes"


def programs(sgl: Any) -> list[Callable[[Any], object]]:
    """The programs; `_run` runs them."""

    def gen_after_a_failure(s: Any) -> None:
        s += BAD + sgl.gen("a")
        with suppress(Exception):
            s["a"]
        s += sgl.gen("b")
        s["b"]

    def text_after_a_failure(s: Any) -> None:
        s += BAD + sgl.gen("a")
        s += "more"
        s.sync()
        s += "and more"
        s.text()

    def batch_with_a_failure(s: Any) -> None:
        s += BAD + sgl.gen("a")
        s += sgl.gen("b")
        s.sync()
        s += sgl.gen("c")

    def two_stage_fork(s: Any) -> None:
        forks = s.fork(2)
        forks += [BAD, SLOW]
        forks += sgl.gen("a")
        forks[1]["a"]
        forks += sgl.gen("b")
        forks.join()
        s += sgl.gen("c")
        s["c"]

    def streamed_reasoning(s: Any) -> None:
        s += sgl.assistant(sgl.separate_reasoning(sgl.gen("a"), model_type="qwen3"))

    def two_readers_of_a_stream(s: Any) -> None:
        s += sgl.gen("a")

    def stream_without_a_thread(s: Any) -> None:
        s += sgl.gen("a")

    return [gen_after_a_failure, text_after_a_failure, batch_with_a_failure, two_stage_fork,
            streamed_reasoning, two_readers_of_a_stream, stream_without_a_thread]  # fmt: skip


def _run(sgl: Any, body: Callable[[Any], object], backend: Any) -> None:
    program = sgl.function(body)
    match body.__name__:
        case "batch_with_a_failure":
            program.run_batch([{}] * 2, backend=backend)
        case "streamed_reasoning":
            state = program.run(stream=True, backend=backend)
            for _ in state.text_iter():
                pass
            state["a_reasoning_content"]
        case "two_readers_of_a_stream":
            state = program.run(stream=True, backend=backend)
            for _ in range(2):
                for _ in state.text_iter():
                    pass
        case "stream_without_a_thread":
            state = program.run(stream=True, use_thread=False, backend=backend)
            for _ in state.text_iter():
                pass
        case _:
            program.run(backend=backend).text()


def hangs(sgl: Any, backend: Any) -> list[str]:
    """The names of the programs that did not end within LIMIT seconds. Their threads remain, so the caller must end its
    process with `os._exit`."""
    left = []
    for body in programs(sgl):

        def run(body: Callable[[Any], object] = body) -> None:
            with suppress(Exception):  # any error is fine
                _run(sgl, body, backend)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join(LIMIT)
        if thread.is_alive():
            left.append(body.__name__)
    return left
