"""Messages of programs, each once and in order, also where some are lost on the way.

What a client has not confirmed is kept, for a while after its program's end too, and is sent again when it is asked
for. What a client sent is taken in the order of seq; where one is missing, it is asked for.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from banyan.runtime.errors import BadMessage, RuntimeLost
from banyan.runtime.protocol import wire
from banyan.runtime.protocol.resend_window import ResendWindow, pack, unpack

Client = bytes
Key = tuple[Client, int]
"""A program: its client and its number."""

MOST_LACKS = 32
"""So often one message is asked for again because it came without another that it needs."""

N_ENDED = 4096
"""Programs remembered after their end, all clients together."""


class _Channel:
    """Of one program: what came (`n_in` messages) and what went."""

    __slots__ = ("asked", "n_in", "n_lacks", "out")

    def __init__(self) -> None:
        self.n_in = self.n_lacks = 0
        self.asked = -1  # what was asked for again last
        self.out: ResendWindow[wire.ServerMessage] = ResendWindow()


class Delivery:
    """All programs' messages.

    send: gives a message to a client, and must not raise. confirmed: called with each program that has ended, when its
    client has all of its messages.
    """

    def __init__(
        self, send: Callable[[Client, wire.ServerMessage], None], confirmed: Callable[[Key], None] = lambda key: None
    ) -> None:
        self._send, self._confirmed = send, confirmed
        self._ways: dict[Key, _Channel] = {}
        self._ended: OrderedDict[Key, _Channel] = OrderedDict()

    def has_ended(self, key: Key) -> bool:
        """Whether a program of this number was there, and is no more."""
        return key in self._ended

    def accept(self, key: Key, seq: int) -> bool:
        """Whether to take message `seq` of the program, which is the next one. If not, it came before, or too early."""
        way = self._ways.setdefault(key, _Channel())
        if seq > way.n_in and way.asked < way.n_in:
            way.asked = way.n_in
            self._send(key[0], wire.Resend(program=key[1], seq=way.n_in))
        if seq != way.n_in:
            return False
        way.n_in += 1
        way.n_lacks = 0
        return True

    def lacks(self, key: Key, seq: int) -> bool:
        """Message `seq` names a template that did not come: ask for both, as if it had not come itself.

        False: that is not to be done, for it is not the message to take next, or it was done too often.
        """
        way = self._ways.setdefault(key, _Channel())
        if seq != way.n_in or way.n_lacks >= MOST_LACKS:
            return False
        way.n_lacks += 1
        self._send(key[0], wire.Resend(program=key[1], seq=seq))
        return True

    def next(self, key: Key) -> int:
        """The seq of the next message to the client."""
        return self._ways[key].out.n

    def send(self, client: Client, message: wire.Delta | wire.Value | wire.Failed | wire.Called) -> None:
        """Send what has the seq that `next` gave."""
        self._ways[client, message.program].out.put(message)
        self._send(client, message)

    def end(self, key: Key) -> None:
        """The program is no more. What it said last can still be sent again."""
        self._ended[key] = self._ways.pop(key)
        if len(self._ended) > N_ENDED:
            self._ended.popitem(last=False)

    def forget(self, client: Client) -> None:
        """The client is gone."""
        for ways in (self._ways, self._ended):
            for key in [key for key in ways if key[0] == client]:
                del ways[key]

    def resend(self, client: Client, message: wire.Resend) -> None:
        """Send again what the client asks for; the program's end, where that is not kept any more."""
        way = self._ways.get((client, message.program)) or self._ended.get((client, message.program))
        messages = None if way is None else way.out.since(message.seq)
        if messages is None:
            lost = "messages of this program were lost, and are kept no longer to be sent again"
            messages = [wire.Failed(message.program, message.seq, RuntimeLost.code, lost)]
        for one in messages:
            self._send(client, one)

    def sync(self, client: Client, message: wire.Sync) -> None:
        """Compare with what the client sent and saw: ask for what did not come, and say what it should have."""
        answers: list[tuple[int, int, int]] = []
        try:
            programs = list(unpack(message.programs))
        except ValueError as e:
            raise BadMessage(str(e)) from None
        for number, sent, seen in programs:
            if (ended := self._ended.get((client, number))) is not None:
                ended.out.came(seen)
                if ended.out.is_empty:
                    self._confirmed((client, number))
                answers.append((number, ended.out.n, sent))  # it takes no more, so that nothing is missing
                continue
            way = self._ways.get((client, number))
            if way is None and seen:  # it ended, long ago
                answers.append((number, seen + 1, sent))
                continue
            n_in, n_out = (0, 0) if way is None else (way.n_in, way.out.n)
            if way is not None:
                way.out.came(seen)
            if n_in < sent:
                self._send(client, wire.Resend(program=number, seq=n_in))
            answers.append((number, n_out, n_in))
        self._send(client, wire.Sync(pack(answers)))
