"""Which parts of the tool calls of one output a stream has sent."""

from __future__ import annotations

from collections.abc import Iterator

from banyan.runtime.protocol import wire


class SentCalls:
    """The tool calls of one output, of which a stream has sent pieces."""

    def __init__(self) -> None:
        self._n_sent: dict[str, int] = {}  # characters of arguments, by id

    def add(self, piece: wire.CallPiece) -> bool:
        """Count a piece that is sent now. Returns whether it begins a call."""
        is_new = piece.id not in self._n_sent
        self._n_sent[piece.id] = self._n_sent.get(piece.id, 0) + len(piece.arguments)
        return is_new

    def index(self, piece: wire.CallPiece) -> int:
        """The index of a piece's call among the calls that were sent."""
        return list(self._n_sent).index(piece.id)

    def rest(self, sample: wire.Sample) -> Iterator[wire.CallPiece]:
        """Yields what has not been sent of the calls of the whole output."""
        for call in sample.calls:
            if (n := self._n_sent.get(call.id)) is None:
                yield wire.CallPiece(call.id, call.name, call.arguments)
            elif n < len(call.arguments):
                yield wire.CallPiece(call.id, arguments=call.arguments[n:])

    def is_cut(self, sample: wire.Sample) -> bool:
        """Whether the last call that was sent is missing from the complete output, because it was cut off or is
        invalid."""
        return bool(self._n_sent) and [*self._n_sent][-1] not in [call.id for call in sample.calls]
