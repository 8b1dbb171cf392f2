"""The pocket model's tokenizer: byte-level BPE of 4,096 entries, made so that copying is easy.

A name must be found in a sentence and written again in a JSON string or at the start of an answer, where no space
stands before it. So the capital letter of a name is a token of its own, with its space or without, and the rest of the
name is the same ids everywhere; a plural's `s` is cut off; every digit stands alone. Only the words of `WHOLE`, which
begin sentences and are never copied, keep their capital.
"""

import itertools
import json
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from banyan.runtime.model.pocket.chat import CALL_CLOSE, CALL_OPEN, END, PAD, START, TEMPLATE, TOOLS_CLOSE, TOOLS_OPEN
from banyan.runtime.model.pocket.data import stream

VOCABULARY = 4096
N_SAMPLES = 30_000
SPECIAL = (PAD, START, END)
ADDED = (CALL_OPEN, CALL_CLOSE, TOOLS_OPEN, TOOLS_CLOSE)
WHOLE = tuple(
    """The What How Which Where When Who Text Label Question Answer Add Find Extract Schema Fields Write Give Return
    Convert Compute Calculate Tell Please Can Could Your You There This Today Order Tables Tool Tools Use Numbers
    Target Propose Result Is It In On At For From We And Hello Multiply Look Get Repeat Again Call""".split()  # noqa: SIM905
)
SPLIT = "|".join(
    (
        rf" ?(?:{'|'.join(WHOLE)})(?!\p{{L}})",
        r" ?\p{Lu}(?=\p{Ll})",
        r" ?\p{Ll}{3,}(?=s(?!\p{L}))",
        r" ?\p{Ll}+",
        r" ?\p{Lu}+(?!\p{Ll})",
        r" ?\p{L}+",
        r"\p{N}",
        r" ?[^\s\p{L}\p{N}]+",
        r"\n+",
        r"\s",
    )
)


def train(seed: int, n_samples: int = N_SAMPLES) -> Tokenizer:
    """Trains the BPE on samples of the training stream."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(ADDED),
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    controls = (*SPECIAL, *ADDED)

    def texts():  # type: ignore[no-untyped-def]
        for sample in itertools.islice(stream(seed), n_samples):
            text = "".join(span.text for span in sample.spans())
            for control in controls:
                text = text.replace(control, "\n")
            yield text

    tokenizer.train_from_iterator(texts(), trainer)
    tokenizer.add_tokens([AddedToken(token, normalized=False, special=False) for token in ADDED])
    assert tokenizer.get_vocab_size() == VOCABULARY, tokenizer.get_vocab_size()
    return tokenizer


def save(tokenizer: Tokenizer, folder: Path, *, max_length: int) -> None:
    """Writes the tokenizer in Hugging Face format, with the chat template beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": PAD,
        "eos_token": END,
        "additional_special_tokens": [START],
        "clean_up_tokenization_spaces": False,
        "model_max_length": max_length,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    (folder / "chat_template.jinja").write_text(TEMPLATE)
