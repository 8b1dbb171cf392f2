"""The pocket model's tokenizer: byte-level BPE with 4,096 entries, designed so that copying is easy.

A name from a sentence is copied into a JSON string or to the start of an answer, where no space precedes it. It must
have the same ids in both places; else the model would have to learn for each word how it is spelled without its space,
and could not do so for unseen words. So the space is a token of its own, except before function words (`COMMON`),
before capitals, and before words that begin sentences (`WHOLE`), which are not copied. The capital of a name is a token
of its own, and the rest of the name has the same ids everywhere. The `s` of a plural is split off. Digits and the
letters of codes are single tokens.
"""

import itertools
import json
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from pocket.chat import CALL_CLOSE, CALL_OPEN, END, PAD, START, TEMPLATE, TOOLS_CLOSE, TOOLS_OPEN
from pocket.data import stream

VOCABULARY = 4096
N_SAMPLES = 30_000
SPECIAL = (PAD, START, END)
ADDED = (CALL_OPEN, CALL_CLOSE, TOOLS_OPEN, TOOLS_CLOSE)
WHOLE = tuple(
    """The What How Which Where When Who Text Label Question Answer Add Find Extract Schema Fields Write Give Return
    Convert Compute Calculate Tell Please Can Could Your You There This Today Order Tables Tool Tools Use Numbers
    Target Propose Result Is It In On At For From We And Hello Multiply Look Get Repeat Again Call""".split()  # noqa: SIM905
)
COMMON = tuple(
    """the is a and of in that are between about answer with remember will to text out for an you was as has on from
    me many at my does two come came do can called have by bought need help years old it like likes each what
    here comes am one better than back which talked wrote saw much asked live best know they cost when tell
    into costs be works lives people please there week ask reached weighs new thing get gets turned says find
    found did think after again total together these sold pay given give starts always nothing before were
    heavy begins buy paid pays buys plus add times our dial multiply sent takes want us step more we sells
    moved who leaves aged expects uses percent subtract went away ships later wears or not no but if so this
    their them his her its your how where why then also only now all any some other first last next every
    without over under near""".split()  # noqa: SIM905
)
SPLIT = "|".join(
    (
        rf" ?(?:{'|'.join(WHOLE)})(?!\p{{L}})",
        rf" (?:{'|'.join(COMMON)})(?!\p{{L}})",
        r" ?\p{Lu}(?=\p{Ll})",
        r"\p{Ll}{3,}(?=s(?!\p{L}))",
        r"\p{Ll}+",
        r"\p{Lu}",
        r"\p{L}+",
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
    """Writes the tokenizer and the chat template in Hugging Face format."""
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
