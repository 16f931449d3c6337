"""A run as a whole: one field a group of the configuration."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from colocate.config.algorithm import AlgorithmConfig
from colocate.config.buffer import BufferConfig
from colocate.config.checkpoint import CheckpointConfig
from colocate.config.data import DataConfig
from colocate.config.environment import EnvironmentConfig
from colocate.config.evaluation import EvalConfig
from colocate.config.inference import InferenceConfig
from colocate.config.logger import LoggerConfig
from colocate.config.memory import MemoryConfig
from colocate.config.model import ModelConfig
from colocate.config.reward import RewardConfig
from colocate.config.rollout import RolloutConfig
from colocate.config.scheduler import SchedulerConfig
from colocate.config.sim import SimConfig
from colocate.config.supervision import SupervisionConfig
from colocate.config.trainer import TrainerConfig
from colocate.config.types import NonNegativeInt, PositiveInt, Section


class RunConfig(Section):
    steps: PositiveInt = Field(description="Training steps; each trains one batch.")
    seed: NonNegativeInt = Field(0, description="Of everything random in the run.")
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="`auto`: CUDA where there is a GPU and the packages for it."
    )
    resume: str = Field("never", description="`never`, `auto` (newest in this run's folder), PATH.")
    model: ModelConfig
    data: DataConfig
    inference: InferenceConfig
    rollout: RolloutConfig
    trainer: TrainerConfig
    algorithm: AlgorithmConfig
    scheduler: SchedulerConfig
    buffer: BufferConfig
    environment: EnvironmentConfig
    reward: RewardConfig
    memory: MemoryConfig
    checkpoint: CheckpointConfig
    supervision: SupervisionConfig
    logger: LoggerConfig
    eval: EvalConfig = Field(default_factory=EvalConfig)
    sim: SimConfig = Field(default_factory=SimConfig)
