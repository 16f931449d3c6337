"""What is measured: the model, the plan, and the real adapters that a run of them would have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from colocate.cli.compose import plan_jobs
from colocate.cli.train import check_plan, parse
from colocate.config import RunConfig
from colocate.core.types import TRAINER_PARTS, Part, SleepMode
from colocate.preflight import validate

MODELS: Mapping[str, Sequence[str]] = {
    "quickstart": ("model=embedded",),
    # 126 million parameters; the vocabulary is the embedded task's, so nearly all are in blocks.
    "100m": (
        "model=embedded",
        "model.embedded.hidden_size=1024",
        "model.embedded.num_layers=8",
        "model.embedded.intermediate_size=4096",
        "model.embedded.num_attention_heads=16",
        "model.embedded.num_key_value_heads=8",
        "model.embedded.head_dim=64",
        "model.embedded.initializer_range=0.02",
    ),
}


@dataclass(frozen=True, slots=True)
class Plan:
    """What each swap evicts.

    Attributes:
        mode: Of the engine, while the trainer trains.
        offload: Parts of the trainer that leave before the engine's weights come back.
        offload_after_push: Parts that leave when the weights have been published from them.
    """

    mode: SleepMode
    offload: frozenset[Part]
    offload_after_push: frozenset[Part]


def plan_of(name: str) -> Plan:
    """``pause`` evicts nothing; the others the whole trainer, and of the engine what they say."""
    mode = SleepMode.PAUSE if name == "pause" else SleepMode(name)
    if mode is SleepMode.PAUSE:
        return Plan(mode, frozenset(), frozenset())
    return Plan(mode, TRAINER_PARTS - {Part.PARAMETERS}, frozenset({Part.PARAMETERS}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One bench.

    Attributes:
        model: A key of ``MODELS``, or a Hugging Face folder or hub name.
        plan: ``pause``, ``kv``, ``1`` or ``2``.
        swaps: How many are measured, the warm-up among them.
        bare: No requests and no training: what the swap's own machinery costs, and leaves.
        requests: In flight when a swap begins.
        prompt_tokens: Of each request.
        sampled_tokens: That each has about sampled when it is parked.
        rounds: Of transport against plain copies.
        overrides: Of the run's configuration, in Hydra's syntax, over all others.
    """

    model: str
    plan: str
    swaps: int
    zero_stage: int
    num_ranks: int
    num_engines: int
    kv_bytes: int
    bare: bool
    requests: int
    prompt_tokens: int
    sampled_tokens: int
    rounds: int
    overrides: tuple[str, ...] = ()

    @property
    def max_model_len(self) -> int:
        """Room for requests to go on while others catch up, so that none ends before the park."""
        return self.prompt_tokens + max(256, 8 * self.sampled_tokens)


def configure(setting: Setting, folder: Path) -> RunConfig:
    """The configuration of a run like this, validated as a run's is.

    Raises:
        ConfigurationError: with everything that is wrong with it.
    """
    model = MODELS.get(setting.model)
    if model is None:
        model = ("model=hf", f"model.path={_quoted(setting.model)}")
    plan = plan_jobs(
        parse(
            [
                "+experiment=quickstart",
                *model,
                "logger.display=off",
                "memory.budget_bytes=null",
                "rollout.stop=[]",
                f"steps={setting.swaps}",
                f"hydra.run.dir={_quoted(str(folder))}",
                f"inference.kv_cache_memory_bytes={setting.kv_bytes}",
                f"inference.max_model_len={setting.max_model_len}",
                f"inference.num_engines={setting.num_engines}",
                f"inference.sleep={'0' if setting.plan == 'pause' else setting.plan}",
                f"trainer.num_ranks={setting.num_ranks}",
                f"trainer.zero_stage={setting.zero_stage}",
                # Weights that move, but not so far that a long bench breaks them.
                "trainer.learning_rate=1e-5",
                "trainer.schedule=constant",
                *setting.overrides,
            ]
        )
    )
    check_plan(plan)
    return validate(plan.jobs[0].tree)


def _quoted(text: str) -> str:
    """As a string of Hydra's override grammar, whatever characters it has."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
