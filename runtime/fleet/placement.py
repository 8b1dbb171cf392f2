"""On which replicas of a fleet a program runs. Pure: no socket, no clock, no chance.

    fleet = Fleet(StepSeconds(9.7e-4, 4e-5, 1e-4))
    fleet.add("engine 0", fingerprint)
    placement = fleet.place(Demand(block_digests(namespace, ids), len(ids) // 4, branches, fingerprint))
    ...                                        # run branch i on placement.replicas[i], joins on placement.home
    fleet.computed(placement, 0, n_out=5)      # as tokens arrive
    fleet.end(placement)

A placement is made for what starts together: a program at `Submit`, a fork, or the next turn of a program. It minimises
the time at which the last branch ends, plus the time by which it delays others. For k = 1, 2, 4, ... groups of branches
it takes the k replicas that cost least: by their queued work, the part of the trunk that they lack, which each group
computes once, and the number of groups of others there. So a replica with the prefix gets the program until the queue
there takes longer than the prefill elsewhere, and a hot prefix spreads by itself. There is no threshold to tune: the
parameters are the measured times of a step.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from banyan.runtime.fleet.index import BLOCK, PrefixIndex


class StepSeconds(NamedTuple):
    """Seconds of an engine's step: fixed, for each token of a prompt, and for each decode."""

    fixed: float
    prompt: float
    decode: float


class Branch(NamedTuple):
    """What a branch of a program computes.

    n_prompt: tokens of its own prompts, without the trunk. n_out: expected tokens of all its outputs. n_steps: those on
    the longest chain of its outputs, which no replica can shorten.
    """

    n_prompt: int
    n_out: int
    n_steps: int


class Demand(NamedTuple):
    """What is placed together: branches behind one trunk. A program without forks is one branch.

    digests: `block_digests` of the trunk. n_trunk: its tokens. fingerprint: of the weights, the same for all placements
    of a program.
    """

    digests: Sequence[bytes]
    n_trunk: int
    branches: Sequence[Branch]
    fingerprint: bytes


OTHERS = 0.3
"""The share of a group's seconds by which it delays each other group of its replica. It would be 1 if they all ended
later. docs/fleet.md measures others than this."""


FEW = 8
"""So many holders are sorted: their square is below this multiple of all replicas. Else the order of all is read."""


class NoReplica(LookupError):
    """No replica takes new programs with these weights."""


class Replica:
    """An engine.

    bit: its number as a set of one. prompt: tokens of prompts that it has to compute. out: tokens of outputs. rows:
    branches that will share its steps. n_groups: the groups that they belong to. order: its place in the order of
    queued work: seconds, the number of the last placement, and its own number.
    """

    __slots__ = ("bit", "fingerprint", "n_groups", "name", "number", "order", "out", "prompt", "rows")

    def __init__(self, name: str, number: int, fingerprint: bytes) -> None:
        self.name, self.number, self.bit, self.fingerprint = name, number, 1 << number, fingerprint
        self.prompt = self.out = self.rows = self.n_groups = 0
        self.order = 0.0, 0, number


class ProgramPlacement:
    """Where the branches of a demand run. home: the name of the replica for what follows the join. replicas: that of
    each branch."""

    __slots__ = ("home", "left", "n_open", "placed", "replicas")

    def __init__(self) -> None:
        self.home = ""
        self.replicas: list[str] = []
        self.placed: list[Replica | None] = []  # of each branch; None: it has ended
        self.left: list[tuple[int, int]] = []  # of each branch: tokens of prompts and of outputs
        self.n_open: dict[Replica, int] = {}  # branches of each group that have not ended


class Fleet:
    """The replicas, their queued work and their prefixes."""

    def __init__(self, step_time: StepSeconds, index: PrefixIndex | None = None) -> None:
        self.step_time, self.index = step_time, index or PrefixIndex()
        self._replicas: dict[str, Replica] = {}
        self._by_number: dict[int, Replica] = {}
        self._open: dict[bytes, int] = {}  # weights -> the replicas that take new programs
        self._order: dict[bytes, list[tuple[float, int, int]]] = {}  # weights -> their `order`, sorted
        self._n_replicas = self._n_placed = 0

    def add(self, name: str, fingerprint: bytes) -> None:
        """A replica, empty, has joined."""
        replica = Replica(name, self._n_replicas, fingerprint)
        self._n_replicas += 1  # numbers are not used twice, so that the index need not be searched for those that left
        self._replicas[name] = self._by_number[replica.number] = replica
        self._open[fingerprint] = self._open.get(fingerprint, 0) | replica.bit
        insort(self._order.setdefault(fingerprint, []), replica.order)

    def drain(self, name: str) -> None:
        """Place nothing more on a replica. What runs there may end. Idempotent."""
        replica = self._replicas[name]
        if self._open[replica.fingerprint] & replica.bit:
            self._open[replica.fingerprint] ^= replica.bit
            order = self._order[replica.fingerprint]
            del order[bisect_left(order, replica.order)]

    def remove(self, name: str) -> None:
        """A replica has left or died. Its placements may still be ended."""
        self.drain(name)
        del self._by_number[self._replicas.pop(name).number]

    @property
    def queued_seconds(self) -> float:
        """Of the work that is booked and not done, on all replicas."""
        return sum(replica.order[0] for replica in self._replicas.values())

    def stored(self, name: str, digests: Sequence[bytes]) -> None:
        """The replica has these blocks (`blocks_of`), shortest prefix first. Ignored if it has left."""
        if (replica := self._replicas.get(name)) is not None:
            self.index.stored(replica.bit, digests)

    def removed(self, name: str, digests: Sequence[bytes]) -> None:
        """The replica no longer has these blocks. Ignored if it has left."""
        if (replica := self._replicas.get(name)) is not None:
            self.index.removed(replica.bit, digests)

    def place(self, demand: Demand) -> ProgramPlacement:
        """Choose replicas, and count the work as theirs until it is done. NoReplica: none has the weights."""
        is_open, n_branches = self._open.get(demand.fingerprint, 0), len(demand.branches)
        if not is_open:
            raise NoReplica("no replica with these weights takes programs")
        holders = (*self.index.holders(demand.digests, is_open), (0, is_open))
        prompts, outs, steps = zip(*demand.branches, strict=True)
        n_steps = max(steps)
        fixed, prompt, decode = self.step_time
        own = (prompt * sum(prompts) + decode * sum(outs)) / n_branches
        # Replicas that lack so many tokens of the trunk, the least queued work first.
        lacking = [(demand.n_trunk - BLOCK * n, self._by_work(demand.fingerprint, among)) for n, among in holders]
        # Of each candidate: seconds until it ends with the delay of others, but for the part that its branches delay;
        # this part; the seconds before its own branches, in which the replica computes other work and the trunk; of
        # equals, which got work longest ago.
        found: list[tuple[float, float, float, int, int]] = []
        missing: dict[int, int] = {}  # replica -> tokens of the trunk that it lacks
        k, best, chosen, n_new = 1, float("inf"), list[tuple[Replica, int]](), 2
        while k <= n_branches:
            for n, replicas in lacking:
                for one in islice(replicas, n_new):
                    _, placed, number = one.order
                    if number not in missing:
                        missing[number] = n
                        ahead = prompt * (one.prompt + n) + decode * min(one.out, one.rows * n_steps)
                        delayed = OTHERS * one.n_groups
                        found.append((ahead + delayed * prompt * n, delayed, ahead, placed, number))
            each = own * -(-n_branches // k)
            groups = sorted([(base + delayed * each, *rest) for base, delayed, *rest in found])[:k]
            ends = fixed * n_steps + each + max([group[1] for group in groups])
            cost = ends + sum([group[0] - group[1] for group in groups])
            if len(groups) < k or cost >= best:
                break  # nor would more groups be better
            best, chosen = cost, [(self._by_number[group[3]], missing[group[3]]) for group in groups]
            n_new = 2 * k  # so that there are 2 k candidates of each kind
            k *= 2
        return self._book(demand, chosen)

    def keep(self, demand: Demand, name: str) -> ProgramPlacement:
        """As `place`, on the replica where the program is already."""
        replica = self._replicas[name]
        n_blocks = next((n for n, _ in self.index.holders(demand.digests, replica.bit)), 0)
        return self._book(demand, [(replica, demand.n_trunk - BLOCK * n_blocks)])

    def _by_work(self, fingerprint: bytes, holders: int) -> Iterator[Replica]:
        """The replicas in `holders`, the least queued work first."""
        order, by_number = self._order[fingerprint], self._by_number
        if holders.bit_count() ** 2 < FEW * len(order):  # look at each of them
            few = []
            while holders:
                few.append(by_number[holders.bit_length() - 1])
                holders ^= few[-1].bit
            yield from sorted(few, key=_order)
        else:
            for _, _, number in order:
                if holders >> number & 1:
                    yield by_number[number]

    def _book(self, demand: Demand, chosen: list[tuple[Replica, int]]) -> ProgramPlacement:
        """Add the work of a demand to the queues of its replicas, in groups of neighbouring branches."""
        branches, k, bits = demand.branches, len(chosen), 0
        made = ProgramPlacement()
        made.home = chosen[0][0].name
        for i, (replica, missing) in enumerate(chosen):
            prompts, outs, _ = zip(*branches[i * len(branches) // k : (i + 1) * len(branches) // k], strict=True)
            n = len(prompts)
            made.left.append((prompts[0] + missing, outs[0]))  # the group's first branch computes the trunk
            made.left += zip(prompts[1:], outs[1:], strict=True)
            made.placed += [replica] * n
            made.replicas += [replica.name] * n
            made.n_open[replica] = n
            self._add(replica, sum(prompts) + missing, sum(outs), n)
            replica.n_groups += 1
            bits |= replica.bit
        self.index.stored(bits, demand.digests)
        return made

    def computed(self, placement: ProgramPlacement, branch: int, n_prompt: int = 0, n_out: int = 0) -> None:
        """A branch has computed so many tokens. Enough are two calls for a request: at its first token and at its
        end."""
        prompt, out = placement.left[branch]
        if (replica := placement.placed[branch]) is not None:
            n_prompt, n_out = min(n_prompt, prompt), min(n_out, out)
            placement.left[branch] = prompt - n_prompt, out - n_out
            self._add(replica, -n_prompt, -n_out, 0)

    def end(self, placement: ProgramPlacement, branch: int | None = None) -> None:
        """A branch has ended, or all have. Idempotent."""
        for i in range(len(placement.placed)) if branch is None else (branch,):
            if (replica := placement.placed[i]) is not None:
                placement.placed[i] = None
                prompt, out = placement.left[i]
                self._add(replica, -prompt, -out, -1)
                placement.n_open[replica] -= 1
                replica.n_groups -= not placement.n_open[replica]

    def _add(self, replica: Replica, prompt: int, out: int, rows: int) -> None:
        """Change a replica's queued work. Of two with equal work, the one that got work longest ago is first."""
        replica.prompt += prompt
        replica.out += out
        replica.rows += rows
        before = replica.order
        seconds = self.step_time.prompt * replica.prompt + self.step_time.decode * replica.out
        self._n_placed += rows > 0
        replica.order = seconds, self._n_placed if rows > 0 else before[1], replica.number
        if self._open[replica.fingerprint] & replica.bit:
            order = self._order[replica.fingerprint]
            del order[bisect_left(order, before)]
            insort(order, replica.order)


def _order(replica: Replica) -> tuple[float, int, int]:
    return replica.order
