"""Tiny random models in Hugging Face format, with a tokenizer.

No download, no training. `make_tiny` writes a model directory; `reference` opens it with transformers, which is the
oracle. Tests use both through the fixtures in tests/conftest.py.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

VOCAB = 320  # 256 bytes, 3 special tokens, 61 merges
END_OF_TEXT, IM_START, IM_END = 0, 1, 2
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

# Training text of the 61 merges; fixed, so that token ids never change.
_TEXT = (
    "the quick brown fox jumps over the lazy dog. the answer is 42, and the other answer is in the text.\n"
    "system user assistant: there is another thing that they were thinking of, then and there. hello world hello there"
)

_DENSE = {"hidden_size": 64, "intermediate_size": 112, "num_hidden_layers": 2, "num_attention_heads": 4,
          "num_key_value_heads": 2, "max_position_embeddings": 512}  # fmt: skip
_GEMMA = {"head_dim": 16, "sliding_window": 8, "query_pre_attn_scalar": 24}

# family (transformers' model_type) -> config fields of the tiny model
TINY: dict[str, dict[str, Any]] = {
    "lfm2": _DENSE | {"layer_types": ["conv", "full_attention"]},
    "llama": _DENSE,
    "mistral": _DENSE | {"sliding_window": 24},
    "qwen2": _DENSE,
    "qwen3": _DENSE | {"head_dim": 24},
    "phi3": _DENSE | {"pad_token_id": 0},
    "olmo2": _DENSE,
    "gemma2": _DENSE | _GEMMA | {"final_logit_softcapping": 5.0, "attn_logit_softcapping": 3.0},
    "gemma3_text": _DENSE | _GEMMA | {"layer_types": ["sliding_attention", "full_attention"]},
    "mixtral": _DENSE | {"num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen2_moe": _DENSE
    | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 48},
    "gpt_oss": _DENSE
    | {"head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 8}
    | {
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 150000.0,
            "factor": 4.0,
            "truncate": False,
            "original_max_position_embeddings": 128,
        }
    },
    "llama4_text": _DENSE
    | {"intermediate_size_mlp": 112, "head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 1}
    | {"layer_types": ["chunked_attention", "full_attention"], "attention_chunk_size": 16, "no_rope_layers": [1, 0]}
    | {"floor_scale": 12, "attn_scale": 0.4, "attn_temperature_tuning": True, "moe_layers": [1]},
    "gpt2": {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 512},
    "gpt_neox": {key: value for key, value in _DENSE.items() if key != "num_key_value_heads"},
}


def make_tokenizer(path: Path, vocab: int = VOCAB) -> None:
    """Write a byte-level BPE tokenizer with a ChatML template to `path`; ids 0-2 are `SPECIAL`, then 256 bytes. If
    `path` has no model, also write the files that a server expects before it starts the (fake) engine.

    Raises ValueError when `vocab` is too small for the bytes.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    if vocab < 256 + len(SPECIAL):
        raise ValueError(f"a byte-level vocabulary has at least {256 + len(SPECIAL)} tokens, not {vocab}")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([_TEXT], trainer)
    tokenizer.save(str(path / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": SPECIAL[IM_END],
        "pad_token": SPECIAL[END_OF_TEXT],
        "clean_up_tokenization_spaces": False,
        "chat_template": CHATML,
    }
    (path / "tokenizer_config.json").write_text(json.dumps(config, indent=1))
    if not (path / "config.json").exists():
        (path / "config.json").write_text('{"model_type": "fake"}')
        (path / "model.safetensors").touch()


def make_backtracking(path: Path) -> str:
    """Make the tokenizer in `path` split text by a backtracking regex. Return a text on which the tokenizer panics."""
    file = path / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    split = {"type": "Split", "pattern": {"Regex": "(x+x+)+y"}, "behavior": "Isolated", "invert": False}
    words = tokenizer["pre_tokenizer"]
    tokenizer["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, words]}
    file.write_text(json.dumps(tokenizer))
    return "x" * 34


def unreadable(tokenizer: bytes) -> bytes:
    """Return a tokenizer.json on which the library panics while reading it."""
    return json.dumps(
        json.loads(tokenizer) | {"normalizer": {"type": "Precompiled", "precompiled_charsmap": ""}}
    ).encode()


def without(tokenizer: bytes, letter: str) -> bytes:
    """Return a tokenizer.json without tokens that contain `letter`: llguidance panics on a text with this letter."""
    data = json.loads(tokenizer)
    vocabulary = sorted(data["model"]["vocab"].items(), key=lambda item: item[1])
    pieces = [(f"<{i}>" if letter in piece else piece, 0.0) for piece, i in vocabulary]
    return json.dumps(data | {"model": {"type": "Unigram", "unk_id": None, "vocab": pieces}}).encode()


def make_tiny(path: Path, family: str = "llama", *, vocab: int = VOCAB, seed: int = 0, **overrides: Any) -> Path:
    """Write a tiny random float32 model of `family` (transformers' model_type) and its tokenizer to `path`.

    `overrides` are fields of the family's config. Weights are large enough for peaked logits, and norms and biases are
    random too, so that a decoder that forgets one of them is wrong. Returns `path`.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

    fields = {"vocab_size": vocab, "bos_token_id": None, "eos_token_id": IM_END, "pad_token_id": None}
    config = AutoConfig.for_model(family, **(fields | TINY[family] | overrides))
    is_text = type(config) in AutoModelForCausalLM._model_mapping
    auto = AutoModelForCausalLM if is_text else AutoModelForImageTextToText
    model = auto.from_config(config, dtype=torch.float32)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = torch.empty(p.shape).normal_(generator=generator)
            if p.ndim >= 2:
                p.copy_(noise * 1.2 / p.shape[-1] ** 0.5)
            else:
                p.copy_(noise * 0.2 + (1.0 if "norm" in name and name.endswith("weight") else 0.0))
    path.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(path)
    make_tokenizer(path, vocab)
    return path


class Paged:
    """A model driven directly over pages, like the engine does: named requests, each with its own scattered pages.

    The pools start as NaN, so that a read of an unwritten slot is visible.
    """

    def __init__(self, model: Any, page: int = 16, n_pages: int = 64, seed: int = 0, device: str = "cpu") -> None:
        import random

        import torch

        from banyan.kernels.kv_layout import kv_pools

        spec = model.spec
        self.model, self.page, self.device = model, page, torch.device(device)
        shape = (n_pages, page, spec.n_kv_heads, spec.head_dim)
        dtype = getattr(torch, spec.dtype)
        self.kv = kv_pools(spec.n_kv_layers, shape, (dtype, dtype), self.device, latent_dim=spec.latent_dim)
        for pools in self.kv:
            for pool in pools:
                pool.fill_(torch.nan)
        self.states = None if spec.kv_layers is None else model.new_states(8)
        self.free = random.Random(seed).sample(range(n_pages), n_pages)
        self.pages: dict[str, list[int]] = {}
        self.n_tokens: dict[str, int] = {}

    def step(self, new: dict[str, list[int]], *, last_only: bool = False) -> dict[str, Any]:
        """Compute new tokens of several requests in one pass. new: name of a request -> its new tokens. Return name ->
        logits [n, vocab], or [1, vocab] with `last_only`."""
        import torch

        from banyan.kernels.ops import ragged

        ids, positions, ends = [], [], []
        for name, token_ids in new.items():
            start = self.n_tokens.get(name, 0)
            self.n_tokens[name] = end = start + len(token_ids)
            pages = self.pages.setdefault(name, [])
            while len(pages) * self.page < end:
                pages.append(self.free.pop())
            ids += token_ids
            positions += range(start, end)
            ends.append(end)
        spec = self.model.spec
        lens = [len(token_ids) for token_ids in new.values()]
        batch = ragged(lens, ends, [self.pages[name] for name in new], self.page, self.device, chunk=spec.chunk)
        if self.states is not None:
            slots = {name: slot for slot, name in enumerate(self.pages)}
            self.states.copy([(-1, slots[name]) for name, ids in new.items() if self.n_tokens[name] == len(ids)])
            self.states.begin([(n, slots[name], ()) for name, n in zip(new, lens, strict=True)])
        boundaries = torch.tensor([0, *lens]).cumsum(0)
        rows = boundaries[1:] - 1 if last_only else torch.arange(len(ids))
        tensors = (torch.tensor(each, device=self.device) for each in (ids, positions))
        logits = self.model.forward(*tensors, batch, self.kv, rows.to(self.device)).cpu()
        assert logits.dtype == torch.float32
        assert logits.shape == (len(rows), self.model.spec.vocab_size)
        return dict(zip(new, logits.split([1] * len(lens) if last_only else lens), strict=True))

    def run(self, ids: list[int], chunk: int, name: str = "r") -> Any:
        """Return the logits of all `ids`, computed in chunks of `chunk` tokens."""
        import torch

        return torch.cat([self.step({name: ids[i : i + chunk]})[name] for i in range(0, len(ids), chunk)])

    def greedy(self, prompt: list[int], n: int, chunk: int, name: str = "r") -> list[int]:
        """Return `n` greedy tokens after `prompt`, which is computed in chunks of `chunk` tokens."""
        for i in range(0, len(prompt), chunk):
            logits = self.step({name: prompt[i : i + chunk]}, last_only=True)[name]
        out = [int(logits.argmax())]
        while len(out) < n:
            out.append(int(self.step({name: out[-1:]}, last_only=True)[name].argmax()))
        return out


def reference(path: Path) -> Any:
    """Open the model in `path` with transformers (float32, eager attention, eval mode): the oracle of the tests."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, attn_implementation="eager", local_files_only=True
    )
    return model.eval()


def reference_logits(model: Any, ids: list[int]) -> Any:
    """Return the logits [n, vocab] of all `ids`, in one pass without a cache."""
    import torch

    with torch.no_grad():
        return model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]


def reference_greedy(model: Any, prompt: Sequence[int], n: int, draft: Sequence[int] = ()) -> list[int]:
    """Return `n` greedy tokens after `prompt`, computed without a KV cache.

    One pass checks all of `draft`; if it is right, no other is needed.
    """
    out: list[int] = []
    while len(out) < n:
        guess = draft[len(out) : n - 1] if out == list(draft[: len(out)]) else []
        top = reference_logits(model, [*prompt, *out, *guess])[-1 - len(guess) :].argmax(-1).tolist()
        n_right = next((k for k, token in enumerate(guess) if token != top[k]), len(guess))
        out += top[: n_right + 1]
    return out
