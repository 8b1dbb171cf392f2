"""Tiny random models that take images, with a tokenizer, an image processor and a chat template; and transformers as
the oracle for their outputs."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from PIL import Image

from banyan.runtime.model.images import ImageShape, ImageSpec, image_spec
from banyan.runtime.protocol import wire
from banyan.runtime.server.text.chat_template import ChatTemplate
from banyan.runtime.server.text.image_process import ImageProcessor, ProcessStart
from banyan.runtime.server.text.images import ImageFile, Images
from banyan.runtime.server.text.prompt import PromptText, TokenRun, image_rows
from banyan.runtime.server.text.tokenizer import Files, Tokenizer

VOCAB = 320  # ids of the tiny tokenizer
_TEXT = {"hidden_size": 64, "intermediate_size": 112, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 1024, "bos_token_id": None,
         "eos_token_id": 2, "pad_token_id": 0}  # fmt: skip
_VISION = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 2}
_QWEN_VISION = {"depth": 2, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "out_hidden_size": 64}
_MROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}}
_TILES = [f"<row_{row}_col_{column}>" for row in range(1, 5) for column in range(1, 5)]

ADDED = {
    "llava": ["<image>"],
    "qwen": ["<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>"],
    "gemma3": ["<image_soft_token>", "<start_of_image>", "<end_of_image>"],
    "idefics3": ["<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>", *_TILES],
}
"""Control tokens by kind of model; their ids begin at VOCAB."""
_QWEN_IDS = dict(zip(("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id"),
                     range(VOCAB, VOCAB + 4), strict=True))  # fmt: skip
_IDEFICS = {
    "text_config": _TEXT | {"model_type": "llama"},
    "vision_config": _VISION | {"image_size": 56, "patch_size": 14},
    "scale_factor": 2,
    "image_token_id": VOCAB,
}
_QWEN_PIXELS = {
    "size": {"shortest_edge": 56 * 56, "longest_edge": 56 * 28 * 8},
    "temporal_patch_size": 2,
    "merge_size": 2,
}
_IDEFICS_PIXELS = {"size": {"longest_edge": 112}, "max_image_size": {"longest_edge": 56}}

MODELS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "llava": (
        "llava",
        {
            "text_config": _TEXT | {"model_type": "llama"},
            "vision_config": _VISION | {"model_type": "clip_vision_model", "image_size": 56, "patch_size": 14},
            "image_token_index": VOCAB,
        },
        {"image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 56}}
        | {"crop_size": {"height": 56, "width": 56}},
    ),
    "qwen2_5_vl": (
        "qwen",
        {
            "text_config": _TEXT | _MROPE,
            "vision_config": _QWEN_VISION | {"patch_size": 14, "fullatt_block_indexes": [1], "window_size": 56},
            **_QWEN_IDS,
        },
        {"image_processor_type": "Qwen2VLImageProcessor", "patch_size": 14} | _QWEN_PIXELS,
    ),
    "qwen2_vl": (
        "qwen",
        {
            "text_config": _TEXT | _MROPE,
            "vision_config": {"depth": 2, "embed_dim": 32, "num_heads": 2, "hidden_size": 64, "patch_size": 14},
            **_QWEN_IDS,
        },
        {"image_processor_type": "Qwen2VLImageProcessor", "patch_size": 14} | _QWEN_PIXELS,
    ),
    "qwen3_vl": (
        "qwen",
        {
            "text_config": _TEXT
            | {"head_dim": 16, "rope_parameters": _MROPE["rope_parameters"] | {"mrope_interleaved": True}},
            "vision_config": _QWEN_VISION
            | {"patch_size": 16, "deepstack_visual_indexes": [0, 1], "num_position_embeddings": 64},
            **_QWEN_IDS,
        },
        {"image_processor_type": "Qwen2VLImageProcessor", "patch_size": 16} | _QWEN_PIXELS,
    ),
    "gemma3": (
        "gemma3",
        {
            "text_config": _TEXT
            | {"head_dim": 16, "sliding_window": 12, "query_pre_attn_scalar": 24}
            | {"layer_types": ["sliding_attention", "full_attention"]},
            "vision_config": _VISION | {"image_size": 112, "patch_size": 14},
            "mm_tokens_per_image": 16,
            "image_token_index": VOCAB,
            "boi_token_index": VOCAB + 1,
            "eoi_token_index": VOCAB + 2,
        },
        {"image_processor_type": "Gemma3ImageProcessor", "size": {"height": 112, "width": 112}},
    ),
    "idefics3": ("idefics3", _IDEFICS, {"image_processor_type": "Idefics3ImageProcessor"} | _IDEFICS_PIXELS),
    "smolvlm": ("idefics3", _IDEFICS, {"image_processor_type": "SmolVLMImageProcessor"} | _IDEFICS_PIXELS),
}
"""Family -> (its kind, fields of its config, fields of its image processor)."""

_IMAGE = {
    "llava": "<image>",
    "qwen": "<|vision_start|><|image_pad|><|vision_end|>",
    "gemma3": "<start_of_image>",
    "idefics3": "<image>",
}
"""Kind -> the text that the chat template writes for an image."""
_PARTS = """{{% for m in messages %}}{{{{ '<|im_start|>' + m['role'] }}}}{{% if m['content'] is string %}}{{{{ '\n' + \
m['content'] }}}}{{% else %}}{{% if m['content'][0]['type'] == 'image' %}}{{{{ ':' }}}}{{% else %}}{{{{ '\n' }}}}\
{{% endif %}}{{% for p in m['content'] %}}{{% if p['type'] == 'image' %}}{{{{ '{image}' }}}}{{% else %}}\
{{{{ p['text'] }}}}{{% endif %}}{{% endfor %}}{{% endif %}}{{{{ '<|im_end|>\n' }}}}{{% endfor %}}\
{{% if add_generation_prompt %}}{{{{ '<|im_start|>assistant\n' }}}}{{% endif %}}"""


def make_image_model(path: Path, family: str, tiny: ModuleType) -> Path:
    """Write a tiny model of `family` that takes images. Returns `path`. tiny: tests/tiny.py."""
    from tokenizers import Tokenizer

    kind, config, pixels = MODELS[family]
    tiny.TINY.setdefault(family, {})
    text = config["text_config"] | {"vocab_size": VOCAB + len(ADDED[kind])}
    tiny.make_tiny(path, family, **config | {"text_config": text})
    tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    tokenizer.add_special_tokens(ADDED[kind])
    tokenizer.save(str(path / "tokenizer.json"))
    settings = json.loads((path / "tokenizer_config.json").read_text())
    settings["chat_template"] = _PARTS.format(image=_IMAGE[kind])
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    (path / "preprocessor_config.json").write_text(json.dumps(pixels))
    return path


def picture(width: int, height: int, seed: int = 0) -> Image.Image:
    """A random image of smooth colours."""
    small = Image.frombytes("RGB", (4, 4), random.Random(seed).randbytes(48))
    return small.resize((width, height), Image.Resampling.BICUBIC)


def png(width: int, height: int, seed: int = 0) -> bytes:
    file = io.BytesIO()
    picture(width, height, seed).save(file, "PNG")
    return file.getvalue()


def turn(*parts: str | bytes) -> tuple[wire.Part, ...]:
    """A turn of the user with texts and images, and the start of the assistant's."""
    contents = (wire.Image(part, "image/png") if isinstance(part, bytes) else part for part in parts)
    return (wire.BeginTurn("user"), *contents, wire.EndTurn(), wire.BeginTurn("assistant"))


class LocalImages(Images):
    """Images that are processed in this process."""

    def __init__(self, path: Path, spec: ImageSpec, spell: Callable[[int], str]) -> None:
        super().__init__(path, spec, spell)
        self._processor = ImageProcessor(ProcessStart(str(path), spec))

    def _process(self, file: ImageFile) -> tuple[ImageShape, dict[str, wire.PixelArray]]:
        answer = self._processor(file.data)
        return answer.shape, answer.arrays


class Prompts:
    """The prompts of a model as the server makes them."""

    def __init__(self, path: Path) -> None:
        files = Files.read(path)
        self.tokenizer = Tokenizer(path, files)
        assert files.template is not None
        self.template = ChatTemplate(files.template, files.special_tokens)
        spec = image_spec(path, files.config)
        assert isinstance(spec, ImageSpec)
        self.images = LocalImages(path, spec, lambda i: self.tokenizer.text_of([i]))
        self._files: list[ImageFile] = []  # a request would keep them

    def encoded(self, parts: Sequence[wire.Part]) -> tuple[TokenRun, ...]:
        prompt = PromptText(images=self.images)
        for part in parts:
            prompt.append_part(part)
        return prompt.prompt(self.tokenizer, self.template, datetime.now()).encode(self.tokenizer)

    def run(self, rid: int, parts: Sequence[wire.Part], sampling: wire.Sampling, **fields: Any) -> wire.Run:
        runs = self.encoded(parts)
        rows, files = image_rows(runs)
        self._files += files
        return wire.Run(rid, b"".join(run.ids for run in runs), sampling, images=rows, **fields)


class Oracle:
    """transformers' model and processor. (Its Processor classes want torchvision for videos, so their methods for
    images are called without one.)"""

    def __init__(self, path: Path, family: str) -> None:
        from tokenizers import Tokenizer
        from transformers import AutoImageProcessor, AutoModelForImageTextToText, AutoTokenizer

        self._template = AutoTokenizer.from_pretrained(path)
        self.kind = MODELS[family][0]
        self.tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
        self.processor = AutoImageProcessor.from_pretrained(path, backend="pil")
        self.model = AutoModelForImageTextToText.from_pretrained(
            path, dtype=torch.float32, attn_implementation="eager"
        ).eval()

    def inputs(self, text: str, images: Sequence[Image.Image]) -> dict[str, Any]:
        """The model's inputs. text: the prompt, with the template's mark for each image."""
        options = {"return_row_col_info": True} if self.kind == "idefics3" else {}
        nested = [list(images)] if self.kind == "idefics3" else list(images)
        arrays = dict(self.processor(nested, return_tensors="pt", **options)) if images else {}
        mark = ADDED[self.kind][1 if self.kind == "gemma3" else 0]
        before, *others = text.split(mark)
        for i, after in enumerate(others):
            before += self._expanded(arrays, i) + after
        ids = torch.tensor([self.tokenizer.encode(before, add_special_tokens=False).ids])
        is_row = (ids == VOCAB).int()
        for name in ("rows", "cols", "num_crops"):
            arrays.pop(name, None)
        types = {"qwen": "mm_token_type_ids", "gemma3": "token_type_ids"}.get(self.kind)
        return {"input_ids": ids, **arrays, **({types: is_row} if types and images else {})}

    def _expanded(self, arrays: dict[str, Any], i: int) -> str:
        from transformers import Gemma3Processor, Idefics3Processor, LlavaProcessor, Qwen2_5_VLProcessor

        config = self.model.config
        match self.kind:
            case "llava":
                own = SimpleNamespace(patch_size=14, num_additional_image_tokens=1,
                                      vision_feature_select_strategy="default", image_token="<image>")  # fmt: skip
                return LlavaProcessor.replace_image_token(own, arrays, i)
            case "qwen":
                own = SimpleNamespace(image_processor=self.processor, image_token="<|image_pad|>")
                return Qwen2_5_VLProcessor.replace_image_token(own, arrays, i)
            case "gemma3":
                rows = "<image_soft_token>" * config.mm_tokens_per_image
                own = SimpleNamespace(full_image_sequence=f"\n\n<start_of_image>{rows}<end_of_image>\n\n")
                return Gemma3Processor.replace_image_token(own, arrays, i)
        own = SimpleNamespace(fake_image_token="<fake_token_around_image>", image_token="<image>",
                              global_image_tag="<global-img>", image_seq_len=4)  # fmt: skip
        return Idefics3Processor.replace_image_token(own, arrays, i)

    def greedy(self, parts: Sequence[str | bytes], n: int) -> list[int]:
        """The n greedy tokens after `turn(*parts)`."""
        contents = [{"type": "image"} if isinstance(part, bytes) else {"type": "text", "text": part} for part in parts]
        messages = [{"role": "user", "content": contents}]
        text = self._template.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        images = [Image.open(io.BytesIO(part)) for part in parts if isinstance(part, bytes)]
        inputs = self.inputs(text, images)
        out = self.model.generate(**inputs, do_sample=False, max_new_tokens=n, eos_token_id=None, pad_token_id=0)
        return out[0, inputs["input_ids"].shape[1] :].tolist()
