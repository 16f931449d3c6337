"""Sums and means over the tokens of one trajectory, within the flat tensors of a micro-batch."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Sequences:
    """Which tokens belong together.

    Attributes:
        index: Int64 (N,), the sequence of each token.
        num_tokens: Int64 (S,), how many tokens each sequence has; at least 1.
    """

    index: Tensor
    num_tokens: Tensor

    def total(self, values: Tensor) -> Tensor:
        """The sum (S,) of each sequence's values (N,). Differentiable."""
        empty = values.new_zeros(len(self.num_tokens))
        return empty.index_add(0, self.index, values)

    def mean(self, values: Tensor) -> Tensor:
        """The mean (S,) of each sequence's values (N,). Differentiable."""
        return self.total(values) / self.num_tokens.to(values.dtype)

    def any(self, marks: Tensor) -> Tensor:
        """Bool (S,): whether a sequence has a token that is marked in the bool tensor (N,)."""
        return self.total(marks.to(self.num_tokens.dtype)) > 0

    def all(self, marks: Tensor) -> Tensor:
        """Bool (S,): whether all tokens of a sequence are marked in the bool tensor (N,)."""
        return self.total(marks.to(self.num_tokens.dtype)) == self.num_tokens

    def spread(self, values: Tensor) -> Tensor:
        """Gives each token (N,) its sequence's value, from values (S,)."""
        return values[self.index]
