"""What a trajectory consists of: tokens as sampled or as observed, never re-tokenised.

The core knows this content by its digest only.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Literal

from colocate.core.types import Span, TrajectoryId

NO_VERSION = -1

Speaker = Literal["prompt", "agent", "environment"]


class Content:
    """Four columns of one length: token, mask (1 = sampled), log-probability, version.

    ``turns`` is the same as text, for people and for reward functions. ``truncated``: it ended for
    want of tokens or turns. ``reward_parts``: what its reward was added up from, by name; empty
    where the environment alone rewards.
    """

    __slots__ = (
        "logprobs",
        "loss_mask",
        "reward_parts",
        "token_ids",
        "truncated",
        "turns",
        "versions",
    )

    def __init__(self) -> None:
        self.token_ids = array("i")
        self.loss_mask = array("b")
        self.logprobs = array("d")
        self.versions = array("i")
        self.turns: list[tuple[Speaker, str]] = []
        self.truncated = False
        self.reward_parts: Mapping[str, float] = {}

    def __len__(self) -> int:
        return len(self.token_ids)

    def append_observed(self, token_ids: Sequence[int]) -> None:
        """Appends tokens that no policy sampled: mask 0."""
        count = len(token_ids)
        self.token_ids.extend(token_ids)
        self.loss_mask.extend([0] * count)
        self.logprobs.extend([0.0] * count)
        self.versions.extend([NO_VERSION] * count)

    def append_sampled(
        self, token_ids: Sequence[int], logprobs: Sequence[float], spans: Sequence[Span]
    ) -> None:
        """Appends tokens as they were sampled.

        Raises:
            ValueError: where not every token has its log-probability and its version.
        """
        count = len(token_ids)
        covered = sum(span.length for span in spans)
        if not count == len(logprobs) == covered:
            raise ValueError(
                f"{count} sampled tokens came with {len(logprobs)} log-probabilities and with "
                f"versions for {covered}"
            )
        self.token_ids.extend(token_ids)
        self.loss_mask.extend([1] * count)
        self.logprobs.extend(logprobs)
        for span in spans:
            self.versions.extend([span.version] * span.length)

    def digest(self) -> str:
        """Of all four columns, taken afresh from the bytes; "" of an empty content."""
        if not self.token_ids:
            return ""
        digest = blake2b(digest_size=8)
        for column in (self.token_ids, self.loss_mask, self.logprobs, self.versions):
            digest.update(column)
        return digest.hexdigest()


class ContentStore:
    """Contents by trajectory. A restart begins a new one; an ending forgets it."""

    def __init__(self) -> None:
        self._contents: dict[TrajectoryId, Content] = {}

    def __len__(self) -> int:
        return len(self._contents)

    def __getitem__(self, trajectory: TrajectoryId) -> Content:
        return self._contents[trajectory]

    def begin(self, trajectory: TrajectoryId) -> Content:
        content = self._contents[trajectory] = Content()
        return content

    def forget(self, trajectory: TrajectoryId) -> None:
        self._contents.pop(trajectory, None)
