"""What outputs quote of their prompts, and by which rule: so that another prompt's value is known before it is begun.

A field of a record, or an argument of a call, is often a piece of the prompt. Where it begins, no run of tokens says
how it goes on: behind `"city": "` other texts had other cities. But they had them from somewhere: from between "lives
in" and ", is" of their prompts, and between these stands, in this prompt, this text's city. So for the last tokens
before a quote it is kept what stood to the left and to the right of what was quoted, as far as texts agree on it, and
looked for in the prompt of whoever comes to the same tokens. (What induction heads do for a run seen before: Olsson
et al., In-context learning and induction heads, 2022. Rules of what stands left and right, made general from pairs of
examples: Califf and Mooney, Bottom-up relational learning of pattern matching rules for information extraction, 2003.)

A word begins with a space in prose and with none behind a quotation mark. Both are one here: a *plain* text is int32
tokens as bytes, each that begins with a space replaced by the one without, where there is one.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np

from banyan.runtime.engine.scheduling.request import Request

N_BEFORE = 3
"""Tokens before a quote that say which it is. The last of them may also be the quote's own: all values have a quotation
mark, and where it is forced they have it already."""
N_LEFT, N_RIGHT = 4, 3
"""Tokens beside what is quoted that are looked at."""
N_RULES, N_PLACES, N_BEHIND = 8, 8, 3
"""Rules for the same tokens before a quote; places of one that are looked at; tokens that are known to come behind."""
N_KEYS = 1 << 12
"""Of more, those are forgotten of which no quote was learned for the longest."""
LONGEST = 32
"""Tokens of a quote."""
N_NEAR, N_READ = 1024, 128
"""Tokens of the end of a prompt that are searched, and of the start of an output; places in this at which it is looked
for a quote to learn from. At worst, where all tokens stand everywhere, that takes 2 ms."""
HOPE, MEMORY, LEAST, RARELY = 0.7, 0.8, 0.5, 32
"""Of quotes behind the same tokens: the share of right ones that is expected at first, how much of what is known of it
counts when another is judged, the least that is worth proposing them, and where it is less, every how many are."""
RECENTLY, SELDOM, EVERY = 0.05, 0.2, 8
"""The weight of a request in the share of those that quote. Where it is less than this, one of so many teaches: to
learn from a text takes as long as to compute a few rows of a small model."""
FORESEEN = 0.8
"""Of whose output more was foreseen, and by rules of more than one text, it teaches nothing."""

_SIZE = array("i").itemsize


class _Rule(NamedTuple):
    """lead: what comes before the quote. left, right: what stands beside what is quoted, plain. is_plain: it is quoted
    so. behind: the tokens that came next, the latest first. weight: words in left and right. last: what was quoted
    last, plain. has_right: what is quoted may have in it what stands to its right. is_shared: of several texts."""

    lead: array[int]
    left: bytes
    right: bytes
    is_plain: bool
    behind: tuple[int, ...]
    weight: int
    last: bytes
    has_right: bool = False
    is_shared: bool = False


class Rules:
    """All rules for the same tokens before a quote, and how often it was as they said."""

    __slots__ = ("_n_skipped", "items", "share")

    def __init__(self) -> None:
        self.items: list[_Rule] = []  # those first that are of more than one text, the heaviest of them first
        self.share, self._n_skipped = HOPE, 0

    def judge(self, is_right: bool) -> None:
        self.share = MEMORY * self.share + (1 - MEMORY) * is_right

    def is_asked(self, least: float) -> bool:
        if self.share >= least:
            return True
        self._n_skipped = (self._n_skipped + 1) % RARELY
        return not self._n_skipped


class Quote(NamedTuple):
    """tokens: the first n_lead stand before the quote itself. is_guess: by a rule of one text. behind: what may come
    next, the likeliest first."""

    tokens: array[int]
    n_lead: int
    is_guess: bool
    behind: Sequence[int]
    rules: Rules


class Quoting:
    """One request: what it may quote, and how it came out what was proposed of that."""

    __slots__ = ("has_guessed", "has_quoted", "pending", "plain", "prompt")

    def __init__(self, request: Request) -> None:
        self.prompt = request.ids[max(0, request.n_prompt - N_NEAR) : request.n_prompt]
        self.plain: bytes | None = None  # the same, once it is searched
        self.pending: Quote | None = None  # proposed, and not judged yet
        self.has_guessed = self.has_quoted = False

    def judge(self, said: array[int]) -> None:
        """said: what came since the pending one was proposed."""
        quote = self.pending
        if quote is not None and len(said) > quote.n_lead:
            is_right = said[: quote.n_lead + 1] == quote.tokens[: quote.n_lead + 1]
            quote.rules.judge(is_right)
            self.has_quoted |= is_right
            self.pending = None


class Quotes:
    """Rules of all texts, those of each namespace for themselves."""

    def __init__(self) -> None:
        self._use = 2 * SELDOM  # the share of requests of which a quote was foreseen; it fades
        self._n_texts = 0
        self._rules: OrderedDict[tuple[bytes, bytes], Rules] = OrderedDict()
        self._plain: np.ndarray | None = None
        self._is_word: list[bool] = []
        self._marks: frozenset[int] = frozenset()

    def learn(self, spelling: Sequence[bytes], marks: Collection[int]) -> None:
        """What the tokens spell, and which are no text. Without it no token is another's but for a space."""
        number = {text: i for i, text in reversed(list(enumerate(spelling)))}
        plain = (number.get(text[1:], i) if text[:1] == b" " and text[1:] else i for i, text in enumerate(spelling))
        self._plain = np.fromiter(plain, np.int32, len(spelling))
        self._marks = frozenset(marks)
        self._is_word = [any(c > 127 or chr(c).isalpha() for c in text) for text in spelling]

    def plain(self, ids: array[int]) -> bytes:
        if self._plain is None:
            return ids.tobytes()
        tokens = np.array(ids, np.int32)
        return np.where(tokens < len(self._plain), self._plain.take(tokens, mode="clip"), tokens).tobytes()

    # ---- learn -----------------------------------------------------------------------------------------------------

    def end(self, quoting: Quoting, request: Request) -> None:
        """Learn from a request that has ended, if there is something to learn."""
        self._n_texts += 1
        self._use += RECENTLY * (quoting.has_quoted - self._use)
        was_foreseen = len(request.drafted) > FORESEEN * request.n_out and not quoting.has_guessed
        if not was_foreseen and (self._use >= SELDOM or self._n_texts % EVERY == 0):
            self.note(request.ids, request.n_prompt, request.run.namespace)

    def note(self, ids: array[int], n_prompt: int, namespace: bytes) -> None:
        """Learn from a text, whose output begins behind n_prompt tokens."""
        first, end = max(0, n_prompt - N_NEAR), min(len(ids) - 1, n_prompt + N_NEAR)
        text = self.plain(ids[first : end + 1])
        prompt = text[: _SIZE * (n_prompt - first)]
        at, n_read = n_prompt, 0
        while at < end and n_read < N_READ:
            n_read += 1
            source, n = _source(prompt, text, at - first)
            left = prompt[_SIZE * max(0, source - N_LEFT) : _SIZE * max(0, source)]
            right = prompt[_SIZE * (source + n) : _SIZE * (source + n + N_RIGHT)]
            if left and right and at + n < len(ids):
                is_plain, weight = ids[at] != ids[first + source], self._weight(left) + self._weight(right)
                last = prompt[_SIZE * source : _SIZE * (source + n)]
                has_right = _find(last, right[:_SIZE], 0) >= 0
                for start in (at, at - 1):
                    rule = _Rule(ids[start:at], left, right, is_plain, (ids[at + n],), weight, last, has_right)
                    self._put((namespace, ids[max(0, at - N_BEFORE) : start].tobytes()), rule)
            at += n or 1

    def _weight(self, run: bytes) -> int:
        words = self._is_word
        return sum([i >= len(words) or words[i] for i in memoryview(run).cast("i")])

    def _put(self, key: tuple[bytes, bytes], new: _Rule) -> None:
        """Keep the rule; in place of one with which it has something in common, what that is."""
        rules = self._rules.get(key)
        if rules is None:
            rules = self._rules[key] = Rules()
        self._rules.move_to_end(key)
        common, n_common = new, -1
        for n, rule in enumerate(rules.items):
            if rule.lead == new.lead and rule.is_plain == new.is_plain:
                left, right = _same_end(rule.left, new.left), _same_start(rule.right, new.right)
                in_left = self._weight(left)
                weight = in_left + self._weight(right)
                says_enough = in_left or weight > 1 or (weight and len(left) + len(right) > 2 * _SIZE)
                if left and right and says_enough and (n_common < 0 or weight > common.weight):
                    behind = tuple(dict.fromkeys(new.behind + rule.behind))[:N_BEHIND]
                    has_right = any(_find(one.last, right, 0) >= 0 for one in (rule, new))
                    has_right |= rule.is_shared and rule.has_right
                    common = _Rule(rule.lead, left, right, rule.is_plain, behind, weight, new.last, has_right, True)
                    n_common = n
        if n_common >= 0:
            del rules.items[n_common]
        rules.items.insert(0, common)
        rules.items.sort(key=_rank)
        del rules.items[N_RULES:]
        if len(self._rules) > N_KEYS:
            self._rules.popitem(last=False)

    # ---- find ------------------------------------------------------------------------------------------------------

    def propose(self, quoting: Quoting, request: Request, n: int, least: float) -> tuple[array[int], list[int]]:
        """What the request may quote next of its prompt; and, where its constraint says what comes between, what it may
        quote then: about n tokens, and which of them are in doubt: where a quote begins, and what comes behind it.
        least: the share of such quotes that has to be right."""
        ids, guide = request.ids, request.guide
        assert guide is not None
        out, doubts, n_in = array("i"), list[int](), 0
        quoting.pending = None
        while len(out) < n:
            last = out[-N_BEFORE:] if len(out) >= N_BEFORE else ids[-N_BEFORE:] + out
            quote = self.find(last, quoting, request.run.namespace, least)
            if quote is None:
                break
            if not out:
                quoting.pending = quote
            quoting.has_guessed |= quote.is_guess
            doubts.append(len(out) + quote.n_lead)
            out.extend(quote.tokens)
            n_in += guide.accept(quote.tokens)
            del out[n_in:]  # of a number the constraint takes the digits, and no word behind them
            if n_in <= doubts[-1]:
                del doubts[-1]
                break
            behind = next((token for token in quote.behind if guide.accept((token,))), None)
            if behind is None:
                break
            forced = guide.forced_tokens(n)
            n_in += 1 + guide.accept(forced)
            doubts.append(len(out))
            out.append(behind)
            out.extend(forced)
        guide.rollback(n_in)
        return out, doubts

    def find(self, last: array[int], quoting: Quoting, namespace: bytes, least: float = LEAST) -> Quote | None:
        """What a text may quote of its prompt whose last tokens are `last`. None: nobody knows."""
        for n in (N_BEFORE, N_BEFORE - 1):
            rules = self._rules.get((namespace, last[-n:].tobytes()))
            if rules is None or not rules.is_asked(least):
                continue
            if quoting.plain is None:
                quoting.plain = self.plain(quoting.prompt)
            if placed := _best(rules.items, quoting.plain):
                rule, start, stop = placed
                quote = quoting.prompt[start:stop]
                if not self._marks.isdisjoint(quote):
                    continue
                if rule.is_plain:
                    (quote[0],) = memoryview(quoting.plain)[_SIZE * start : _SIZE * (start + 1)].cast("i")
                behind = dict.fromkeys(token for any_rule in (rule, *rules.items) for token in any_rule.behind)
                return Quote(rule.lead + quote, len(rule.lead), not rule.is_shared, tuple(behind), rules)
        return None


def _rank(rule: _Rule) -> tuple[bool, int]:
    return not rule.is_shared, -rule.weight


def _best(rules: Sequence[_Rule], prompt: bytes) -> tuple[_Rule, int, int] | None:
    """(rule, the tokens between which what it quotes stands): of rules that say much the one for which that is last in
    the prompt, else the first that finds anything."""
    best = None
    for rule in rules:
        if best is not None and (not rule.is_shared or rule.weight < 2):
            break
        start, stop = _place(prompt, rule)
        if stop and (best is None or start > best[1]):
            best = rule, start, stop
    return best


def _place(prompt: bytes, rule: _Rule) -> tuple[int, int]:
    """Between which tokens of the prompt what the rule quotes stands last; (0, 0): nowhere. Of a rule of one text not
    all has to be there."""
    left, right = (rule.left, rule.right) if rule.is_shared else (rule.left[-2 * _SIZE :], rule.right[:_SIZE])
    n_left, stop = len(left) // _SIZE, len(prompt) // _SIZE
    for _ in range(N_PLACES):
        stop = _rfind(prompt, right, stop)
        if stop <= n_left:
            break
        start = _rfind(prompt, left, stop - n_left) + n_left
        if n_left <= start and stop <= start + LONGEST:
            return start, stop if rule.has_right else _find(prompt, right, start + 1)
    return 0, 0


def _source(prompt: bytes, text: bytes, at: int) -> tuple[int, int]:
    """(where in the prompt the longest run stands that the text has from its token `at` on, the last of such places; of
    how many tokens). One token counts if it stands there once. (-1, 0): nothing stands there."""
    run = text[_SIZE * at : _SIZE * (at + LONGEST)]
    best, longest = -1, 0
    place = len(prompt) // _SIZE
    for _ in range(N_PLACES):
        place = _rfind(prompt, run[: 2 * _SIZE], place)
        if place < 0:
            break
        n = len(_same_start(run, prompt[_SIZE * place : _SIZE * (place + LONGEST)])) // _SIZE
        if n > longest:
            best, longest = place, n
    if not longest:
        place = _rfind(prompt, run[:_SIZE], len(prompt) // _SIZE)
        if place >= 0 and _rfind(prompt, run[:_SIZE], place) < 0:
            return place, 1
    return best, longest


def _find(text: bytes, run: bytes, after: int) -> int:
    """Where the run of tokens stands first that begins at token `after` or behind it; -1: nowhere."""
    at = text.find(run, _SIZE * after)
    while at > 0 and at % _SIZE:
        at = text.find(run, at + 1)
    return at // _SIZE


def _rfind(text: bytes, run: bytes, before: int) -> int:
    """Where the run of tokens stands last that begins before token `before`; -1: nowhere."""
    stop = _SIZE * (before - 1) + len(run)
    at = text.rfind(run, 0, stop) if before > 0 else -1
    while at > 0 and at % _SIZE:
        at = text.rfind(run, 0, at - 1 + len(run))
    return at // _SIZE


def _same_start(a: bytes, b: bytes) -> bytes:
    n = min(len(a), len(b))
    if a[:n] == b[:n]:
        return a[:n]
    return a[: next(k for k in range(0, n, _SIZE) if a[k : k + _SIZE] != b[k : k + _SIZE])]


def _same_end(a: bytes, b: bytes) -> bytes:
    n = 0
    while n < min(len(a), len(b)) and a[len(a) - n - _SIZE : len(a) - n] == b[len(b) - n - _SIZE : len(b) - n]:
        n += _SIZE
    return a[len(a) - n :]
