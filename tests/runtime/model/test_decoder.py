"""The native decoder agrees with transformers in logits and tokens, for any chunks, pages and batches."""

import random
from collections.abc import Callable, Sequence
from itertools import product

import pytest
import torch

from banyan.kernels.attention import ragged as batches
from banyan.kernels.dispatch_report import why_not_deterministic
from banyan.kernels.kv_layout import KV_KINDS, parts, stacked
from banyan.kernels.ops import ragged
from banyan.runtime.errors import ConfigError
from banyan.runtime.model.decoder import MAX_KEPT, Decoder, Rotations
from banyan.runtime.model.load import load
from forms import in_short, short_form

LONG = {"original_max_position_embeddings": 64}
FACTORS = {"short_factor": [1.0 + i / 8 for i in range(8)], "long_factor": [2.0 + i / 2 for i in range(8)]}
ROPES = {  # test_rope.py compares the frequencies of the other kinds
    "default": {"rope_type": "default", "rope_theta": 5000.0},
    "dynamic": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0},
    "yarn": {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0, "mscale": 1.2, "mscale_all_dim": 0.7, **LONG},
    "llama3": {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
               "high_freq_factor": 4.0, **LONG},
}  # fmt: skip

VARIANTS = {
    "llama": ("llama", {}),
    "llama-biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-tied": ("llama", {"tie_word_embeddings": True}),
    "llama-mha": ("llama", {"num_key_value_heads": 4}),
    "llama-mqa": ("llama", {"num_key_value_heads": 1}),
    "llama-head-dim": ("llama", {"head_dim": 40}),
    "llama-eps": ("llama", {"rms_norm_eps": 0.1}),
    "mistral": ("mistral", {}),
    "mistral-no-window": ("mistral", {"sliding_window": None}),
    "mistral-head-dim": ("mistral", {"head_dim": 32, "sliding_window": 7}),
    "qwen2": ("qwen2", {}),
    "qwen2-tied": ("qwen2", {"tie_word_embeddings": True}),
    "qwen2-windows": ("qwen2", {"use_sliding_window": True, "sliding_window": 11, "max_window_layers": 1}),
    "qwen3": ("qwen3", {}),
    "qwen3-bias": ("qwen3", {"attention_bias": True, "tie_word_embeddings": True}),
    "qwen3-windows": ("qwen3", {"use_sliding_window": True, "sliding_window": 11,
                                "layer_types": ["sliding_attention", "full_attention"]}),
} | {f"rope-{name}": ("llama", {"rope_parameters": rope}) for name, rope in ROPES.items()}  # fmt: skip


def random_ids(n: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(3, 320), k=n)


@pytest.mark.parametrize(
    ("page", "variant"),
    short_form(
        product([1, 16], VARIANTS),
        lambda page, variant: (
            page == (1, 16)[list(VARIANTS).index(variant) % 2]
            and (variant in ("rope-llama3", "rope-yarn") or not variant.startswith("rope-"))
        ),
    ),
)
def test_logits_equal_transformers(variant, page, tiny, tiny_model, reference, device):
    family, overrides = VARIANTS[variant]
    path = tiny_model(family, **overrides)
    model = load(path, device=device)
    assert isinstance(model, Decoder)
    ids = random_ids(80)
    actual = tiny.Paged(model, page, n_pages=80, device=device).run(ids, chunk=33)
    torch.testing.assert_close(actual, tiny.reference_logits(reference(path), ids), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("page", "variant"),
    short_form(
        product([1, 16], ["llama", "mistral", "qwen2", "qwen3", "rope-llama3", "rope-yarn"]),
        lambda page, variant: page == 16 and variant in ("mistral", "qwen3", "rope-yarn"),
    ),
)
def test_greedy_tokens_equal_transformers(variant, page, tiny, tiny_model, reference):
    family, overrides = VARIANTS[variant]
    path = tiny_model(family, **overrides)
    prompt = random_ids(40, seed=1)
    actual = tiny.Paged(load(path), page, n_pages=80).greedy(prompt, 30, chunk=13)
    assert actual == tiny.reference_greedy(reference(path), prompt, 30, actual)
    assert len(set(actual)) > 3  # not the repetition of one token


@pytest.mark.parametrize("family", ["mistral", "gemma2"])  # transformers' code computes gemma2
def test_requests_in_one_batch_are_independent(family, tiny, tiny_model):
    model = load(tiny_model(family))
    a, b, c = random_ids(50, 1), random_ids(30, 2), random_ids(5, 3)
    expected = {name: tiny.Paged(model).run(ids, chunk=64) for name, ids in {"a": a, "b": b, "c": c}.items()}
    batched = tiny.Paged(model)
    first = batched.step({"a": a[:20], "b": b[:29]})
    second = batched.step({"c": c[:4], "b": b[29:], "a": a[20:49]})  # chunk, decode, chunk, in another order
    third = batched.step({"a": a[49:], "c": c[4:]})
    actual = {
        "a": torch.cat([first["a"], second["a"], third["a"]]),
        "b": torch.cat([first["b"], second["b"]]),
        "c": torch.cat([second["c"], third["c"]]),
    }
    for name, logits in expected.items():
        torch.testing.assert_close(actual[name], logits, atol=1e-4, rtol=1e-4)


def test_requested_rows_are_returned_in_their_order(tiny, tiny_model):
    model = load(tiny_model())
    ids = random_ids(12)
    all_logits = tiny.Paged(model).run(ids, chunk=12)
    kv = tiny.Paged(model).kv
    batch = ragged([12], [12], [[3]], page_size=16)
    actual = model.forward(torch.tensor(ids), torch.arange(12), batch, kv, torch.tensor([9, 2]))
    torch.testing.assert_close(actual, all_logits[[9, 2]], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("max_context", [64, 65])
@pytest.mark.parametrize(("family", "fields"), [("llama", {}), ("phi3", LONG)], ids=["llama", "phi3"])
def test_longrope_factors_follow_the_configured_context(family, fields, max_context, tiny, tiny_model, reference):
    rope = {"rope_type": "longrope", "rope_theta": 10000.0, "factor": 8.0, **FACTORS, **LONG}
    path = tiny_model(family, rope_parameters=rope, **fields)
    model = load(path, max_context=max_context)
    # Transformers chooses by the sequence length: short factors up to 64 tokens, then long factors.
    ids = random_ids(64 if max_context == 64 else 100)
    actual = tiny.Paged(model).run(ids, chunk=30)
    torch.testing.assert_close(actual, tiny.reference_logits(reference(path), ids), atol=1e-4, rtol=1e-4)


def test_dynamic_rope_does_not_extend_the_context(tiny_model):
    path = tiny_model("llama", rope_parameters=ROPES["dynamic"])
    assert load(path).spec.max_context == 512
    with pytest.raises(ConfigError, match=r"context is 513.*at most 512"):
        load(path, max_context=513)


def test_window_of_the_whole_context_is_disabled(tiny_model):
    model = load(tiny_model("mistral"), max_context=24)
    assert [layer.window for layer in model.layers] == [0, 0]
    assert [layer.window for layer in load(tiny_model("mistral"), max_context=25).layers] == [24, 24]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_is_close(dtype, tiny, tiny_model, reference):
    path = tiny_model("qwen3")
    model = load(path, dtype=dtype)
    assert model.spec.dtype == dtype
    ids = random_ids(40)
    actual, expected = tiny.Paged(model).run(ids, chunk=16), tiny.reference_logits(reference(path), ids)
    assert ((actual - expected).norm() / expected.norm()) < (0.05 if dtype == "bfloat16" else 0.01)


def test_unknown_dtype_is_named(tiny_model):
    with pytest.raises(ConfigError, match=r"'int4'.*float32"):
        load(tiny_model(), dtype="int4")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("variant", ["llama", "qwen3-windows"])
def test_deterministic_logits_are_bitwise_equal_in_every_batch(variant, dtype, tiny_model):
    """The reference is a single prefill."""
    family, options = VARIANTS[variant]
    model = load(tiny_model(family, **({"head_dim": 32} | options)), dtype=dtype)
    if reason := why_not_deterministic(getattr(torch, dtype), model.spec.head_dim):
        pytest.skip(reason)
    ids, other = torch.tensor([random_ids(600, seed) for seed in (1, 2)])

    def pools():
        shape = 90, 16, model.spec.n_kv_heads, model.spec.head_dim
        return [tuple(torch.zeros(2, *shape, dtype=getattr(torch, dtype))) for _ in range(model.spec.n_layers)]

    def run(kv, pieces):
        """The logits of each piece (ids, first, end, first page)."""
        q_lens, kv_lens = [end - first for _, first, end, _ in pieces], [end for *_, end, _ in pieces]
        batch = ragged(q_lens, kv_lens, [range(page, page + 40) for *_, page in pieces], 16, deterministic=True)
        ids = torch.cat([text[first:end] for text, first, end, _ in pieces])
        positions = torch.cat([torch.arange(first, end) for _, first, end, _ in pieces])
        return model.forward(ids, positions, batch, kv, torch.arange(sum(q_lens))).split(q_lens)

    (expected,) = run(pools(), [(ids, 0, 600, 0)])
    kv, position = pools(), 0
    for i, n in enumerate([1, 60, 300, 1, 7, 90, 1, 1, 100, 1, 38]):
        actual, *_ = run(kv, [(ids, position, position + n, 0), (other, 13 * i, 13 * i + 13, 45)][: 1 + i % 3])
        assert torch.equal(actual, expected[position : position + n]), f"rows {position} to {position + n}"
        position += n
    assert position == 600


@pytest.mark.parametrize("deterministic", in_short([False], [False, True]))
@pytest.mark.parametrize(
    ("variant", "dtype", "kv", "weights"),
    [
        ("llama", "bfloat16", "bfloat16", "auto"),
        ("llama-biases", "float32", "float32", "auto"),
        ("llama-mqa", "float32", "float32", "int8"),
        ("llama-tied", "bfloat16", "bfloat16", "int8"),
        ("mistral", "bfloat16", "fp8", "auto"),
        ("qwen2-windows", "bfloat16", "bfloat16", "auto"),
        ("qwen3-bias", "float32", "int8", "int4"),
        ("llama", "float32", "k8v4", "auto"),
        ("qwen3-bias", "bfloat16", "k8v4", "int8"),
        ("qwen3-windows", "float32", "float32", "auto"),
    ],
)
def test_fused_layers_are_bitwise_equal_to_single_ops(
    variant, dtype, kv, weights, deterministic, tiny_model, monkeypatch
):
    monkeypatch.setattr(batches, "MIN_SAVED_ROWS", 1)
    family, options = VARIANTS[variant]
    path = tiny_model(family, **({"head_dim": 32} | options))
    model = load(path, dtype=dtype, weight_dtype=weights, deterministic=deterministic)
    if model.fused is None:
        pytest.skip("the library does not compute this model on this machine")
    torch.manual_seed(0)

    def run():
        """Logits and pools after a prompt, chunks, decodes and a draft tree."""
        shape = 12, 16, model.spec.n_kv_heads, model.spec.head_dim
        kinds = KV_KINDS.get(kv, 2 * (getattr(torch, dtype),))
        pools = [tuple(stacked(1, shape, kind)[0] for kind in kinds) for _ in model.layers]
        pool_parts = [part for pair in pools for pool in pair for part in parts(pool)]
        for part in pool_parts:
            part.zero_()
        logits = []
        tree = None if deterministic else [None, [-1, 0, 0, -1, 2], None]
        for q_lens, kv_lens, parents, wanted in (
            ([33, 1, 20], [33, 1, 20], None, None),
            ([1, 5, 1], [34, 6, 21], tree, None),
            ([14, 2, 27], [48, 8, 48], None, [1, 2, 0]),
        ):
            pages = [range(3), range(3, 6), range(6, 9)]
            batch = ragged(q_lens, kv_lens, pages, 16, "cpu", parents, deterministic, wanted)
            assert (batch.tail is None) == (wanted is None)
            n = sum(q_lens)
            ids, position = torch.tensor(random_ids(n)), batch.position.long()
            rows = torch.arange(n) if wanted is None else torch.tensor([13, 14, 15])
            logits.append(model.forward(ids, position, batch, pools, rows))
        return [*logits, *pool_parts]

    actual = run()
    model.fused = None
    for actual_part, other in zip(actual, run(), strict=True):
        assert torch.equal(actual_part, other)
    assert actual[0].isfinite().all()
    assert actual[0].std() > 0.01


@pytest.mark.parametrize("is_fused", [True, False])
@pytest.mark.parametrize("variant", in_short(["llama", "qwen3-windows"], ["llama", "qwen2-windows", "qwen3-windows"]))
@pytest.mark.parametrize(
    ("wanted", "tree"),
    [((1, 3, 0), None), ((0, 0, 0), None), ((1, 7, 1), [*range(-1, 33), 33, 34, 33, 36, 33, 35]), ((95, 0, 1), None)],
)
def test_last_layer_skips_unwanted_rows(variant, is_fused, wanted, tree, tiny_model):
    """The wanted logits, and the keys and values of all rows, do not change."""
    family, options = VARIANTS[variant]
    wide = {"sliding_window": 50} if tree and "sliding_window" in options else {}  # the tree must fit into the window
    model = load(tiny_model(family, **({"head_dim": 32} | options | wide)))
    model.fused = model.fused if is_fused else None
    q_lens, kv_lens = [99, 40, 64], [99, 47, 64]
    parents = None if tree is None else [None, tree, None]
    shape = 24, 16, model.spec.n_kv_heads, model.spec.head_dim
    torch.manual_seed(0)
    before = [torch.randn(2, *shape) for _ in model.layers]

    def run(wanted):
        pools = [tuple(pair.clone()) for pair in before]
        batch = ragged(q_lens, kv_lens, [range(8), range(8, 16), range(16, 24)], 16, "cpu", parents, False, wanted)
        logits = model.forward(torch.tensor(random_ids(sum(q_lens))), batch.position.long(), batch, pools, rows)
        return logits, batch, [pool for pair in pools for pool in pair]

    ends = [99, 139, 203]
    rows = torch.tensor([row for end, n in zip(ends, wanted, strict=True) for row in range(end - n, end)]).long()
    (actual, batch, kv), (expected, full_batch, expected_kv) = run(wanted), run(None)
    assert batch.tail is not None
    assert full_batch.tail is None
    assert sum(batch.tail.q_lens) == len(rows) == len(actual)
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)
    for actual_part, other in zip(kv, expected_kv, strict=True):
        assert torch.equal(actual_part, other)


@pytest.mark.parametrize("is_fused", [True, False])
def test_draft_tree_larger_than_the_window_is_refused(is_fused, tiny_model):
    model = load(tiny_model("mistral", sliding_window=2))
    model.fused = model.fused if is_fused else None
    batch = ragged([3], [20], [range(2)], 16, parents=[[-1, 0, 0]])
    pools = [tuple(torch.zeros(2, 2, 16, model.spec.n_kv_heads, model.spec.head_dim)) for _ in model.layers]
    with pytest.raises(ValueError, match="window of 2 is smaller than a tree of 3"):
        model.forward(torch.tensor([5, 6, 7]), batch.position.long(), batch, pools, torch.arange(3))


def test_unsupported_model_is_not_fused(tiny_model):
    assert load(tiny_model("llama", head_dim=40)).fused is None
    # the rotation has room for heads of 512, and the attention for larger ones
    assert load(tiny_model("llama", head_dim=576, num_hidden_layers=1)).fused is None
    assert load(tiny_model("llama"), dtype="float16").fused is None
    model = load(tiny_model("llama"))
    if model.fused is not None:
        half = [tuple(torch.zeros(2, 3, 16, 2, 16, dtype=torch.float16)) for _ in model.layers]
        assert not model.fused.bind(half)
        assert not model.fused.bind(half[:1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kv_lens", [lambda positions: [1, max(positions) + 1], lambda positions: ()])
def test_kept_rotations_are_the_computed_ones(
    dtype: torch.dtype, kv_lens: Callable[[Sequence[int]], Sequence[int]]
) -> None:
    """Also those of a captured step, whose lengths are on the device only."""
    frequencies = torch.linspace(1.0, 1e-4, 12, dtype=dtype)
    kept = Rotations(frequencies, 1.25)
    for positions in ([4, 0, 4], [70, 3], [MAX_KEPT - 1, 1], [MAX_KEPT, 5], [2]):
        cos, sin = kept(torch.tensor(positions), kv_lens(positions))
        angles = torch.tensor(positions, dtype=dtype)[:, None] * frequencies
        torch.testing.assert_close(cos, 1.25 * angles.cos().float())
        torch.testing.assert_close(sin, 1.25 * angles.sin().float())
