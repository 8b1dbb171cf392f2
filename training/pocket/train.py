"""Trains the pocket model from scratch: `python -m pocket.train` (models, scores).

Matrices inside the layers are trained with Muon, the other parameters with AdamW. The learning rate warms up, is
constant, and decays linearly to zero over the last part of the run. On a CPU each core is a rank with one thread and
its own text and optimisers. Every `MEAN_EVERY` steps the ranks average their weights (local SGD), so that no rank waits
long for another whose core is busy. On a GPU there is one rank with large batches, and the other cores make their text.
Work files are in `work/`; a run that was stopped resumes exactly from its checkpoint, with the same number of ranks.
"""

import argparse
import contextlib
import dataclasses
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor, nn

from banyan.runtime.model.pocket import path
from pocket import feed, score, tokenizer
from pocket.chat import END, PAD
from pocket.data import FAMILIES, samples
from pocket.muon import Muon
from pocket.net import DRAFT, MAIN, Net, Shape

SEED = 2024
WORK = Path(__file__).parent / "work"
LOG_EVERY, SAVE_EVERY, JUDGE_EVERY = 50, 500, 2000  # steps
MEAN_EVERY = 10  # steps; divides SAVE_EVERY
ON_GPU = {"batch_tokens": 65_536, "muon_rate": 0.02, "adam_rate": 0.004, "n_feeders": (os.cpu_count() or 1) - 1}
"""Fields of a recipe that differ on a GPU, which trains on more tokens at a time."""


@dataclasses.dataclass(frozen=True)
class Recipe:
    """The hyperparameters of one model. A step has `n_batches` batches of about `batch_tokens` tokens."""

    shape: Shape
    n_steps: int
    decay: float = 0.5  # the last part of the run, in which the learning rate falls
    seconds: float = 0.0  # if not 0, the run ends after this time and not after n_steps
    n_warmup: int = 150
    n_batches: int = 1
    batch_tokens: int = feed.BATCH_TOKENS
    n_feeders: int = 0  # processes that make batches ahead of the training process
    muon_rate: float = 0.01
    adam_rate: float = 0.003
    weight_decay: float = 0.02
    context_share: float = 0.04
    average: float = 0.98
    seed: int = SEED

    def rate(self, step: int, done: float) -> float:
        """The factor on the learning rates at a step. done: the fraction of the run that is done."""
        return min(1.0, (step + 1) / self.n_warmup, max(0.0, (1 - done) / self.decay))


class Ranks(NamedTuple):
    """This process's rank in distributed training."""

    rank: int = 0
    n_ranks: int = 1

    def mean(self, tensors: Sequence[Tensor]) -> None:
        """Replaces the tensors by their means over the ranks."""
        if self.n_ranks > 1:
            flat = torch.cat([t.flatten() for t in tensors])
            dist.all_reduce(flat)
            flat /= self.n_ranks
            for tensor, part in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):
                tensor.copy_(part.view_as(tensor))


ALONE = Ranks()


class Run:
    """A training run that can be stopped and resumed: the net, its optimisers, and its position in the data."""

    def __init__(
        self,
        recipe: Recipe,
        tok: Tokenizer,
        checkpoint: Path,
        *,
        compiled: bool = False,
        ranks: Ranks = ALONE,
        start: Path | None = None,
    ) -> None:
        self.recipe, self.tok, self.ranks = recipe, tok, ranks
        self.checkpoint = checkpoint.with_suffix(f".{ranks.rank}.ckpt")
        self.must_stop = self.is_stopped = False  # requested here; agreed on by all ranks
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.net = Net(recipe.shape, recipe.seed).to(self.device)
        if start:
            self.net.load_state_dict(load(start, recipe.shape).state_dict())
        if compiled:  # the layers are memory-bound: compiled, they are 1.5 times as fast on a CPU
            for layer in self.net.model.layers:
                layer.compile(dynamic=True)
            self._nll = torch.compile(self._nll, dynamic=True)
        hidden = [p for n, p in self.net.named_parameters() if p.ndim == 2 and "embed" not in n]
        others = [p for n, p in self.net.named_parameters() if p.ndim == 1 or "embed" in n]
        self.optimisers: list[torch.optim.Optimizer] = [
            Muon(hidden, lr=recipe.muon_rate, weight_decay=recipe.weight_decay, momentum=0.95),
            torch.optim.AdamW(others, lr=recipe.adam_rate, betas=(0.9, 0.95), weight_decay=0.0, fused=True),
        ]
        self.rates = [recipe.muon_rate, recipe.adam_rate]
        self.average = [p.detach().clone() for p in self.net.parameters()]
        # Trained weights can already copy, so the first pools are skipped.
        self.step, self.pool, self.index, self.n_tokens = (
            0,
            feed.n_first_pools(recipe.batch_tokens) if start else 0,
            0,
            0,
        )
        if self.checkpoint.exists():
            self._load()

    def _load(self) -> None:
        state = torch.load(self.checkpoint, map_location=self.device, weights_only=True)
        self.net.load_state_dict(state["net"])
        self.average = state["average"]
        for optimiser, saved in zip(self.optimisers, state["optimisers"], strict=True):
            optimiser.load_state_dict(saved)
        self.step, self.pool, self.index, self.n_tokens = state["place"]

    def save(self) -> None:
        self.checkpoint.parent.mkdir(parents=True, exist_ok=True)
        state = {
            "net": self.net.state_dict(),
            "average": self.average,
            "optimisers": [o.state_dict() for o in self.optimisers],
            "place": (self.step, self.pool, self.index, self.n_tokens),
        }
        half = self.checkpoint.with_suffix(".part")
        torch.save(state, half)
        half.replace(self.checkpoint)

    def _batches(self) -> Generator[tuple[feed.Batch, int, int]]:
        """Yields batches from the run's position on, each with the (pool, index) after it."""
        make = partial(
            feed.batches,
            self.tok,
            f"{self.recipe.seed}-{self.ranks.rank}" if self.ranks.rank else self.recipe.seed,
            max_length=self.recipe.shape.max_length,
            context_share=self.recipe.context_share,
            batch_tokens=self.recipe.batch_tokens,
        )
        index = self.index
        for pool, ready in enumerate(feed.pools(make, self.pool, self.recipe.n_feeders), self.pool):
            for i in range(index, len(ready)):
                yield ready[i], *((pool, i + 1) if i + 1 < len(ready) else (pool + 1, 0))
            index = 0

    def steps(self) -> Iterator[Tensor]:
        """Runs the remaining steps; yields the mean loss of each step in nats, over this rank's batches.

        The loss is a tensor on the device. Reading it waits for the GPU, which is then idle.
        """
        started = time.monotonic()
        with contextlib.closing(self._batches()) as source:
            while (done := self._done(started)) < 1 and not self.is_stopped:
                total, n = torch.zeros((), device=self.device), 0
                for _ in range(self.recipe.n_batches):
                    batch, self.pool, self.index = next(source)
                    n += int(batch.chosen.sum())
                    self.n_tokens += batch.ids.numel()
                    loss = self._loss(batch)
                    loss.backward()
                    total += loss.detach()
                self._update(n, self.recipe.rate(self.step, done))
                self.step += 1
                yield total / n

    def _done(self, started: float) -> float:
        """The fraction of the run that is done."""
        if self.recipe.seconds:
            return (time.monotonic() - started) / self.recipe.seconds
        return self.step / self.recipe.n_steps

    def _loss(self, batch: feed.Batch) -> Tensor:
        """The sum of the cross entropy at the chosen positions."""
        places = F.pad(batch.chosen, (0, 1)).flatten().nonzero()[:, 0]  # on the CPU: the result's size is data
        ids, places, targets = map(self._move, (batch.ids, places, batch.ids.flatten()[places + 1]))
        with torch.autocast(self.device.type, dtype=torch.bfloat16):
            hidden = self.net(ids).flatten(0, 1).index_select(0, places)
            return self._nll(hidden, self.net.model.embed_tokens.weight, targets)

    def _move(self, tensor: Tensor) -> Tensor:
        """The tensor on the device. The copy to a GPU is asynchronous."""
        return tensor.pin_memory().to(self.device, non_blocking=True) if self.device.type == "cuda" else tensor

    @staticmethod
    def _nll(hidden: Tensor, embedding: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(F.linear(hidden, embedding).float(), targets, reduction="sum")

    def _update(self, n: int, factor: float) -> None:
        """Does one optimiser step. n: number of targets in the gradients; factor: on the learning rates. Every
        `MEAN_EVERY` steps the ranks average their weights, and all stop if one of them must."""
        parameters = list(self.net.parameters())
        torch._foreach_div_([p.grad for p in parameters if p.grad is not None], n)
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        for optimiser, rate in zip(self.optimisers, self.rates, strict=True):
            for group in optimiser.param_groups:
                group["lr"] = rate * factor
            optimiser.step()
        for p in parameters:
            p.grad = None
        with torch.no_grad():
            if self.step % MEAN_EVERY == MEAN_EVERY - 1:
                stop = torch.tensor([float(self.must_stop)])
                self.ranks.mean([*parameters, stop])
                self.is_stopped = bool(stop > 0)
            torch._foreach_lerp_(self.average, parameters, 1 - self.recipe.average)

    def averaged(self) -> Net:
        """A copy of the net with the averaged weights, for export."""
        net = Net(self.recipe.shape, 0).to(self.device)
        with torch.no_grad():
            for parameter, value in zip(net.parameters(), self.average, strict=True):
                parameter.copy_(value)
        return net


def export(net: Net, tok: Tokenizer, folder: Path) -> None:
    """Writes a model folder in Hugging Face format, weights in bfloat16."""
    tokenizer.save(tok, folder, max_length=net.shape.max_length)
    pad, end = tok.token_to_id(PAD), tok.token_to_id(END)
    (folder / "config.json").write_text(json.dumps(net.shape.config(pad=pad, end=end), indent=2) + "\n")
    generation = {"eos_token_id": end, "pad_token_id": pad, "do_sample": False}
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
    tensors = {name: t.detach().to("cpu", torch.bfloat16).contiguous() for name, t in net.state_dict().items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def load(folder: Path, shape: Shape) -> Net:
    """Loads an exported folder in float32. If the shape has more layers, new layers are put between the stored ones.
    New layers and a wider feed-forward add nothing at first, so the net computes the same."""
    net, stored = Net(shape, 0), load_file(folder / "model.safetensors")
    n_stored = 1 + max(int(name.split(".")[2]) for name in stored if name.startswith("model.layers."))
    if n_stored < shape.n_layers:
        for layer in net.model.layers:
            nn.init.zeros_(layer.self_attn.o_proj.weight)
            nn.init.zeros_(layer.mlp.down_proj.weight)
    tensors = net.state_dict()
    for name, tensor in stored.items():
        tensors[_spread(name, n_stored, shape.n_layers)][tuple(map(slice, tensor.shape))] = tensor
    return net


def _spread(name: str, n_stored: int, n_layers: int) -> str:
    """The name of a stored tensor in a net with more layers. The first and the last layer stay first and last."""
    parts = name.split(".")
    if parts[1] == "layers" and n_stored > 1:
        parts[2] = str(int(parts[2]) * (n_layers - 1) // (n_stored - 1))
    return ".".join(parts)


@torch.no_grad()
def exact_targets(net: Net, tok: Tokenizer, family: str, n: int = 48, seed: int = 7) -> float:
    """The share of a family's held-out target spans in which the net predicts every token right, given the true text
    before it."""
    rows = feed.encode(tok, samples(family, n, seed), net.shape.max_length)
    right = total = 0
    for row in rows:
        ids = torch.tensor([row.ids])
        with torch.autocast("cpu", dtype=torch.bfloat16):
            best = net.logits(net(ids)[0, :-1]).argmax(-1).tolist()
        good = True
        for place, is_target in enumerate(row.targets[1:]):
            if is_target:
                good &= best[place] == row.ids[place + 1]
                if place + 2 == len(row.ids) or not row.targets[place + 2]:
                    right, total, good = right + good, total + 1, True
    return right / total


def train(
    name: str,
    recipe: Recipe,
    tok: Tokenizer,
    *,
    compiled: bool = True,
    ranks: Ranks = ALONE,
    start: Path | None = None,
) -> Net:
    """Trains one model, or resumes its training, with regular logs, checkpoints and held-out scores.

    Without a checkpoint it starts with the weights of the folder `start`, or with random ones.
    """
    run = Run(recipe, tok, WORK / name, compiled=compiled, ranks=ranks, start=start)
    signal.signal(signal.SIGTERM, lambda number, frame: setattr(run, "must_stop", True))

    def keep() -> None:
        run.save()
        if ranks.rank == 0:
            export(run.averaged(), tok, WORK / name)

    started, before, losses = time.monotonic(), run.n_tokens, []
    for loss in run.steps():
        losses.append(loss)
        if run.step % LOG_EVERY == 0:
            mean = float(torch.stack(losses).mean())
            assert math.isfinite(mean), f"step {run.step}: loss is {mean}"
            speed = (run.n_tokens - before) / (time.monotonic() - started)
            place = f"{name} step {run.step} tokens {run.n_tokens / 1e6:.2f}M"
            if ranks.rank == 0:
                print(f"{place} loss {mean:.4f} {speed:.0f} tokens/s", flush=True)
            started, before, losses = time.monotonic(), run.n_tokens, []
        if run.step % SAVE_EVERY == 0:
            keep()
        if run.step % JUDGE_EVERY == 0 and ranks.rank == 0 and run.device.type == "cpu":  # a GPU would wait for it
            net = run.averaged().cpu()
            shares = {family: round(exact_targets(net, tok, family), 3) for family in FAMILIES}
            print(f"{name} step {run.step} held-out targets {shares}", flush=True)
    keep()
    if run.is_stopped:
        raise SystemExit(f"stopped at step {run.step}; run again to continue")
    return run.averaged()


RECIPES = {
    "pocket": Recipe(MAIN, n_steps=2700, batch_tokens=8_192, muon_rate=0.014),  # 44 M tokens on two ranks
    "draft": Recipe(DRAFT, n_steps=1600),
}


def join(rank: int, n_ranks: int) -> tuple[Ranks, list[subprocess.Popen[bytes]]]:
    """Joins the process group. Rank 0 first starts the other ranks, and returns their processes."""
    others = []
    meeting = WORK / "meeting"
    if rank == 0:
        meeting.unlink(missing_ok=True)
        command = [sys.executable, "-m", "pocket.train", *sys.argv[1:], "--rank"]
        others = [subprocess.Popen([*command, str(i)]) for i in range(1, n_ranks)]
    if n_ranks > 1:
        dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=n_ranks)
    return Ranks(rank, n_ranks), others


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="*", choices=RECIPES, default=list(RECIPES), help="which to train")
    parser.add_argument("--steps", type=int, help="number of steps (default: the recipe's)")
    n_ranks = 1 if torch.cuda.is_available() else os.cpu_count() or 1
    parser.add_argument(
        "--seed", type=int, default=SEED, help="seed of the text; use another one to continue with --shipped"
    )
    parser.add_argument("--ranks", type=int, default=n_ranks, help="number of processes; on a CPU each has one thread")
    parser.add_argument("--minutes", type=float, default=0.0, help="length of a run, instead of steps")
    parser.add_argument("--eager", action="store_true", help="do not compile (without a C++ compiler)")
    parser.add_argument("--shipped", action="store_true", help="start with the shipped weights")
    parser.add_argument("--new-tokenizer", action="store_true", help="train a tokenizer too; not the shipped one")
    parser.add_argument("--to", type=Path, help="write the models to this folder, not over the shipped ones")
    parser.add_argument("--no-score", action="store_true", help="do not update scores.json and the card")
    parser.add_argument("--rank", type=int, default=0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        torch.set_num_threads(1)
    file = WORK / "tokenizer.json"
    if not file.exists():
        WORK.mkdir(exist_ok=True)
        if args.new_tokenizer:
            tokenizer.train(SEED).save(str(file))
        else:
            file.write_bytes((path() / "tokenizer.json").read_bytes())
    ranks, others = join(args.rank, args.ranks)
    tok = Tokenizer.from_file(str(file))
    for name in args.models:
        recipe = dataclasses.replace(RECIPES[name], seed=args.seed, seconds=60 * args.minutes)
        if torch.cuda.is_available():
            recipe = dataclasses.replace(recipe, **ON_GPU)
        if args.steps:
            recipe = dataclasses.replace(recipe, n_steps=args.steps)
        start = path(name) if args.shipped else None
        net = train(name, recipe, tok, compiled=not args.eager, ranks=ranks, start=start)
        if ranks.rank == 0:
            export(net, tok, args.to / name if args.to else path(name))
    for process in others:
        process.wait()
    if ranks.rank == 0 and not args.no_score and not args.to:
        score.record()


if __name__ == "__main__":
    main()
