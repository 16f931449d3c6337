"""What simulated trajectories do: how many turns, how long each, and how it is rewarded."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Protocol

from colocate.config import SimEpisodeConfig
from colocate.core.types import GroupId, TrajectoryId
from colocate.sim.distributions import make_draw


@dataclass(frozen=True, slots=True)
class Script:
    """One episode from its prompt to its end. Lengths in tokens.

    ``turns`` are what the agent samples, ``observations`` what the environment answers between
    them: one fewer.
    """

    prompt: int
    turns: tuple[int, ...]
    observations: tuple[int, ...]
    reward: float


class ScriptSource(Protocol):
    def script(self, group: GroupId, version: int) -> Script:
        """The script of a trajectory of this group that begins at this version of the trainer."""


class DrawnScripts:
    """Lengths and numbers of turns drawn from the configured distributions, independently."""

    def __init__(self, config: SimEpisodeConfig, random: Random) -> None:
        self._prompt = make_draw(config.prompt_tokens, random)
        self._turn = make_draw(config.turn_tokens, random)
        self._observation = make_draw(config.observation_tokens, random)
        self._turns = make_draw(config.turns, random)
        self._reward = make_draw(config.reward, random)

    def script(self, group: GroupId, version: int) -> Script:
        num_turns = max(1, round(self._turns()))
        return Script(
            prompt=max(1, round(self._prompt())),
            turns=tuple([max(1, round(self._turn())) for _ in range(num_turns)]),
            observations=tuple([round(self._observation()) for _ in range(num_turns - 1)]),
            reward=self._reward(),
        )


@dataclass(slots=True, eq=False)
class Episode:
    """An attempt at a trajectory while it goes on.

    Attributes:
        context: Tokens of prompt, turns and observations so far.
        turn: Turns that have begun.
        left: Tokens that the present turn has still to sample.
        began_s: When its environment was last asked.
        request: That it waits for the answer of.
        engine: Where that request is, until it is done there.
        cached: Tokens of the request's context that the engine had cached.
    """

    trajectory: TrajectoryId
    group: GroupId
    attempt: int
    script: Script
    began_s: float
    context: int = 0
    num_sampled: int = 0
    turn: int = 0
    left: int = 0
    request: str | None = None
    engine: int | None = None
    cached: int = 0
    is_over: bool = False

    @property
    def digest(self) -> str:
        """Contents only grow here, so that their length tells them apart."""
        return str(self.context) if self.context else ""
