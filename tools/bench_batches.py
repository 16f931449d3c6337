"""What packing and the chunked output head bring on this machine, as ratios.

    .venv/bin/python tools/bench_batches.py

Times are of the CPU, on one thread, so that they hold on a busy machine; memory is the most that a
process of its own ever held, less what it held before.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from colocate.adapters.deepspeed.engine import load_scorer
from colocate.config import EmbeddedModelConfig, TrainerConfig
from colocate.embedded.model import build_embedded_model
from colocate.learn.batches import Row, collate, plan_minibatches
from colocate.learn.chunked_head import head_scores
from colocate.learn.scoring import MAX_CHUNK_ELEMENTS, TokenScorer
from colocate.learn.token_scores import Wanted, score_logits_in_chunks

CPU = torch.device("cpu")
ROUNDS = 2

BATCHES = {
    "the quickstart's": (EmbeddedModelConfig(), (8, 32), 160, 8192),
    "longer, larger model": (
        EmbeddedModelConfig(
            hidden_size=256, num_layers=2, intermediate_size=768, num_attention_heads=4
        ),
        (40, 400),
        10,
        1024,
    ),
}
"""Model, shortest and longest row, rows, and tokens of a micro-batch."""

VOCABULARY, WIDTH, POSITIONS = 50_000, 256, 1024
"""Of the output head whose memory is measured."""


def random_rows(lengths: Sequence[int]) -> list[Row]:
    draw = np.random.default_rng(0)
    rows = []
    for length in lengths:
        ids = draw.integers(16, size=length)
        rows.append(
            Row(
                token_ids=ids,
                positions=np.arange(length - 1),
                targets=ids[1:],
                behaviour_logprobs=np.zeros(length - 1, dtype=np.float32),
                versions=np.zeros(length - 1, dtype=np.int64),
                advantage=1.0,
            )
        )
    return rows


def one_pass(
    scorer: TokenScorer, rows: Sequence[Row], budget: int, *, packed: bool
) -> tuple[float, float]:
    """Forward and backward over all rows: the sum of scores, and seconds."""
    (minibatch,) = plan_minibatches(
        rows, num_minibatches=1, num_ranks=1, micro_batch_tokens=budget, seed=0, packed=packed
    )
    began = time.process_time()
    total = 0.0
    for chosen in minibatch.ranks[0]:
        batch = collate([rows[row] for row in chosen], device=CPU, packed=packed)
        logprobs, _ = scorer(batch, with_entropy=False)
        loss = logprobs.double().sum()
        loss.backward()
        total += float(loss.detach())
    scorer.zero_grad()
    return total, time.process_time() - began


def compare_packing() -> None:
    print("batch | tokens | padding of padded | tokens/s packed : padded | loss differs by")
    for name, (shape, (shortest, longest), count, budget) in BATCHES.items():
        lengths = np.random.default_rng(1).integers(shortest, longest + 1, size=count).tolist()
        rows = random_rows(lengths)
        with tempfile.TemporaryDirectory() as folder:
            model = build_embedded_model(
                Path(folder), shape, seed=0, dtype="float32", max_model_len=longest
            )
            scorer = load_scorer(
                str(model), TrainerConfig(), dtype="float32", temperature=1.0, device=CPU
            )
        seconds: dict[bool, list[float]] = {False: [], True: []}
        totals = {}
        for _ in range(ROUNDS + 1):
            for packed in seconds:
                totals[packed], taken = one_pass(scorer, rows, budget, packed=packed)
                seconds[packed].append(taken)
        ratio = min(seconds[False][1:]) / min(seconds[True][1:])
        (minibatch,) = plan_minibatches(
            rows, num_minibatches=1, num_ranks=1, micro_batch_tokens=budget, seed=0
        )
        padded = sum(len(c) * max(lengths[r] for r in c) for c in minibatch.ranks[0])
        error = abs(totals[True] / totals[False] - 1)
        print(
            f"{name} | {sum(lengths)} | {padded / sum(lengths) - 1:.1%} | {ratio:.2f} | {error:.1e}"
        )


def measure_head(way: str) -> None:
    """Scores positions and their gradient, and prints MiB held at most and seconds."""
    head = torch.nn.Linear(WIDTH, VOCABULARY, bias=False)
    hidden = torch.randn(POSITIONS, WIDTH, requires_grad=True)
    targets = torch.randint(VOCABULARY, (POSITIONS,))
    wanted = Wanted(targets=targets, temperature=1.0, with_entropy=True, entropy_grad=False)
    # The allocator and the kernels warm up on a piece.
    small = Wanted(targets=targets[:8], temperature=1.0, with_entropy=True)
    head_scores(head, hidden[:8], small, max_elements=MAX_CHUNK_ELEMENTS).sum().backward()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.process_time()
    if way == "whole":
        # As it was done before: all logits, and of these a chunk in float32 at a time.
        logits = head(hidden)
        score_logits_in_chunks(logits, wanted, max_elements=2**26).logprobs.sum().backward()
    else:
        scores = head_scores(head, hidden, wanted, max_elements=MAX_CHUNK_ELEMENTS)
        scores[:, 0].sum().backward()
    taken = time.process_time() - began
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"{(after - before) / 1024:.0f} MiB, {taken:.1f} s")


def compare_heads() -> None:
    print(f"output head, {POSITIONS} positions x {VOCABULARY} tokens, float32: memory and time")
    for way in ("whole", "chunked"):
        done = subprocess.run(
            [sys.executable, __file__, "--head", way], capture_output=True, text=True, check=True
        )
        print(f"{way} | {done.stdout.strip()}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--head", choices=["whole", "chunked"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if arguments.head:
        measure_head(arguments.head)
    else:
        compare_packing()
        compare_heads()


if __name__ == "__main__":
    main()
