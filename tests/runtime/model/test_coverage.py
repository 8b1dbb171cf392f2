"""Every causal language model that transformers has: it computes what transformers computes, or is refused by name.

docs/models.md lists the families that run with one release of transformers. With another release more may run.
"""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tiny_configs import tiny_config
from transformers import AutoConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as TEXT

from banyan.runtime.errors import BadModel, Unsupported
from banyan.runtime.model import hf
from banyan.runtime.model.load import load

NO_DECODERS = {
    "bart", "beam", "bert", "bert-generation", "big_bird", "bigbird_pegasus", "blenderbot", "blenderbot-small",
    "camembert",
    "data2vec-text", "electra", "ernie", "fuyu", "git", "got_ocr2", "marian", "mbart", "megatron-bert",
    "moshi", "musicgen", "musicgen_melody", "mvp", "pegasus", "plbart", "prophetnet", "reformer", "rembert", "roberta",
    "roberta-prelayernorm", "roc_bert", "roformer", "trocr", "whisper", "xlm", "xlm-roberta", "xlm-roberta-xl", "xlnet",
    "xmod",
}  # fmt: skip
"""Encoders and halves of encoder-decoder models, which transformers also counts as causal."""
SLOW = {"blt", "phi4_multimodal", "moss_transcribe_diarize"}
"""Their smallest config takes minutes to make."""
PICTURES = (
    "aria", "cohere2_vision", "glm4v", "idefics3", "internvl", "llava", "llava_onevision", "mistral3", "ovis2",
    "minicpmv4_6", "paligemma", "qwen2_5_vl", "qwen2_vl", "qwen3_vl", "qwen3_vl_moe", "smolvlm", "video_llama_3",
)  # fmt: skip
DOCS = Path(__file__).parents[3] / "docs" / "models.md"


def documented() -> set[str]:
    """The families that docs/models.md says run."""
    part = DOCS.read_text().partition("<!-- families -->")[2].partition("<!-- end -->")[0]
    return set(re.findall(r"`([\w-]+)`", part))


def runs(family: str, tiny: Any, path: Path, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether a tiny model of the family runs, with transformers' logits. False: it is refused by name."""
    try:
        monkeypatch.setitem(tiny.TINY, family, tiny_config(family))
        tiny.make_tiny(path, family)
    except Exception:  # transformers' classes raise anything
        return False
    try:
        model = load(path)
    except (Unsupported, BadModel):
        return False
    auto = hf.auto_class(AutoConfig.from_pretrained(path))
    reference = auto.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()
    ids = random.Random(1).choices(range(3, 300), k=40)
    got = tiny.Paged(model, n_pages=20).run(ids, chunk=13)
    with torch.no_grad():
        want = reference(torch.tensor([ids]), use_cache=False).logits[0].float()
    assert float((got - want).norm() / want.norm()) < 1e-4
    last = tiny.Paged(model, n_pages=20).step({"r": ids[:13]}, last_only=True)["r"]
    assert float((last - got[12]).norm() / got[12].norm()) < 1e-4
    return True


@pytest.mark.long
@pytest.mark.parametrize("family", sorted({*TEXT, *PICTURES} - NO_DECODERS - SLOW))
def test_family_runs_or_is_refused(family: str, tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    does_run, is_documented = runs(family, tiny, tmp_path / "model", monkeypatch), family in documented()
    if f"transformers {'.'.join(transformers.__version__.split('.')[:2])} these families run" in DOCS.read_text():
        assert does_run == is_documented
    else:
        assert does_run or not is_documented


@pytest.mark.parametrize("family", ["deepseek_v3", "gemma4_text", "mimo_v2_flash", "qwen3_vl", "video_llama_3"])
def test_padded_heads_and_unused_towers(
    family: str, tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert runs(family, tiny, tmp_path / "model", monkeypatch)
