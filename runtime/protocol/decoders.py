"""The decoders of the server, the engine, its host and the preflight process; wire.py has the decoder of a client.

They are in a separate file because creating them takes 3 ms, and `import banyan` needs none of them. There is one
decoder for each direction, so a message of another direction is refused.
"""

from __future__ import annotations

import msgspec

from banyan.runtime.protocol import wire

decode_client = msgspec.msgpack.Decoder(wire.ClientMessage).decode
decode_sliced = msgspec.msgpack.Decoder(wire.SlicedMessage).decode
decode_op = msgspec.msgpack.Decoder(wire.Op).decode
decode_template_op = msgspec.msgpack.Decoder(wire.TemplateOp).decode
decode_op_source = msgspec.msgpack.Decoder(wire.OpSource).decode
decode_command = msgspec.msgpack.Decoder(wire.EngineCommand).decode
decode_report = msgspec.msgpack.Decoder(wire.EngineReport).decode
decode_host_report = msgspec.msgpack.Decoder(wire.HostHello | wire.EngineStarted | wire.EngineEnded).decode
decode_host_command = msgspec.msgpack.Decoder(wire.StartEngine | wire.EndEngine | wire.Dismiss | wire.Ping).decode
decode_check = msgspec.msgpack.Decoder(wire.SetVocabulary | wire.Check).decode
decode_check_result = msgspec.msgpack.Decoder(wire.CheckResult).decode
