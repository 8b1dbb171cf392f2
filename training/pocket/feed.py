"""Batches of token ids: little padding, one conversation per row, reproducible by seed."""

import itertools
import multiprocessing
import os
import random
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from typing import Any, NamedTuple

import torch
from tokenizers import Tokenizer
from torch import Tensor

from pocket import everyday, records
from pocket.chat import Sample
from pocket.data import FIRST_MIXTURE, MIXTURE, stream
from pocket.tokenizer import ADDED, SPECIAL

BATCH_TOKENS = 2_048
POOL_TOKENS, POOL_BATCHES = 65_536, 16  # minimum size of a pool
N_FIRST_BATCHES = 384  # batches drawn from FIRST_MIXTURE, rounded up to whole pools
COPY_SHARE = 0.05  # share of a pool's tokens
SWAPPED = ("json", "everyday_json", "everyday_recall", "everyday_reading")
SWAP_SHARE = 0.3  # share of these families' samples
LETTERS = re.compile("[a-z]+")


class Encoded(NamedTuple):
    """The ids of a sample, and for each id whether it is a target."""

    ids: list[int]
    targets: list[bool]


class Batch(NamedTuple):
    """`ids` [rows, length], right-padded with 0; `chosen` [rows, length - 1]: positions whose next id is trained on."""

    ids: Tensor
    chosen: Tensor


def encode(tokenizer: Tokenizer, samples: Sequence[Sample], max_length: int) -> list[Encoded]:
    """Encodes each sample span by span. As spans end where words end, this equals the encoding of the whole text."""
    spans = [sample.spans() for sample in samples]
    flat = iter(tokenizer.encode_batch([span.text for sample in spans for span in sample], add_special_tokens=False))
    encoded = []
    for sample in spans:
        ids: list[int] = []
        targets: list[bool] = []
        for span in sample:
            part = next(flat).ids
            ids += part
            targets += [span.is_target] * len(part)
        encoded.append(Encoded(ids[:max_length], targets[:max_length]))
    return encoded


def copies(tokenizer: Tokenizer, chance: random.Random) -> Encoded:
    """A row of random ids to copy: a repeated line, or key-value pairs with questions.

    A model does not generate tokens that were never targets in training. Here every token can be a target, also those
    that only occur in words that the training text lacks.
    """
    low, high = len(SPECIAL), tokenizer.get_vocab_size() - len(ADDED)
    newline, colon = (tokenizer.encode(text, add_special_tokens=False).ids for text in ("\n", ":"))
    things = [
        [chance.randrange(low, high) for _ in range(chance.randrange(1, 5))] for _ in range(chance.randrange(2, 7))
    ]
    ids: list[int] = []
    targets: list[bool] = []

    def write(part: list[int], is_target: bool) -> None:
        ids.extend(part)
        targets.extend([is_target] * len(part))

    if chance.random() < 0.5:
        line = [i for thing in things for i in thing]
        for again in range(chance.randrange(2, 4)):
            write([*line, *newline], again > 0)
        return Encoded(ids, targets)
    keys = [chance.sample(range(low, high), 2) for _ in things]
    for key, thing in zip(keys, things, strict=True):
        write([*key, *colon, *thing, *newline], False)
    for i in chance.choices(range(len(keys)), k=chance.randrange(1, 5)):
        write([*keys[i], *colon], False)
        write([*things[i], *newline], True)
    return Encoded(ids, targets)


def swapped(row: Encoded, words: frozenset[int], chance: random.Random) -> Encoded:
    """Replaces about half of the ids that are in `words`, in the prompt and in a target by random other ids of `words`.

    So the model learns to copy values that the training text never has in this position.
    """
    target_ids = {i for i, target in zip(row.ids, row.targets, strict=True) if target}
    prompt_ids = {i for i, target in zip(row.ids, row.targets, strict=True) if not target}
    old = [i for i in sorted(target_ids & prompt_ids & words) if chance.random() < 0.5]
    new = dict(zip(old, chance.sample(sorted(words), len(old)), strict=True))
    return Encoded([new.get(i, i) for i in row.ids], row.targets)


def value_ids(tokenizer: Tokenizer) -> frozenset[int]:
    """The ids of tokens of lower-case letters that do not occur in the wording around a value."""
    around = set(tokenizer.encode(f"{records.wording()} {everyday.wording()}", add_special_tokens=False).ids)
    return frozenset(i for token, i in tokenizer.get_vocab().items() if LETTERS.fullmatch(token) and i not in around)


def _pool_tokens(batch_tokens: int) -> int:
    return max(POOL_TOKENS, POOL_BATCHES * batch_tokens)


def n_first_pools(batch_tokens: int) -> int:
    """The number of pools that are drawn from FIRST_MIXTURE."""
    return -(-N_FIRST_BATCHES * batch_tokens // _pool_tokens(batch_tokens))


def batches(
    tokenizer: Tokenizer,
    seed: int | str,
    pool: int,
    *,
    max_length: int,
    context_share: float,
    batch_tokens: int = BATCH_TOKENS,
) -> list[Batch]:
    """The batches of one pool, of about batch_tokens each. Samples and `copies` are sorted by length and cut into
    batches, which are shuffled.

    Trained on are all targets and a random `context_share` of the other ids. This has the effect of a small loss weight
    on all other ids, and costs less.
    """
    chance = random.Random(f"{seed}-{pool}")
    pool_tokens = _pool_tokens(batch_tokens)
    mixture = FIRST_MIXTURE if pool < n_first_pools(batch_tokens) else MIXTURE
    source = stream(f"{seed}-{pool}", mixture=mixture)
    rows: list[Encoded] = []
    words = value_ids(tokenizer)
    n_tokens = 0
    while n_tokens < pool_tokens:
        drawn = [next(source) for _ in range(64)]
        for sample, row in zip(drawn, encode(tokenizer, drawn, max_length), strict=True):
            is_swapped = sample.family in SWAPPED and chance.random() < SWAP_SHARE
            rows.append(swapped(row, words, chance) if is_swapped else row)
            n_tokens += len(row.ids)
    n_copied = 0
    while n_copied < COPY_SHARE * pool_tokens:
        rows.append(copies(tokenizer, chance))
        n_copied += len(rows[-1].ids)
    rows.sort(key=lambda row: len(row.ids), reverse=True)
    cut: list[list[Encoded]] = []
    while rows:
        n = max(1, batch_tokens // _padded(len(rows[0].ids), max_length))
        cut.append(rows[:n])
        rows = rows[n:]
    chance.shuffle(cut)
    return [_batch(group, chance, context_share, _padded(len(group[0].ids), max_length)) for group in cut]


def _padded(length: int, max_length: int) -> int:
    """The length to which rows are padded. There are few, as oneDNN compiles each product for its shape (7 ms)."""
    step = 32 if length <= 512 else 128
    return min(-(-length // step) * step, max_length)


def _batch(rows: list[Encoded], chance: random.Random, context_share: float, length: int) -> Batch:
    ids = torch.zeros(len(rows), length, dtype=torch.long)
    chosen = torch.zeros(len(rows), length - 1, dtype=torch.bool)
    for i, row in enumerate(rows):
        ids[i, : len(row.ids)] = torch.tensor(row.ids)
        picked = [target or chance.random() < context_share for target in row.targets[1:]]
        chosen[i, : len(picked)] = torch.tensor(picked, dtype=torch.bool)
    return Batch(ids, chosen)


def pools(make: Callable[[int], list[Batch]], first: int, n_processes: int = 0) -> Iterator[list[Batch]]:
    """Yields the pools from `first` on, in order. n_processes: processes that make pools ahead of the caller.

    make: a function of a module, or a `partial` of one, because the processes import it.
    """
    if not n_processes:
        yield from map(make, itertools.count(first))
        return
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # inherited; else each process has a thread per core
    processes = ProcessPoolExecutor(n_processes, multiprocessing.get_context("spawn"))
    ahead: deque[Future[list[tuple[Any, Any]]]] = deque()
    try:
        for pool in itertools.count(first):
            ahead.append(processes.submit(_arrays, make, pool))
            if len(ahead) > 2 * n_processes:
                yield [Batch(*map(torch.from_numpy, arrays)) for arrays in ahead.popleft().result()]
    finally:
        processes.shutdown(cancel_futures=True)


def _arrays(make: Callable[[int], list[Batch]], pool: int) -> list[tuple[Any, Any]]:
    """The batches of a pool as arrays. Each tensor sent between processes would take a file descriptor."""
    return [(batch.ids.numpy(), batch.chosen.numpy()) for batch in make(pool)]
