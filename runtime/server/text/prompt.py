"""A state's prompt on the server: the pieces that were appended, and their tokens.

The tokens are kept in runs. The text between two gens, or before the first one, is encoded as one string, and is one
run. Each output of a gen is a run, whose ids stay as the model generated them.

`layout` turns the pieces into atoms: texts (also those that the chat template writes), outputs and images. The text of
all atoms is the text of the prompt. Runs stay valid as long as the prompt begins with their text. So if a template
rewrites earlier turns, only the changed tail is encoded again."""

from __future__ import annotations

import codecs
import json
import re
import secrets
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from itertools import repeat
from typing import NamedTuple

from msgspec.structs import replace

from banyan.runtime.errors import BadProgram, PromptTooLong, Unsupported
from banyan.runtime.executor.generator import N_TAIL, GenOutcome, Prompt
from banyan.runtime.executor.piece_list import PieceList
from banyan.runtime.protocol import wire
from banyan.runtime.protocol.limits import MAX_IMAGES
from banyan.runtime.protocol.roles import ASSISTANT, check_calls, check_role
from banyan.runtime.server.text.chat_template import ROLES, ChatMessage, ChatTemplate
from banyan.runtime.server.text.detokenizer import Detokenizer
from banyan.runtime.server.text.images import ImageFile, Images
from banyan.runtime.server.text.tokenizer import TextSpan, Tokenizer


class GeneratedText(NamedTuple):
    """The output of a gen: its tokens (int32 ids), and exactly the text they spell. is_given: whether the client gave
    the tokens; then special tokens are part of the text."""

    text: str
    ids: bytes
    is_given: bool = False


class TurnStart(NamedTuple):
    role: str
    answers: wire.WireToolCall | None = None
    """The call that a tool's turn answers."""


class TurnEnd(NamedTuple):
    calls: tuple[wire.WireToolCall, ...] = ()
    """The turn's tool calls, if the template needs them as data and not as text."""
    is_given: bool = False
    """Whether the client gave the calls, so that the text of the turn does not contain them."""


class ImagePiece(NamedTuple):
    """An image in a prompt.

    text: the mark that the chat template writes for an image. around: the texts that come before and after the mark if
    the image is outside of turns."""

    text: str
    file: ImageFile
    around: tuple[str, str]


class ImageRun(NamedTuple):
    """Consecutive rows of an image in a prompt. ids: the rows' ids, int32. first: the index of the first of them among
    the rows of the image. height, width: the shape of the image's grid. text: the one character that stands for
    them."""

    ids: bytes
    file: ImageFile
    first: int
    height: int
    width: int
    text: str = "\ufffc"


Atom = TextSpan | GeneratedText | ImagePiece | ImageRun
Piece = TextSpan | GeneratedText | ImagePiece | TurnStart | TurnEnd


PIECE = 2
"""The cost of a piece besides its text, in units of encoding one character."""
TURN = 40
"""The cost of rendering a turn, or a call, in units of encoding one character: 10 us on one core of an AMD EPYC."""
NEW_ROLE = 20
"""The cost of a turn whose role may be new, in turns: the template is rendered twice to see how it writes the role."""
IMAGE = 1 << 16
"""The cost of an image, in units of encoding one character."""
GAP = 500
"""The cost of text between turns, in units of encoding one character: the template is rendered twice to find the place
of the text."""


class TokenRun(NamedTuple):
    """Consecutive tokens of a prompt: int32 ids, and their text. is_generated: whether they are the output of a gen.
    image: if the tokens are rows of an image, these rows."""

    text: str
    ids: bytes
    is_generated: bool = False
    image: ImageRun | None = None


def image_rows(runs: Iterable[TokenRun]) -> tuple[tuple[wire.ImageRows, ...], tuple[ImageFile, ...]]:
    """Returns two tuples, with one item for each run of image rows in a prompt: its place and shape, and its image
    file. runs: the token runs of the prompt."""
    found, files, at = [], [], 0
    for run in runs:
        n = len(run.ids) // 4
        if (image := run.image) is not None:
            found.append(wire.ImageRows(at, n, image.file.digest, image.first, image.height, image.width))
            files.append(image.file)
        at += n
    return tuple(found), tuple(files)


class EncodedPrompt(NamedTuple):
    """A prompt, partly encoded. runs: the runs that are known. rest: the atoms after them, which are still to be
    encoded."""

    runs: tuple[TokenRun, ...]
    rest: tuple[Atom, ...]

    def encode(self, tokenizer: Tokenizer, suffix: str = "", owner: bytes = b"") -> tuple[TokenRun, ...]:
        """Encode the rest, with `suffix` (as data) joined to the last text. Returns all runs of the prompt. Does not
        change this object, so any thread may call the method. owner: see Tokenizer.encode."""
        runs = list(self.runs)
        spans: list[TextSpan] = []

        def seal() -> None:
            ids = tokenizer.encode(spans, at_start=not any(run.ids for run in runs), owner=owner)
            if ids or spans:
                runs.append(TokenRun("".join(span.text for span in spans), pack(ids)))
            spans.clear()

        for atom in (*self.rest, TextSpan(suffix)):
            if isinstance(atom, GeneratedText):
                if spans or not atom.is_given:
                    seal()
                runs.append(TokenRun(atom.text, atom.ids, is_generated=not atom.is_given))
            elif isinstance(atom, ImageRun):
                seal()
                runs.append(TokenRun(atom.text, atom.ids, image=atom))
            elif atom.text:
                assert isinstance(atom, TextSpan)
                spans.append(atom)
        seal()
        if not any(run.ids for run in runs):
            runs.append(TokenRun("", pack(tokenizer.blank)))
        return tuple(runs)


def pack(ids: Iterable[int]) -> bytes:
    """Token ids as int32 bytes."""
    return array("i", ids).tobytes()


def unpack(ids: bytes) -> list[int]:
    """The inverse of `pack`."""
    return memoryview(ids).cast("i").tolist()


class _Head(NamedTuple):
    """What is known about a prompt up to its last marker. The template does not change the text of later pieces.

    n_pieces: the number of pieces up to the last marker. tools, kwargs: the tools and variables with which they were
    rendered. atoms: their `layout`. n_sealed: how many pieces of the prompt have their tokens in its runs, possibly
    more than n_pieces; 0: not known, so the runs must be compared with the text."""

    n_pieces: int
    tools: tuple[str, ...]
    kwargs: str
    atoms: list[Atom]
    n_sealed: int = 0


class PromptText(Prompt):
    """The prompt of a state: its pieces, and the runs of tokens that are known for them.

    tools: the tool specs that the template gets; see wire.Tools. kwargs: variables for the template; see
    wire.Gen.chat_template_kwargs. images: the server's Images; a str: the reason why the model takes no images.
    """

    def __init__(
        self, pieces: Iterable[Piece] = (), runs: tuple[TokenRun, ...] = (), role: str | None = None,
        tokenizer: Tokenizer | None = None, images: Images | str = "",
    ) -> None:  # fmt: skip
        """runs: the tokens that are already known for the first pieces. role: the role of the open turn, if any.
        tokenizer: spells the token ids that clients append. images: the server's Images; a str says why the model takes
        no images."""
        self.images = images
        self.n_images = self._n_sealed_images = 0  # in all pieces; in the pieces with runs
        self.pieces = pieces.copy() if isinstance(pieces, PieceList) else PieceList(pieces)
        self.runs, self.role, self._tokenizer = runs, role, tokenizer
        self.n_inherited = len(self.pieces)
        self.tools: tuple[str, ...] = ()
        self.kwargs = ""
        self._n_fixed = 0  # pieces up to the last marker; later pieces cannot change the text before it
        self._n_turns = self._n_gaps = 0  # for `work`; a turn may count as several
        self._n_chars = self._n_sealed_chars = 0  # in all pieces; in the pieces with runs
        self._head: _Head | None = None

    def copy(self) -> PromptText:
        copied = PromptText(self.pieces, self.runs, self.role, self._tokenizer, self.images)
        copied.n_images, copied._n_sealed_images = self.n_images, self._n_sealed_images
        copied.tools, copied.kwargs = self.tools, self.kwargs
        copied._n_fixed, copied._head = self._n_fixed, self._head
        copied._n_turns, copied._n_gaps = self._n_turns, self._n_gaps
        copied._n_chars, copied._n_sealed_chars = self._n_chars, self._n_sealed_chars
        return copied

    def learn(self, copy: PromptText, runs: tuple[TokenRun, ...] | None = None) -> None:
        """Take over the token runs and the rendered head that were computed on a copy of this prompt. Nothing may have
        been appended to the prompt since it was copied. runs: the token runs of all pieces of the copy; None: not
        known."""
        self.runs, self._head = copy.runs, copy._head
        if runs is not None:
            self.runs, self._n_sealed_chars, self._n_sealed_images = runs, copy._n_chars, copy.n_images
            if self._head is not None:
                self._head = self._head._replace(n_sealed=len(copy.pieces))

    def join(self, child: PromptText, start: int, stop: int) -> None:
        for piece in child.pieces[start:stop]:
            self.append(piece)
        self.tools = self.tools or child.tools
        self.kwargs = self.kwargs or child.kwargs

    def append(self, piece: Piece) -> None:
        """Append a piece. BadProgram: the piece begins a turn inside a turn, or ends a turn where none is open."""
        match piece:
            case TurnStart(role=role):
                if self.role is not None:
                    raise BadProgram(f"a turn of {role!r} begins inside a turn of {self.role!r}; turns do not nest")
                self.role, self._n_fixed = role, len(self.pieces) + 1
                self._n_turns += 1 if role in ROLES else NEW_ROLE
            case TurnEnd(calls=calls):
                if self.role is None:
                    raise BadProgram("a turn ends where none is open")
                self._n_turns += len(calls) + sum(len(call.arguments) for call in calls) // TURN
                self.role, self._n_fixed = None, len(self.pieces) + 1
            case TextSpan(text=""):
                return  # does not count as text between turns
            case _:
                if self.role is None and self._n_turns and self._n_fixed == len(self.pieces):
                    self._n_fixed += 1  # the first text after a turn decides how the turns are rendered
                    self._n_gaps += 1
                self._n_chars += len(piece.text)
                self.n_images += isinstance(piece, ImagePiece)
                if self.n_images > MAX_IMAGES:
                    raise BadProgram(f"a prompt has at most {MAX_IMAGES} images")
        self.pieces.append(piece)

    def append_part(self, part: wire.Part) -> None:
        match part:
            case str():
                self.append(TextSpan(part))
            case wire.Raw(text=text):
                self.append(TextSpan(text, meant=True))
            case wire.BeginTurn(role=role, answers=answers):
                check_role(role)
                check_calls(() if answers is None else (answers,))
                self.append(TurnStart(role, answers))
            case wire.EndTurn(calls=calls):
                check_calls(calls)
                self.append(TurnEnd(calls, is_given=bool(calls)))
            case wire.TokenIds(ids=ids):
                self._append_ids(ids)
            case wire.Image(data=data):
                if isinstance(self.images, str):
                    raise Unsupported(f"image: {self.images or 'this model takes only text'}")
                mark = self.images.mark
                self.append(ImagePiece(mark, ImageFile(data), self.images.spec.alone))

    def _append_ids(self, ids: bytes) -> None:
        """Append token ids that a client sent.

        Clients cut long prompts anywhere, so a character may begin in the last piece and end in these ids. Decoded
        separately, the text of each of the two pieces would have U+FFFD in its place. The whole character therefore
        becomes part of the new piece's text. (A character that is spread over three pieces stays broken.)"""
        assert self._tokenizer is not None
        text = self._tokenizer.text_of_packed(ids)
        last = self.pieces[-1] if self.pieces else None
        if isinstance(last, GeneratedText) and last.is_given and last.text.endswith("\ufffd"):
            tail = last.ids[-4 * 4 :]  # no character has more than 4 bytes
            before, whole = map(self._tokenizer.text_of_packed, (tail, tail + ids))
            if whole != before + text:
                self.pieces.pop()
                self.pieces.append(last._replace(text=last.text[:-1]))
                self._n_chars -= 1
                self._head = None  # it may contain the old piece
                text = whole[len(before) - 1 :]
        self.append(GeneratedText(text, ids, is_given=True))

    def append_output(self, outcome: GenOutcome) -> None:
        for piece in outcome.pieces or (TextSpan(outcome.text),):
            self.append(piece)

    append_calls = append_output  # the pieces of the outcome end the turn

    def append_results(self, calls: Sequence[wire.WireToolCall], texts: Sequence[str]) -> None:
        for call, text in zip(calls, texts, strict=True):
            for piece in (TurnStart("tool", wire.WireToolCall(call.id, call.name)), TextSpan(text), TurnEnd()):
                self.append(piece)
        self.append(TurnStart(ASSISTANT))

    def tail(self) -> str:
        last = self.pieces[-N_TAIL:]  # there may be millions
        return "".join(piece.text[-N_TAIL:] for piece in last if isinstance(piece, TextSpan | GeneratedText))[-N_TAIL:]

    @property
    def n_chars(self) -> int:
        """The number of characters of all texts, without the markers."""
        return self._n_chars

    @property
    def work(self) -> int:
        """The cost of `prompt` and of the encoding that follows it, in units of encoding one character."""
        n_sealed = 0 if self._head is None else self._head.n_sealed
        new = self._n_chars - self._n_sealed_chars + PIECE * (len(self.pieces) - n_sealed)
        new += IMAGE * (self.n_images - self._n_sealed_images)
        is_laid_out = self._head is not None and self._head[:3] == (self._n_fixed, self.tools, self.kwargs)
        if is_laid_out or not self._n_turns:
            return new
        return new + TURN * self._n_turns + GAP * self._n_gaps + self._n_chars // 16

    def prompt(self, tokenizer: Tokenizer, template: ChatTemplate | None, now: datetime) -> EncodedPrompt:
        """The prompt: its known runs, and the rest to encode. Forgets runs whose text the template has rewritten."""
        if self._head is None or self._head[:3] != (self._n_fixed, self.tools, self.kwargs):
            template = template and template.with_tools(self.tools, self.kwargs)
            atoms = layout(self.pieces[: self._n_fixed], tokenizer, template, now)
            self._head = _Head(self._n_fixed, self.tools, self.kwargs, self._with_rows(atoms))
        if self._head.n_sealed:
            return EncodedPrompt(self.runs, tuple(self._with_rows(_alone(self.pieces[self._head.n_sealed :]))))
        atoms = [*self._head.atoms, *self._with_rows(_alone(self.pieces[self._n_fixed :]))]
        text = "".join(atom.text for atom in atoms)
        at, n, n_silent = 0, 0, 0
        for run in self.runs:
            if not text.startswith(run.text, at):
                break
            at, n = at + len(run.text), n + 1
            n_silent = 0 if run.text else n_silent + run.is_generated
        self.runs = self.runs[:n]
        return EncodedPrompt(self.runs, tuple(_from(atoms, at, n_silent)))

    def _with_rows(self, atoms: list[Atom]) -> list[Atom]:
        """Replace the images in atoms by their rows. BadProgram: an image cannot be read. PromptTooLong: the rows do
        not fit into the context."""
        if not self.n_images:
            return atoms
        assert isinstance(self.images, Images)
        found: list[Atom] = []
        n_rows = 0
        for atom in atoms:
            if not isinstance(atom, ImagePiece):
                found.append(atom)
                continue
            tokens, first = self.images.tokens(atom.file), 0
            for part in tokens.parts:
                if isinstance(part, str):
                    found.append(TextSpan(part, meant=True))
                else:
                    found.append(ImageRun(part, tokens.file, first, tokens.shape.height, tokens.shape.width))
                    first += len(part) // 4
            if (n_rows := n_rows + first) > self.images.max_rows > 0:
                raise PromptTooLong.of("the images of the prompt take at least", n_rows, self.images.max_rows)
        return found

    def tokens(
        self, tokenizer: Tokenizer, template: ChatTemplate | None, now: datetime, owner: bytes = b""
    ) -> tuple[wire.Tokens, str]:
        """Returns the tokens that a gen after this prompt would get, and their text. Rows of images get the id
        `ImageSpec.row_id`, as in transformers. owner: the tenant's namespace, which separates cached texts."""
        runs = self.prompt(tokenizer, template, now).encode(tokenizer, owner=owner)
        lengths, ids = array("i"), b""
        for run in runs:
            n = len(run.ids) // 4
            if run.image is not None:
                assert isinstance(self.images, Images)
                lengths.extend([len(run.text), *[0] * (n - 1)])
                ids += pack([self.images.spec.row_id] * n)
            else:
                lengths.extend(_lengths(run, tokenizer))
                ids += run.ids
        spans = tuple((len(run.ids) // 4, run.is_generated) for run in runs if run.ids)
        return wire.Tokens(ids, lengths.tobytes(), spans), "".join(run.text for run in runs)

    def read(self, tokenizer: Tokenizer, template: ChatTemplate | None, now: datetime, start: int = 0) -> str:
        """The prompt's text starting at piece `start`, markers included."""
        template = template and template.with_tools(self.tools, self.kwargs)
        rest, text = self.pieces[start:], ""
        if not self._n_turns:
            return _joined(_alone(rest))
        is_in_turn = self.role is not None
        if start < self._n_fixed:  # there are markers after `start`
            kinds = [type(piece) for piece in self.pieces[:start]]
            is_in_turn = kinds.count(TurnStart) > kinds.count(TurnEnd)
        if is_in_turn:
            # The rest of the turn in which `start` lies, as it was appended.
            n = next((k for k, piece in enumerate(rest) if isinstance(piece, TurnEnd)), len(rest))
            text = "".join(piece.text for piece in rest[:n] if not isinstance(piece, TurnStart | TurnEnd))
            if n == len(rest):
                return text
            start += n + 1
        before, whole = (
            "".join(atom.text for atom in layout(pieces, tokenizer, template, now))
            for pieces in (self.pieces[:start], self.pieces)
        )
        if start and isinstance(self.pieces[start - 1], TurnEnd) and template is not None:
            roles = tuple(turn.shape for turn in _turns(self.pieces[:start])[0])
            end, last = template.ending(roles, now), (template.markers(roles, None, now) or ("",))[-1]
            before = before.removesuffix(last) + end  # the template writes `last` only after the last turn
            text += end if start > len(self.pieces) - len(rest) else ""
        n = len(before)
        if not whole.startswith(before):  # the template rewrote the text before `start`
            n = bisect_left(range(len(before)), True, key=lambda k: not whole.startswith(before[: k + 1]))
        return text + whole[n:]


def _lengths(run: TokenRun, tokenizer: Tokenizer) -> list[int]:
    """How many characters of `run.text` each id spells; the sum is the length of `run.text`.

    An id may spell more than the text has: a begin-of-text token, a space that the tokenizer adds, a hidden end token.
    Such an id gets as many characters as are left.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    hidden = tokenizer.special if run.is_generated else frozenset()
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
    """One turn of a chat prompt.

    atoms: the content of the turn. gap: the text that was appended between the previous turn and this turn. answers: if
    the turn is the result of a tool call, this call. calls: the tool calls that the turn makes. is_given: whether the
    client gave the calls."""

    role: str
    atoms: list[Atom]
    gap: list[Atom]
    answers: wire.WireToolCall | None = None
    calls: tuple[wire.WireToolCall, ...] = ()
    is_given: bool = False

    @property
    def images(self) -> list[ImagePiece]:
        return [atom for atom in self.atoms if isinstance(atom, ImagePiece)]

    @property
    def texts(self) -> list[list[Atom]]:
        """The groups of consecutive atoms between images. Groups without text are left out. A turn without images has
        one group with all its atoms."""
        stretches: list[list[Atom]] = [[]]
        for atom in self.atoms:
            if isinstance(atom, ImagePiece):
                stretches.append([])
            elif atom.text:
                stretches[-1].append(atom)
        return [self.atoms] if len(stretches) == 1 else [atoms for atoms in stretches if atoms]

    def content(self, texts: Iterator[str]) -> str | tuple[str | None, ...]:
        """Returns the turn's content in the form of ChatMessage.content, with the next items of `texts` in place of the
        turn's own texts."""
        if not self.images:
            return next(texts)
        found: list[str | None] = []
        for atom in self.atoms:
            if isinstance(atom, ImagePiece):
                found.append(None)
            elif atom.text and (not found or found[-1] is None):
                found.append(next(texts))
        return tuple(found)

    @property
    def shape(self) -> str | ChatMessage:
        """The turn without its text: all that the template's markers depend on."""
        content = self.content(repeat("")) if self.images else ""
        if self.answers is None and not self.calls and not content:
            return self.role
        calls = tuple(wire.WireToolCall(call.id, "f") for call in self.calls)
        return ChatMessage(self.role, content, calls, self.answers)


def layout(pieces: Iterable[Piece], tokenizer: Tokenizer, template: ChatTemplate | None, now: datetime) -> list[Atom]:
    """Returns the atoms of a prompt: the contents as they were appended, and the template's markers between them.

    If the template changes the contents, or their order, its rendering of the whole conversation is used. The template
    cannot render text between turns. If there is such text, it is put between the markers that the template writes
    around turns of these roles. Raises BadProgram if the prompt cannot be rendered."""
    turns, after, is_open = _turns(pieces)
    if not turns:
        return _alone(after)
    if template is None:
        raise BadProgram(
            f"the model has no chat template, so it cannot render the turn of {turns[0].role!r}; "
            "write the prompt as plain text"
        )
    for role in {turn.role: None for turn in turns}:
        template.check_role(role, tokenizer.controls)
    closed = turns[:-1] if is_open else turns
    opening = turns[-1].role if is_open else None
    markers = None
    if not any(turn.is_given for turn in turns):
        markers = template.markers(tuple(t.shape for t in closed), opening, now)
    if after or any(turn.gap for turn in turns):
        if markers is None:
            raise BadProgram(
                "the model's chat template moves or repeats turns, or the client gave the calls of a turn; do not put "
                "text between the turns"
            )
        return _interleave(turns, after, is_open, markers, template, now)

    def render(messages: Sequence[ChatMessage]) -> str:
        return template.render(messages, now=now) if opening is None else template.prefix(messages, opening, now)

    head = None
    if markers is not None:
        contents = [
            text
            for turn in closed
            for text in ([template.calling(turn.calls, now)] if turn.calls else map(_joined, turn.texts))
        ]
        messages = [
            ChatMessage(t.role, "" if t.calls else t.content(map(_joined, t.texts)), t.calls, t.answers) for t in closed
        ]
        if opening == ASSISTANT and messages:
            # One rendering, while `prefix` needs two: if the text fits the markers, `prefix` would return the same.
            rendered = template.render(messages, prompt=True, now=now)
            head = _align(rendered, markers, closed, contents, tokenizer)
        if head is None:
            head = _align(render(messages), markers, closed, contents, tokenizer)
    if head is None:
        head = _as_rendered(render, closed, tokenizer)
    head = _with_images(head, [image for turn in closed for image in turn.images])
    return head + (_alone(turns[-1].atoms) if is_open else [])


def _joined(atoms: Iterable[Atom]) -> str:
    return "".join(atom.text for atom in atoms)


def _alone(pieces: Iterable[Piece | Atom]) -> list[Atom]:
    """Returns the atoms of pieces that need no chat template: after the last marker, or outside of turns. An image gets
    the texts that the model expects around it."""
    found: list[Atom] = []
    for piece in pieces:
        if isinstance(piece, ImagePiece):
            before, behind = piece.around
            found += [TextSpan(before, meant=True), piece, TextSpan(behind, meant=True)]
        else:
            assert not isinstance(piece, TurnStart | TurnEnd)
            found.append(piece)
    return found


def _with_images(atoms: list[Atom], images: Sequence[ImagePiece]) -> list[Atom]:
    """Returns the atoms with each image mark that the template wrote replaced by its image. Raises BadProgram if there
    are more or fewer marks than images: raw text in a turn may contain marks too."""
    if not images:
        return atoms
    mark, left, found, n_marks = images[0].text, iter(images), list[Atom](), 0
    for atom in atoms:
        if not (isinstance(atom, TextSpan) and atom.meant and mark in atom.text):
            found.append(atom)
            continue
        first, *others = atom.text.split(mark)
        found.append(TextSpan(first, meant=True))
        n_marks += len(others)
        for text, image in zip(others, left, strict=False):  # `others` first, or zip would drop an image
            found += [image, TextSpan(text, meant=True)]
    if n_marks != len(images):
        raise BadProgram(f"the model's chat template writes {n_marks} marks for {len(images)} images")
    return found


def _turns(pieces: Iterable[Piece]) -> tuple[list[_TurnLayout], list[Atom], bool]:
    """Group the pieces into turns. Returns (the turns, the atoms after the last turn, whether the last turn is
    open)."""
    turns: list[_TurnLayout] = []
    loose: list[Atom] = []
    is_open = False
    for piece in pieces:
        match piece:
            case TurnStart(role=role, answers=answers):
                turns.append(_TurnLayout(role, [], loose, answers))
                loose, is_open = [], True
            case TurnEnd(calls=calls, is_given=is_given):
                turns[-1] = turns[-1]._replace(calls=calls, is_given=is_given)
                is_open = False
            case _ if is_open:
                turns[-1].atoms.append(piece)
            case _:
                loose.append(piece)
    return turns, loose, is_open


def _align(
    rendered: str, markers: tuple[str, ...], turns: Sequence[_TurnLayout], contents: Sequence[str], tokenizer: Tokenizer
) -> list[Atom] | None:
    """Split a rendered conversation into markers and contents. Returns its atoms, in which outputs keep their tokens.
    Returns None if `rendered` does not alternate between the markers and the contents.

    contents: the text of each turn or, in turns with images, of each text between images. The template may have
    stripped them, or escaped them for JSON."""
    if not rendered.startswith(markers[0]):
        return None
    atoms: list[Atom] = [TextSpan(markers[0], meant=True)]
    at = len(markers[0])
    texts = [own for turn in turns for own in ([turn.atoms] if turn.calls else turn.texts)]
    for own, content, marker in zip(texts, contents, markers[1:], strict=True):
        for variant in _variants(content):
            if rendered.startswith(variant, at) and rendered.startswith(marker, at + len(variant)):
                break
        else:
            return None
        if variant == content:
            atoms += own
        elif variant in content:
            atoms += _slice(own, content.find(variant), len(variant), tokenizer)
        else:
            atoms.append(TextSpan(variant))
        atoms.append(TextSpan(marker, meant=True))
        at += len(variant) + len(marker)
    return atoms if at == len(rendered) else None


def _variants(content: str) -> Iterator[str]:
    """Yields the texts that a template may write for a content: as it is, stripped, or escaped for JSON."""
    yield from (content, content.strip(), content.lstrip(), content.rstrip())
    yield json.dumps(content, ensure_ascii=False)[1:-1]


def _slice(atoms: Sequence[Atom], start: int, length: int, tokenizer: Tokenizer) -> list[Atom]:
    """Returns the atoms that spell the characters start : start + length of the given atoms. If the end lies inside a
    gen's output, the tokens that lie wholly before it are kept, and the characters after them become text."""
    kept: list[Atom] = []
    left = length
    for atom in _from(atoms, start):
        if len(atom.text) <= left:
            kept.append(atom)
        elif isinstance(atom, GeneratedText):
            ids = unpack(atom.ids)
            fit = Detokenizer(tokenizer.spelling, tokenizer.special)
            fit.feed(ids)
            n_tokens, n = fit.fit(left)
            kept += [GeneratedText(atom.text[:n], pack(ids[:n_tokens])), TextSpan(atom.text[n:left])]
        else:
            kept.append(TextSpan(atom.text[:left], _is_meant(atom)))
        left -= min(left, len(atom.text))
    return kept


def _from(atoms: Iterable[Atom], start: int, n_silent: int = 0) -> Iterable[Atom]:
    """Yields the atoms starting at character `start`. Of an output that begins before `start`, the rest becomes text.
    n_silent: how many outputs without text to skip at `start`, because the caller already has their tokens."""
    at = 0
    for atom in atoms:
        end = at + len(atom.text)
        if at >= start:
            if isinstance(atom, GeneratedText) and not atom.text and at == start and n_silent:
                n_silent -= 1
            else:
                yield atom
        elif end > start:
            yield TextSpan(atom.text[start - at :], _is_meant(atom))
        at = end


_HIDDEN = f"\ue000{secrets.token_hex(8)}"
"""Stands before and after the number of a hidden token. It is random for each process, so that no user's text can
imitate it."""


def _kind(atom: Atom) -> str:
    return "generated" if isinstance(atom, GeneratedText) else "control" if _is_meant(atom) else "data"


def _is_meant(atom: Atom) -> bool:
    return isinstance(atom, TextSpan) and atom.meant


def _as_rendered(
    render: Callable[[Sequence[ChatMessage]], str], turns: Sequence[_TurnLayout], tokenizer: Tokenizer
) -> list[Atom]:
    """Render a conversation whose contents the template rewrites. Returns the atoms of the rendered text.

    Control tokens in it are those that the template writes, and those that the model generated (`<think>`). Other text
    that looks like a control token is hidden from the template, and put back as plain text."""
    hidden: list[str] = []

    def hide(text: str, kinds: Sequence[str]) -> str:
        """Return `text` with placeholders in place of data that looks like a control token. kinds: for each character
        of `text`, "data", "generated" (by the model) or "control" (meant as a control token)."""
        shown, done = "", 0
        for start, end, token in tokenizer.controls(text):
            # Outputs never show special tokens, so text of a model that spells one is only text.
            if "data" in (kind := kinds[start:end]) or ("generated" in kind and token in tokenizer.special):
                shown += f"{text[done:start]}{_HIDDEN}{len(hidden)}{_HIDDEN}"
                hidden.append(text[start:end])
                done = end
        return shown + text[done:]

    def message(turn: _TurnLayout) -> ChatMessage:
        text: str | tuple[str | None, ...] = ""
        calls = tuple(replace(c, arguments=hide(c.arguments, ["data"] * len(c.arguments))) for c in turn.calls)
        if not calls or turn.is_given:
            text = turn.content(
                hide(_joined(own), [kind for atom in own for kind in [_kind(atom)] * len(atom.text)])
                for own in turn.texts
            )
        return ChatMessage(turn.role, text, calls, turn.answers)

    parts = re.split(f"{_HIDDEN}(\\d+){_HIDDEN}", render([message(turn) for turn in turns]))
    return [TextSpan(hidden[int(part)] if k % 2 else part, meant=not k % 2) for k, part in enumerate(parts)]


def _interleave(
    turns: Sequence[_TurnLayout],
    after: Sequence[Atom],
    is_open: bool,
    markers: tuple[str, ...],
    template: ChatTemplate,
    now: datetime,
) -> list[Atom]:
    """Returns the atoms of a conversation in which text was appended between turns, that is, after the end of one turn
    and before the start of the next.

    turns: all turns. after: the atoms after the last turn. is_open: whether the last turn is still open. markers: what
    the template writes around the contents."""
    if any(turn.images and not turn.texts for turn in turns):
        raise BadProgram("if there is text between turns, a turn with an image must contain text too")
    roles = tuple(t.shape for t in turns)
    after_gap = [k for k, turn in enumerate(turns) if turn.gap and k]
    ends = dict(zip(after_gap, template.endings(roles, after_gap, now), strict=True))
    atoms: list[Atom] = []
    before = iter(markers)
    for k, turn in enumerate(turns):
        marker = next(before)
        if (end := ends.get(k)) is not None and marker.startswith(end):
            atoms.append(TextSpan(end, meant=True))
            marker = marker[len(end) :]
        first, *others = [_alone(turn.atoms)] if is_open and k == len(turns) - 1 else turn.texts
        atoms += [*_alone(turn.gap), TextSpan(marker, meant=True), *first]
        for own in others:
            atoms += [TextSpan(next(before), meant=True), *own]
    if not is_open:
        atoms.append(TextSpan(markers[-1], meant=True))
    closed = turns[:-1] if is_open else turns
    return _with_images([*atoms, *_alone(after)], [image for turn in closed for image in turn.images])
