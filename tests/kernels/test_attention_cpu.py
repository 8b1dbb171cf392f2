"""Both CPU paths of attention, compiled and plain torch, against the float64 reference."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from banyan.kernels.attention import cpu, native, plain
from banyan.kernels.native import build
from banyan.kernels.testing.cases import Case, attention_case

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


def run(case: Case) -> None:
    """By both paths; the compiled one where there is a compiler."""
    args = case[:4]
    case.check(plain.attention(*args, **case.options))
    library = build.library()
    if library is not None and cpu.is_known(*case[:3]):
        case.check(native.attend(library, *args, **case.options))


@pytest.mark.usefixtures("native")
def test_the_compiled_path_is_taken_where_it_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain, "attention", None)
    for dtype in build.DTYPES:
        case = attention_case(1, [1, 20], [40, 33], dtype=dtype, window=30, softcap=3.0, sinks=True)
        case.check(cpu.attention(*case[:4], **case.options))


@pytest.mark.parametrize(("dtype", "dim"), [(torch.float16, 64), (torch.float32, 24)], ids=str)
def test_what_the_library_does_not_know_goes_to_torch(dtype: torch.dtype, dim: int) -> None:
    case = attention_case(1, [1, 20], [40, 33], dtype=dtype, dim=dim)
    case.check(cpu.attention(*case[:4], **case.options))


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize("dtype", build.DTYPES, ids=str)
def test_long_reads_are_split_among_threads_and_merged(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    case = attention_case(6, [1, 3, 1], [1500, 900, 64], dtype=dtype, sinks=True)
    case.check(cpu.attention(*case[:4], **case.options))
    (work,) = case.ragged.plans.values()
    assert work.n_partials > 3


@pytest.mark.parametrize("options", [{}, {"window": 9}, {"softcap": 5.0}, {"sinks": True}], ids=str)
@pytest.mark.parametrize("batch", BATCHES)
def test_every_option_on_every_kind_of_batch(batch: str, options: dict) -> None:
    q_lens, kv_lens = BATCHES[batch]
    case = attention_case(1, q_lens, kv_lens, **options)
    run(case)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("dim", [16, 80, 96, 112, 128, 256])
@pytest.mark.parametrize("heads", [(1, 1), (6, 2), (8, 1), (70, 1), (3, 3)])
def test_dtypes_and_head_shapes(dtype: torch.dtype, dim: int, heads: tuple[int, int]) -> None:
    case = attention_case(2, [1, 7, 1], [40, 33, 18], heads=heads, dim=dim, dtype=dtype)
    run(case)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("page_size", [1, 16, 32, 64])
def test_all_options_at_once(page_size: int, dtype: torch.dtype) -> None:
    case = attention_case(
        3, [1, 40, 1], [100, 95, 33], page_size=page_size, dtype=dtype, window=30, softcap=3.0, sinks=True
    )
    run(case)


requests = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 90)), min_size=1, max_size=6)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    requests=requests,
    page_size=st.sampled_from([1, 16, 32, 64]),
    shared_pages=st.integers(0, 4),
    window=st.sampled_from([0, 0, 1, 7, 64]),
    softcap=st.sampled_from([0.0, 0.0, 4.0]),
    sinks=st.booleans(),
)
def test_random_batches(seed: int, requests: list[tuple[int, int]], **options: object) -> None:
    case = attention_case(seed, [q for q, _ in requests], [q + c for q, c in requests], dim=16, **options)
    run(case)


def test_a_batch_without_memory_of_plans_gives_the_same() -> None:
    case = attention_case(4, [1, 5], [30, 20])
    bare = case.ragged._replace(plans=None)
    run(case._replace(ragged=bare))


def test_layers_with_and_without_window_share_a_batch() -> None:
    wide = attention_case(5, [1, 5], [60, 40])
    narrow = wide._replace(options=wide.options | {"window": 8})
    for case in (wide, narrow, wide, narrow):
        run(case)
