"""Runs steps of llama.cpp for `quantised.py`, in an environment with llama-cpp-python. Each input line has the numbers
of rows and of keys of a step; the answer is its milliseconds. A GGUF file in floats is converted to Q4_K_M first.

    python benchmarks/quantised_peer.py FILE.gguf THREADS
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from pathlib import Path

import llama_cpp

Q4_K_M = 15  # LLAMA_FTYPE_MOSTLY_Q4_K_M
FLOATS = (0, 1, 32)  # F32, F16 and BF16, as general.file_type says


def in_few_bits(file: Path, n_threads: int) -> Path:
    """The file itself if its weights are quantised; else a file beside it, written here, with the weights in Q4_K_M."""
    with_meta = llama_cpp.Llama(str(file), vocab_only=True, verbose=False)
    if int(with_meta.metadata.get("general.file_type", 0)) not in FLOATS:
        return file
    out = file.with_suffix(".q4_k_m.gguf")
    options = llama_cpp.llama_model_quantize_default_params()
    options.ftype, options.nthread = Q4_K_M, n_threads
    if llama_cpp.llama_model_quantize(str(file).encode(), str(out).encode(), ctypes.byref(options)):
        raise SystemExit(f"llama.cpp cannot write {out}")
    return out


def main() -> None:
    n_threads = int(sys.argv[2])
    file = in_few_bits(Path(sys.argv[1]), n_threads)
    model = llama_cpp.Llama(
        str(file), n_ctx=1024, n_batch=512, n_ubatch=512, n_threads=n_threads, n_threads_batch=n_threads, verbose=False
    )
    model.eval(range(3, 3 + 512))
    print(json.dumps({"version": llama_cpp.__version__, "file": file.name}), flush=True)
    for line in sys.stdin:
        n_rows, n_keys = map(int, line.split())
        model.n_tokens = n_keys - n_rows
        model._ctx.kv_cache_seq_rm(-1, model.n_tokens, -1)
        model._batch.set_batch(batch=range(3, 3 + n_rows), n_past=model.n_tokens, logits_all=False)
        started = time.perf_counter()
        model._ctx.decode(model._batch)
        print(json.dumps(1e3 * (time.perf_counter() - started)), flush=True)


if __name__ == "__main__":
    main()
