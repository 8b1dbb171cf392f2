"""Trains speculation heads for the pocket model: `python -m pocket.heads medusa|eagle FOLDER`

This takes minutes on a CPU, as heads are small. The pocket model is not changed: heads learn from its hidden states on
its training text. FOLDER can be given as `draft_model`; runtime/engine/speculation/heads.py describes the two kinds.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor, nn

from banyan.runtime.model.pocket import path
from pocket import feed
from pocket.net import MAIN, FeedForward, Net, Norm
from pocket.net import Attention as SelfAttention
from pocket.train import load

N_HEADS = 3
FEATURES = 2.0
"""Loss weight of the distance between features, relative to the cross entropy of tokens. Features count because
EAGLE's head gets its own features as input."""
RATE, N_WARMUP = 1e-3, 20


class MedusaHead(nn.Module):
    def __init__(self, net: Net) -> None:
        super().__init__()
        self.linear = nn.Linear(net.shape.width, net.shape.width)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)
        self.last = nn.Linear(net.shape.width, net.shape.vocabulary, bias=False)
        self.last.weight.data.copy_(net.model.embed_tokens.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(x + F.silu(self.linear(x)))


class Medusa(nn.Module):
    def __init__(self, net: Net) -> None:
        super().__init__()
        self.heads = nn.ModuleList(MedusaHead(net) for _ in range(N_HEADS))

    def loss(self, net: Net, batch: feed.Batch, features: Tensor) -> Tensor:
        """The sum of the heads' cross entropies. Head i predicts the token i + 2 positions ahead, if it is a target."""
        total = torch.zeros(())
        for k, head in enumerate(self.heads, 2):
            chosen = batch.chosen[:, k - 1 :]  # `batch.chosen[:, t - 1]` says whether token t is a target
            logits = head(features[:, : chosen.shape[1]][chosen])
            total = total + F.cross_entropy(logits, batch.ids[:, k:][chosen])
        return total

    def tensors(self) -> dict[str, Tensor]:
        out = {}
        for i, head in enumerate(self.heads):
            out |= {f"{i}.0.linear.weight": head.linear.weight, f"{i}.0.linear.bias": head.linear.bias}
            out[f"{i}.1.weight"] = head.last.weight
        return out

    def config(self) -> dict[str, object]:
        return {"medusa_num_heads": N_HEADS, "medusa_num_layers": 1}


class Eagle(nn.Module):
    def __init__(self, net: Net) -> None:
        super().__init__()
        width = net.shape.width
        self.shape = net.shape
        self.fc = nn.Linear(2 * width, width)
        with torch.no_grad():  # starts as the identity on the given feature
            self.fc.weight.copy_(torch.cat([torch.zeros(width, width), torch.eye(width)], 1))
            self.fc.bias.zero_()
        self.self_attn = SelfAttention(net.shape)
        self.post_attention_layernorm = Norm(width, net.shape.eps)
        self.mlp = FeedForward(net.shape)
        nn.init.zeros_(self.self_attn.o_proj.weight)
        nn.init.zeros_(self.mlp.down_proj.weight)

    def forward(self, net: Net, ids: Tensor, before: Tensor) -> Tensor:
        x = self.fc(torch.cat([net.model.embed_tokens(ids), before], -1))
        x = x + self.self_attn(x, net.cos[: ids.shape[1]], net.sin[: ids.shape[1]])
        return x + self.mlp(self.post_attention_layernorm(x))

    def loss(self, net: Net, batch: feed.Batch, features: Tensor) -> Tensor:
        """The loss of two passes: features predicted from tokens and the net's features before them, and then from
        tokens and the features predicted by the first pass."""
        before, total = F.pad(features[:, :-1], (0, 0, 1, 0)), torch.zeros(())
        for _ in range(2):
            predicted = self(net, batch.ids, before)
            chosen = batch.chosen
            logits = net.logits(predicted[:, :-1][chosen])
            total = total + F.cross_entropy(logits, batch.ids[:, 1:][chosen])
            total = total + FEATURES * F.smooth_l1_loss(predicted[:, :-1][chosen], features[:, :-1][chosen])
            before = F.pad(predicted[:, :-1], (0, 0, 1, 0))
        return total

    def tensors(self) -> dict[str, Tensor]:
        own = {name: tensor for name, tensor in self.state_dict().items() if name.startswith("fc.")}
        return own | {f"layers.0.{n}": t for n, t in self.state_dict().items() if not n.startswith("fc.")}

    def config(self) -> dict[str, object]:
        return self.shape.config(pad=0, end=0) | {"num_hidden_layers": 1, "tie_word_embeddings": False}


def _batches(tok: Tokenizer) -> Iterator[feed.Batch]:
    pool = 100  # the first pools have shorter texts
    while True:
        yield from feed.batches(tok, 2024, pool, max_length=512, context_share=0.1)
        pool += 1


def train(kind: str, folder: Path, n_steps: int, n_rows: int) -> None:
    """Trains a head and writes it to `folder`. n_rows: maximum rows of a batch."""
    torch.manual_seed(0)
    tok = Tokenizer.from_file(str(path() / "tokenizer.json"))
    net = load(path(), MAIN).requires_grad_(False)
    head = Medusa(net) if kind == "medusa" else Eagle(net)
    optimiser = torch.optim.AdamW(head.parameters(), lr=RATE, weight_decay=0.0)
    started = time.monotonic()
    for step, batch in zip(range(n_steps), _batches(tok), strict=False):
        batch = feed.Batch(batch.ids[:n_rows], batch.chosen[:n_rows])
        with torch.no_grad():
            features = net(batch.ids)
        loss = head.loss(net, batch, features)
        loss.backward()
        for group in optimiser.param_groups:
            group["lr"] = RATE * min(1.0, (step + 1) / N_WARMUP, 2 * (n_steps - step) / n_steps)
        optimiser.step()
        optimiser.zero_grad()
        if step % 20 == 19:
            print(f"{kind} step {step + 1} loss {loss.item():.3f} ({time.monotonic() - started:.0f} s)", flush=True)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.detach().to(torch.bfloat16).contiguous() for name, tensor in head.tensors().items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(head.config(), indent=2) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=("medusa", "eagle"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rows", type=int, default=8, help="maximum texts of a batch")
    args = parser.parse_args()
    train(args.kind, args.folder, args.steps, args.rows)


if __name__ == "__main__":
    main()
