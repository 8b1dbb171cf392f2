"""Random programs in random messages, with engine deaths at any time: the texts agree with a reference interpreter,
every value resolves, and no state is left."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from banyan.runtime.protocol import wire
from banyan.runtime.server.text.tokenizer import TextSpan
from forms import examples


def answer(prompt: str) -> str:
    """The output of the model after `prompt`."""
    return f"<{len(prompt)}{prompt[-1:]}>"


@st.composite
def program(draw: st.DrawFn, may_drop: bool) -> list[wire.Op]:
    """Valid ops. A state is not used after it was dropped."""
    ops: list[wire.Op] = []
    states, refs = [0], 0
    marks: dict[int, set[int]] = {0: set()}
    descendants: dict[int, list[int]] = {0: [0]}  # the descendants of a state, and the state itself
    for _ in range(draw(st.integers(1, 14))):
        if not states:
            break
        state = draw(st.sampled_from(states))
        kind = draw(
            st.sampled_from(["append", "gen", "select", "fork", "join", "adopt", "mark", "read", "drop", "splice"])
        )
        if kind == "append":
            ops.append(wire.Append(state, (draw(st.sampled_from(["a", "bc", " d", ""])),)))
        elif kind == "gen":
            ops.append(wire.Gen(state, (refs := refs + 1), wire.Sampling(max_tokens=30), stream=draw(st.booleans())))
        elif kind == "select":
            ops.append(wire.Append(state, ("?",)))
            ops.append(wire.Select(state, (refs := refs + 1), ("x", "yy")))
        elif kind == "fork":
            child = 1 + max((c for op in ops if isinstance(op, wire.Fork) for c in op.children), default=0)
            n = draw(st.integers(1, 3))
            ops.append(wire.Fork(state, tuple(range(child, child + n))))
            ops += [wire.Append(c, (f"[{c}",)) for c in range(child, child + n)]
            states += range(child, child + n)
            for c in range(child, child + n):
                marks[c], descendants[c] = set(marks[state]), []
                for states_below in (s for key, s in descendants.items() if key == c or state in s):
                    states_below.append(c)
        elif kind == "join" and (others := [s for s in states if s != state]):
            ops.append(wire.Join(state, tuple(draw(st.permutations(others))[:2])))
        elif kind == "adopt" and (others := [s for s in states if s != state and s in descendants[state]]):
            other = draw(st.sampled_from(others))
            ops.append(wire.Join(state, (other,), adopt=True))
            marks[state] = set(marks[other])
        elif kind == "mark":
            ops.append(wire.Mark(state, mark := draw(st.integers(0, 2))))
            marks[state].add(mark)
        elif kind == "read":
            ops.append(wire.Read(state, (refs := refs + 1), draw(st.sampled_from([None, *sorted(marks[state])]))))
        elif kind == "splice" and refs:
            ops.append(wire.Append(state, (wire.Ref(draw(st.integers(1, refs))), "+")))
        elif kind == "drop" and may_drop:
            ops.append(wire.Drop(state, tree=draw(st.booleans())))
            dropped = descendants[state] if ops[-1].tree else [state]
            states = [s for s in states if s not in dropped]
    return [*ops, *(wire.Read(state, (refs := refs + 1)) for state in states)]


def interpret(ops: list[wire.Op], chosen: Callable[[int], str]) -> dict[int, str]:
    """Each value, by sequential execution of the ops. `chosen`: the choice of a select."""
    texts: dict[int, str] = {0: ""}
    inherited: dict[int, int] = {0: 0}
    marks: dict[tuple[int, int], int] = {}
    values: dict[int, str] = {}
    for op in ops:
        match op:
            case wire.Append(state=s, parts=parts):
                texts[s] += "".join(values[p.ref] if isinstance(p, wire.Ref) else str(p) for p in parts)
            case wire.Gen(state=s, ref=ref):
                values[ref] = answer(texts[s])
                texts[s] += values[ref]
            case wire.Select(state=s, ref=ref):
                values[ref] = chosen(ref)
                texts[s] += values[ref]
            case wire.Fork(state=s, children=children):
                for c in children:
                    texts[c], inherited[c] = texts[s], len(texts[s])
                    marks |= {(c, m): at for (t, m), at in marks.items() if t == s}
            case wire.Join(state=s, children=(c,), adopt=True):
                texts[s] = texts[c]
                marks = {(t, m): at for (t, m), at in marks.items() if t != s}
                marks |= {(s, m): at for (t, m), at in marks.items() if t == c}
            case wire.Join(state=s, children=children):
                texts[s] += "".join(texts[c][inherited[c] :] for c in children)
            case wire.Mark(state=s, mark=m):
                marks[s, m] = len(texts[s])
            case wire.Read(state=s, ref=ref, mark=m):
                values[ref] = texts[s][0 if m is None else marks[s, m] :]
    return values


def run_ops(b: Any, ops: list[wire.Op], data: st.DataObject) -> None:
    """Sends `ops` in random messages. Between them the engine runs or dies, and encodings are held or released."""
    b.engine.speak = lambda ids: b.words.encode([TextSpan(answer(b.words.text_of(ids).removeprefix("<|im_end|>")))])
    while ops:
        n = data.draw(st.integers(1, len(ops)), label="ops in this message")
        b.submit(*ops[:n], last=n == len(ops))
        ops = ops[n:]
        for _ in range(data.draw(st.integers(0, 3), label="events")):
            event = data.draw(st.sampled_from(["steps", "death", "hold", "release"]))
            if event == "steps":
                b.run(n_steps=data.draw(st.integers(1, 6)))
            elif event == "death" and data.draw(st.booleans()):
                b.run(n_steps=1)  # no request sees two consecutive deaths
                b.engine.running.clear()
                b.engine.finished.clear()
                for request in b.requests._living.values():
                    request.n_deaths = request.n_blamed = request.n_blamed_ever = 0
                b.requests.replay(b.replica)
            elif event == "hold":
                b.held = b.held or []
            elif event == "release":
                release_encodings(b)
    release_encodings(b)
    b.run()


def release_encodings(b: Any) -> None:
    held, b.held = b.held or [], None
    for encode in held:
        encode()


def any_program(may_drop: bool = False) -> Any:
    """Runs a test with programs `ops`, and with `data` to draw more from."""
    given_ops = given(ops=program(may_drop=may_drop), data=st.data())
    return examples(15, 100, given_ops, suppress_health_check=[HealthCheck.function_scoped_fixture])


@any_program()
def test_values_and_streams_agree_with_the_interpreter(bench: Any, ops: list[wire.Op], data: st.DataObject) -> None:
    b = bench()
    run_ops(b, list(ops), data)
    assert not b.messages(wire.Failed)
    expected = interpret(ops, chosen=b.text)
    assert {m.ref: m.samples[0].text for m in b.messages(wire.Value)} == expected
    for op in ops:
        if isinstance(op, wire.Gen) and op.stream:
            assert "".join(m.text for m in b.messages(wire.Delta) if m.ref == op.ref) == expected[op.ref]
    assert (len(b.programs), len(b.requests)) == (0, 0)
    assert [m.seq for _, m in b.sent] == list(range(len(b.sent)))


@any_program(may_drop=True)
def test_every_value_resolves_once_when_states_are_dropped(bench: Any, ops: list[wire.Op], data: st.DataObject) -> None:
    b = bench()
    run_ops(b, list(ops), data)
    refs = [op.ref for op in ops if isinstance(op, wire.Gen | wire.Select | wire.Read)]
    answers = b.messages(wire.Value) + b.messages(wire.Failed)
    assert sorted(m.ref for m in answers) == refs
    assert {m.code for m in b.messages(wire.Failed)} <= {"cancelled"}
    expected = interpret(
        ops, chosen=lambda ref: b.text(ref) if any(m.ref == ref for m in b.messages(wire.Value)) else ""
    )
    selects = {op.ref for op in ops if isinstance(op, wire.Select)}
    if not selects:
        assert all(m.samples[0].text == expected[m.ref] for m in b.messages(wire.Value))
    assert (len(b.programs), len(b.requests)) == (0, 0)


@any_program()
def test_template_gives_the_values_of_its_ops(bench: Any, ops: list[wire.Op], data: st.DataObject) -> None:
    """The values and the token ids agree, alone and inside another program, with any texts as arguments."""
    args: list[str] = []
    template_ops = [_with_arguments(op, args, data) for op in ops]

    def values(b: Any, *ops: wire.Op) -> list[wire.Value]:
        b.engine.speak = lambda ids: b.words.encode([TextSpan(answer(b.words.text_of(ids).removeprefix("<|im_end|>")))])
        b.submit(*ops, last=True)
        b.run()
        assert not b.messages(wire.Failed)
        return b.messages(wire.Value)

    def bench_with_template() -> Any:
        b = bench()
        b.send(wire.Define(7, tuple(template_ops)))
        return b

    direct, alone, embedded = bench(), bench_with_template(), bench_with_template()
    expected = {m.ref: m.samples for m in values(direct, *ops)}
    assert {m.ref: m.samples for m in values(alone, wire.Use(0, 7, tuple(args)))} == expected
    use = wire.Use(1, 7, tuple(args), child=2, ref=1, mark=1)
    actual = {m.ref: m.samples for m in values(embedded, wire.Read(0, 0), wire.Fork(0, (1,)), wire.Mark(1, 0), use)}
    assert actual.pop(0)[0].text == ""
    assert actual == {ref + 1: samples for ref, samples in expected.items()}
    assert _prompts(alone) == _prompts(embedded) == _prompts(direct)


@any_program()
def test_pauses_change_no_value(bench: Any, ops: list[wire.Op], data: st.DataObject) -> None:
    """A program that pauses wherever it can, and one that never does, get the same values from the same prompts."""
    benches = [bench(), bench(is_late=lambda: True), bench(is_late=lambda: data.draw(st.booleans()))]
    words = benches[0].words
    for b in benches:
        b.engine.speak = lambda ids: words.encode([TextSpan(answer(words.text_of(ids).removeprefix("<|im_end|>")))])
        b.submit(*ops, last=True)
        b.run()
        assert (len(b.programs), len(b.requests)) == (0, 0)
    values = [{m.ref: m.samples for m in b.messages(wire.Value)} for b in benches]
    assert values[0] == values[1] == values[2]
    assert _prompts(benches[0]) == _prompts(benches[1]) == _prompts(benches[2])


def _with_arguments(op: wire.Op, args: list[str], data: st.DataObject) -> wire.Op:
    if not isinstance(op, wire.Append):
        return op
    parts: list[wire.Part] = []
    for part in op.parts:
        if isinstance(part, str) and data.draw(st.booleans(), label="an argument"):
            parts.append(wire.Arg(len(args)))
            args.append(part)
        else:
            parts.append(part)
    return wire.Append(op.state, tuple(parts))


def _prompts(b: Any) -> set[tuple[int, ...]]:
    """The token ids of the prompts of the engine, in any order."""
    return {tuple(b.ids(k)) for k in range(len(b.engine.runs))}
