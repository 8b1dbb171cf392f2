"""Which part of a branch's text came about how: cut into pieces by token, and by what happened to it.

The text and its tokens are the server's, where it still has the branch; else the text is as the language knows it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Literal, NamedTuple

from banyan.runtime.protocol import wire
from banyan.views.history import BranchHistory, Item

How = Literal["cached", "computed", "generated", "drafted", "chosen", "given"]
"""cached, computed: prompt tokens, when a gen first stood behind them. generated, chosen: by gen or select. drafted:
generated, and proposed before it was computed. given: text that no gen has stood behind, or whose tokens are not known.
"""


class Stroke(NamedTuple):
    """A piece of text of one kind. tokens: the text, cut into its tokens; one piece where they are not known.

    is_marker: written by the chat template. is_shared: it stands before the branch's own text.
    """

    how: How
    tokens: tuple[str, ...]
    item: Item
    is_marker: bool = False
    is_shared: bool = False

    @property
    def text(self) -> str:
        return "".join(self.tokens)


class _Tokens(NamedTuple):
    """Of a whole text. ends: where each ends. hows: what happened to it as part of a prompt. made: whether a model made
    it."""

    ends: list[int]
    hows: list[How]
    made: list[bool]


class _PromptPosition(NamedTuple):
    """An item and where its text stands."""

    start: int
    end: int
    item: Item


def strokes(branch: BranchHistory, look: wire.Value | None = None) -> list[Stroke]:
    """The whole prompt of a branch. look: what a Read with tokens gave."""
    text = "".join(item.text for item in branch.prompt) if look is None else look.samples[0].text
    places = list(_places(text, branch.prompt))
    n_inherited = len(branch.inherited)
    shared_until = max((place.end for place, k in _numbered(places, branch) if k < n_inherited), default=0)
    tokens = None if look is None else look.tokens
    cut = _tokens(branch, places, tokens, len(text))
    found: list[Stroke] = []
    for place in places:
        found += _strokes(text, place, cut, place.end <= shared_until)
    return found


def _numbered(places: list[_PromptPosition], branch: BranchHistory) -> Iterator[tuple[_PromptPosition, int]]:
    index = {id(item): k for k, item in enumerate(branch.prompt)}
    for place in places:
        if id(place.item) in index:
            yield place, index[id(place.item)]


def _places(text: str, items: Sequence[Item]) -> Iterator[_PromptPosition]:
    """Each item where its text stands. What stands between them is the template's."""
    at = 0
    for item in items:
        start = text.find(item.text, at) if item.text else at
        if start < 0:
            continue  # the template wrote it otherwise
        if start > at:
            yield _PromptPosition(at, start, Item("marker", text[at:start]))
        at = start + len(item.text)
        yield _PromptPosition(start, at, item)
    if at < len(text):
        yield _PromptPosition(at, len(text), Item("marker", text[at:]))


def _tokens(
    branch: BranchHistory, places: Sequence[_PromptPosition], tokens: wire.Tokens | None, n_chars: int
) -> _Tokens:
    if tokens is None:
        return _Tokens([n_chars], ["given"], [False])
    ends = list(accumulate(array("i", tokens.lengths)))
    prompts = _prompts(branch, places, ends)
    hows: list[How] = []
    for token in range(len(ends)):
        first = next(((prompt, cached) for prompt, cached in prompts if prompt > token), None)
        hows.append("given" if first is None else "cached" if token < first[1] else "computed")
    return _Tokens(ends, hows, [is_made for n, is_made in tokens.spans for _ in range(n)])


def _prompts(branch: BranchHistory, places: Sequence[_PromptPosition], ends: list[int]) -> list[tuple[int, int]]:
    """What each gen of its lineage stood behind, as (tokens, those of them that were cached).

    A select has several prompts, and so has a gen with tools: of those it is only known that what stood before them,
    and nobody had read yet, was read then.
    """
    starts = {place.item.gen.op.ref: place.start for place in places if place.item.gen is not None}
    found, known = [], 0
    for gen in branch.lineage:
        if gen.value is None:
            continue
        if isinstance(gen.op, wire.Gen) and gen.op.tools is None:
            found.append((gen.value.usage.prompt, gen.value.usage.cached))
        elif gen.op.ref in starts:
            found.append((bisect_right(ends, starts[gen.op.ref]), known))
        known = max([known, *(n for n, _ in found)])
    return found


def _drafted(item: Item) -> frozenset[int]:
    """Which tokens of its own text an item has from drafts."""
    if not item.is_made or item.gen is None or item.gen.value is None:
        return frozenset()
    return frozenset(array("i", item.gen.value.samples[0].drafted))


def _strokes(text: str, place: _PromptPosition, tokens: _Tokens, is_shared: bool) -> Iterator[Stroke]:
    ends, hows, made = tokens
    item, is_marker = place.item, place.item.kind == "marker"
    own: How | None = None
    if item.is_made and item.gen is not None:
        own = "generated" if isinstance(item.gen.op, wire.Gen) else "chosen"
    inside = ends[bisect_right(ends, place.start) : bisect_left(ends, place.end)]
    cuts = sorted({place.start, *inside, place.end})
    drafted = _drafted(item) if len(hows) > 1 else frozenset()
    first = bisect_right(ends, place.start)
    pieces: list[str] = []
    last: How = "given"
    for start, end in pairwise(cuts):
        k = bisect_right(ends, start)
        how: How = "drafted" if k - first in drafted else own or (hows[k] if k < len(hows) else "given")
        if is_marker and k < len(made) and made[k]:
            how = "generated"  # no marker of the template's, but what the model said as it called tools
        if pieces and how != last:
            yield Stroke(last, tuple(pieces), item, is_marker and last != "generated", is_shared)
            pieces = []
        pieces.append(text[start:end])
        last = how
    if pieces or place.start == place.end:
        how = last if pieces else own or last
        yield Stroke(how, tuple(pieces), item, is_marker and how != "generated", is_shared)
