"""Aggregations: how much each token counts in the loss of a mini-batch.

The loss of a mini-batch is the sum over its tokens of weight times loss, divided by a denominator.
Both are known from the whole mini-batch before it is split, so that the sum may be taken in any
parts: micro-batches and ranks change nothing but rounding. Masked trajectories have no row and
count nowhere; rejected tokens count in the denominator.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from colocate.config import AlgorithmConfig
from colocate.learn.batches import MicroBatch, Minibatch


class Aggregation(Protocol):
    def weights(self, micro_batch: MicroBatch) -> Tensor:
        """The weight (N,) of each token; 0 in a dummy."""

    def denominator(self, minibatch: Minibatch) -> float:
        """What the weighted sum over the whole mini-batch, all ranks', is divided by."""


@dataclass(frozen=True, slots=True)
class TokenMean:
    """``1 / (sum of |o_i|)``: the mean over tokens (DAPO, arXiv:2503.14476).

    Long sequences count for more. DAPO's formula takes the mean within each group, and then over
    groups; here, as in its authors' code, it is over the mini-batch.
    """

    def weights(self, micro_batch: MicroBatch) -> Tensor:
        return micro_batch.weights

    def denominator(self, minibatch: Minibatch) -> float:
        return minibatch.num_tokens


@dataclass(frozen=True, slots=True)
class SequenceMean:
    """``1 / (n |o_i|)``: the mean over n sequences of their token means (GRPO, arXiv:2402.03300).

    Each sequence counts alike, so that a token counts the less, the longer its sequence is.
    """

    def weights(self, micro_batch: MicroBatch) -> Tensor:
        sequences = micro_batch.sequences
        return micro_batch.weights / sequences.spread(sequences.num_tokens)

    def denominator(self, minibatch: Minibatch) -> float:
        return minibatch.num_sequences


@dataclass(frozen=True, slots=True)
class FixedLength:
    """``1 / (n L)``: the sum over tokens by n sequences and a budget (Dr. GRPO, arXiv:2503.20783).

    A token counts the same in every sequence and every batch. With a budget of 1 it is the mean
    over sequences of the sum over their tokens: REINFORCE on whole sequences.
    """

    budget: int

    def weights(self, micro_batch: MicroBatch) -> Tensor:
        return micro_batch.weights

    def denominator(self, minibatch: Minibatch) -> float:
        return minibatch.num_sequences * self.budget


def aggregation_of(algorithm: AlgorithmConfig) -> Aggregation:
    """The aggregation that an algorithm names.

    Raises:
        ValueError: ``fixed_length`` without a budget.
    """
    match algorithm.aggregation:
        case "token_mean":
            return TokenMean()
        case "sequence_mean":
            return SequenceMean()
        case "fixed_length":
            if algorithm.length_budget is None:
                raise ValueError("algorithm.aggregation=fixed_length needs algorithm.length_budget")
            return FixedLength(algorithm.length_budget)
