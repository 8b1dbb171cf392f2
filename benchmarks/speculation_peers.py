"""Runs in vLLM's own environment: `PYTHON benchmarks/speculation_peers.py`; see benchmarks/speculation.py.

Reads one line of JSON: the model, its dtype, how vLLM is to speculate (its `speculative_config`, null for not at all),
the batch, two rounds of prompts, each with its JSON Schema or null, the id that ends an output, and how long one may
be. Runs the first round, so that its cache has what it leaves there, and then the second; writes the wall seconds of
that and the outputs, as a line of JSON.
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
"""One thread, as ours has."""


def main() -> None:
    task = json.loads(sys.stdin.readline())
    os.environ.update(SETTINGS)
    answers = os.dup(1)
    os.dup2(2, 1)  # vLLM prints
    here = Path(__file__).resolve().parent  # where transformers would take kernels.py for a package of that name
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
    said = [[i for i in output.outputs[0].token_ids if i != task["end"]] for output in outputs]
    os.write(answers, json.dumps({"seconds": seconds, "said": said}).encode() + b"\n")


if __name__ == "__main__":
    main()
