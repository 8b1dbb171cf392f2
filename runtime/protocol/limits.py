"""The limits of one message: how long each string and each list in it may be. These limits are the same for all
servers. (The limits of marks, images, pixels and characters to read are checked after decoding.)

A decoder checks a list's length before it reads the items, so a list that is too long costs no time. The limits that a
server can set are in `config`: the bytes of a message, and how much a client may have on the server at a time.
"""

from __future__ import annotations

from typing import NamedTuple

MAX_PRIORITY = 100
"""The priorities of programs and gens are from -MAX_PRIORITY to MAX_PRIORITY."""

MAX_NUMBER = 2**63 - 1
MAX_COUNT = 2**31 - 1
"""The largest count: the engine works with 32-bit integers."""
MAX_OPS = 1 << 15
"""Maximum number of ops of a message or a template. Their headers take 1.5 to 3.5 ms to decode (one core of an AMD
EPYC)."""
MAX_PARTS = 4096
MAX_IDS = 1 << 13
MAX_ITEMS = 1 << 15
"""Maximum number of items of a list such as choices or arguments. This many texts take 1.5 to 2 ms to decode."""
MAX_READ = 1 << 23
"""Maximum number of characters of a state that is read. A text of this length takes 1 to 5 ms to send."""
MAX_NAME = 256
MAX_LINE = 512
MAX_ROLE = 64
MAX_SECRET = 4096
MAX_STOPS = 64
MAX_STOP = 1024
MAX_STOP_IDS = 1024
MAX_BIASES = 4096
MAX_BUDGETS = 64
MAX_TOOLS = 256
MAX_SPEC = 1 << 16
MAX_TEMPLATE_KWARGS = 1 << 14
MAX_RESULTS = 1024
MAX_NODES = 1 << 16
MAX_IMAGES = 1 << 10
MAX_PIXELS = 1 << 25
"""Maximum number of pixels of an image. An RGB image of this size takes 100 MiB."""
MAX_MARKS = 1 << 13
"""Maximum number of marks of a state. A fork copies the marks of its state, which takes 1 ms for 8,192 marks."""


class MessageLimit(NamedTuple):
    """A row of the table MESSAGE_LIMITS. text: what is limited. most: the limit. unit: what it counts, such as
    "characters"."""

    text: str
    most: int
    unit: str

    def __str__(self) -> str:
        return f"{self.text}: {self.most:,} {self.unit}"


MESSAGE_LIMITS = (
    MessageLimit("ops of a message, or of a template", MAX_OPS, "ops"),
    MessageLimit("parts of an append; the client splits longer ones", MAX_PARTS, "parts"),
    MessageLimit("token ids of a part", MAX_IDS, "ids"),
    MessageLimit("branches of a fork or a join, choices, arguments and seeds of a template", MAX_ITEMS, "items"),
    MessageLimit("name of a program, gen, adapter or client", MAX_NAME, "characters"),
    MessageLimit("source position of a gen", MAX_LINE, "characters"),
    MessageLimit("name of a role", MAX_ROLE, "characters"),
    MessageLimit("access token", MAX_SECRET, "characters"),
    MessageLimit("stop strings, or patterns, of a gen", MAX_STOPS, "strings"),
    MessageLimit("one stop string, pattern, trigger or marker", MAX_STOP, "characters"),
    MessageLimit("stop_token_ids of a gen", MAX_STOP_IDS, "ids"),
    MessageLimit("logit_bias of a gen", MAX_BIASES, "ids"),
    MessageLimit("tools of a gen", MAX_TOOLS, "tools"),
    MessageLimit("JSON document of one tool", MAX_SPEC, "characters"),
    MessageLimit("chat_template_kwargs of a gen or select, as JSON", MAX_TEMPLATE_KWARGS, "characters"),
    MessageLimit("characters of a state that is read", MAX_READ, "characters"),
    MessageLimit("images of a prompt", MAX_IMAGES, "images"),
    MessageLimit("an image", MAX_PIXELS, "pixels"),
    MessageLimit("marks of a state, one for each var_scope", MAX_MARKS, "marks"),
    MessageLimit("results of one turn's calls", MAX_RESULTS, "texts"),
    MessageLimit("nodes of the tree in one answer", MAX_NODES, "nodes"),
)
"""The table of all limits, for `banyan serve --help` and the documentation."""
