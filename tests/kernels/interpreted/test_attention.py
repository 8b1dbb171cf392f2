"""The interpreted Triton kernels of attention agree with the float64 reference."""

from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from banyan.kernels.attention import kernel, plan
from banyan.kernels.write_kv import kernel as write_kv
from forms import in_short, short_form
from kernel_support import cases, interpreter
from kernel_support.cases import DRAWN, Case, attention_case, check_deterministic, drawn_case

BATCHES = {
    "one decode": ([1], [37]),
    "decodes": ([1] * 3, [1, 17, 96]),
    "first chunk": ([33], [33]),
    "later chunk": ([20], [77]),
    "mixed": ([1, 30, 1, 5], [50, 30, 33, 90]),
    "idle requests": ([0, 1, 0, 3], [20, 9, 0, 3]),
    "empty": ([], []),
}
EACH_OPTION = short_form(
    (
        ({},),
        ({"window": 40, "first": 4, "softcap": 5.0, "sinks": True},),
        *(({name: x},) for name, x in {"window": 40, "softcap": 5.0, "sinks": True}.items()),
        ({"window": 40, "first": 4},),
    ),
    lambda options: len(options) == 4,
)


def check(case: Case) -> None:
    case.check(kernel.attention(*case))


def split_often(patch: pytest.MonkeyPatch, n_keys: int) -> None:
    """Splits short reads, so small inputs take the code path of long ones."""
    patch.setattr(plan, "MIN_SPLIT", n_keys)
    patch.setattr(plan, "ALIGN", 32)
    patch.setattr(plan, "WAVES", 1000)
    patch.setattr(kernel, "LARGE_SPLIT", (1000, n_keys))


@pytest.fixture
def splits(monkeypatch: pytest.MonkeyPatch) -> None:
    split_often(monkeypatch, 32)


@pytest.mark.parametrize(
    ("batch", "options"),
    short_form(
        product(BATCHES, [*cases.OPTIONS, {"kv": "k8v4"}]),
        lambda batch, options: (
            batch in ("one decode", "empty", "idle requests", "mixed")
            if not options
            else (batch, len(options)) == ("mixed", 1)
        ),
    ),
    ids=str,
)
def test_option_in_each_kind_of_batch(batch: str, options: dict) -> None:
    check(attention_case(1, *BATCHES[batch], dim=16, **options))


@pytest.mark.parametrize("options", EACH_OPTION, ids=str)
@pytest.mark.usefixtures("splits")
def test_split_reads_are_merged(options: dict) -> None:
    case = attention_case(2, [1, 1, 20], [130, 5, 70], dim=16, **options)
    check(case)
    (*_, merges, n_partials) = next(iter(case.ragged.plans.values()))
    assert len(merges) > 1
    assert n_partials > 2


@pytest.mark.parametrize("options", EACH_OPTION, ids=str)
def test_shared_subtree_is_read_once(options: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(plan.MERGE_KEYS, "cuda", 0.0)
    case = attention_case(6, [1, 1, 3, 1, 1], [100, 90, 95, 120, 9], dim=16, shared_pages=4, **options)
    assert len(case.ragged.subtrees) == 3
    check(case)
    small, large, *_ = next(iter(case.ragged.plans.values()))
    assert len(small) + len(large) > 5


@pytest.mark.parametrize("options", EACH_OPTION, ids=str)
def test_draft_trees_agree(options: dict) -> None:
    tree = [-1, 0, 0, 1, -1, 4, 2]
    for kv_lens in ([7, 30], [90, 50]):  # no context, and more keys than the mask covers
        check(attention_case(7, [7, 2], kv_lens, dim=16, parents=[tree, None], **options))


def test_window_over_a_tree_of_many_tiles() -> None:
    """A row near the root may follow a deep row, and its window starts at an earlier key."""
    check(attention_case(3, [8], [140], heads=(16, 1), dim=16, window=9, parents=[[-1, 0, 1, 2, 0, 0, 0, 0]]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("heads", "dim"),
    short_form(
        [((4, 2), 64), ((3, 1), 80), ((2, 2), 112), ((20, 1), 32), ((2, 1), 256)], lambda heads, dim: dim in (80, 256)
    ),
)
def test_dtypes_and_head_shapes_agree(dtype: torch.dtype, heads: tuple[int, int], dim: int) -> None:
    check(attention_case(3, [1, 6], [40, 33], heads=heads, dim=dim, dtype=dtype))


@pytest.mark.parametrize(
    "options",
    in_short(
        [{}, {"kv": "fp8"}, {"sinks": True}],
        [{}, {"window": 9}, {"softcap": 5.0}, {"sinks": True}, {"kv": "int8"}, {"kv": "fp8"}],
    ),
    ids=str,
)
@pytest.mark.usefixtures("splits")
def test_latents_are_keys_and_values(options: dict) -> None:
    check(attention_case(10, [1, 9, 1], [70, 20, 5], heads=(4, 1), dim=40, latent_dim=24, **options))


def test_latents_of_draft_trees() -> None:
    parents = [[-1, 0, 0, 1, -1, 4, 2], None]
    check(attention_case(11, [7, 2], [90, 50], heads=(4, 1), dim=48, latent_dim=32, parents=parents))


@pytest.mark.parametrize("n_heads", in_short([20], [16, 20]))
def test_latents_of_many_heads_take_several_programs(n_heads: int) -> None:
    check(attention_case(12, [1, 2], [40, 2], heads=(n_heads, 1), dim=576, latent_dim=512, dtype=torch.bfloat16))


@pytest.mark.parametrize(
    ("kv", "page_size"),
    short_form(
        product(["", "int8", "fp8", "k8v4"], [1, 16, 32, 64]),
        lambda kv, page_size: (kv, page_size) in (("k8v4", 1), ("int8", 64), ("fp8", 16)),
    ),
)
@pytest.mark.usefixtures("splits")
def test_all_options_together_agree(kv: str, page_size: int) -> None:
    options = {"kv": kv, "window": 30, "softcap": 3.0, "sinks": True}
    check(attention_case(4, [1, 20, 1], [100, 55, 33], dim=32, page_size=page_size, **options))


@pytest.mark.parametrize("dtype", in_short([torch.bfloat16], [torch.float32, torch.bfloat16, torch.float16]))
def test_fp8_bits_are_read_without_hardware_support(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_kv, "pool_args", lambda pool, arch: (pool.bits, pool.scale, write_kv.FP8_BITS))
    check(attention_case(8, [1, 20], [40, 33], dtype=dtype, kv="fp8"))


def test_q_can_be_a_view_of_a_wider_tensor() -> None:
    case = attention_case(5, [1, 7], [20, 30], dim=32)
    wide = torch.full((8, 4 + 9, 32), torch.nan)
    wide[:, :4] = case.q
    case.check(kernel.attention(wide[:, :4], *case[1:]))


@pytest.mark.long
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("options", [{}, {"window": 20, "softcap": 5.0, "sinks": torch.ones(4), "first": 4}], ids=str)
@pytest.mark.parametrize("n_batches", [1, 6])
@pytest.mark.usefixtures("splits")
def test_deterministic_row_is_bitwise_equal_in_every_batch(
    dtype: torch.dtype, options: dict, n_batches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "CHUNK", 32)
    monkeypatch.setitem(plan.MERGE_KEYS, "cuda", 0.0)
    with interpreter.rows_alike():
        check_deterministic(kernel.attention, 1, 70, dtype, n_batches=n_batches, **options)


calls = st.fixed_dictionaries(
    DRAWN
    | {
        "requests": st.lists(st.tuples(st.integers(0, 20), st.integers(0, 70)), min_size=1, max_size=4),
        "heads": st.sampled_from([(1, 1), (4, 2), (3, 1)]),
        "dtype": st.sampled_from([torch.float32, torch.float32, torch.bfloat16, torch.float16]),
        "kv": st.sampled_from(["", "", "int8", "fp8", "k8v4"]),
        "shared_pages": st.integers(0, 3),
    }
)


@pytest.mark.long
@pytest.mark.timeout(1500)
@settings(max_examples=500, deadline=None)
@given(call=calls, min_split=st.sampled_from([32, 256]))
def test_many_random_batches_agree(call: dict, min_split: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        split_often(patch, min_split)
        patch.setitem(plan.MERGE_KEYS, "cuda", 0.0)
        check(drawn_case(dim=16, **call))
