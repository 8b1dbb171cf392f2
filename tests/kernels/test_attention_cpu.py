"""The two CPU paths of attention, compiled and torch, agree with the float64 reference."""

from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from banyan.kernels import ops
from banyan.kernels.attention import cpu, native
from banyan.kernels.attention.plan import MERGE_KEYS
from banyan.kernels.attention.ragged import AttentionOptions, ragged
from banyan.kernels.kv_layout import KV_KINDS, Quantized, quantize
from banyan.kernels.native import build, threads
from forms import examples, short_form
from kernel_support.cases import DRAWN, OPTIONS, Case, attention_case, check_deterministic, drawn_case

FLOATS = [torch.float32, torch.float16, torch.bfloat16]
LATENT: list[dict] = [{}, {"window": 9, "softcap": 5.0, "sinks": True}, {"kv": "int8"}]
BATCHES = {
    "one decode": ([1], [37]),
    "decodes of one length": ([1, 1, 1], [64, 64, 64]),
    "decodes of many lengths": ([1] * 7, [1, 2, 16, 17, 90, 300, 301]),
    "first chunk": ([33], [33]),
    "later chunk": ([20], [77]),
    "mixed": ([1, 30, 1, 5, 1, 1], [50, 30, 49, 200, 1, 16]),
    "idle requests": ([0, 1, 0, 3], [20, 9, 0, 3]),
    "empty": ([], []),
}


def check_paths(case: Case) -> None:
    """Checks both paths; the compiled one only if there is a compiler and it supports the case."""
    case.check(cpu.by_torch(*case))
    library = build.library()
    if library is not None and cpu.is_known(*case[:3]):
        case.check(native.attend(library, *case))


@pytest.mark.usefixtures("native")
def test_supported_shapes_use_the_compiled_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "by_torch", None)
    for dtype in build.DTYPES:
        case = attention_case(1, [1, 20], [40, 33], dtype=dtype, window=30, softcap=3.0, sinks=True)
        case.check(cpu.attention(*case))


@pytest.mark.parametrize(("dtype", "dim"), [(torch.float16, 64), (torch.float32, 24)], ids=str)
def test_unsupported_shapes_use_torch(dtype: torch.dtype, dim: int) -> None:
    case = attention_case(1, [1, 20], [40, 33], dtype=dtype, dim=dim)
    case.check(cpu.attention(*case))


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize("dtype", build.DTYPES, ids=str)
def test_long_reads_are_split_among_threads_and_merged(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_n_threads", 2)
    case = attention_case(6, [1, 3, 1], [1500, 900, 64], dtype=dtype, sinks=True)
    case.check(cpu.attention(*case))
    (work,) = case.ragged.plans.values()
    assert work.plan.n_partials > 3


@pytest.mark.parametrize(
    ("batch", "options"),
    short_form(
        product(BATCHES, OPTIONS),
        lambda batch, options: not options or batch == "mixed",
    ),
    ids=str,
)
def test_option_in_each_kind_of_batch(batch: str, options: dict) -> None:
    check_paths(attention_case(1, *BATCHES[batch], **options))


@pytest.mark.parametrize(
    ("dtype", "dim", "heads"),
    short_form(
        product(FLOATS, [16, 80, 96, 112, 128, 256], [(1, 1), (6, 2), (8, 1), (70, 1), (3, 3)]),
        lambda dtype, dim, heads: (
            heads == (6, 2) if dtype == torch.float32 else dim == 80 or (dim, heads) == (16, (1, 1))
        ),
    ),
)
def test_dtypes_and_head_shapes_agree(dtype: torch.dtype, dim: int, heads: tuple[int, int]) -> None:
    check_paths(attention_case(2, [1, 7, 1], [40, 33, 18], heads=heads, dim=dim, dtype=dtype))


@pytest.mark.parametrize(
    ("dtype", "dim", "latent_dim", "options"),
    short_form(
        (
            (dtype, dim, dim - less, options)
            for dtype in FLOATS
            for dim, less in ((24, 8), (576, 64))
            for options in LATENT
        ),
        lambda dtype, dim, _, options: dim == 24 or (dtype, options) == (torch.bfloat16, {}),
    ),
    ids=str,
)
def test_latents_are_keys_and_values(dim: int, latent_dim: int, options: dict, dtype: torch.dtype) -> None:
    shape = {"heads": (20, 1), "dim": dim, "latent_dim": latent_dim, "dtype": dtype}
    check_paths(attention_case(10, [1, 7, 1], [130, 40, 33], shared_pages=1, **shape, **options))
    if not options:
        check_paths(attention_case(11, [7, 2], [90, 50], parents=[[-1, 0, 0, 1, -1, 4, 2], None], **shape))


@pytest.mark.parametrize(
    ("dtype", "page_size", "kv"),
    short_form(
        product([torch.float32, torch.bfloat16], [1, 16, 32, 64], ["", "int8", "fp8"]),
        lambda dtype, page_size, kv: (page_size == 16) == (dtype == torch.float32) and (page_size, kv) != (64, ""),
    ),
)
def test_all_options_together_agree(kv: str, page_size: int, dtype: torch.dtype) -> None:
    options = {"kv": kv, "window": 30, "softcap": 3.0, "sinks": True}
    check_paths(attention_case(3, [1, 40, 1], [100, 95, 33], page_size=page_size, dtype=dtype, **options))


def test_shared_subtree_is_read_once_with_the_same_result(monkeypatch: pytest.MonkeyPatch) -> None:
    n = 12
    case = attention_case(8, [1] * n, [1500 + 7 * i for i in range(n)], shared_pages=40)
    unshared = case._replace(ragged=case.ragged._replace(subtrees=(), plans={}))
    assert [(len(tree.requests), tree.n_keys) for tree in case.ragged.subtrees] == [(12, 640), (6, 960)]
    check_paths(case)
    check_paths(unshared)
    if build.library() is not None:
        shared, single = ([w for key, w in c.ragged.plans.items() if key[0] == "native"] for c in (case, unshared))
        assert single[0].plan.n_partials == 0
        assert shared[0].plan.n_partials > n


@pytest.mark.parametrize(
    "options", [{}, {"window": 12}, {"window": 12, "first": 4}, {"softcap": 5.0}, {"sinks": True}], ids=str
)
def test_draft_trees_agree(options: dict) -> None:
    tree = [-1, 0, 0, 1, -1, 4, 2]
    for kv_lens in ([7, 30], [90, 50]):  # no context, and more keys than the mask covers
        check_paths(attention_case(7, [7, 2], kv_lens, parents=[tree, None], **options))


def test_row_of_a_tree_equals_the_end_of_its_chain() -> None:
    """The reference is causal attention over the path of the row, without masks."""
    n, context, dim = 6, 20, 64
    parents = [-1, 0, 0, 2, -1, 3]
    k, v = torch.randn(2, context + n, 2, dim)
    q = torch.randn(n, 4, dim)
    pools = [t.view(1, -1, 2, dim).contiguous() for t in (k, v)]
    page = context + n
    tree = ragged([n], [context + n], [[0]], page, parents=[parents])
    actual = ops.attention(q, *pools, tree, AttentionOptions(0.1))
    for row in range(n):
        path, node = [row], row
        while parents[node] >= 0:
            node = parents[node]
            path.insert(0, node)
        keys = [*range(context), *(context + j for j in path)]
        chain = ragged([1], [len(keys)], [[0]], len(keys))
        chain_pools = [pool[:, keys].contiguous() for pool in pools]
        alone = ops.attention(q[row : row + 1], *chain_pools, chain, AttentionOptions(0.1))
        torch.testing.assert_close(actual[row : row + 1], alone)
        assert tree.position[row] == context + len(path) - 1


def test_window_smaller_than_a_tree_is_refused() -> None:
    case = attention_case(9, [3], [20], parents=[[-1, 0, 0]])
    with pytest.raises(ValueError, match="window of 2 is smaller than a tree of 3"):
        ops.attention(*case[:4], AttentionOptions(0.1, window=2))


calls = st.fixed_dictionaries(
    DRAWN
    | {
        "requests": st.lists(st.tuples(st.integers(0, 20), st.integers(0, 90)), min_size=1, max_size=6),
        "shared_pages": st.integers(0, 4),
        "dtype": st.sampled_from([torch.float32, torch.bfloat16]),
        "kv": st.sampled_from(["", "", "int8", "fp8"]),
    }
)


@pytest.mark.timeout(900)
@examples(25, 2000, given(call=calls))
def test_random_batches_agree(call: dict) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(MERGE_KEYS, "cpu", 0.0)
        check_paths(drawn_case(dim=16, **call))


def test_layers_with_different_windows_share_a_batch() -> None:
    wide = attention_case(5, [1, 5], [60, 40])
    narrow = wide._replace(options=wide.options._replace(window=8))
    for case in (wide, narrow, wide, narrow):
        check_paths(case)


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize(
    ("dtype", "n_threads", "options"),
    short_form(
        product(
            build.DTYPES,
            [1, 2],
            [
                {},
                {"window": 90},
                {"window": 90, "first": 20},
                {"window": 400, "softcap": 5.0, "sinks": torch.ones(4), "first": 4},
            ],
        ),
        lambda dtype, n_threads, options: (n_threads == 2) == (dtype == torch.float32) and len(options) in (0, 4),
    ),
    ids=str,
)
def test_deterministic_row_is_bitwise_equal_in_every_batch(
    options: dict, n_threads: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "_n_threads", n_threads)
    for merge_keys in (0.0, 1e9):
        monkeypatch.setitem(MERGE_KEYS, "cpu", merge_keys)
        for seed in range(3):
            check_deterministic(cpu.attention, seed, 900, dtype, **options)


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize(
    ("options", "kv"),
    short_form(
        product([{}, {"window": 40}, {"softcap": 5.0}], [None, *KV_KINDS]),
        lambda options, kv: not options if kv else "softcap" not in options,
    ),
    ids=str,
)
def test_float32_row_is_bitwise_equal_for_few_and_many_rows(
    kv: str | None, options: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few and many rows take different code paths. Decoded tokens may be computed again as a chunk."""
    monkeypatch.setattr(threads, "_n_threads", 1)  # more threads would split reads
    for heads, n_kv_heads, dim in ((6, 2, 80), (8, 8, 64)):
        k, v = torch.randn(2, 32, 16, n_kv_heads, dim)
        pools = [k, v]
        if kv is not None:
            pools = [Quantized(*quantize(pool, kind)) for pool, kind in zip(pools, KV_KINDS[kv], strict=True)]
        q = torch.randn(61, heads, dim)
        many = cpu.attention(q, *pools, ragged([61], [500], [range(32)], 16), AttentionOptions(0.3, **options))
        for i in (0, 30, 60):
            single = ragged([1], [440 + i], [range(32)], 16)
            assert torch.equal(
                cpu.attention(q[i : i + 1], *pools, single, AttentionOptions(0.3, **options))[0], many[i]
            )


@pytest.mark.parametrize("kv", ["", "int8"])
def test_torch_attention_works_after_a_call_in_inference_mode(kv: str) -> None:
    case = attention_case(8, [3], [20], kv=kv)
    with torch.inference_mode():
        first = cpu.by_torch(*case)
    assert torch.equal(cpu.by_torch(*case), first)


def test_deterministic_attention_without_a_compiler_raises() -> None:
    case = attention_case(1, [1], [30])
    with pytest.raises(ValueError, match="install a C"):
        cpu.by_torch(*case[:3], case.ragged._replace(deterministic=True), case.options)
