"""The typed configuration of a run: what each field is, and what each may be.

The Hydra tree in ``conf/`` composes a plain mapping; ``RunConfig`` is its validated, frozen form.
Rules that relate several fields are in ``colocate.preflight``.
"""

from colocate.config.algorithm import (
    AlgorithmConfig,
    CorrectionConfig,
    KlConfig,
    OverlongConfig,
)
from colocate.config.buffer import BufferConfig
from colocate.config.checkpoint import CheckpointConfig
from colocate.config.data import DataConfig
from colocate.config.environment import (
    EnvironmentConfig,
    LatencyConfig,
)
from colocate.config.evaluation import EvalConfig
from colocate.config.inference import (
    DEFAULT_MISMATCH_WARN,
    InferenceConfig,
)
from colocate.config.logger import LoggerConfig
from colocate.config.memory import MemoryConfig
from colocate.config.model import (
    EmbeddedModelConfig,
    LoraConfig,
    ModelConfig,
)
from colocate.config.reward import (
    RewardConfig,
    RewardTerm,
)
from colocate.config.rollout import RolloutConfig
from colocate.config.run import RunConfig
from colocate.config.scheduler import SchedulerConfig
from colocate.config.sim import (
    DistributionConfig,
    SimConfig,
    SimEngineConfig,
    SimEnvironmentConfig,
    SimEpisodeConfig,
    SimMemoryConfig,
    SimSwapConfig,
    SimTrainerConfig,
)
from colocate.config.supervision import SupervisionConfig
from colocate.config.trainer import (
    DEFAULT_BUCKET_BYTES,
    Packing,
    TrainerConfig,
)
from colocate.config.types import Section

__all__ = [
    "DEFAULT_BUCKET_BYTES",
    "DEFAULT_MISMATCH_WARN",
    "AlgorithmConfig",
    "BufferConfig",
    "CheckpointConfig",
    "CorrectionConfig",
    "DataConfig",
    "DistributionConfig",
    "EmbeddedModelConfig",
    "EnvironmentConfig",
    "EvalConfig",
    "InferenceConfig",
    "KlConfig",
    "LatencyConfig",
    "LoggerConfig",
    "LoraConfig",
    "MemoryConfig",
    "ModelConfig",
    "OverlongConfig",
    "Packing",
    "RewardConfig",
    "RewardTerm",
    "RolloutConfig",
    "RunConfig",
    "SchedulerConfig",
    "Section",
    "SimConfig",
    "SimEngineConfig",
    "SimEnvironmentConfig",
    "SimEpisodeConfig",
    "SimMemoryConfig",
    "SimSwapConfig",
    "SimTrainerConfig",
    "SupervisionConfig",
    "TrainerConfig",
]
