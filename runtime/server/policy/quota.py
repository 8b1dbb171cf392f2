"""Limits what one client may have on the server at a time: programs, memory, templates, and the branches, samples and
choices of one op. A program that exceeds a limit ends with an error that contains the numbers. Other programs continue.

Memory is estimated: the bytes of ops, values and inserted texts, plus a fixed size for each op, part and state. The
estimate of a program only grows, until the program ends.
"""

from __future__ import annotations

from banyan.runtime.config import Config
from banyan.runtime.errors import BadProgram, Overloaded
from banyan.runtime.protocol import wire
from banyan.runtime.protocol.op_template import ProgramTemplate
from banyan.runtime.server.programs.running_program import Client, RunningProgram

OP, STATE = 256, 2048
"""Bytes of an op, and of a state, besides their text."""
PIECE = 8
"""Bytes that a fork takes for each piece of its parent's text."""
MARK = 64
"""Bytes that a fork takes for each mark of its parent."""
MAX_TEMPLATES = 4096


class _ClientUsage:
    """What one client has on the server: its programs, their estimated bytes, and its templates."""

    __slots__ = ("n_bytes", "n_programs", "templates")

    def __init__(self) -> None:
        self.n_programs = self.n_bytes = 0
        self.templates: dict[int, tuple[ProgramTemplate, int]] = {}  # number -> (template, bytes)


class Quota:
    """Checks all clients against the limits. Raises Overloaded if a client has too much, and BadProgram if one program
    needs too much. It also keeps the clients' templates."""

    def __init__(self, limits: Config) -> None:
        self.limits = limits
        self._clients: dict[Client, _ClientUsage] = {}
        self._program_bytes: dict[int, int] = {}  # by serial

    def begin(self, program: RunningProgram) -> None:
        """Count a program that starts. Raises Overloaded if its client has too many programs; the program is counted
        anyway."""
        usage = self._usage(program.client)
        usage.n_programs += 1
        self._program_bytes[program.serial] = 0
        if usage.n_programs > self.limits.max_programs:
            raise Overloaded(
                f"this client already has {usage.n_programs - 1} programs at once, which is the maximum; "
                "wait for some of them, drop the states of finished runs, which count too (run_batch keeps none with a "
                "checkpoint, and with generator_style those that it has not yielded yet), or raise `max_programs`"
            )

    def forget(self, program: RunningProgram) -> None:
        """Forget a program that has ended."""
        usage = self._clients[program.client]
        usage.n_programs -= 1
        usage.n_bytes -= self._program_bytes.pop(program.serial)
        self._drop_if_empty(program.client, usage)

    def forget_client(self, client: Client) -> None:
        """Drop the templates of a client that is gone. Its programs are counted until they have ended."""
        if (usage := self._clients.get(client)) is not None:
            for number in tuple(usage.templates):
                self.undefine(client, number)

    def hold(self, program: RunningProgram, n_bytes: int) -> None:
        """Count `n_bytes` more memory for a program. Raises BadProgram if the program has too much, and Overloaded if
        its client has. The memory is counted in each case."""
        usage = self._clients[program.client]
        usage.n_bytes += n_bytes
        self._program_bytes[program.serial] = total = self._program_bytes[program.serial] + n_bytes
        if total > self.limits.max_program:
            raise BadProgram(
                f"the program takes more than {_size(self.limits.max_program)} on the server; split it into several "
                "programs, or raise `max_program`"
            )
        if usage.n_bytes > self.limits.max_client:
            raise Overloaded(
                f"the {usage.n_programs} programs of this client take more than {_size(self.limits.max_client)} on the "
                "server; wait for some of them, or raise `max_client`"
            )

    def queue(self, program: RunningProgram, op: wire.Op, n_encoded: int) -> None:
        """Count the memory of an op that is added to a program. Raises BadProgram or Overloaded, like `hold` and
        `bytes_of`. n_encoded: bytes of the encoded op."""
        n_bytes = self.bytes_of(op, n_encoded)
        if isinstance(op, wire.Use):
            found = self._clients[program.client].templates.get(op.template)
            n_bytes += 0 if found is None else found[1]
        self.hold(program, n_bytes)

    # ---- templates -------------------------------------------------------------------------------------------------

    def define(self, client: Client, number: int, template: ProgramTemplate, n_bytes: int) -> None:
        """Add a template of a client; it replaces a template with the same number. n_bytes: the estimated memory of the
        template's ops, the sum of `bytes_of`. Raises Overloaded if the client has MAX_TEMPLATES templates, or if its
        memory would exceed the limit `max_client`."""
        usage = self._usage(client)
        self.undefine(client, number)
        if len(usage.templates) >= MAX_TEMPLATES or usage.n_bytes + n_bytes > self.limits.max_client:
            self._drop_if_empty(client, usage)
            raise Overloaded(
                f"this client has {len(usage.templates)} templates, and {_size(usage.n_bytes)} on the server; at most "
                f"{MAX_TEMPLATES} templates and {_size(self.limits.max_client)} are allowed"
            )
        usage.templates[number] = template, n_bytes
        usage.n_bytes += n_bytes

    def undefine(self, client: Client, number: int) -> None:
        if (usage := self._clients.get(client)) is not None and number in usage.templates:
            usage.n_bytes -= usage.templates.pop(number)[1]
            self._drop_if_empty(client, usage)

    def template(self, client: Client, number: int) -> ProgramTemplate | None:
        usage = self._clients.get(client)
        found = None if usage is None else usage.templates.get(number)
        return None if found is None else found[0]

    # ---- helpers ---------------------------------------------------------------------------------------------------

    def _usage(self, client: Client) -> _ClientUsage:
        return self._clients.setdefault(client, _ClientUsage())

    def _drop_if_empty(self, client: Client, usage: _ClientUsage) -> None:
        if not usage.n_programs and not usage.templates:
            self._clients.pop(client, None)

    def bytes_of(self, op: wire.Op, n_encoded: int) -> int:
        """Estimate the memory of an op in bytes: while it is queued, and later as text of its state. n_encoded: bytes
        of the encoded op. Raises BadProgram if the op has more branches, samples or choices than allowed."""
        match op:
            case wire.Append(parts=parts):
                return OP + OP // 4 * len(parts) + n_encoded
            case wire.Fork(children=children):
                self._check_width("a fork makes", len(children), "branches")
                return OP + STATE * len(children)
            case wire.Join(children=children):
                return OP + OP * len(children)
            case wire.Gen(sampling=sampling):
                self._check_width("a gen has", sampling.n, "samples")
                return OP + n_encoded + 64 * len(sampling.logit_bias)
            case wire.Select(choices=choices):
                self._check_width("a select has", len(choices), "choices")
        return OP + n_encoded

    def _check_width(self, what: str, n: int, of: str) -> None:
        if n > self.limits.max_width:
            raise BadProgram(f"{what} {n} {of}; at most {self.limits.max_width} are allowed (`max_width`)")


def _size(n_bytes: int) -> str:
    return f"{n_bytes / 2**20:.1f} MiB"
