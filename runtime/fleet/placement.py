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

Engines on one machine may share its cores: 4 engines of one thread on 2 cores. Where more threads have work than there
are cores, what one engine computes delays all, and another engine at work makes the steps of each longer. So a fork is
split over fewer engines there, and fewer of them compute the same prefix.

Between two turns of its conversations a replica would seem to be free, and get those of others, whose prefixes it
lacks. So texts that have ended count as work of their replica, as far as such texts have gone on soon.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from banyan.runtime.fleet.index import BLOCK, PrefixIndex


class StepSeconds(NamedTuple):
    """Seconds of an engine's step: fixed, for each token of a prompt, and for each decode."""

    fixed: float
    prompt: float
    decode: float


class PullSeconds(NamedTuple):
    """Seconds that a pull takes, as learned from earlier ones: fixed, and for each token."""

    wait: float = 0.0
    token: float = 0.0


class PlannedPull(NamedTuple):
    """A replica, `target`, gets tokens first .. end of a trunk from another one. The names are those of replicas."""

    source: str
    target: str
    first: int
    end: int


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


LATER = 0.1
"""The share of a trunk's seconds by which its prefill delays programs that come later. Without it, a replica would
compute a trunk that another one has for the least gain."""
N_RESTING = 4
"""Texts that rest, for each replica, at most. One that has not gone on by then counts as ended."""
RETURNED = 1 / 16
"""The weight of a text's end in the estimate of how many go on."""
FEW = 8
"""So many holders are sorted: their square is below this multiple of all replicas. Else the order of all is read."""


class NoReplica(LookupError):
    """No replica takes new programs with these weights."""


class CoreShare(NamedTuple):
    """What an engine uses of a machine's cores, which other engines may use too. machine: its name. threads: of a
    step. n_cores: of the machine."""

    machine: str
    threads: int
    n_cores: int


class Machine:
    """A machine whose cores engines share. n_busy: threads of those that have work. n_groups: as in Replica, of all its
    replicas."""

    __slots__ = ("n_busy", "n_cores", "n_groups")

    def __init__(self, n_cores: int) -> None:
        self.n_cores = n_cores
        self.n_busy = self.n_groups = 0


class Replica:
    """One engine, and the work queued on it.

    machine: None: it shares no cores, as on a GPU. threads: of a step. bit: 1 << number, for bit sets of replicas.
    prompt, out: queued prompt and output tokens. rows: queued or running branches. n_groups: number of placements that
    these branches belong to. resting: how many of the texts that ended there are expected to go on soon. order: sort
    key: (estimated seconds of queued work, number of the last placement that gave it work, replica number).
    """

    __slots__ = (
        *("bit", "fingerprint", "machine", "n_groups", "name", "number", "order", "out", "prompt", "resting", "rows"),
        "threads",
    )

    def __init__(self, name: str, number: int, fingerprint: bytes, machine: Machine | None, threads: int) -> None:
        self.machine, self.threads = machine, threads
        self.name, self.number, self.bit, self.fingerprint = name, number, 1 << number, fingerprint
        self.prompt = self.out = self.rows = self.n_groups = 0
        self.resting = 0.0
        self.order = 0.0, 0, number


class ProgramPlacement:
    """Where the branches of a demand run. home: the name of the replica for what follows the join. replicas: that of
    each branch. pulls: what must come before them. text: the digest of the last block, if there is one branch."""

    __slots__ = ("home", "left", "n_open", "placed", "pulls", "replicas", "text")

    def __init__(self) -> None:
        self.home = ""
        self.replicas: list[str] = []
        self.placed: list[Replica | None] = []  # of each branch; None: it has ended
        self.left: list[tuple[int, int]] = []  # of each branch: tokens of prompts and of outputs
        self.n_open: dict[Replica, int] = {}  # branches of each group that have not ended
        self.pulls: list[PlannedPull] = []
        self.text = b""


LEARNED = 1 / 8
"""The weight of a pull in the estimate of what a pull takes, which is 0 at first. So the first pulls are tried, and
what only they have to do counts little."""
FORGOTTEN = 1 / 32
"""The share by which the estimate of a pull's seconds shrinks when a prefix is computed because of it. So a few slow
pulls do not prevent all later ones."""


class _Source(NamedTuple):
    """The replica from which a trunk can be pulled. n_tokens: that it has. wait: seconds before the first is there."""

    replica: Replica
    n_tokens: int
    wait: float


class Fleet:
    """The replicas, their queued work and their prefixes.

    pull_time: None: replicas cannot pull from each other.
    """

    def __init__(self, step_time: StepSeconds, index: PrefixIndex | None = None) -> None:
        self.step_time, self.index = step_time, index or PrefixIndex()
        self.pull_time: PullSeconds | None = None
        self._replicas: dict[str, Replica] = {}
        self._by_number: dict[int, Replica] = {}
        self._open: dict[bytes, int] = {}  # weights -> the replicas that take new programs
        self._there: dict[bytes, int] = {}  # weights -> all replicas, also those that are drained
        self._order: dict[bytes, list[tuple[float, int, int]]] = {}  # weights -> their `order`, sorted
        self._n_replicas = self._n_placed = 0
        self._machines: dict[str, Machine] = {}
        self._resting: OrderedDict[bytes, tuple[Replica, float]] = OrderedDict()  # text -> where; its part of `resting`
        self._share = 0.5  # of the texts that rest, those that go on

    def add(self, name: str, fingerprint: bytes, cores: CoreShare | None = None) -> None:
        """A replica, empty, has joined. cores: None: it shares none."""
        machine, threads = None, 0
        if cores is not None:
            machine, threads = self._machines.setdefault(cores.machine, Machine(cores.n_cores)), cores.threads
        replica = Replica(name, self._n_replicas, fingerprint, machine, threads)
        self._n_replicas += 1  # numbers are not used twice, so that the index need not be searched for those that left
        self._replicas[name] = self._by_number[replica.number] = replica
        self._open[fingerprint] = self._open.get(fingerprint, 0) | replica.bit
        self._there[fingerprint] = self._there.get(fingerprint, 0) | replica.bit
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
        replica = self._replicas.pop(name)
        self._there[replica.fingerprint] ^= replica.bit
        del self._by_number[replica.number]

    def queued(self, name: str) -> float:
        """Seconds of queued work of a replica."""
        return self._replicas[name].order[0]

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
        self._go_on(demand)
        prompts, outs, steps = zip(*demand.branches, strict=True)
        n_steps = max(steps)
        fixed, prompt, decode = self.step_time
        source = self._source(demand)
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
                        trunk = prompt * n if source is None else self._trunk_seconds(demand, n, source)
                        back = one.resting if n_branches == 1 else 0.0
                        decodes = min(one.out, one.rows * n_steps) + back * n_steps
                        ahead = prompt * one.prompt + trunk + decode * decodes
                        delayed, more = OTHERS * (one.n_groups + back), trunk
                        if (machine := one.machine) is not None:
                            n_more = 0 if one.rows else one.threads
                            if machine.n_busy + n_more > machine.n_cores:
                                part = one.threads / machine.n_cores  # of the machine's work in a second
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
                break  # nor would more groups be better
            best, chosen = cost, [(self._by_number[group[3]], missing[group[3]]) for group in groups]
            n_new = 2 * k  # so that there are 2 k candidates of each kind
            k *= 2
        return self._book(demand, chosen, source)

    def _stretch(self, numbers: Sequence[int]) -> float:
        """How many times as long a step takes if these replicas have work too, where more threads than cores do."""
        n_busy: dict[Machine, int] = {}
        for number in numbers:
            one = self._by_number[number]
            if (machine := one.machine) is not None:
                n_busy[machine] = n_busy.get(machine, machine.n_busy) + (0 if one.rows else one.threads)
        return max([1.0, *(n / machine.n_cores for machine, n in n_busy.items())])

    def _source(self, demand: Demand) -> _Source | None:
        """The replica from which others could pull most of a trunk. What it has queued comes first: its copies are made
        between its steps, and it may have the trunk itself only then."""
        if self.pull_time is None:
            return None
        held = self.index.holders(demand.digests, self._there[demand.fingerprint])
        if not held:
            return None
        n_blocks, holders = held[0]
        replica = min(self._members(holders), key=lambda one: one.prompt)
        return _Source(replica, BLOCK * n_blocks, self.pull_time.wait + self.step_time.prompt * replica.prompt)

    def _trunk_seconds(self, demand: Demand, missing: int, source: _Source) -> float:
        """Seconds in which a replica that lacks so many tokens of a trunk has them, by prefill or by a pull."""
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
        """As `place`, on the replica where the program is already."""
        self._go_on(demand)
        replica = self._replicas[name]
        n_blocks = next((n for n, _ in self.index.holders(demand.digests, replica.bit)), 0)
        return self._book(demand, [(replica, demand.n_trunk - BLOCK * n_blocks)])

    def _rest(self, text: bytes, replica: Replica) -> None:
        """A text has ended. If it goes on soon, as conversations and agents do, it comes back to this replica."""
        if text in self._resting:
            self._end_rest(text, 0.0)
        self._resting[text] = replica, self._share
        replica.resting += self._share
        while len(self._resting) > N_RESTING * len(self._replicas):
            self._end_rest(next(iter(self._resting)), 0.0)

    def _go_on(self, demand: Demand) -> None:
        """If a demand continues a text that rests, this text rests no longer."""
        resting = self._resting
        for digest in reversed(demand.digests):  # the longest text
            if digest in resting:
                self._end_rest(digest, 1.0)
                break

    def _end_rest(self, text: bytes, went_on: float) -> None:
        """went_on: 1.0 or 0.0."""
        replica, part = self._resting.pop(text)
        replica.resting = max(0.0, replica.resting - part)  # not less, by rounding
        self._share += RETURNED * (went_on - self._share)

    def _by_work(self, fingerprint: bytes, holders: int) -> Iterator[Replica]:
        """The replicas in `holders`, the least queued work first."""
        order, by_number = self._order[fingerprint], self._by_number
        if holders.bit_count() ** 2 < FEW * len(order):  # look at each of them
            yield from sorted(self._members(holders), key=_order)
        else:
            for _, _, number in order:
                if holders >> number & 1:
                    yield by_number[number]

    def _book(
        self, demand: Demand, chosen: list[tuple[Replica, int]], source: _Source | None = None
    ) -> ProgramPlacement:
        """Add the work of a demand to the queues of its replicas, in groups of neighbouring branches."""
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
        """What a pull took: seconds of waiting, and of copying for each token; 0.0: not known."""
        if self.pull_time is not None:
            old = self.pull_time
            learned = old.token + LEARNED * (token - old.token) if token else old.token
            self.pull_time = PullSeconds(old.wait + LEARNED * (wait - old.wait), learned)

    def refused(self) -> None:
        """A prefix is computed, because a pull of it would take longer."""
        if self.pull_time is not None:
            self.pull_time = PullSeconds(*((1 - FORGOTTEN) * seconds for seconds in self.pull_time))

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
                if not placement.n_open[replica]:
                    self._add_groups(replica, -1)
                if placement.text:
                    self._rest(placement.text, replica)

    def _add_groups(self, replica: Replica, n: int) -> None:
        replica.n_groups += n
        if replica.machine is not None:
            replica.machine.n_groups += n

    def _add(self, replica: Replica, prompt: int, out: int, rows: int) -> None:
        """Change a replica's queued work. Of two with equal work, the one that got work longest ago is first."""
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


def _order(replica: Replica) -> tuple[float, int, int]:
    return replica.order
