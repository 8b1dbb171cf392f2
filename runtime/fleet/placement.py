"""Decides on which replicas of a fleet a program runs. Pure: no socket, no clock, no randomness.

    fleet = Fleet(StepSeconds(fixed=9.7e-4, prompt=4e-5, decode=1e-4))
    fleet.add("engine 0", fingerprint)                  # fingerprint: bytes that identify the engine's weights
    digests = block_digests(namespace, ids)             # ids: the trunk's tokens, as the bytes of an int32 array
    placement = fleet.place(Demand(digests, len(ids) // 4, branches, fingerprint))
    ...                                                 # run branch i on placement.replicas[i], joins on placement.home
    fleet.computed(placement, branch=0, n_out=5)        # branch 0 has 5 more output tokens
    fleet.end(placement)

A placement is made for branches that start together: a program at `Submit`, a fork, or the next turn of a program. The
branches share a trunk, their common prompt. They are divided into groups, and each group runs on one replica, which
computes the trunk once. The number of groups is 1, 2, 4, ... as long as more groups cost less.

The cost of a placement is the time until its last branch ends, plus the time by which its branches delay other
programs. The cost of a replica depends on its queued work, on the part of the trunk that it lacks, and on the number of
other groups on it. So a program goes to the replica that has its prefix, as long as the queue of this replica takes
less time than a prefill elsewhere. This is how a prefix that many programs use spreads to more replicas. There is no
threshold to tune: the parameters are the measured times of a step.

Engines on one machine may share its cores, for example 4 engines of one thread on 2 cores. If the engines with work
have more threads than the machine has cores, they slow each other down. The cost includes this, so a fork is split over
fewer engines of such a machine, and fewer of them compute the same prefix.

Between two turns, a conversation rests: it has no queued work. If it did not count, its replica would seem free, and
would get other conversations, whose prefixes it lacks. So a resting conversation counts as work of its replica, in
proportion to the share of resting conversations that continued soon.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import islice
from operator import attrgetter
from typing import NamedTuple

from banyan.runtime.fleet.index import BLOCK, PrefixIndex


class StepSeconds(NamedTuple):
    """The measured duration of an engine's step, in seconds. fixed: a part that each step takes. prompt: the part for
    each prompt token in the step. decode: the part for each request that decodes in it."""

    fixed: float
    prompt: float
    decode: float


class PullSeconds(NamedTuple):
    """The expected duration of a pull (a copy of KV from another replica), in seconds, learned from earlier pulls.
    wait: until the first token arrives. token: for each token."""

    wait: float = 0.0
    token: float = 0.0


class PlannedPull(NamedTuple):
    """A pull to make: replica `target` gets the KV of tokens first .. end - 1 of a trunk from replica `source`. Both
    are names."""

    source: str
    target: str
    first: int
    end: int


class Branch(NamedTuple):
    """What a branch of a program computes.

    n_prompt: tokens of its own prompts, without the trunk. n_out: expected tokens of all its outputs. n_steps: the
    output tokens on its longest chain of dependent outputs, which cannot be computed in parallel.
    """

    n_prompt: int
    n_out: int
    n_steps: int


class Demand(NamedTuple):
    """The branches to place together, and the trunk (the prompt) that they share. A program without forks is one
    branch.

    digests: `block_digests` of the trunk. n_trunk: how many tokens the trunk has. fingerprint: identifies the weights
    of the model; only replicas with these weights are used.
    """

    digests: Sequence[bytes]
    n_trunk: int
    branches: Sequence[Branch]
    fingerprint: bytes


OTHERS = 0.3
"""A group with s seconds of work delays each other group on its replica by OTHERS * s seconds. (With 1, each would wait
for all of the group's work.) docs/fleet.md has measurements with other values."""


LATER = 0.1
"""A trunk with a prefill of s seconds delays later programs by LATER * s seconds. Without this cost, a replica would
compute a trunk that another replica already has, for the smallest gain."""
N_RESTING = 4
"""Maximum number of resting texts that the fleet remembers, per replica on average. The oldest ones beyond that are
forgotten, and count as texts that did not continue."""
RETURNED = 1 / 16
"""The weight of one rest in the moving average of the share of resting texts that continue."""
FEW = 8
"""The holders of a prefix are sorted by work if the square of their number is below FEW times the number of replicas.
Otherwise the sorted list of all replicas is filtered."""


class NoReplica(LookupError):
    """No replica takes new programs with these weights."""


class CoreShare(NamedTuple):
    """Tells which CPU cores an engine shares with other engines. machine: the name of the engine's machine. threads:
    how many threads the engine uses in a step. n_cores: how many cores the machine has."""

    machine: str
    threads: int
    n_cores: int


class Machine:
    """A machine whose CPU cores several engines share. n_busy: how many threads the engines with work have together.
    n_groups: the sum of `Replica.n_groups` over the machine's replicas."""

    __slots__ = ("n_busy", "n_cores", "n_groups")

    def __init__(self, n_cores: int) -> None:
        self.n_cores = n_cores
        self.n_busy = self.n_groups = 0


class Replica:
    """One engine, and the work queued on it.

    machine: the machine whose cores the engine shares with others; None: it shares none, as on a GPU.
    threads: CPU threads of a step.
    bit: 1 << number, for bit sets of replicas.
    prompt, out: queued prompt and output tokens.
    rows: queued or running branches.
    n_groups: how many groups these branches form; the branches of one placement on a replica are a group.
    others: the part of (prompt, out, rows) that other servers have placed.
    resting: how many of the conversations that rest on the replica are expected to continue soon.
    order: the sort key (estimated seconds of queued work, number of the last placement that gave the replica work,
    number).
    """

    __slots__ = (
        *("bit", "fingerprint", "machine", "n_groups", "name", "number", "order", "others", "out", "prompt"),
        *("resting", "rows", "threads"),
    )

    def __init__(self, name: str, number: int, fingerprint: bytes, machine: Machine | None, threads: int) -> None:
        self.machine, self.threads = machine, threads
        self.name, self.number, self.bit, self.fingerprint = name, number, 1 << number, fingerprint
        self.prompt = self.out = self.rows = self.n_groups = 0
        self.resting = 0.0
        self.others = 0, 0, 0
        self.order = 0.0, 0, number


class ProgramPlacement:
    """Where the branches of a demand run.

    home: the name of the replica that continues after the join.
    replicas: for each branch, the name of its replica.
    pulls: the pulls that must end before the branches start.
    text: the digest of the trunk's last block, if the conversation counts as resting after its branch has ended; else
    b"".
    """

    __slots__ = ("home", "left", "n_open", "placed", "pulls", "replicas", "text")

    def __init__(self) -> None:
        self.home = ""
        self.replicas: list[str] = []
        self.placed: list[Replica | None] = []  # replica of each branch; None: the branch has ended
        self.left: list[tuple[int, int]] = []  # tokens of prompts and of outputs that each branch still has to compute
        self.n_open: dict[Replica, int] = {}  # replica -> branches of its group that have not ended
        self.pulls: list[PlannedPull] = []
        self.text = b""


LEARNED = 1 / 8
"""The weight of one pull in the moving average of a pull's seconds. The average starts at 0, so that pulls are tried.
The first pulls, which include the time to connect, count little."""
FORGOTTEN = 1 / 32
"""The share by which the average of a pull's seconds shrinks each time a prefix is computed because a pull seems
slower. So a few slow pulls do not prevent all later ones."""


class _Source(NamedTuple):
    """The replica from which other replicas can pull a trunk. n_tokens: how many tokens of the trunk it has. wait:
    seconds until the first pulled token arrives."""

    replica: Replica
    n_tokens: int
    wait: float


class Fleet:
    """The replicas, their queued work and their prefixes.

    pull_time: the expected duration of a pull; None: replicas cannot pull from each other.
    """

    def __init__(self, step_time: StepSeconds) -> None:
        self.step_time, self.index = step_time, PrefixIndex()
        self.pull_time: PullSeconds | None = None
        self._replicas: dict[str, Replica] = {}
        self._by_number: dict[int, Replica] = {}
        self._open: dict[bytes, int] = {}  # weights -> the replicas that take new programs
        self._there: dict[bytes, int] = {}  # weights -> all replicas, including drained ones
        self._order: dict[bytes, list[tuple[float, int, int]]] = {}  # weights -> their `order`, sorted
        self._n_replicas = self._n_placed = 0
        self._machines: dict[str, Machine] = {}
        # resting text -> (its replica, its part of that replica's `resting`)
        self._resting: OrderedDict[bytes, tuple[Replica, float]] = OrderedDict()
        self._share = 0.5  # estimated share of resting texts that continue

    def add(self, name: str, fingerprint: bytes, cores: CoreShare | None = None) -> None:
        """Add a replica without work. fingerprint: identifies its weights. cores: the CPU cores that it shares with
        other engines; None: it shares none."""
        machine, threads = None, 0
        if cores is not None:
            machine, threads = self._machines.setdefault(cores.machine, Machine(cores.n_cores)), cores.threads
        replica = Replica(name, self._n_replicas, fingerprint, machine, threads)
        self._n_replicas += 1  # numbers are not used twice, so the index need not be cleaned when a replica leaves
        self._replicas[name] = self._by_number[replica.number] = replica
        self._open[fingerprint] = self._open.get(fingerprint, 0) | replica.bit
        self._there[fingerprint] = self._there.get(fingerprint, 0) | replica.bit
        insort(self._order.setdefault(fingerprint, []), replica.order)

    def drain(self, name: str) -> None:
        """Place nothing more on a replica. Programs that run there continue. Idempotent."""
        replica = self._replicas[name]
        if self._open[replica.fingerprint] & replica.bit:
            self._open[replica.fingerprint] ^= replica.bit
            order = self._order[replica.fingerprint]
            del order[bisect_left(order, replica.order)]

    def remove(self, name: str) -> None:
        """Remove a replica that has left or died. Placements on it may still be passed to `end`."""
        self.set_others(name, 0, 0, 0)  # they are set again if the replica is added again
        self.drain(name)
        replica = self._replicas.pop(name)
        self._there[replica.fingerprint] ^= replica.bit
        del self._by_number[replica.number]

    def set_others(self, name: str, prompt: int, out: int, rows: int) -> None:
        """Set the work that other servers have queued on a replica. prompt, out: tokens of prompts and outputs. rows:
        requests. Each request counts as its own group."""
        replica = self._replicas[name]
        before, replica.others = replica.others, (prompt, out, rows)
        self._add(replica, *(now - old for now, old in zip(replica.others, before, strict=True)))
        self._add_groups(replica, rows - before[2])

    def queued(self, name: str) -> float:
        """The seconds of work that are queued on the replica `name`."""
        return self._replicas[name].order[0]

    @property
    def queued_seconds(self) -> float:
        """The seconds of work that are queued on all replicas together."""
        return sum(replica.order[0] for replica in self._replicas.values())

    def stored(self, name: str, digests: Sequence[bytes]) -> None:
        """Record that the replica `name` has the blocks with these digests, shortest prefix first. No effect if the
        replica has left."""
        if (replica := self._replicas.get(name)) is not None:
            self.index.stored(replica.bit, digests)

    def removed(self, name: str, digests: Sequence[bytes]) -> None:
        """Record that the replica no longer has these blocks. Ignored if the replica has left."""
        if (replica := self._replicas.get(name)) is not None:
            self.index.removed(replica.bit, digests)

    def place(self, demand: Demand) -> ProgramPlacement:
        """Choose the replicas for a demand, and add its work to their queues. The work counts until `computed` and
        `end` remove it. NoReplica: no replica with the demand's weights takes new programs."""
        is_open, n_branches = self._open.get(demand.fingerprint, 0), len(demand.branches)
        if not is_open:
            raise NoReplica("no replica with these weights takes programs")
        holders = (*self.index.holders(demand.digests, is_open), (0, is_open))
        self._go_on(demand)
        prompts, outs, steps = zip(*demand.branches, strict=True)
        n_steps = max(steps)
        fixed, prompt, decode = self.step_time
        source = self._source(demand)
        own = (prompt * sum(prompts) + decode * sum(outs)) / n_branches
        # (n, the replicas that lack n tokens of the trunk, the least queued work first)
        lacking = [(demand.n_trunk - BLOCK * n, self._by_work(demand.fingerprint, among)) for n, among in holders]
        # For each candidate: its cost in seconds without its branches; the factor by which its branches delay other
        # groups; the seconds before its branches start, in which the replica computes other work and the trunk; the
        # number of the last placement that gave it work (among equals, the smallest is taken); its number.
        found: list[tuple[float, float, float, int, int]] = []
        missing: dict[int, int] = {}  # replica -> tokens of the trunk that it lacks
        k, best, chosen, n_new = 1, float("inf"), list[tuple[Replica, int]](), 2
        while k <= n_branches:
            for n, replicas in lacking:
                for one in islice(replicas, n_new):
                    _, placed, number = one.order
                    if number not in missing:
                        missing[number] = n
                        trunk = prompt * n if source is None else self._trunk_seconds(demand, n, source)
                        back = one.resting if n_branches == 1 else 0.0
                        decodes = min(one.out, one.rows * n_steps) + back * n_steps
                        ahead = prompt * one.prompt + trunk + decode * decodes
                        delayed, more = OTHERS * (one.n_groups + back), trunk
                        if (machine := one.machine) is not None:
                            n_more = 0 if one.rows else one.threads
                            if machine.n_busy + n_more > machine.n_cores:
                                part = one.threads / machine.n_cores  # the engine's share of the machine
                                delayed += OTHERS * part * (machine.n_groups - one.n_groups)
                                more += fixed * n_steps if n_more else 0.0
                        found.append((ahead + (delayed + LATER) * more, delayed, ahead, placed, number))
            each = own * -(-n_branches // k)
            groups = sorted([(base + delayed * each, *rest) for base, delayed, *rest in found])[:k]
            ends = fixed * n_steps + each + max([group[1] for group in groups])
            if self._machines:
                ends *= self._stretch([group[3] for group in groups])
            cost = ends + sum([group[0] - group[1] for group in groups])
            if len(groups) < k or cost >= best:
                break  # more groups would not be better either
            best, chosen = cost, [(self._by_number[group[3]], missing[group[3]]) for group in groups]
            n_new = 2 * k
            k *= 2  # each entry of `lacking` gives 2 k candidates
        return self._book(demand, chosen, source)

    def _stretch(self, numbers: Sequence[int]) -> float:
        """The factor by which steps take longer if the replicas with these numbers get work, too. On the most loaded of
        their machines, it is the number of busy threads per core; at least 1."""
        n_busy: dict[Machine, int] = {}
        for number in numbers:
            one = self._by_number[number]
            if (machine := one.machine) is not None:
                n_busy[machine] = n_busy.get(machine, machine.n_busy) + (0 if one.rows else one.threads)
        return max([1.0, *(n / machine.n_cores for machine, n in n_busy.items())])

    def _source(self, demand: Demand) -> _Source | None:
        """Find the replica from which others could pull the longest part of the trunk; None if there is none.

        The source's `wait` includes the time for the prompts queued on the replica: it copies pages only between steps,
        and may still have to compute the trunk.
        """
        if self.pull_time is None:
            return None
        held = self.index.holders(demand.digests, self._there[demand.fingerprint])
        if not held:
            return None
        n_blocks, holders = held[0]
        replica = min(self._members(holders), key=lambda one: one.prompt)
        return _Source(replica, BLOCK * n_blocks, self.pull_time.wait + self.step_time.prompt * replica.prompt)

    def _trunk_seconds(self, demand: Demand, missing: int, source: _Source) -> float:
        """The seconds that a replica needs to get the last `missing` tokens of the trunk: by a prefill, or by a pull
        from `source` if that takes less time."""
        assert self.pull_time is not None
        n_pulled, computed = source.n_tokens - (demand.n_trunk - missing), self.step_time.prompt * missing
        if n_pulled <= 0:
            return computed
        pulled = source.wait + self.pull_time.token * n_pulled + self.step_time.prompt * (missing - n_pulled)
        return min(computed, pulled)

    def _members(self, replicas: int) -> list[Replica]:
        found = []
        while replicas:
            found.append(self._by_number[replicas.bit_length() - 1])
            replicas ^= found[-1].bit
        return found

    def keep(self, demand: Demand, name: str) -> ProgramPlacement:
        """Place a demand on the replica `name`, where the program already runs, and add its work to the queue. Returns
        the placement."""
        self._go_on(demand)
        replica = self._replicas[name]
        n_blocks = next((n for n, _ in self.index.holders(demand.digests, replica.bit)), 0)
        return self._book(demand, [(replica, demand.n_trunk - BLOCK * n_blocks)])

    def _rest(self, text: bytes, replica: Replica) -> None:
        """Record that a conversation rests on `replica`, because its branch has ended. text: the digest of its last
        block. Until it continues or is forgotten, it counts as a part of the replica's work."""
        if text in self._resting:
            self._end_rest(text, 0.0)
        self._resting[text] = replica, self._share
        replica.resting += self._share
        while len(self._resting) > N_RESTING * len(self._replicas):
            self._end_rest(next(iter(self._resting)), 0.0)

    def _go_on(self, demand: Demand) -> None:
        """If the demand continues a resting conversation, end its rest, and count it as continued. If several fit, the
        longest one is taken."""
        resting = self._resting
        for digest in reversed(demand.digests):  # the longest text
            if digest in resting:
                self._end_rest(digest, 1.0)
                break

    def _end_rest(self, text: bytes, went_on: float) -> None:
        """Remove a conversation from the resting ones, and update the share of those that continue. text: the digest of
        its last block. went_on: 1.0 if the conversation has continued, else 0.0."""
        replica, part = self._resting.pop(text)
        replica.resting = max(0.0, replica.resting - part)  # rounding could make it negative
        self._share += RETURNED * (went_on - self._share)

    def _by_work(self, fingerprint: bytes, holders: int) -> Iterator[Replica]:
        """Yield the replicas of a set, the least queued work first. fingerprint: identifies their weights. holders: the
        set, with a bit for each replica."""
        order, by_number = self._order[fingerprint], self._by_number
        if holders.bit_count() ** 2 < FEW * len(order):  # look at each of them
            yield from sorted(self._members(holders), key=attrgetter("order"))
        else:
            for _, _, number in order:
                if holders >> number & 1:
                    yield by_number[number]

    def _book(
        self, demand: Demand, chosen: list[tuple[Replica, int]], source: _Source | None = None
    ) -> ProgramPlacement:
        """Make the placement of a demand on the chosen replicas, and add its work to their queues. The branches are
        divided, in order, into one group for each replica. chosen: pairs (replica, tokens of the trunk that it lacks).
        source: a replica from which they may pull the trunk."""
        branches, k, bits = demand.branches, len(chosen), 0
        made = ProgramPlacement()
        made.home = chosen[0][0].name
        if len(branches) == 1 and branches[0].n_out and demand.digests:
            made.text = demand.digests[-1]
        for i, (replica, missing) in enumerate(chosen):
            first = demand.n_trunk - missing
            if source is not None and first < source.n_tokens:
                if self._trunk_seconds(demand, missing, source) < self.step_time.prompt * missing:
                    made.pulls.append(PlannedPull(source.replica.name, replica.name, first, source.n_tokens))
                    missing = demand.n_trunk - source.n_tokens
                else:
                    self.refused()
            prompts, outs, _ = zip(*branches[i * len(branches) // k : (i + 1) * len(branches) // k], strict=True)
            n = len(prompts)
            made.left.append((prompts[0] + missing, outs[0]))  # the group's first branch computes the trunk
            made.left += zip(prompts[1:], outs[1:], strict=True)
            made.placed += [replica] * n
            made.replicas += [replica.name] * n
            made.n_open[replica] = n
            self._add(replica, sum(prompts) + missing, sum(outs), n)
            self._add_groups(replica, 1)
            bits |= replica.bit
        self.index.stored(bits, demand.digests)
        return made

    def pulled(self, wait: float, token: float) -> None:
        """Learn from a pull that has ended. wait: seconds before the first token arrived. token: seconds of copying per
        token; 0.0: unknown."""
        if self.pull_time is not None:
            old = self.pull_time
            learned = old.token + LEARNED * (token - old.token) if token else old.token
            self.pull_time = PullSeconds(old.wait + LEARNED * (wait - old.wait), learned)

    def refused(self) -> None:
        """Shrink the expected duration of a pull a little. Called when a replica computes a prefix because a pull seems
        slower; so pulls are tried again some time later."""
        if self.pull_time is not None:
            self.pull_time = PullSeconds(*((1 - FORGOTTEN) * seconds for seconds in self.pull_time))

    def computed(self, placement: ProgramPlacement, branch: int, n_prompt: int = 0, n_out: int = 0) -> None:
        """Remove tokens that a branch has computed from the queued work. n_prompt, n_out: prompt and output tokens
        computed since the last call. Two calls for each request are enough: at its first token and at its end."""
        prompt, out = placement.left[branch]
        if (replica := placement.placed[branch]) is not None:
            n_prompt, n_out = min(n_prompt, prompt), min(n_out, out)
            placement.left[branch] = prompt - n_prompt, out - n_out
            self._add(replica, -n_prompt, -n_out, 0)

    def end(self, placement: ProgramPlacement, branch: int | None = None) -> None:
        """Remove the remaining work of a branch that has ended, or of all branches, from the queues. Idempotent."""
        for i in range(len(placement.placed)) if branch is None else (branch,):
            if (replica := placement.placed[i]) is not None:
                placement.placed[i] = None
                prompt, out = placement.left[i]
                self._add(replica, -prompt, -out, -1)
                placement.n_open[replica] -= 1
                if not placement.n_open[replica]:
                    self._add_groups(replica, -1)
                if placement.text:
                    self._rest(placement.text, replica)

    def _add_groups(self, replica: Replica, n: int) -> None:
        replica.n_groups += n
        if replica.machine is not None:
            replica.machine.n_groups += n

    def _add(self, replica: Replica, prompt: int, out: int, rows: int) -> None:
        """Add to a replica's queued work, or subtract if the numbers are negative, and update its place in the sorted
        list. Among replicas with equal work, the one that got work least recently comes first."""
        replica.prompt += prompt
        replica.out += out
        if (machine := replica.machine) is not None:
            machine.n_busy += replica.threads * ((replica.rows + rows > 0) - (replica.rows > 0))
        replica.rows += rows
        before = replica.order
        seconds = self.step_time.prompt * replica.prompt + self.step_time.decode * replica.out
        self._n_placed += rows > 0
        replica.order = seconds, self._n_placed if rows > 0 else before[1], replica.number
        if self._open[replica.fingerprint] & replica.bit:
            order = self._order[replica.fingerprint]
            del order[bisect_left(order, before)]
            insort(order, replica.order)
