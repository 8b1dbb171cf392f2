"""Runs in a vLLM environment: `PYTHON benchmarks/speculation_peers.py`; see benchmarks/speculation.py.

Reads one line of JSON: the model, its dtype, vLLM's `speculative_config` or null, the batch size, two rounds of
prompts, each with a JSON Schema or null, the end-of-sequence id, and the maximum output length. Runs the first round to
fill the cache, then the second, and writes its wall seconds and outputs as a line of JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

SETTINGS = {
    "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1",
}  # fmt: skip
"""vLLM runs on one thread, as our engine does."""


def main() -> None:
    task = json.loads(sys.stdin.readline())
    os.environ.update(SETTINGS)
    answers = os.dup(1)
    os.dup2(2, 1)  # vLLM prints
    here = Path(__file__).resolve().parent  # otherwise transformers would import kernels.py as its package `kernels`
    sys.path = [place for place in sys.path if Path(place or ".").resolve() != here]
    from vllm import LLM, SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    engine = LLM(model=task["model"], dtype=task["dtype"], max_num_seqs=task["batch"], max_model_len=2048,
                 disable_log_stats=True, speculative_config=task["speculate"])  # fmt: skip
    seconds = 0.0
    for jobs in task["rounds"]:
        prompts = [{"prompt_token_ids": ids} for ids, _ in jobs]
        sampling = [
            SamplingParams(temperature=0.0, max_tokens=task["n_out"], stop_token_ids=[task["end"]], ignore_eos=True,
                           detokenize=False, structured_outputs=schema and StructuredOutputsParams(json=schema))
            for _, schema in jobs
        ]  # fmt: skip
        began = time.perf_counter()
        outputs = engine.generate(prompts, sampling, use_tqdm=False)
        seconds = time.perf_counter() - began
    outputs = [[i for i in output.outputs[0].token_ids if i != task["end"]] for output in outputs]
    os.write(answers, json.dumps({"seconds": seconds, "outputs": outputs}).encode() + b"\n")


if __name__ == "__main__":
    main()
