"""A state: what was appended to it, and the tokens that this is.

A state is a list of pieces, only ever appended to. Its tokens are runs: one per stretch of text between two seams (the
start, a gen), encoded as one string, and one per output of a gen, whose ids are kept as the model made them. What the
pieces say as text is decided by `layout`; runs stay as long as that text still begins with theirs, so a template that
rewrites earlier turns costs the changed tail and nothing else.
"""

from __future__ import annotations

import codecs
import json
import re
import secrets
from array import array
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import NamedTuple

from msgspec.structs import replace

from banyan.runtime.errors import BadProgram
from banyan.runtime.protocol import wire
from banyan.runtime.server.text.chat_template import ChatMessage, ChatTemplate
from banyan.runtime.server.text.detokenizer import Detokenizer
from banyan.runtime.server.text.tokenizer import TextSpan, Tokenizer


class GeneratedText(NamedTuple):
    """Output of a gen: the tokens that are kept, and exactly the text they spell."""

    text: str
    ids: bytes


class TurnStart(NamedTuple):
    role: str
    answers: wire.WireToolCall | None = None
    """Of a tool's turn: the call that it answers."""


class TurnEnd(NamedTuple):
    calls: tuple[wire.WireToolCall, ...] = ()
    """Those that the turn makes, where the template writes them unlike text and must be told."""


Atom = TextSpan | GeneratedText
Piece = TextSpan | GeneratedText | TurnStart | TurnEnd


class TokenRun(NamedTuple):
    text: str
    ids: bytes  # int32
    made: bool = False


class EncodedPrompt(NamedTuple):
    """A state's tokens as far as they are known, and what has still to be encoded behind them."""

    runs: tuple[TokenRun, ...]
    rest: tuple[Atom, ...]

    @property
    def n_chars(self) -> int:
        """Characters that `encode` will have to encode."""
        return sum(len(atom.text) for atom in self.rest if isinstance(atom, TextSpan))

    def encode(self, tokenizer: Tokenizer, extra: str = "") -> tuple[TokenRun, ...]:
        """All runs, `extra` (as data) joined to the last text. Changes nothing: may run on any thread."""
        runs = list(self.runs)
        spans: list[TextSpan] = []

        def seal() -> None:
            ids = tokenizer.encode(spans, at_start=not any(run.ids for run in runs))
            if ids or spans:
                runs.append(TokenRun("".join(span.text for span in spans), pack(ids)))
            spans.clear()

        for atom in (*self.rest, TextSpan(extra)):
            if isinstance(atom, GeneratedText):
                seal()
                runs.append(TokenRun(atom.text, atom.ids, made=True))
            elif atom.text:
                spans.append(atom)
        seal()
        if not any(run.ids for run in runs):
            runs.append(TokenRun("", pack(tokenizer.blank)))
        return tuple(runs)


def pack(ids: Iterable[int]) -> bytes:
    return array("i", ids).tobytes()


def unpack(ids: bytes) -> list[int]:
    return memoryview(ids).cast("i").tolist()


class PromptText:
    """The pieces of a state and the tokens known for them. A copy shares both; only the list of pieces is its own."""

    def __init__(self, pieces: Sequence[Piece] = (), runs: tuple[TokenRun, ...] = (), role: str | None = None) -> None:
        self.pieces = list(pieces)
        self.runs = runs
        self.role = role
        """Of the open turn; None outside of turns."""
        self.n_inherited = len(self.pieces)
        """Pieces that were there when this copy was made."""
        self.tools: tuple[str, ...] = ()
        """What the template is told of; see wire.Tools."""

    def copy(self) -> PromptText:
        copied = PromptText(self.pieces, self.runs, self.role)
        copied.tools = self.tools
        return copied

    def upto(self, end: int, n_inherited: int) -> PromptText:
        """The first `end` pieces, as the text of a state that inherited `n_inherited` of its own."""
        text = PromptText(runs=self.runs)
        for piece in self.pieces[:end]:
            text.append(piece)
        text.n_inherited, text.tools = n_inherited, self.tools
        return text

    def append(self, piece: Piece) -> None:
        """BadProgram: a turn inside a turn, or the end of none."""
        match piece:
            case TurnStart(role=role):
                if self.role is not None:
                    raise BadProgram(f"a turn of {role!r} begins inside a turn of {self.role!r}; turns do not nest")
                self.role = role
            case TurnEnd():
                if self.role is None:
                    raise BadProgram("a turn ends where none is open")
                self.role = None
            case TextSpan(text=""):
                return  # not even text between turns
        self.pieces.append(piece)

    def prompt(self, tokenizer: Tokenizer, template: ChatTemplate | None, now: datetime) -> EncodedPrompt:
        """What is known and what is to encode. Forgets runs that the template rewrote."""
        template = template and template.with_tools(self.tools)
        atoms = layout(self.pieces, tokenizer, template, now)
        text = "".join(atom.text for atom in atoms)
        at, n, n_silent = 0, 0, 0
        for run in self.runs:
            if not text.startswith(run.text, at):
                break
            at, n = at + len(run.text), n + 1
            n_silent = 0 if run.text else n_silent + run.made
        self.runs = self.runs[:n]
        return EncodedPrompt(self.runs, tuple(_from(atoms, at, n_silent)))

    def tokens(self, tokenizer: Tokenizer, template: ChatTemplate | None, now: datetime) -> wire.Tokens:
        """All of them, as a gen here would be given them."""
        runs = self.prompt(tokenizer, template, now).encode(tokenizer)
        lengths = array("i")
        for run in runs:
            lengths.extend(_lengths(run, tokenizer))
        return wire.Tokens(
            ids=b"".join(run.ids for run in runs),
            lengths=lengths.tobytes(),
            spans=tuple((len(run.ids) // 4, run.made) for run in runs if run.ids),
        )

    def read(self, tokenizer: Tokenizer, template: ChatTemplate | None, now: datetime, mark: int = 0) -> str:
        """The text from piece `mark` on, markers included."""
        template = template and template.with_tools(self.tools)
        rest, text = self.pieces[mark:], ""
        kinds = [type(piece) for piece in self.pieces[:mark]]
        if kinds.count(TurnStart) > kinds.count(TurnEnd):
            # The rest of the turn that the mark stands in, as it was appended.
            n = next((k for k, piece in enumerate(rest) if isinstance(piece, TurnEnd)), len(rest))
            text = "".join(piece.text for piece in rest[:n] if isinstance(piece, TextSpan | GeneratedText))
            if n == len(rest):
                return text
            mark += n + 1
        before, whole = (
            "".join(atom.text for atom in layout(pieces, tokenizer, template, now))
            for pieces in (self.pieces[:mark], self.pieces)
        )
        if mark and isinstance(self.pieces[mark - 1], TurnEnd) and template is not None:
            roles = tuple(turn.shape for turn in _turns(self.pieces[:mark])[0])
            end, last = template.ending(roles, now), (template.markers(roles, None, now) or ("",))[-1]
            before = before.removesuffix(last) + end  # what stands behind the last turn alone goes when another follows
            text += end if mark > len(self.pieces) - len(rest) else ""
        n = len(before)
        if not whole.startswith(before):  # the template rewrote what stood before the mark
            n = next(k for k, pair in enumerate(zip(before, whole + "\0", strict=False)) if pair[0] != pair[1])
        return text + whole[n:]


def _lengths(run: TokenRun, tokenizer: Tokenizer) -> list[int]:
    """Characters of `run.text` that each of its ids spells; together all of them.

    An id may spell what is not in the text: a begin-of-text in front of it, a space that the tokenizer puts there, an
    end that is not shown. Those get what is left for them.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    hidden = tokenizer.special if run.made else frozenset()
    spelled = ["" if i in hidden else decoder.decode(tokenizer.spelling[i]) for i in unpack(run.ids)]
    surplus = sum(map(len, spelled)) - len(run.text)
    for k, piece in enumerate(spelled):
        if surplus <= 0:
            break
        spelled[k] = piece[surplus:]
        surplus -= len(piece)
    lengths = [len(piece) for piece in spelled]
    if lengths:
        lengths[-1] += len(run.text) - sum(lengths)
    return lengths


class _TurnLayout(NamedTuple):
    role: str
    atoms: list[Atom]
    gap: list[Atom]
    """Text between the turn before and this one."""
    answers: wire.WireToolCall | None = None
    calls: tuple[wire.WireToolCall, ...] = ()

    @property
    def text(self) -> str:
        return "".join(atom.text for atom in self.atoms)

    @property
    def shape(self) -> str | ChatMessage:
        """The turn whatever it says."""
        if self.answers is None and not self.calls:
            return self.role
        return ChatMessage(self.role, "", tuple(wire.WireToolCall(call.id, "f") for call in self.calls), self.answers)


def layout(pieces: Sequence[Piece], tokenizer: Tokenizer, template: ChatTemplate | None, now: datetime) -> list[Atom]:
    """The state as text: contents as they were appended, and between them what the template writes.

    The template's rendering of the whole conversation is the truth: where it says other than markers and contents in
    turn, it has its way. Text outside of turns is no part of a conversation; markers then come from what the template
    writes around turns of these roles.
    """
    turns, after, is_open = _turns(pieces)
    if not turns:
        return after
    if template is None:
        raise BadProgram(
            f"the model has no chat template, so there are no role turns (here: {turns[0].role!r}); "
            "write the prompt as plain text"
        )
    closed = turns[:-1] if is_open else turns
    opening = turns[-1].role if is_open else None
    markers = template.markers(tuple(t.shape for t in closed), opening, now)
    if after or any(turn.gap for turn in turns):
        if markers is None:
            raise BadProgram("the model's chat template moves turns around; do not put text between them")
        return _interleave(turns, after, is_open, markers, template, now)

    def render(messages: Sequence[ChatMessage]) -> str:
        return template.render(messages, now=now) if opening is None else template.prefix(messages, opening, now)

    head = None
    if markers is not None:
        contents = [template.calling(turn.calls, now) if turn.calls else turn.text for turn in closed]
        real = render([ChatMessage(t.role, "" if t.calls else t.text, t.calls, t.answers) for t in closed])
        head = _align(real, markers, closed, contents, tokenizer)
    if head is None:
        head = _as_rendered(render, closed, tokenizer)
    return head + (turns[-1].atoms if is_open else [])


def _turns(pieces: Sequence[Piece]) -> tuple[list[_TurnLayout], list[Atom], bool]:
    """(turns, text behind the last of them, whether the last is open)"""
    turns: list[_TurnLayout] = []
    loose: list[Atom] = []
    is_open = False
    for piece in pieces:
        match piece:
            case TurnStart(role=role, answers=answers):
                turns.append(_TurnLayout(role, [], loose, answers))
                loose, is_open = [], True
            case TurnEnd(calls=calls):
                turns[-1] = turns[-1]._replace(calls=calls)
                is_open = False
            case _ if is_open:
                turns[-1].atoms.append(piece)
            case _:
                loose.append(piece)
    return turns, loose, is_open


def _align(
    real: str, markers: tuple[str, ...], turns: Sequence[_TurnLayout], contents: Sequence[str], tokenizer: Tokenizer
) -> list[Atom] | None:
    """`real` as markers and contents, where it is that, the contents perhaps stripped or escaped for JSON; else None.

    contents: what the template makes of each turn. The atoms stay what was said.
    """
    if not real.startswith(markers[0]):
        return None
    atoms: list[Atom] = [TextSpan(markers[0], meant=True)]
    at = len(markers[0])
    for turn, content, marker in zip(turns, contents, markers[1:], strict=True):
        escaped = json.dumps(content, ensure_ascii=False)[1:-1]
        for variant in (content, content.strip(), content.lstrip(), content.rstrip(), escaped):
            if real.startswith(variant + marker, at):
                break
        else:
            return None
        if variant == content:
            atoms += turn.atoms
        elif variant == escaped:
            atoms.append(TextSpan(escaped))
        else:
            atoms += _strip(turn.atoms, content.find(variant), len(variant), tokenizer)
        atoms.append(TextSpan(marker, meant=True))
        at += len(variant) + len(marker)
    return atoms if at == len(real) else None


def _strip(atoms: Sequence[Atom], start: int, length: int, tokenizer: Tokenizer) -> list[Atom]:
    """Characters start : start + length of the atoms. Output that is cut keeps the tokens that fit whole."""
    kept: list[Atom] = []
    left = length
    for atom in _from(atoms, start):
        if len(atom.text) <= left:
            kept.append(atom)
        elif isinstance(atom, GeneratedText):
            kept += _cut(atom, left, tokenizer)
        else:
            kept.append(TextSpan(atom.text[:left], atom.meant))
        left -= min(left, len(atom.text))
    return kept


def _cut(made: GeneratedText, n_chars: int, tokenizer: Tokenizer) -> list[Atom]:
    ids = unpack(made.ids)
    fit = Detokenizer(tokenizer.spelling, tokenizer.special)
    fit.feed(ids)
    n_tokens, n = fit.fit(n_chars)
    return [GeneratedText(made.text[:n], pack(ids[:n_tokens])), TextSpan(made.text[n:n_chars])]


def _from(atoms: Iterable[Atom], start: int, n_silent: int = 0) -> Iterable[Atom]:
    """The atoms from character `start` on, without the first `n_silent` outputs there that spell nothing.

    Output that begins before `start` goes on as text."""
    at = 0
    for atom in atoms:
        end = at + len(atom.text)
        if at >= start:
            if isinstance(atom, GeneratedText) and not atom.text and at == start and n_silent:
                n_silent -= 1
            else:
                yield atom
        elif end > start:
            yield TextSpan(atom.text[start - at :], isinstance(atom, TextSpan) and atom.meant)
        at = end


_HIDDEN = f"\ue000{secrets.token_hex(8)}"
"""Stands around the number of what is hidden; drawn by this process, so that nobody's words can be taken for it."""


def _kind(atom: Atom) -> str:
    return "made" if isinstance(atom, GeneratedText) else "meant" if atom.meant else "data"


def _as_rendered(
    render: Callable[[Sequence[ChatMessage]], str], turns: Sequence[_TurnLayout], tokenizer: Tokenizer
) -> list[Atom]:
    """A conversation that the template rewrites, as it writes it. The control tokens in it are the template's own, and
    those that a model wrote (`<think>`); what only looks like one is hidden from the template."""
    hidden: list[str] = []

    def hide(text: str, kinds: Sequence[str]) -> str:
        """`text` without the control tokens that are none. kinds: that of each character."""
        shown, done = "", 0
        for start, end, token in tokenizer.controls(text):
            # Special tokens are never shown: text of a model that spells one is not one.
            if "data" in (kind := kinds[start:end]) or ("made" in kind and token in tokenizer.special):
                shown += f"{text[done:start]}{_HIDDEN}{len(hidden)}{_HIDDEN}"
                hidden.append(text[start:end])
                done = end
        return shown + text[done:]

    def message(turn: _TurnLayout) -> ChatMessage:
        if turn.calls:
            calls = (replace(c, arguments=hide(c.arguments, ["data"] * len(c.arguments))) for c in turn.calls)
            return ChatMessage(turn.role, "", tuple(calls))
        kinds = [kind for atom in turn.atoms for kind in [_kind(atom)] * len(atom.text)]
        return ChatMessage(turn.role, hide(turn.text, kinds), answers=turn.answers)

    real = render([message(turn) for turn in turns])
    parts = re.split(f"{_HIDDEN}(\\d+){_HIDDEN}", real)
    return [TextSpan(hidden[int(part)] if k % 2 else part, meant=not k % 2) for k, part in enumerate(parts)]


def _interleave(
    turns: Sequence[_TurnLayout],
    after: Sequence[Atom],
    is_open: bool,
    markers: tuple[str, ...],
    template: ChatTemplate,
    now: datetime,
) -> list[Atom]:
    """Markers, contents, and the text between turns: behind the end of one and before the beginning of the next."""
    roles = tuple(t.shape for t in turns)
    atoms: list[Atom] = []
    for k, turn in enumerate(turns):
        marker = markers[k]
        if turn.gap and k:
            end = template.ending(roles[:k], now)
            if marker.startswith(end):
                atoms.append(TextSpan(end, meant=True))
                marker = marker[len(end) :]
        atoms += [*turn.gap, TextSpan(marker, meant=True), *turn.atoms]
    if not is_open:
        atoms.append(TextSpan(markers[-1], meant=True))
    return [*atoms, *after]
