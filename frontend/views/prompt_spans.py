"""Splits the prompt of a branch into spans by origin, such as cached, computed or generated. This needs the tokens of
the prompt from the server. Without them, if the server no longer holds the branch, text that is no output is
"given".
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import accumulate, groupby, pairwise
from operator import attrgetter, itemgetter
from typing import Literal, NamedTuple

from banyan.runtime.protocol import wire
from banyan.views.history import BranchHistory, PromptItem

Origin = Literal["cached", "computed", "generated", "drafted", "chosen", "given"]
"""cached, computed: prompt tokens that were cached, or were not, when the first gen read them. generated, chosen:
output of a gen or select. drafted: generated, and proposed by a drafter. given: text that no gen has read, or whose
tokens are unknown."""


class PromptSpan(NamedTuple):
    """A piece of text of one origin. tokens: the text of each token, or one string if the tokens are unknown. item: the
    piece of the prompt that it belongs to. is_marker: the chat template wrote it. is_shared: the branch inherited it.
    is_left_out: all text before the inherited items that are shown, as one span.
    """

    origin: Origin
    tokens: tuple[str, ...]
    item: PromptItem
    is_marker: bool = False
    is_shared: bool = False
    is_left_out: bool = False

    @property
    def text(self) -> str:
        return "".join(self.tokens)


class _TokenTable(NamedTuple):
    """The tokens of a whole prompt; each list has one entry per token. ends: where the token ends, in characters from
    the start of the prompt. origins: "cached" or "computed" if a gen read the token, else "given". generated: whether a
    model generated the token."""

    ends: list[int]
    origins: list[Origin]
    generated: list[bool]


class _PromptPosition(NamedTuple):
    """An item of a prompt and its place: the item is text[start:end] of the text of the whole prompt."""

    start: int
    end: int
    item: PromptItem
    is_inherited: bool = False


def prompt_spans(
    branch: BranchHistory, read: wire.Value | None = None, max_shared: int | None = None
) -> list[PromptSpan]:
    """The spans of the whole prompt of a branch, in order. read: the text and tokens of the prompt, as the server
    answered a `wire.Read`; None: the server was not asked, or no longer holds the branch. max_shared: all inherited
    items but the last of this number are left out; None: none are."""
    text = "".join(item.text for item in branch.prompt) if read is None else read.samples[0].text
    positions = list(_positions(text, branch))
    shared_end = max((position.end for position in positions if position.is_inherited), default=0)
    if read is None or read.tokens is None:
        table = _TokenTable([len(text)], ["given"], [False])
    else:
        table = _token_table(branch, positions, read.tokens)
    spans = []
    start = 0 if max_shared is None else bisect_right(positions, shared_end, key=attrgetter("end")) - max_shared
    if start > 0:
        before = text[: positions[start].start]
        spans.append(PromptSpan("given", (before,), PromptItem("text", before), is_shared=True, is_left_out=True))
    for position in positions[max(0, start) :]:
        spans += _spans(text, position, table, is_shared=position.end <= shared_end)
    return spans


def _positions(text: str, branch: BranchHistory) -> Iterator[_PromptPosition]:
    """Finds the items of the prompt in `text`. Yields each item with its place, in order. Text between two items was
    written by the chat template, and is yielded as an item of kind "marker"."""
    at, n_inherited = 0, len(branch.inherited)
    for k, item in enumerate(branch.prompt):
        start = text.find(item.text, at) if item.text else at
        if start < 0:
            continue  # the template changed the text
        if start > at:
            yield _PromptPosition(at, start, PromptItem("marker", text[at:start]))
        at = start + len(item.text)
        yield _PromptPosition(start, at, item, k < n_inherited)
    if at < len(text):
        yield _PromptPosition(at, len(text), PromptItem("marker", text[at:]))


def _token_table(branch: BranchHistory, positions: list[_PromptPosition], tokens: wire.Tokens) -> _TokenTable:
    ends = list(accumulate(array("i", tokens.lengths)))
    prompts = _prompts(branch, positions, ends)
    origins: list[Origin] = []
    for n_prompt, n_cached in prompts:
        origins += ("cached" if k < n_cached else "computed" for k in range(len(origins), min(n_prompt, len(ends))))
    origins += ["given"] * (len(ends) - len(origins))
    return _TokenTable(ends, origins, [is_generated for n, is_generated in tokens.spans for _ in range(n)])


def _prompts(branch: BranchHistory, positions: list[_PromptPosition], ends: list[int]) -> list[tuple[int, int]]:
    """For each gen of the branch, in order: (number of prompt tokens, how many of them were cached).

    The prompt tokens of a select end where its output begins; the usage of a select also counts the tokens of its
    choices. A gen with retries has one pair, that of its first attempt. A gen with tools has a pair for each round,
    because each round reads a longer prompt. ends: where each token of the prompt ends, in characters.
    """
    starts = {position.item.gen.op.ref: position.start for position in positions if position.item.gen is not None}
    found: list[tuple[int, int]] = []
    for gen in (item.gen for item in branch.prompt if item.is_output):
        if gen is None or gen.value is None:
            continue
        if isinstance(gen.op, wire.Gen):
            rounds = gen.value.rounds or (gen.value.usage,)
            found += [(usage.prompt, usage.cached) for usage in (rounds if gen.op.tools else rounds[:1])]
        elif gen.op.ref in starts:
            found.append((bisect_right(ends, starts[gen.op.ref]), gen.value.usage.cached))
    return found


def _spans(text: str, position: _PromptPosition, table: _TokenTable, is_shared: bool) -> Iterator[PromptSpan]:
    ends, origins, generated = table
    start, end, item, _ = position
    is_marker = item.kind == "marker"
    own: Origin | None = None
    drafted: frozenset[int] = frozenset()  # tokens of this item that come from drafts, counted from its first
    if item.is_output and item.gen is not None:
        own = "generated" if isinstance(item.gen.op, wire.Gen) else "chosen"
        if item.gen.value is not None and len(origins) > 1:
            drafted = frozenset(array("i", item.gen.value.samples[0].drafted))
    first = bisect_right(ends, start)
    pieces: list[tuple[Origin, str]] = []
    for begin, stop in pairwise(sorted({start, *ends[first : bisect_left(ends, end)], end})):
        k = bisect_right(ends, begin)
        origin: Origin = "drafted" if k - first in drafted else own or (origins[k] if k < len(origins) else "given")
        if is_marker and k < len(generated) and generated[k]:
            origin = "generated"  # not a marker of the template but the text of a tool call
        pieces.append((origin, text[begin:stop]))
    if not pieces:
        yield PromptSpan(own or "given", (), item, is_marker, is_shared)
    for origin, group in groupby(pieces, key=itemgetter(0)):
        tokens = tuple(piece for _, piece in group)
        yield PromptSpan(origin, tokens, item, is_marker and origin != "generated", is_shared)
