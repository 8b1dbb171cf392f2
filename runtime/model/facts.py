"""`ModelSpec`: what is known of a model before it is loaded. Imports no torch."""

from __future__ import annotations

import msgspec

from banyan.runtime.model.families import Dense

DTYPES = ("float32", "bfloat16", "float16")


class ModelSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The dimensions of a model, read from its config.json and checkpoint headers. Counts are of the whole model."""

    name: str  # the directory's name or the hub id, for messages
    family: str  # transformers' model_type
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    hidden: int
    vocab_size: int  # rows of the embedding; the tokenizer may know fewer
    max_context: int
    eos_ids: tuple[int, ...]
    dtype: str  # one of DTYPES: the checkpoint's, or of a loaded Model the one that it computes in
    n_parameters: int  # as stored: a tied head is not counted
    tie_embeddings: bool = False
    dense: Dense | None = None  # None: transformers' code computes it

    @property
    def kv_elements(self) -> int:
        """Elements of K and V that one token takes in all layers."""
        return 2 * self.n_layers * self.n_kv_heads * self.head_dim

    @property
    def kv_heads(self) -> int:
        """KV heads of all layers, K and V counted separately."""
        return 2 * self.n_layers * self.n_kv_heads
