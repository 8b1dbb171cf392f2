"""Compiled programs give the same results as the program, whatever it does with its arguments."""

from __future__ import annotations

import asyncio
import copy
import enum
import functools
import gc
import json
import random
import re
import textwrap
import weakref
from collections.abc import Callable
from typing import Any

import pytest

import banyan as bn
from banyan.lang.lazy_value import LazyValue
from banyan.runtime.protocol import wire
from banyan.runtime.protocol.op_template import ProgramTemplate
from banyan.templates.compiled import MAX_TEMPLATES, Compiled, compile, frozen


def script(prompt: str, name: str) -> str:
    return "<b>" if name == "b" else f"<{name}{len(prompt)}>"


class TemplateMock(bn.Mock):
    """A Mock that takes templates, as a runtime does."""

    def __init__(self) -> None:
        super().__init__(script)
        self.templates: dict[int, ProgramTemplate] = {}
        self.sent: list[wire.Op] = []
        self.n_defined = 0

    def define(self, template: ProgramTemplate) -> int:
        self.templates[self.n_defined] = template
        self.n_defined += 1
        return self.n_defined - 1

    def undefine(self, number: int) -> None:
        del self.templates[number]

    def program(self, name: str = "") -> Any:
        program = super().program(name)
        submit = program.submit

        def submit_expanded(ops: list[wire.Op], last: bool = False) -> None:
            self.sent += ops
            submit([new for op in ops for new in self._expanded(op)])

        program.submit = submit_expanded
        return program

    def _expanded(self, op: wire.Op) -> list[Any]:
        return list(self.templates[op.template].expand(op)) if isinstance(op, wire.Use) else [op]


def results_of(state: bn.State) -> dict[str, Any]:
    """Return all observable results of a state."""
    return {
        "variables": {name: state[name] for name in state._values},
        "text": state.text(),
        "messages": state.messages(),
        "meta": {name: meta_keys(state.get_meta_info(name)) for name in state._values},
        "value": state.ret_value.read() if isinstance(state.ret_value, LazyValue) else state.ret_value,
        "generated": [usage.name for usage in state.usage.gens],
    }


def meta_keys(meta: Any) -> Any:
    """Return the keys of meta info: its numbers differ from run to run."""
    return [meta_keys(one) for one in meta] if isinstance(meta, list) else meta and list(meta)


N_RUNS = [0]
"""Number of body runs."""


@bn.function
def straight(s: bn.State, question: str) -> None:
    N_RUNS[0] += 1
    s += bn.system("Be brief.") + bn.user(f"Q: {question}!")
    s += bn.assistant("A: " + bn.gen("a", max_tokens=5) + bn.select("b", choices=["x", "<b>"]))
    s += bn.user("Again: " + question) + bn.assistant(bn.gen("c"))


@bn.function
def tree(s: bn.State, topic: str, n: int = 3) -> str:
    s += topic
    branches = s.fork(n)
    branches += [f"{i}" for i in range(n)]
    branches += bn.gen("idea")
    branches.join()
    first, second = s.fork(2)
    first += "f" + bn.gen("x")
    inner = first.fork(2)
    inner += bn.gen("deep")
    inner.join("concate_and_append")
    second += "s" + first.ref("x") + bn.gen("y")
    with s.var_scope("scope"):
        s += second.ref("y") + topic
    s["topic"] = topic
    return topic


@bn.function
def inspects_mode(s: bn.State, text: str, mode: str) -> None:
    if mode == "long":
        s += "At length: "
    s += text + bn.gen("a")


@bn.function
def dedents(s: bn.State, text: str, other: str) -> None:
    s += (
        other
        + textwrap.dedent(f"""\
        Given {text}, say
          more: """)
        + bn.gen("a")
    )


@bn.function
def cuts(s: bn.State, text: str) -> None:
    s += f"Given {text}, say"[:20] + bn.gen("a")


@bn.function
def measures(s: bn.State, text: str) -> None:
    s += ("long: " if len(f"{text}") > 100 else "short: ") + text + bn.gen("a")


@bn.function
def catches(s: bn.State, text: str) -> None:
    try:
        s += "a" if len(text) > 3 else "b"
    except BaseException:
        s += "oops"
    s += bn.gen("a")


@bn.function
def asks_for_its_type(s: bn.State, x: Any) -> None:
    s += f"{x}" if isinstance(x, str) else f"{x} is a number"
    s += bn.gen("a")


@bn.function
def counts(s: bn.State, n: int) -> None:
    s += f"{n}: " + bn.gen("a")
    s["n"] = n


@bn.function
def stores_its_last(s: bn.State, text: str, k: int) -> int:
    s += text + bn.gen("a")
    s["k"] = k
    return k


@bn.function
def ignores_its_last(s: bn.State, text: str, k: int) -> None:
    s += text + bn.gen("a")


@bn.function
def asks_for_the_type_of_its_last(s: bn.State, text: str, k: Any) -> None:
    s += ("a text: " if isinstance(k, str) else "no text: ") + text + bn.gen("a")


@bn.function
def adopts(s: bn.State, topic: str) -> None:
    """Adopts a branch of a branch, drops another, and generates after that."""
    s += topic + bn.gen("first")
    branches = s.fork(3)
    branches += [f"{i}" for i in range(3)]
    branches += bn.gen("x")
    (inner,) = branches[1].fork(1)
    inner += bn.gen("y")
    s.adopt(inner)
    branches[0].drop()
    s += bn.gen("z")


@bn.function
def thinks(s: bn.State, topic: str) -> None:
    s += topic + bn.separate_reasoning(bn.gen("a"), model_type="qwen3")
    branches = s.fork(2)
    branches += bn.gen("b")
    branches.join(on_error="collect")


@bn.function
def returns_the_value_of_a_branch(s: bn.State, topic: str) -> Any:
    s += topic
    branches = s.fork(2)
    branches += bn.gen("a") + bn.gen("b")
    return branches[1].ref("b")


ITEMS: list[tuple[bn.Program, list[tuple[Any, ...]]]] = [
    (straight, [("one",), ("two",), ("",), ("  x\n",), ("<|im_end|>",)]),
    (tree, [("one",), ("two", 2), ("three", 3), ("",)]),
    (inspects_mode, [("one", "long"), ("two", "short"), ("three", "long")]),
    (dedents, [("one", "1"), ("two\n  three", "2"), ("\n", "3")]),
    (cuts, [("one",), ("something that is longer",)]),
    (measures, [("one",), ("x" * 101,)]),
    (catches, [("one",), ("three",)]),
    (asks_for_its_type, [("one",), (1,), (1.5,), (True,), (None,)]),
    (counts, [(1,), (10**30,), (-1,)]),
    (stores_its_last, [("one", 1), ("two", 2)]),
    (ignores_its_last, [("one", 1), ("two", 2)]),
    (asks_for_the_type_of_its_last, [("one", 1), ("two", "2"), ("three", 3)]),
    (adopts, [("one",), ("two",)]),
    (thinks, [("one",), ("two",)]),
    (returns_the_value_of_a_branch, [("one",), ("two",)]),
]


def case_id(case: Any) -> str:
    return case.name if isinstance(case, bn.Program) else ""


@pytest.mark.parametrize("kind", [bn.Mock, TemplateMock])
@pytest.mark.parametrize(("program", "items"), ITEMS, ids=case_id)
def test_compiled_program_gives_the_same_results(program: bn.Program, items: list[tuple[Any, ...]], kind: type) -> None:
    plain_mock, template_mock = bn.Mock(script), TemplateMock() if kind is TemplateMock else bn.Mock(script)
    compiled = compile(program)
    for _ in range(2):
        for item in items:
            expected = results_of(program.run(*item, backend=plain_mock, seed=7))
            assert results_of(compiled.run(*item, backend=template_mock, seed=7)) == expected
    calls = [[(call.prompt, call.name, call.op) for call in mock.calls] for mock in (plain_mock, template_mock)]
    assert calls[0] == calls[1], "same prompts, sampling and seeds"
    batches = [p.run_batch(items, backend=b, seed=3) for p, b in ((program, plain_mock), (compiled, template_mock))]
    assert [results_of(state) for state in batches[0]] == [results_of(state) for state in batches[1]]


def test_body_runs_only_to_make_the_template() -> None:
    backend, compiled = TemplateMock(), compile(straight)
    compiled.run("one", backend=backend)
    n_runs = N_RUNS[0]
    states = compiled.run_batch([(f"{i}",) for i in range(50)], backend=backend)
    assert N_RUNS[0] == n_runs
    assert backend.n_defined == 1
    assert states[7].messages()[1]["content"] == "Q: 7!"
    assert wire.Use(0, 0, ("49",)) in backend.sent
    assert compiled.explain().startswith("straight has 1 template\n")
    assert "a run sends question" in compiled.explain()


def test_argument_that_is_not_appended_is_not_sent() -> None:
    backend, compiled = TemplateMock(), compile(stores_its_last)
    assert [compiled.run("x", k, backend=backend).ret_value for k in (1, 2)] == [1, 2]
    assert [op.args for op in backend.sent if isinstance(op, wire.Use)] == [("x",), ("x",)]
    assert compiled.explain().endswith("a run sends text")


def test_inspected_argument_has_a_template_for_each_value() -> None:
    backend, compiled = TemplateMock(), compile(inspects_mode)
    for i in range(10):
        compiled.run(f"{i}", "long" if i % 2 else "short", backend=backend)
    assert backend.n_defined == 2
    assert "'mode' has its own template: it is inspected in test_compiled.py:" in compiled.explain()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("banyan.templates.compiled.MAX_TEMPLATES", 3)
        for i in range(10):
            assert compiled.run("x", f"{i}", backend=backend).text().startswith("x<a")
    assert backend.n_defined == 3, "the number of templates is bounded"
    assert MAX_TEMPLATES > 3


def test_argument_whose_text_is_changed_counts_as_inspected() -> None:
    backend, compiled = TemplateMock(), compile(dedents)
    compiled.run("one", "1", backend=backend)
    assert "'text' has its own template" in compiled.explain()
    assert "value of 'other'" not in compiled.explain()


def test_text_that_no_slot_can_send_is_appended_by_the_body() -> None:
    @bn.function
    def asks(s: bn.State, x: str, y: str = "") -> None:
        s += bn.user(x + y) + bn.assistant(bn.gen("o"))

    backend, compiled = TemplateMock(), compile(asks)
    compiled.run("one", backend=backend)
    for name in ("first", "second"):
        x = f"Name one. {bn.gen(name)}"
        for arguments in ((x,), (x, "and")):
            expected = results_of(asks.run(*arguments, backend=bn.Mock(script)))
            assert name in expected["variables"]
            assert results_of(compiled.run(*arguments, backend=backend)) == expected
    with pytest.raises(bn.BadProgram, match="character 1 of this text"):
        compiled.run("x\ud800", backend=backend)
    assert compiled.run("zwölf", backend=backend)["o"]
    assert backend.sent[-1] == wire.Use(0, 0, ("zwölf",))
    assert backend.n_defined == 1


@bn.function
def quotes(s: bn.State, text: str, schema: str) -> None:
    s += text + json.dumps(schema) + bn.gen("a")


@bn.function
def needs_one_text(s: bn.State, text: str, other: str) -> None:
    if not isinstance(text, str) and not isinstance(other, str):
        raise TypeError("two slots")
    s += text + other + bn.gen("a")


@pytest.mark.parametrize(
    ("program", "blamed", "n_templates"),
    [(quotes, ["schema"], 1), (needs_one_text, ["text", "other"], 0)],
    ids=case_id,
)
def test_only_arguments_that_cannot_be_slots_lose_them(
    program: bn.Program, blamed: list[str], n_templates: int
) -> None:
    backend, compiled = TemplateMock(), compile(program)
    for text in ("one", "two"):
        assert compiled.run(text, "x", backend=backend).text() == program.run(text, "x", backend=bn.Mock(script)).text()
    assert re.findall(r"each value of '(\w+)' .*TypeError", compiled.explain()) == blamed
    assert backend.n_defined == n_templates
    assert compiled.explain().count("a run sends text\n") == n_templates


def test_program_without_sendable_arguments_runs_its_body() -> None:
    backend, compiled = TemplateMock(), compile(cuts)
    for text in ("one", "two", "three"):
        compiled.run(text, backend=backend)
    assert backend.n_defined == 0


def test_bound_arguments_are_part_of_the_template() -> None:
    backend = TemplateMock()
    compiled = compile(inspects_mode).bind(mode="long")
    compiled.run("one", backend=backend)
    assert backend.templates[0].ops[0] == wire.Append(0, ("At length: ", wire.Arg(0)))
    compiled.run("one", mode="other", backend=backend)
    assert backend.sent[-1] == wire.Use(0, 1, ("one",))


def test_options_are_part_of_the_template_except_the_seed() -> None:
    backend, compiled = TemplateMock(), compile(counts)
    for seed in (1, 2):
        compiled.run(1, backend=backend, seed=seed, temperature=0.5)
    assert backend.n_defined == 1
    assert [call.op.sampling.temperature for call in backend.calls if isinstance(call.op, wire.Gen)] == [0.5, 0.5]
    assert len({call.op.sampling.seed for call in backend.calls if isinstance(call.op, wire.Gen)}) == 2
    compiled.run(1, backend=backend, temperature=0.0)
    assert backend.n_defined == 2


@bn.function
def observes(s: bn.State, x: str) -> str:
    N_RUNS[0] += 1
    s += x + bn.gen("a")
    return str(s["a"])


@bn.function
def calls_another(s: bn.State, x: str) -> None:
    s += x + str(straight(x)["a"])


@bn.function
def calls_another_at_once(s: bn.State, x: str) -> None:
    straight(x)
    s += x + bn.gen("a")


@bn.function
def draws(s: bn.State, x: str) -> None:
    s += f"{x} {random.random()}" + bn.gen("a")


@bn.function
def makes(s: bn.State, x: str) -> list[str]:
    s += x + bn.gen("a")
    return ["a list"]


@bn.function
def keeps(s: bn.State, x: str) -> None:
    s["kept"] = f"about {x}"
    s += x + bn.gen("a")


@bn.function
def asks(s: bn.State) -> None:
    s += "first " + bn.gen("old")


OLD = asks.run(backend=bn.Mock("<old>"))


@bn.function
def keeps_a_ref(s: bn.State, x: str) -> None:
    s["old"] = OLD.ref("old")
    s += x + bn.gen("a")


@bn.function
def hurries(s: bn.State, x: str) -> None:
    s += x + bn.gen("a", timeout=30)


@bn.function
def catches_its_read(s: bn.State, x: str) -> None:
    s += x + bn.gen("a")
    try:
        n = len(s["a"])
    except:  # noqa: E722 - what is tested
        n = 0
    s += f" n={n}"


@bn.function
def catches_its_adoption(s: bn.State, x: str) -> None:
    s += x
    branches = s.fork(2)
    branches += bn.gen("a")
    try:
        s.adopt(branches.first())
    except:  # noqa: E722 - what is tested
        s += "none"


@pytest.mark.parametrize(
    ("program", "match"),
    [
        (observes, "in test_compiled.py:[0-9]+ it reads a generated value"),
        (calls_another, "it reads a generated value"),
        (calls_another_at_once, "it calls another program, straight"),
        (draws, "it appends different things for the same arguments"),
        (makes, "a list that the body created is stored"),
        (keeps, "a string that contains an argument or a gen is stored"),
        (keeps_a_ref, "a ref of another program is stored"),
        (hurries, "gen 'a' .* has its own timeout"),
        (catches_its_read, "it reads a generated value"),
        (catches_its_adoption, "it reads a generated value"),
    ],
    ids=case_id,
)
def test_program_without_a_template_runs_its_body(program: bn.Program, match: str) -> None:
    backend, compiled = TemplateMock(), compile(program)
    for x in ("1", "2"):
        results = results_of(compiled.run(x, backend=backend))
        text = results["text"]
        assert text.startswith(x)
        assert program is draws or results == results_of(program.run(x, backend=bn.Mock(script)))
    assert backend.n_defined == 0
    assert re.search(f"runs its body every time: .*{match}", compiled.explain())


def test_body_that_reads_its_index_runs_for_each_item() -> None:
    @bn.function
    def numbers(s: bn.State, x: str) -> None:
        s += f"item {s.index}: " + x + bn.gen("a")

    backend, compiled = TemplateMock(), compile(numbers)
    texts = [state.text().partition("<")[0] for state in compiled.run_batch([("x",), ("y",)], backend=backend)]
    assert texts == ["item 0: x", "item 1: y"]
    assert re.search(r"in test_compiled\.py:\d+ it reads the index of its batch item", compiled.explain())
    assert numbers.graph("x").ended is None, "outside a batch the index is known"


@pytest.mark.parametrize("names_it", ["run", "using"])
def test_called_program_on_a_backend_of_its_own_is_not_recorded(names_it: str) -> None:
    own = bn.Mock([f"hint {i}" for i in range(3)])

    @bn.function
    def helper(s: bn.State) -> None:
        s += "Hint: " + bn.gen("h")

    @bn.function
    def asks_it(s: bn.State, q: str) -> None:
        if names_it == "run":
            hint = helper.run(backend=own)["h"]
        else:
            with bn.using(own):
                hint = helper.run()["h"]
        s += q + f" ({hint})" + bn.gen("a")

    asks_it.graph(q="x")
    assert own.calls == []
    backend, compiled = TemplateMock(), compile(asks_it)
    texts = [compiled.run("x", backend=backend).text() for _ in range(3)]
    assert [text.partition("<")[0] for text in texts] == [f"x (hint {i})" for i in range(3)]
    assert len(own.calls) == 3
    assert compiled.explain().startswith("asks_it runs its body every time: in test_compiled.py:")


def test_body_errors_are_raised_unchanged() -> None:
    @bn.function
    def divides(s: bn.State, x: str, by: int) -> None:
        s += f"{x} {1 / by}" + bn.gen("a")

    backend, compiled = TemplateMock(), compile(divides)
    for by in (0, 1, 0, 2):
        if by:
            assert compiled.run("x", by, backend=backend).text().startswith(f"x {1 / by}")
        else:
            with pytest.raises(ZeroDivisionError):
                compiled.run("x", by, backend=backend)


def test_template_is_dropped_with_its_program_and_does_not_keep_its_backend() -> None:
    backend, compiled = TemplateMock(), compile(straight)
    compiled.run("one", backend=backend)
    other = compile(straight)
    other.run("one", backend=backend)
    assert len(backend.templates) == 2
    del other
    gc.collect()
    assert len(backend.templates) == 1
    backend_ref = weakref.ref(backend)
    del backend
    gc.collect()
    assert backend_ref() is None
    assert compiled.explain() == "straight has 0 templates"


def test_compiled_program_runs_async_and_streams() -> None:
    backend, compiled = TemplateMock(), compile(straight)

    async def main() -> str:
        state = await compiled.run_async("one", backend=backend)
        return str(await state.value("a"))

    assert asyncio.run(main()).startswith("<a")
    assert backend.n_defined == 1
    assert "".join(compiled.run("one", backend=backend, stream=True).text_iter("a")).startswith("<a")


def test_limits_apply_to_compiled_programs() -> None:
    class Long(TemplateMock):
        def answer(self, prompt: str, name: str) -> wire.Sample:
            return wire.Sample("<b>" if name == "b" else "many words", "stop", n_tokens=100)

    compiled, backend = compile(straight), Long()
    assert compiled.run("x", backend=backend)["c"] == "many words"
    with pytest.raises(bn.BudgetExceeded):
        compiled.run("x", backend=backend, budget=50).sync()


@pytest.mark.parametrize("kind", [bn.Mock, TemplateMock], ids=["ops", "templates"])
def test_budget_counts_branches_that_are_not_joined(kind: type[bn.Mock]) -> None:
    class Ten(kind):  # type: ignore[misc,valid-type]
        def answer(self, prompt: str, name: str) -> wire.Sample:
            return wire.Sample("words", "stop", n_tokens=10)

    @bn.function
    def unjoined(s: bn.State, text: str) -> None:
        s += text
        branches = s.fork(3)
        branches += bn.gen("a")
        s += bn.gen("own")

    for program in (unjoined, compile(unjoined)):
        with pytest.raises(bn.BudgetExceeded, match="the run's budget of 15 tokens ran out"):
            program.run("x", backend=Ten(), budget=15).sync()


def as_async(program: bn.Program) -> bn.AsyncProgram:
    """Return the same program as an `async def`."""

    @functools.wraps(program.func)
    async def body(s: bn.AsyncState, *args: Any, **kwargs: Any) -> Any:
        return program.func(s, *args, **kwargs)

    return bn.function(body)


@pytest.mark.parametrize(("program", "items"), ITEMS, ids=case_id)
def test_async_compiled_program_gives_the_same_results(program: bn.Program, items: list[tuple[Any, ...]]) -> None:
    async def main(async_program: bn.AsyncProgram, backend: bn.Mock) -> list[Any]:
        states = await async_program.run_batch_async([*items, *items], backend=backend, seed=3)
        return [(await state.text(), state._values.keys(), repr(state.ret_value)[:40]) for state in states]

    backend, compiled = TemplateMock(), compile(as_async(program))
    assert isinstance(compiled, bn.AsyncCompiled)
    expected = asyncio.run(main(as_async(program), bn.Mock(script)))
    assert asyncio.run(main(compiled, backend)) == expected
    sync_backend = TemplateMock()
    compile(program).run_batch([*items, *items], backend=sync_backend, seed=3)
    assert backend.n_defined == sync_backend.n_defined


def test_async_body_is_traced_once() -> None:
    n_body_runs = 0

    @bn.function
    async def ask(s: bn.AsyncState, what: str) -> str:
        nonlocal n_body_runs
        n_body_runs += 1
        s += what + bn.gen("a")
        return "done"

    async def main() -> None:
        nonlocal n_body_runs
        state = await compiled.run_async("one", backend=backend)
        assert n_body_runs > 1, "the first run traces the body"
        n_body_runs = 0
        again = await compiled("two", backend=backend)
        assert (state["a"], again["a"], again.ret_value, await again.text()) == ("<a3>", "<a3>", "done", "two<a3>")

    backend, compiled = TemplateMock(), compile(ask)
    asyncio.run(main())
    assert (n_body_runs, backend.n_defined) == (0, 1)
    with pytest.raises(bn.BadProgram, match="run_async"):
        compiled.run("three", backend=backend)


def test_async_body_that_awaits_runs_its_body() -> None:
    @bn.function
    async def sleeps(s: bn.AsyncState, what: str) -> None:
        s += what
        await asyncio.sleep(0)
        s += bn.gen("a")

    @bn.function
    async def looks_at_it(s: bn.AsyncState, what: str) -> None:
        s += what + bn.gen("a")
        s += await s.value("a") + "!"

    async def main(compiled: bn.AsyncCompiled) -> list[str]:
        return [await (await compiled.run_async(what, backend=TemplateMock())).text() for what in ("one", "three")]

    compiled = compile(sleeps)
    assert asyncio.run(main(compiled)) == ["one<a3>", "three<a5>"]
    assert re.search(r"in test_compiled\.py:\d+ it awaits something", compiled.explain())

    @bn.function
    async def catches_it(s: bn.AsyncState, what: str) -> None:
        s += what + bn.gen("a")
        try:
            found = await s.value("a")
        except:  # noqa: E722 - what is tested
            found = "none"
        s += f"{found}!"

    for program in (looks_at_it, catches_it):
        compiled = compile(program)
        assert asyncio.run(main(compiled)) == ["one<a3><a3>!", "three<a5><a5>!"]
        assert "reads a generated value" in compiled.explain()


def test_function_that_is_no_program_is_refused() -> None:
    with pytest.raises(bn.BadProgram, match="takes a program"):
        compile(lambda s: None)  # type: ignore[arg-type]


def test_ref_may_be_copied() -> None:
    @compile
    @bn.function
    def twice(s: bn.State, word: str) -> bn.Expr:
        s += word + bn.gen("a")
        ref = copy.copy(s.ref("a"))
        s += ref
        return ref

    backend = TemplateMock()
    for word in ("Bob", "Eve"):
        assert twice.run(word, backend=backend).text() == f"{word}<a3><a3>"
    assert backend.n_defined == 1


def test_bound_method_can_be_compiled() -> None:
    class Tutor:
        name = "Ann"

        @bn.function
        def greet(self, s: bn.State, who: str) -> None:
            s += f"{self.name} greets {who}: " + bn.gen("a")

    backend, compiled = TemplateMock(), compile(Tutor().greet)
    assert isinstance(compiled, Compiled)
    assert compiled.run("Bob", backend=backend).text() == "Ann greets Bob: <a16>"
    assert compiled.run("Eve", backend=backend).text() == "Ann greets Eve: <a16>"
    assert backend.n_defined == 1


def test_method_that_is_compiled_in_its_class_is_refused() -> None:
    class Tutor:
        @compile
        @bn.function
        def greet(self, s: bn.State, who: str) -> None:
            s += f"Hello {who}: " + bn.gen("a")

    assert isinstance(Tutor.greet, Compiled)
    with pytest.raises(bn.BadProgram, match=r"keep compile\(x.greet\)"):
        Tutor().greet.run("Bob", backend=TemplateMock())


class Colour(enum.Enum):
    RED = 1


def test_zeros_of_both_signs_have_their_own_text() -> None:
    @bn.function
    def program(s: bn.State, x: float, unit: str) -> None:
        s += f"{x:.1f}" + unit + bn.gen("a")

    backend, compiled = TemplateMock(), compile(program)
    texts = [compiled.run(x, " m", backend=backend).text() for x in (0.0, -0.0, 0.0)]
    assert [text.partition("<")[0] for text in texts] == ["0.0 m", "-0.0 m", "0.0 m"]
    assert backend.n_defined == 2


def test_frozen_keys_compare_by_value_and_type() -> None:
    factories: list[Callable[[], Any]] = [
        *(lambda: 1, lambda: "a", lambda: None, lambda: [1, (2, {"a": [3]})], lambda: {1, 2}, lambda: Colour.RED),
        *(lambda: b"x", lambda: {"a": 1.5}, lambda: frozenset([1])),
    ]
    keys = [frozen(make()) for make in factories]
    assert keys == [frozen(make()) for make in factories]
    assert (
        len({*keys, frozen(True), frozen(1.0), frozen((1, (2, {"a": [3]}))), frozen([1, (2, {"a": [4]})])})
        == len(keys) + 4
    )
    for value in (object(), [lambda: 1], {"a": bytearray()}):
        with pytest.raises(TypeError):
            frozen(value)
