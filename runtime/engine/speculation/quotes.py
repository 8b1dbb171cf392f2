"""Learns which parts of a prompt an output quotes, so that a value can be drafted before its first token.

Example: outputs have a field `"city": "`. N-grams do not help to draft its value, because other outputs have other
cities. But in their prompts, the city stood between "lives in" and ", is", so this prompt's city is probably in the
same place.

A *rule* describes such a place. It belongs to a *key*, the output tokens just before a quote. It keeps the prompt
tokens left and right of the quoted run, as far as several texts agree on them. When an output reaches the same key, the
rule is matched against the prompt of its request. (Califf and Mooney, Bottom-up relational learning of pattern matching
rules for information extraction, 2003.)

A word starts with a space in prose, but without one after a quotation mark. Rules ignore the difference: they compare
*plain* texts. A plain text is a string with one character per token. A token that begins with a space has the character
of the same token without the space, if the vocabulary has that one."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from banyan.runtime.engine.scheduling.request import Request

N_KEY = 3
"""Tokens of a key. A quote is also learned under the key without its last token, often a quotation mark, which then is
the rule's `lead`: the output may not have that token yet when a quote is looked for."""
N_LEFT, N_RIGHT = 4, 3  # tokens of context that a rule keeps
N_RULES, N_PLACES, N_NEXT = 8, 8, 3
"""N_RULES: most rules per key. N_PLACES: most places in the prompt where a rule's context is tried. N_NEXT: most tokens
kept of those that followed a quote."""
N_KEYS = 1 << 12  # most keys; beyond that the one that least recently learned a quote is evicted
RULE_BYTES = 500  # approximate memory of one rule; a key takes about as much
MAX_QUOTE = 32  # most tokens of a quote
N_NEAR, N_READ = 1024, 128
"""N_NEAR: only the last N_NEAR tokens of a prompt are searched, and only the first N_NEAR tokens of an output are
learned from. N_READ: most positions of an output at which a quote is looked for. In the worst case, learning takes
2 ms."""
FIRST_RATE, MEMORY, MIN_RATE, RARELY = 0.7, 0.8, 0.5, 32
"""FIRST_RATE: the initial acceptance rate of a key's quotes. MEMORY: the weight of the old rate when a quote is judged.
Below MIN_RATE, only every RARELY-th lookup proposes a quote."""
RECENT, SELDOM, EVERY = 0.05, 0.2, 8
"""RECENT: the weight of one request in the share of requests for which a proposed quote was right. If that share is
below SELDOM, only every EVERY-th request is learned from: learning takes as long as a few rows of a small model."""
FORESEEN = 0.8
"""An output is not learned from if more than this share of it was drafted or forced, and no proposed quote came from a
rule of a single text."""


class _QuoteRule(NamedTuple):
    """How to find a quote in a prompt, for outputs that end with the rule's key. See the module for "key" and "plain".

    lead         output tokens between the key and the quote
    left, right  plain text beside the quoted run in the prompt
    is_plain     the quote's first token is copied without its leading space
    following    tokens that came after quotes in outputs, latest first
    weight       number of words in left and right
    last         the last quote, plain
    has_right    a quote may contain `right`
    is_shared    the rule was learned from several texts"""

    lead: array[int]
    left: str
    right: str
    is_plain: bool
    following: tuple[int, ...]
    weight: int
    last: str
    has_right: bool = False
    is_shared: bool = False


class RuleSet:
    """The rules of one key (the tokens before a quote; see the module). rate: a moving average of how often their
    quotes were right."""

    def __init__(self) -> None:
        self.items: list[_QuoteRule] = []  # shared rules first, then by weight
        self.rate, self._n_skipped = FIRST_RATE, 0

    def judge(self, is_right: bool) -> None:
        self.rate = MEMORY * self.rate + (1 - MEMORY) * is_right

    def is_worth(self, min_rate: float) -> bool:
        """Whether to propose a quote by these rules now. If their acceptance rate is below min_rate, True only in every
        RARELY-th call, so that the rate can recover."""
        if self.rate >= min_rate:
            return True
        self._n_skipped = (self._n_skipped + 1) % RARELY
        return not self._n_skipped


class Quote(NamedTuple):
    """A proposed quote. tokens: first n_lead tokens that lead to the quote, such as a quotation mark, then the quoted
    tokens. is_guess: the rule was learned from one text only. following: tokens that may come next, the most likely
    first. rules: the rules that proposed the quote; its result changes their acceptance rate."""

    tokens: array[int]
    n_lead: int
    is_guess: bool
    following: Sequence[int]
    rules: RuleSet


class QuoteState:
    """The quotes (parts of the prompt that the output copies) of one request: its prompt, and the quote that was
    proposed and is not judged yet."""

    def __init__(self, request: Request) -> None:
        self.prompt = request.ids[max(0, request.n_prompt - N_NEAR) : request.n_prompt]
        self.plain: str | None = None  # the plain form of the prompt, once it is searched
        self.pending: Quote | None = None  # proposed, not judged yet
        self.has_guessed = self.has_quoted = False

    def judge(self, output: array[int]) -> None:
        """Judge the pending quote by its tokens up to the first quoted one, and update the acceptance rate of its
        rules. Does nothing if the output has not reached this token yet. output: the output tokens since the quote was
        proposed."""
        quote = self.pending
        if quote is not None and len(output) > quote.n_lead:
            is_right = output[: quote.n_lead + 1] == quote.tokens[: quote.n_lead + 1]
            quote.rules.judge(is_right)
            self.has_quoted |= is_right
            self.pending = None


class QuoteIndex:
    """Learns from finished outputs where they quote (copy from) their prompts, and proposes quotes for running requests
    as drafts. Each namespace has its own rules."""

    def __init__(self) -> None:
        self._use = 2 * SELDOM  # the share of recent requests for which a proposed quote was right
        self._n_texts = 0
        self._rules: OrderedDict[tuple[bytes, bytes], RuleSet] = OrderedDict()
        self._plain: npt.NDArray[np.int32] | None = None
        self._is_word: list[bool] = []
        self._control: frozenset[int] = frozenset()

    def set_vocabulary(self, spelling: Sequence[bytes], control: Collection[int]) -> None:
        """Set the vocabulary. spelling: the bytes of each token, by id; they tell which tokens differ only by a leading
        space. Before this call, no token is treated as equal to another. control: ids that are not text; a part of the
        prompt with such a token is never proposed as a draft."""
        number = {text: i for i, text in reversed(list(enumerate(spelling)))}
        plain = (number.get(text[1:], i) if text[:1] == b" " and text[1:] else i for i, text in enumerate(spelling))
        self._plain = np.fromiter(plain, np.int32, len(spelling))
        self._control = frozenset(control)
        self._is_word = [any(c > 127 or chr(c).isalpha() for c in text) for text in spelling]

    def _to_plain(self, ids: array[int]) -> str:
        tokens = np.array(ids, np.int32)
        if self._plain is not None:
            tokens = np.where(tokens < len(self._plain), self._plain.take(tokens, mode="clip"), tokens)
        return tokens.astype("<i4").tobytes().decode("utf-32-le", "surrogatepass")

    # ---- learn -----------------------------------------------------------------------------------------------------

    def end(self, state: QuoteState, request: Request) -> None:
        """Learn from the output of a request that has ended, if that is worth the time."""
        self._n_texts += 1
        self._use += RECENT * (state.has_quoted - self._use)
        was_foreseen = len(request.drafted) > FORESEEN * request.n_out and not state.has_guessed
        if not was_foreseen and (self._use >= SELDOM or self._n_texts % EVERY == 0):
            self.learn(request.ids, request.n_prompt, request.run.namespace)

    def learn(self, ids: array[int], n_prompt: int, namespace: bytes) -> None:
        """Learn from a text whose output begins after n_prompt tokens."""
        first, end = max(0, n_prompt - N_NEAR), min(len(ids) - 1, n_prompt + N_NEAR)
        text = self._to_plain(ids[first : end + 1])
        prompt = text[: n_prompt - first]
        at, n_read = n_prompt, 0
        while at < end and n_read < N_READ:
            n_read += 1
            source, n = _longest_match(prompt, text, at - first)
            left = prompt[max(0, source - N_LEFT) : max(0, source)]
            right = prompt[source + n : source + n + N_RIGHT]
            if left and right and at + n < len(ids):
                is_plain, weight = ids[at] != ids[first + source], self._n_words(left) + self._n_words(right)
                last = prompt[source : source + n]
                has_right = right[0] in last
                for start in (at, at - 1):
                    rule = _QuoteRule(ids[start:at], left, right, is_plain, (ids[at + n],), weight, last, has_right)
                    self._add((namespace, ids[max(0, at - N_KEY) : start].tobytes()), rule)
            at += n or 1

    def _n_words(self, plain: str) -> int:
        is_word = self._is_word
        return sum([i >= len(is_word) or is_word[i] for i in map(ord, plain)])

    def _add(self, key: tuple[bytes, bytes], new: _QuoteRule) -> None:
        """Add a rule. If it has enough in common with an existing one, their common part replaces both."""
        rules = self._rules.setdefault(key, RuleSet())
        self._rules.move_to_end(key)
        common, n_common = new, -1
        for n, rule in enumerate(rules.items):
            if rule.lead == new.lead and rule.is_plain == new.is_plain:
                left, right = _common_end(rule.left, new.left), _common_start(rule.right, new.right)
                n_left = self._n_words(left)
                weight = n_left + self._n_words(right)
                is_enough = n_left or weight > 1 or (weight and len(left) + len(right) > 2)
                if left and right and is_enough and (n_common < 0 or weight > common.weight):
                    following = tuple(dict.fromkeys(new.following + rule.following))[:N_NEXT]
                    has_right = right in rule.last or right in new.last
                    has_right |= rule.is_shared and rule.has_right
                    common = _QuoteRule(
                        rule.lead, left, right, rule.is_plain, following, weight, new.last, has_right, True
                    )
                    n_common = n
        if n_common >= 0:
            del rules.items[n_common]
        rules.items.insert(0, common)
        rules.items.sort(key=lambda rule: (not rule.is_shared, -rule.weight))
        del rules.items[N_RULES:]
        if len(self._rules) > N_KEYS:
            self._rules.popitem(last=False)

    def kept(self) -> tuple[int, int]:
        """The approximate bytes of all rules, and the maximum."""
        n_rules = sum(len(rules.items) for rules in self._rules.values())
        return RULE_BYTES * (len(self._rules) + n_rules), RULE_BYTES * N_KEYS * (1 + N_RULES)

    # ---- find ------------------------------------------------------------------------------------------------------

    def propose(self, state: QuoteState, request: Request, n: int, min_rate: float) -> tuple[array[int], list[int]]:
        """Propose about n tokens that may follow the output: quotes, and after each quote a token that often followed
        it and what the constraint then forces. Returns the tokens, and the indexes of those that are uncertain: the
        first token of each quote, and the token after each quote. min_rate: rules with a lower acceptance rate are
        rarely used."""
        ids, guide = request.ids, request.guide
        assert guide is not None
        out, uncertain, n_in = array("i"), list[int](), 0
        state.pending = None
        while len(out) < n:
            last = out[-N_KEY:] if len(out) >= N_KEY else ids[-N_KEY:] + out
            quote = self.find(last, state, request.run.namespace, min_rate)
            if quote is None:
                break
            if not out:
                state.pending = quote
            state.has_guessed |= quote.is_guess
            uncertain.append(len(out) + quote.n_lead)
            out.extend(quote.tokens)
            n_in += guide.accept(quote.tokens)
            del out[n_in:]  # for example, a number's constraint accepts the digits of a quote, but not the word after
            if n_in <= uncertain[-1]:
                del uncertain[-1]
                break
            following = next((token for token in quote.following if guide.accept((token,))), None)
            if following is None:
                break
            forced = guide.forced_tokens(n)
            n_in += 1 + guide.accept(forced)
            uncertain.append(len(out))
            out.append(following)
            out.extend(forced)
        guide.rollback(n_in)
        return out, uncertain

    def find(self, last: array[int], state: QuoteState, namespace: bytes, min_rate: float = MIN_RATE) -> Quote | None:
        """Find the part of the prompt that the output may quote next. Returns None if no rule matches. last: the last
        tokens of the output; they select the rules. min_rate: rules with a lower acceptance rate are rarely used."""
        for n in (N_KEY, N_KEY - 1):
            rules = self._rules.get((namespace, last[-n:].tobytes()))
            if rules is None or not rules.is_worth(min_rate):
                continue
            if state.plain is None:
                state.plain = self._to_plain(state.prompt)
            if match := _best_match(rules.items, state.plain):
                rule, start, stop = match
                quote = state.prompt[start:stop]
                if not self._control.isdisjoint(quote):
                    continue
                if rule.is_plain:
                    quote[0] = ord(state.plain[start])
                following = dict.fromkeys(token for any_rule in (rule, *rules.items) for token in any_rule.following)
                return Quote(rule.lead + quote, len(rule.lead), not rule.is_shared, tuple(following), rules)
        return None


def _best_match(rules: Sequence[_QuoteRule], prompt: str) -> tuple[_QuoteRule, int, int] | None:
    """Choose the rule to apply. Returns (rule, start, end), where prompt[start:end] is the quote, or None if no rule
    matches. Among rules that several texts share and whose weight is at least 2, it chooses the one that matches
    nearest to the prompt's end. If none of them matches, it chooses the first other rule that matches."""
    best = None
    for rule in rules:
        if best is not None and (not rule.is_shared or rule.weight < 2):
            break
        start, stop = _match(prompt, rule)
        if stop and (best is None or start > best[1]):
            best = rule, start, stop
    return best


def _match(prompt: str, rule: _QuoteRule) -> tuple[int, int]:
    """Find the rule's last match in the prompt. Returns (start, end) of the quote; (0, 0) if there is none. A rule from
    several texts must match with all of its context; a rule from one text only with the nearest two tokens on the left
    and one on the right."""
    left, right = (rule.left, rule.right) if rule.is_shared else (rule.left[-2:], rule.right[0])
    n_left, stop = len(left), len(prompt)
    for _ in range(N_PLACES):
        stop = _rfind(prompt, right, stop)
        if stop <= n_left:
            break
        start = _rfind(prompt, left, stop - n_left) + n_left
        if n_left <= start and stop <= start + MAX_QUOTE:
            return start, stop if rule.has_right else prompt.find(right, start + 1)
    return 0, 0


def _longest_match(prompt: str, text: str, at: int) -> tuple[int, int]:
    """Find the longest run of the prompt that equals the text starting at index `at`. Returns (start in the prompt,
    length); (-1, 0) if there is none. Tries only the N_PLACES places nearest to the prompt's end, and prefers the
    nearest among equally long runs. A run of one token counts only if the prompt has that token exactly once."""
    run = text[at : at + MAX_QUOTE]
    best, longest = -1, 0
    place = len(prompt)
    for _ in range(N_PLACES):
        place = _rfind(prompt, run[:2], place)
        if place < 0:
            break
        n = len(_common_start(run, prompt[place : place + MAX_QUOTE]))
        if n > longest:
            best, longest = place, n
    if not longest and prompt.count(run[0]) == 1:
        return prompt.find(run[0]), 1
    return best, longest


def _rfind(text: str, run: str, before: int) -> int:
    """The start of the last occurrence of `run` that starts before `before`; -1 if there is none."""
    return text.rfind(run, 0, before - 1 + len(run))


def _common_start(a: str, b: str) -> str:
    n = min(len(a), len(b))
    return a[: next((k for k in range(n) if a[k] != b[k]), n)]


def _common_end(a: str, b: str) -> str:
    return _common_start(a[::-1], b[::-1])[::-1]
