"""From a leased batch to what one forward pass reads: mini-, rank and micro-batches.

    TrainingBatch --(rows)--> Row, ...            trajectories that bear a gradient
                  --(plan_minibatches)--> Minibatch, ...   one optimizer step each
                                          rank -> micro-batch -> rows
                  --(collate)--> MicroBatch       tensors, padded on the right or packed

Every rank is given the whole batch and makes the same plan, so that ranks agree on the number of
micro-batches, and on the numbers of tokens and sequences to normalise by, without a word between
them.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from colocate.learn.packing import Runs
from colocate.learn.sequences import Sequences
from colocate.ports import TrainingSample

MicroBatchRows = tuple[int, ...]
"""Indices of the rows of one micro-batch; empty for a dummy."""


@dataclass(frozen=True, slots=True)
class Row:
    """One trajectory that bears a gradient.

    ``positions`` are the places whose *next* token was sampled: the shift between a token and
    the logits that predict it is made here, and nowhere else. The arrays after it are indexed
    alike, one element for each sampled token. ``sample`` is the trajectory's place in its batch,
    where there is one.

    Shapes: ``token_ids`` (T,); the others (N,), N >= 1.
    """

    token_ids: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int64]
    targets: npt.NDArray[np.int64]
    behaviour_logprobs: npt.NDArray[np.float32]
    versions: npt.NDArray[np.int64]
    advantage: float
    sample: int = 0

    @property
    def length(self) -> int:
        return len(self.token_ids)

    @property
    def num_tokens(self) -> int:
        """Trainable ones."""
        return len(self.positions)


@dataclass(frozen=True, slots=True)
class Minibatch:
    """What one optimizer step trains.

    ``num_tokens`` and ``num_sequences`` count its trainable tokens and its rows over all ranks,
    for the loss's normaliser. Each rank has the same number of micro-batches; where it has fewer
    of its own, dummies fill up.
    """

    num_tokens: int
    num_sequences: int
    ranks: tuple[tuple[MicroBatchRows, ...], ...]


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """The tensors of one forward and backward pass of one rank.

    ``token_ids`` is (B, T). Padded on the right, since attention is causal and a token never sees
    what is to its right, it needs no attention mask. Packed, it is (1, T), rows end to end: then
    ``position_ids``, (1, T), begin at 0 in each row, and ``runs`` say where attention is cut.

    The other tensors are (N,), one element for each token whose log-probability is wanted: element
    i is the token ``targets[i]``, predicted by the logits at ``(batch_index[i], positions[i])``.
    ``weights`` is 1, and 0 in a dummy.

    ``sequence_index`` says which trajectory of the micro-batch a token belongs to, and
    ``sequence_tokens``, (S,), how many trainable tokens each has: always all of them, since a
    trajectory is never split.
    """

    token_ids: Tensor
    batch_index: Tensor
    positions: Tensor
    targets: Tensor
    behaviour_logprobs: Tensor
    versions: Tensor
    advantages: Tensor
    weights: Tensor
    sequence_index: Tensor
    sequence_tokens: Tensor
    position_ids: Tensor | None = None
    runs: Runs | None = None

    @property
    def sequences(self) -> Sequences:
        return Sequences(self.sequence_index, self.sequence_tokens)


def make_rows(samples: Sequence[TrainingSample], advantages: Sequence[float]) -> list[Row]:
    """The rows of a batch; masked trajectories, and those without a sampled token, have none.

    Raises:
        ValueError: where a sample's sequences differ in length, its first token is marked as
            sampled (nothing predicts it), or a sampled token's log-probability is not finite.
    """
    rows = []
    for place, (sample, advantage) in enumerate(zip(samples, advantages, strict=True)):
        if sample.masked:
            continue
        row = _make_row(sample, advantage, place)
        if row.num_tokens:
            rows.append(row)
    return rows


def _make_row(sample: TrainingSample, advantage: float, place: int) -> Row:
    token_ids = np.asarray(sample.token_ids, dtype=np.int64)
    loss_mask = np.asarray(sample.loss_mask, dtype=np.int64)
    logprobs = np.asarray(sample.logprobs, dtype=np.float32)
    versions = np.asarray(sample.versions, dtype=np.int64)
    lengths = [len(token_ids), len(loss_mask), len(logprobs), len(versions)]
    if len(set(lengths)) != 1:
        raise ValueError(
            f"trajectory {sample.trajectory}: token_ids, loss_mask, logprobs and versions must "
            f"have one length, but have {lengths}"
        )
    sampled = np.flatnonzero(loss_mask)
    if sampled.size and sampled[0] == 0:
        raise ValueError(
            f"trajectory {sample.trajectory}: its first token is marked as sampled, but nothing "
            f"comes before it; give the trajectory a prompt"
        )
    behaviour = logprobs[sampled]
    if not np.isfinite(behaviour).all():
        place = int(sampled[np.flatnonzero(~np.isfinite(behaviour))[0]])
        raise ValueError(
            f"trajectory {sample.trajectory}: the log-probability of its sampled token at "
            f"position {place} must be finite, but is {logprobs[place]}"
        )
    return Row(
        token_ids=token_ids,
        positions=sampled - 1,
        targets=token_ids[sampled],
        behaviour_logprobs=behaviour,
        versions=versions[sampled],
        advantage=advantage,
        sample=place,
    )


def plan_minibatches(
    rows: Sequence[Row],
    *,
    num_minibatches: int,
    num_ranks: int,
    micro_batch_tokens: int,
    seed: int,
    packed: bool = False,
) -> list[Minibatch]:
    """Splits rows into mini-batches, each into shares of the ranks, each share into micro-batches.

    Trajectories are shuffled by ``seed`` and split as evenly as can be; where there are fewer
    rows than mini-batches, there are fewer mini-batches. Within one, rows are dealt to ranks in
    the order of their length, and neighbours in that order share a micro-batch, so that little is
    padding, or, packed, rows of one length lie side by side. A micro-batch holds at most
    ``micro_batch_tokens`` tokens, padding included, or a single row: a row is never split.
    """
    order = np.random.default_rng(seed).permutation(len(rows))
    plan = []
    for part in np.array_split(order, min(num_minibatches, len(rows))):
        by_length = sorted(part.tolist(), key=lambda index: (-rows[index].length, index))
        shares = [
            _pack(
                [(index, rows[index].length) for index in by_length[rank::num_ranks]],
                micro_batch_tokens,
                padded=not packed,
            )
            for rank in range(num_ranks)
        ]
        num_micro_batches = max(map(len, shares))
        plan.append(
            Minibatch(
                num_tokens=sum(rows[index].num_tokens for index in by_length),
                num_sequences=len(by_length),
                ranks=tuple(
                    tuple(share) + ((),) * (num_micro_batches - len(share)) for share in shares
                ),
            )
        )
    return plan


def _pack(share: Sequence[tuple[int, int]], budget: int, *, padded: bool) -> list[MicroBatchRows]:
    """Packs (row, length) pairs, longest first, into micro-batches of at most ``budget``."""
    packed: list[MicroBatchRows] = []
    current: list[int] = []
    width = total = 0
    for index, length in share:
        size = (len(current) + 1) * width if padded else total + length
        if current and size > budget:
            packed.append(tuple(current))
            current = []
        if not current:
            width, total = length, 0
        current.append(index)
        total += length
    if current:
        packed.append(tuple(current))
    return packed


def collate(rows: Sequence[Row], *, device: torch.device, packed: bool = False) -> MicroBatch:
    """The tensors of rows: padded on the right, or packed end to end.

    No rows make a dummy: two tokens, one of them of weight 0. It keeps a rank in step with others
    that still have work: it runs the same collectives and adds nothing to loss, gradient or count.
    """
    if not rows:
        return _dummy(device)
    counts = [row.num_tokens for row in rows]

    def tensor(array: npt.NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(array).to(device)

    row_index = tensor(np.repeat(np.arange(len(rows)), counts))
    positions = np.concatenate([row.positions for row in rows])
    position_ids, runs = None, None
    if packed:
        lengths = [row.length for row in rows]
        token_ids = np.concatenate([row.token_ids for row in rows])[np.newaxis]
        positions += np.repeat(np.cumsum([0, *lengths[:-1]]), counts)
        position_ids = tensor(np.concatenate([np.arange(length) for length in lengths])[np.newaxis])
        runs = tuple((len(list(run)), length) for length, run in itertools.groupby(lengths))
    else:
        token_ids = np.zeros((len(rows), max(row.length for row in rows)), dtype=np.int64)
        for index, row in enumerate(rows):
            token_ids[index, : row.length] = row.token_ids
    return MicroBatch(
        token_ids=tensor(token_ids),
        batch_index=torch.zeros_like(row_index) if packed else row_index,
        positions=tensor(positions),
        targets=tensor(np.concatenate([row.targets for row in rows])),
        behaviour_logprobs=tensor(np.concatenate([row.behaviour_logprobs for row in rows])),
        versions=tensor(np.concatenate([row.versions for row in rows])),
        advantages=tensor(
            np.repeat(np.array([row.advantage for row in rows], dtype=np.float32), counts)
        ),
        weights=torch.ones(sum(counts), device=device),
        sequence_index=row_index,
        sequence_tokens=tensor(np.array(counts, dtype=np.int64)),
        position_ids=position_ids,
        runs=runs,
    )


def with_advantages(micro_batch: MicroBatch, advantages: Sequence[float]) -> MicroBatch:
    """The same micro-batch with other advantages, one for each of its sequences."""
    of_sequences = micro_batch.advantages.new_tensor(advantages)
    return replace(micro_batch, advantages=micro_batch.sequences.spread(of_sequences))


def _dummy(device: torch.device) -> MicroBatch:
    integer = torch.zeros(1, dtype=torch.int64, device=device)
    real = torch.zeros(1, device=device)
    return MicroBatch(
        token_ids=torch.zeros((1, 2), dtype=torch.int64, device=device),
        batch_index=integer,
        positions=integer,
        targets=integer,
        behaviour_logprobs=real,
        versions=integer - 1,
        advantages=real,
        weights=real,
        sequence_index=integer,
        sequence_tokens=integer + 1,
    )
