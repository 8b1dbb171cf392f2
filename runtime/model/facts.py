"""What is known of a model before it is loaded: the one value that readers of config.json make. No torch."""

from __future__ import annotations

import msgspec

from banyan.runtime.model.families import Dense

DTYPES = ("float32", "bfloat16", "float16")


class ModelSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of a model. Counts are of the whole model; sizes in elements."""

    name: str  # what messages call it: the directory's name or the hub id
    family: str  # transformers' model_type
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    hidden: int
    vocab_size: int  # rows of the embedding; the tokenizer may know fewer
    max_context: int
    eos_ids: tuple[int, ...]
    dtype: str  # of the checkpoint, one of DTYPES; of a loaded Model: what it computes in
    n_parameters: int  # as stored: a head that is tied to the embedding counts once
    tie_embeddings: bool = False
    dense: Dense | None = None  # None: computed by transformers' own code

    @property
    def kv_elements(self) -> int:
        """Numbers stored per token over all layers, K and V."""
        return 2 * self.n_layers * self.n_kv_heads * self.head_dim

    @property
    def kv_heads(self) -> int:
        """Of all layers, K and V."""
        return 2 * self.n_layers * self.n_kv_heads
