"""`banyan quantise`: writes a quantised model, and measures how far its quality falls."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import Progress

from banyan.runtime.errors import ConfigError

if TYPE_CHECKING:
    from banyan.runtime.model.quantised.rounding import Method


def run(model: str, out: Path, text: Path, method: Method, n_bits: int, group: int, n_tokens: int) -> int:
    """Quantise with the first `n_tokens` tokens of a text file, and print perplexities and the KL divergence on the
    next `n_tokens` / 4. A shorter text is split in the same ratio."""
    from banyan.runtime.model import spec
    from banyan.runtime.model.quantised import convert
    from banyan.runtime.server.text.tokenizer import Files, TextSpan, Tokenizer

    source = spec.resolve(model)
    try:
        with text.open(encoding="utf-8", errors="replace") as file:
            words = file.read(8 * n_tokens)
    except OSError as e:
        raise ConfigError(f"the text cannot be read: {e}") from e
    tokenizer = Tokenizer(source, Files.read(source))
    ids = tokenizer.encode([TextSpan(words)], at_start=True)[: n_tokens * 5 // 4]
    tokenizer.close()
    n_held_out = len(ids) // 5
    if n_held_out < 2:
        raise ConfigError(f"{text} has {len(ids)} tokens; a text of a few thousand tokens is needed")
    used, held_out = ids[:-n_held_out], ids[-n_held_out:]
    console = Console(highlight=False, soft_wrap=True, markup=False, emoji=False)
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(f"{method}, {n_bits} bits", total=None)
        convert.quantise(source, out, used, method, n_bits, group,
                         lambda done, total: bar.update(task, completed=done, total=total))  # fmt: skip
        bar.update(bar.add_task("comparing", total=None))
        loss = convert.measure(source, out, held_out, rounds_inputs=method == "smoothquant")
    size = (out / "model.safetensors").stat().st_size / 1e6
    change = loss.after / loss.before - 1
    console.print(f"{out}: {size:.1f} MB, {n_bits} bits in groups of {group}, by {method} on {len(used):,} tokens")
    console.print(
        f"on {len(held_out):,} other tokens: perplexity {loss.before:.2f} before, {loss.after:.2f} after "
        f"({change:+.1%}); KL divergence {loss.kl:.4f}"
    )
    return 0
