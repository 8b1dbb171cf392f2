"""Models with random weights for timing, in Hugging Face format: `python benchmarks/random_models.py FOLDER`

M0 (0.8 M parameters, one layer of 64: its steps take almost no time), M1 (15 M, 6 layers of 256) and M2 (110 M, 12
layers of 768, GQA 12/4), each in float32 and bfloat16 with the same seeded weights. Their words are made up, and each
word with the space before it is one token, so that a text of n words always has n tokens.
"""

from __future__ import annotations

import json
import sys
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenizers import Tokenizer

CONSONANTS, VOWELS = "bdfgklmnprstvz", "aeiou"
SHAPES = {
    "M0": {"vocab_size": 6144, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1,
           "num_attention_heads": 2, "num_key_value_heads": 1},
    "M1": {"vocab_size": 16_384, "hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 6,
           "num_attention_heads": 8, "num_key_value_heads": 4},
    "M2": {"vocab_size": 32_000, "hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 12,
           "num_attention_heads": 12, "num_key_value_heads": 4},
}  # fmt: skip
SPECIAL = ("<|pad|>", "<|bos|>", "<|eos|>")


SYLLABLES = [c + v for c in CONSONANTS for v in VOWELS]


def words(vocabulary: int) -> list[str]:
    """The words of a model with a vocabulary of this size, each with its leading space."""
    n = vocabulary - 256 - len(SPECIAL) - 2 * len(SYLLABLES) - len(SYLLABLES) ** 2
    return list(islice((f" {a}{b}{c}" for c in SYLLABLES for a in SYLLABLES for b in SYLLABLES), n))


def _tokenizer(size: int) -> Tokenizer:
    """Byte-level BPE that merges syllables into words."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    space = "\u0120"  # as byte-level BPE writes it
    merges = [(syllable[0], syllable[1]) for syllable in SYLLABLES]
    merges += [(space, a) for a in SYLLABLES]
    merges += [(space + a, b) for a in SYLLABLES for b in SYLLABLES]
    merges += [(space + word[1:5], word[5:]) for word in words(size)]
    tokens = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet()), *(a + b for a, b in merges)]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL))
    return tokenizer


def make(folder: Path, name: str, shape: dict[str, int] | None = None, dtypes: Any = None, device: Any = "cpu") -> None:
    """Writes `folder`/NAME-float32 and `folder`/NAME-bfloat16. shape: the sizes of a model that is not in SHAPES.
    dtypes: write only these; weights are drawn in the first. device: where weights are drawn; they depend on it."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    shape, dtypes = shape or SHAPES[name], dtypes or (torch.float32, torch.bfloat16)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=_tokenizer(shape["vocab_size"]),
        pad_token=SPECIAL[0],
        bos_token=SPECIAL[1],
        eos_token=SPECIAL[2],
    )
    config = LlamaConfig(
        max_position_embeddings=8192, tie_word_embeddings=False, pad_token_id=0, bos_token_id=1, eos_token_id=2, **shape
    )
    torch.set_default_dtype(dtypes[0])
    try:
        with torch.device(device):
            model = LlamaForCausalLM(config)
    finally:
        torch.set_default_dtype(torch.float32)
    draw = torch.Generator(device).manual_seed(len(name))
    with torch.no_grad():
        for key, weight in sorted(model.named_parameters()):
            # Large enough that greedy output does not repeat one token.
            scale = 1.0 if "embed" in key else 2.0 / weight.shape[-1] ** 0.5
            if weight.ndim == 1:
                weight.fill_(1.0)
            else:
                weight.copy_(torch.randn(weight.shape, generator=draw, dtype=dtypes[0], device=device) * scale)
    for dtype in dtypes:
        place = folder / f"{name}-{str(dtype).removeprefix('torch.')}"
        model.to(dtype).save_pretrained(place)
        fast.save_pretrained(place)


def gguf_of(model: Path) -> Path:
    """Writes the model's weights and words as a GGUF file beside it, unless there is one, and returns the file. Tokens
    that are not ASCII get other texts, because llama.cpp's server withholds tokens that end inside a character. Without
    a tokenizer, the file has no vocabulary."""
    import gguf
    import torch
    from safetensors.torch import load_file
    from tokenizers import decoders

    if (file := model.with_name(f"{model.name}.gguf")).exists():
        return file
    words = model / "tokenizer.json"
    bpe = json.loads(words.read_text())["model"] if words.exists() else None
    decode = decoders.ByteLevel().decode
    c = json.loads((model / "config.json").read_text())
    kind = gguf.GGMLQuantizationType[{"bfloat16": "BF16", "float32": "F32"}[c["dtype"]]]
    heads, kv_heads, size = c["num_attention_heads"], c["num_key_value_heads"], c["vocab_size"]
    unfinished = file.with_name(f"{file.name}.part")  # so that a file with the final name is complete
    writer = gguf.GGUFWriter(unfinished, "llama")
    writer.add_context_length(c["max_position_embeddings"])
    writer.add_embedding_length(c["hidden_size"])
    writer.add_block_count(c["num_hidden_layers"])
    writer.add_feed_forward_length(c["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(c["rms_norm_eps"])
    writer.add_rope_freq_base(c["rope_parameters"]["rope_theta"])
    writer.add_vocab_size(size)
    writer.add_tokenizer_model("gpt2" if bpe else "no_vocab")
    if bpe:
        writer.add_tokenizer_pre("gpt-2")
        tokens = sorted(bpe["vocab"], key=bpe["vocab"].get)
        writer.add_token_list([token if decode([token]).isascii() else f"#{i}" for i, token in enumerate(tokens)])
        kinds = [gguf.TokenType.CONTROL if i < len(SPECIAL) else gguf.TokenType.NORMAL for i in range(size)]
        writer.add_token_types(kinds)
        writer.add_token_merges([" ".join(pair) for pair in bpe["merges"]])
        writer.add_bos_token_id(c["bos_token_id"])
        writer.add_eos_token_id(c["eos_token_id"])
        writer.add_add_bos_token(False)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, c["num_hidden_layers"])
    for name, weight in load_file(model / "model.safetensors").items():
        weight = weight.to(torch.float32)
        for part, n in (("q_proj", heads), ("k_proj", kv_heads)):
            if part in name:  # llama.cpp rotates neighbouring dimensions, not halves
                weight = weight.unflatten(0, (n, 2, -1)).transpose(1, 2).flatten(0, 2)
        numbers = weight.contiguous().numpy()
        to = names.get_name(name, try_suffixes=(".weight",))
        if numbers.ndim == 1:
            writer.add_tensor(to, numbers)
        else:
            writer.add_tensor(to, gguf.quants.quantize(numbers, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return unfinished.replace(file)


if __name__ == "__main__":
    for name in SHAPES:
        make(Path(sys.argv[1]), name)
