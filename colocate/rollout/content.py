"""What a trajectory consists of: tokens as sampled or as observed, never re-tokenised.

The core knows this content by its length, its number of turns and its digest.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence

from colocate.core.types import Span, TrajectoryId
from colocate.run_state import SavedContent, Speaker, digest_of

NO_VERSION = -1


class Content:
    """Four columns of one length: token, mask (1 = sampled), log-probability, version.

    ``turns`` is the same as text, for people, for reward functions, and for environments that are
    replayed; ``turn_ends[i]`` is the number of tokens at the end of turn i. ``rewards`` has one
    entry an answer of the environment that did not end the episode. ``cut_by``: what cut the
    agent's last turn short, as the configuration names it. ``truncated``: the episode ended for
    want of tokens or turns. ``environment_seed`` is what the environment was reset with.
    ``reward_parts``: what its reward was added up from, by name; empty where the environment alone
    rewards.
    """

    __slots__ = (
        "cut_by",
        "environment_seed",
        "logprobs",
        "loss_mask",
        "reward_parts",
        "rewards",
        "token_ids",
        "truncated",
        "turn_ends",
        "turns",
        "versions",
    )

    def __init__(self) -> None:
        self.token_ids = array("i")
        self.loss_mask = array("b")
        self.logprobs = array("d")
        self.versions = array("i")
        self.turns: list[tuple[Speaker, str]] = []
        self.turn_ends: list[int] = []
        self.rewards: list[float] = []
        self.cut_by: str | None = None
        self.truncated = False
        self.reward_parts: Mapping[str, float] = {}
        self.environment_seed = 0

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def awaits_answer(self) -> bool:
        """Whether the agent has spoken last."""
        return bool(self.turns) and self.turns[-1][0] == "agent"

    @property
    def num_actions(self) -> int:
        """Turns that the agent has ended."""
        return sum(speaker == "agent" for speaker, _ in self.turns)

    def say(self, speaker: Speaker, text: str) -> None:
        """Ends a turn here; its tokens were appended before."""
        self.turns.append((speaker, text))
        self.turn_ends.append(len(self))

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
        return digest_of((self.token_ids, self.loss_mask, self.logprobs, self.versions))

    # Across a restart

    def save(self, num_tokens: int, num_turns: int | None) -> SavedContent:
        """A copy of its first tokens and turns: what the scheduler has been told of.

        A content may be ahead of the scheduler by an answer that has not been handled yet.

        Args:
            num_turns: None for all of them, as of an episode that is over.
        """
        turns = self.turns[:num_turns]
        num_answers = max(0, len(turns) - 1) // 2
        return SavedContent(
            token_ids=self.token_ids[:num_tokens].tobytes(),
            loss_mask=self.loss_mask[:num_tokens].tobytes(),
            logprobs=self.logprobs[:num_tokens].tobytes(),
            versions=self.versions[:num_tokens].tobytes(),
            turns=tuple(turns),
            turn_ends=tuple(self.turn_ends[: len(turns)]),
            rewards=tuple(self.rewards[:num_answers]),
            cut_by=self.cut_by,
            truncated=self.truncated,
            environment_seed=self.environment_seed,
            reward_parts=dict(self.reward_parts),
        )

    @classmethod
    def restore(cls, saved: SavedContent) -> Content:
        content = cls()
        content.token_ids.frombytes(saved.token_ids)
        content.loss_mask.frombytes(saved.loss_mask)
        content.logprobs.frombytes(saved.logprobs)
        content.versions.frombytes(saved.versions)
        content.turns = list(saved.turns)
        content.turn_ends = list(saved.turn_ends)
        content.rewards = list(saved.rewards)
        content.cut_by = saved.cut_by
        content.truncated = saved.truncated
        content.environment_seed = saved.environment_seed
        content.reward_parts = dict(saved.reward_parts)
        return content


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

    def take_up(self, trajectory: TrajectoryId, saved: SavedContent | None) -> None:
        """Puts the content of an earlier life in its place; None: it had none yet."""
        self._contents[trajectory] = Content() if saved is None else Content.restore(saved)

    def forget(self, trajectory: TrajectoryId) -> None:
        self._contents.pop(trajectory, None)
