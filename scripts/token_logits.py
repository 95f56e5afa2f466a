"""Logits with many classes, made here: which token comes next in a Python source file.

Trains a small network on the sources of the standard library and of the installed packages, and writes
what it says at one position of each of thousands of files it was not trained on, to try label scores on:

    python scripts/token_logits.py [--out tokens.npz] [--files 6000] [--smoke-test]
    python -m benchmarks.label_sizes tokens.npz 1000 2000

The unit is a file: one position is drawn from each, among those whose next token is one of the 1,000
most frequent. Files with the same content count once. Other installed packages give other numbers.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import sysconfig
import time
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import torch

TOKEN = re.compile(r"[A-Za-z_]\w*|\d+|\n\s*|[^\w\s]")
CONTEXT = 12  # tokens before the one to be forecast
SHORTEST, LONGEST = 60, 5000  # tokens of a file that takes part, and of it that are read


@dataclass(frozen=True)
class Args:
    out: Path = Path("tokens.npz")
    """file for logits, labels and ids"""
    files: int = 6000
    """units: files kept out of the training"""
    classes: int = 1000
    """how many of the most frequent tokens are labels"""
    steps: int = 4000
    """of the training, 512 positions each"""
    seed: int = 0
    """of the training, the units and their positions"""
    smoke_test: bool = False
    """few files of the standard library, few steps"""


def main(args: Args) -> None:
    streams = sources(packages=not args.smoke_test, most=500 if args.smoke_test else None)
    names = list(streams)
    rng = np.random.default_rng(args.seed)
    order = rng.permutation(len(names))
    kept, trained = order[: args.files], order[args.files :]
    if len(trained) < len(kept) // 4:
        raise SystemExit(f"Error: files must leave some to train on, got {args.files} of {len(names)}")
    seen = np.concatenate([streams[names[i]] for i in trained])
    words, first, counts = np.unique(seen, return_index=True, return_counts=True)
    common = words[np.lexsort((first, -counts))][: args.classes]
    rare = len(common)  # stands for every other token, in contexts only
    codes = np.full(1 + max(int(stream.max()) for stream in streams.values()), rare, dtype=np.int64)
    codes[common] = np.arange(rare)
    model = train([codes[streams[names[i]]] for i in trained], rare, args)
    contexts, labels, ids = [], [], []
    for i in kept:
        code = codes[streams[names[i]]]
        places = np.flatnonzero(code[CONTEXT:] < rare) + CONTEXT
        if len(places):
            place = int(rng.choice(places))
            contexts.append(code[place - CONTEXT : place])
            labels.append(code[place])
            ids.append(names[i])
    with torch.inference_mode():
        logits = model(torch.from_numpy(np.stack(contexts))).numpy()
    truth = np.array(labels)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(args.out, logits=logits.astype(np.float16), labels=truth, ids=np.array(ids))
    right = (logits.argmax(axis=1) == truth).mean()
    print(f"{len(truth):,} files, {logits.shape[1]:,} tokens, {right:.3f} forecast rightly; wrote {args.out}")


def sources(*, packages: bool, most: int | None) -> dict[str, np.ndarray]:
    """Python files of this installation, by the digest of their content: their tokens as numbers."""
    paths = sysconfig.get_paths()
    found = [path for path in Path(paths["stdlib"]).rglob("*.py") if "site-packages" not in path.parts]
    if packages:
        found += Path(paths["purelib"]).rglob("*.py")
    by_content = {hashlib.sha256(path.read_bytes()).hexdigest()[:16]: path for path in sorted(found)}
    numbers: dict[str, int] = {}
    streams = {}
    for name in sorted(by_content)[:most]:
        stream = tokens(by_content[name], numbers)
        if len(stream) >= SHORTEST:
            streams[name] = stream
    return streams


def tokens(path: Path, numbers: dict[str, int]) -> np.ndarray:
    """Words, numbers, signs and line breaks with their indentation; at most 5,000 of a file."""
    text = path.read_text(encoding="utf-8", errors="replace")
    words = (match.group() for match in islice(TOKEN.finditer(text), LONGEST))
    return np.array([numbers.setdefault(word, len(numbers)) for word in words], dtype=np.int32)


def train(streams: list[np.ndarray], rare: int, args: Args) -> torch.nn.Module:
    """A network of two layers on the last few tokens, by maximum likelihood."""
    torch.manual_seed(args.seed)
    model = torch.nn.Sequential(
        torch.nn.Embedding(rare + 1, 48),
        torch.nn.Flatten(),
        torch.nn.Linear(48 * CONTEXT, 256),
        torch.nn.GELU(),
        torch.nn.Linear(256, rare),
    )
    stream = np.concatenate(streams)
    ends = np.cumsum([len(one) for one in streams])
    starts = np.concatenate([[0], ends[:-1]])
    usable = np.concatenate([np.arange(s + CONTEXT, e) for s, e in zip(starts, ends, strict=True)])
    usable = usable[stream[usable] < rare]
    rng, begun = np.random.default_rng(args.seed), time.perf_counter()
    optimiser = torch.optim.AdamW(model.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 2e-3, total_steps=args.steps)
    before = np.arange(-CONTEXT, 0)
    for step in range(args.steps):
        places = rng.choice(usable, 512)
        said = model(torch.from_numpy(stream[places[:, None] + before]))
        loss = torch.nn.functional.cross_entropy(said, torch.from_numpy(stream[places]))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
        if (step + 1) % 500 == 0:
            print(
                f"step {step + 1:,}: loss {loss.item():.3f}, {time.perf_counter() - begun:.0f} s", flush=True
            )
    return model.eval()


def parse() -> Args:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Args.out)
    for name in ("files", "classes", "steps", "seed"):
        parser.add_argument(f"--{name}", type=int, default=getattr(Args, name))
    parser.add_argument("--smoke-test", action="store_true")
    given = vars(parser.parse_args())
    if given["smoke_test"]:
        given |= {"files": 250, "classes": 100, "steps": 60}
    return Args(**given)


if __name__ == "__main__":
    main(parse())
