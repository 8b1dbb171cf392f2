"""What a client may have on the server at a time: programs, width, and memory. What is too much ends the program that
asked for it, with the numbers; other programs, and other clients, go on.

Memory is counted, not measured: the text of ops, what values and splices add to it, and a fixed weight for each op and
each state. A program's count only grows, and is given back at its end.
"""

from __future__ import annotations

from typing import NamedTuple

from banyan.runtime.config import Config
from banyan.runtime.errors import BadProgram, Overloaded
from banyan.runtime.protocol import wire
from banyan.runtime.protocol.op_template import ProgramTemplate
from banyan.runtime.server.programs.running_program import Client, RunningProgram

OP, STATE = 256, 2048
"""Bytes that an op, and a state, take beside their text."""
PIECE = 8
"""Bytes that a fork takes for each piece of its parent's text."""
MOST_OPS = 1 << 16
"""Ops of one message, those of templates included: 0.3 s of the server's loop (one core of an AMD EPYC)."""
MOST_TEMPLATES = 4096


class QuotaLimits(NamedTuple):
    """Fields of Config."""

    max_programs: int = 1 << 16
    max_width: int = 4096
    max_program: int = 256 << 20
    max_client: int = 1 << 30

    @classmethod
    def of(cls, config: Config) -> QuotaLimits:
        return cls(*(getattr(config, name) for name in cls._fields))


class _Share:
    """What one client has."""

    __slots__ = ("n_bytes", "n_programs", "templates")

    def __init__(self) -> None:
        self.n_programs = self.n_bytes = 0
        self.templates: dict[int, tuple[ProgramTemplate, int]] = {}  # with their weight


class Quota:
    """Holds all clients to the limits. Raises Overloaded where a client has too much, and BadProgram where a program
    asks for too much."""

    def __init__(self, limits: QuotaLimits) -> None:
        self.limits = limits
        self._shares: dict[Client, _Share] = {}
        self._held: dict[int, int] = {}  # by serial: bytes

    def begin(self, program: RunningProgram) -> None:
        """The program is here. It is counted also where this raises."""
        share = self._share(program.client)
        share.n_programs += 1
        self._held[program.serial] = 0
        if share.n_programs > self.limits.max_programs:
            raise Overloaded(
                f"this client has {share.n_programs - 1} programs at once, which is all that it may have; "
                "wait for some of them, or raise `max_programs`"
            )

    def forget(self, program: RunningProgram) -> None:
        """The program is over."""
        share = self._shares[program.client]
        share.n_programs -= 1
        share.n_bytes -= self._held.pop(program.serial)
        self._tidy(program.client, share)

    def forget_client(self, client: Client) -> None:
        """It is gone, and so are its programs."""
        self._shares.pop(client, None)

    def hold(self, program: RunningProgram, n_bytes: int) -> None:
        """The program holds so much more. It is counted also where this raises."""
        share = self._shares[program.client]
        share.n_bytes += n_bytes
        self._held[program.serial] = held = self._held[program.serial] + n_bytes
        if held > self.limits.max_program:
            raise BadProgram(
                f"the program takes more than {_size(self.limits.max_program)} on the server; make it several "
                "programs, or raise `max_program`"
            )
        if share.n_bytes > self.limits.max_client:
            raise Overloaded(
                f"the {share.n_programs} programs of this client take more than {_size(self.limits.max_client)} on the "
                "server; wait for some of them, or raise `max_client`"
            )

    def submit(self, program: RunningProgram, ops: tuple[wire.Op, ...]) -> None:
        """A message brings these ops."""
        n, weight = len(ops), 0
        templates = self._shares[program.client].templates
        for op in ops:
            weight += self._weigh(op)
            if isinstance(op, wire.Use) and (found := templates.get(op.template)) is not None:
                n += len(found[0].ops)
                weight += found[1]
        if n > MOST_OPS:
            raise BadProgram(f"a message brings {n} ops; {MOST_OPS} are the most, so send it as several")
        self.hold(program, weight)

    # ---- templates -------------------------------------------------------------------------------------------------

    def define(self, client: Client, number: int, template: ProgramTemplate) -> None:
        """The client's programs may use the template from now on."""
        share = self._share(client)
        self.undefine(client, number)
        weight = sum(map(self._weigh, template.ops))
        if len(share.templates) >= MOST_TEMPLATES or share.n_bytes + weight > self.limits.max_client:
            self._tidy(client, share)
            raise Overloaded(
                f"this client has {len(share.templates)} templates, and {_size(share.n_bytes)} on the server; at most "
                f"{MOST_TEMPLATES} templates and {_size(self.limits.max_client)} are taken"
            )
        share.templates[number] = template, weight
        share.n_bytes += weight

    def undefine(self, client: Client, number: int) -> None:
        if (share := self._shares.get(client)) is not None and number in share.templates:
            share.n_bytes -= share.templates.pop(number)[1]
            self._tidy(client, share)

    def template(self, client: Client, number: int) -> ProgramTemplate | None:
        share = self._shares.get(client)
        found = None if share is None else share.templates.get(number)
        return None if found is None else found[0]

    # ---- how -------------------------------------------------------------------------------------------------------

    def _share(self, client: Client) -> _Share:
        return self._shares.setdefault(client, _Share())

    def _tidy(self, client: Client, share: _Share) -> None:
        if not share.n_programs and not share.templates:
            self._shares.pop(client, None)

    def _weigh(self, op: wire.Op) -> int:
        """Bytes that `op` takes while it waits, or as the text that it becomes."""
        match op:
            case wire.Append(parts=parts):
                return OP + sum(OP // 4 + _length(part) for part in parts)
            case wire.Fork(children=children):
                self._check_width("a fork makes", len(children), "branches")
                return OP + STATE * len(children)
            case wire.Join(children=children):
                return OP + OP * len(children)
            case wire.Gen(sampling=sampling):
                self._check_width("a gen has", sampling.n, "samples")
                n_bytes = sum(map(len, (*sampling.stop, *sampling.stop_regex)))
                n_bytes += 64 * len(sampling.logit_bias) + 8 * len(sampling.stop_token_ids)
                n_bytes += 0 if sampling.constraint is None else len(sampling.constraint.text)
                n_bytes += 0 if op.tools is None else sum(map(len, op.tools.specs))
                return OP + n_bytes
            case wire.Select(choices=choices):
                self._check_width("a select has", len(choices), "choices")
                return OP + sum(map(len, choices))
            case wire.Use(args=args):
                return OP + sum(map(len, args))
            case wire.Results(texts=texts):
                return OP + sum(map(len, texts))
        return OP

    def _check_width(self, what: str, n: int, of: str) -> None:
        if n > self.limits.max_width:
            raise BadProgram(f"{what} {n} {of}; {self.limits.max_width} are the most (`max_width`)")


def _length(part: wire.Part) -> int:
    match part:
        case str():
            return len(part)
        case wire.Raw(text=text) | wire.Begin(role=text):
            return len(text)
        case wire.Image(data=data):
            return len(data)
    return 0


def _size(n_bytes: int) -> str:
    return f"{n_bytes / 2**20:.1f} MiB"
