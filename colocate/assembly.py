"""From a configuration to the parts of a run."""

from __future__ import annotations

import asyncio
import importlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from colocate.adapters.chat import make_turns
from colocate.adapters.environments.factory import make_environment_factory
from colocate.adapters.memory.factory import make_probe
from colocate.adapters.tokenizer import HuggingFaceTokenizer
from colocate.checkpoints import FolderCheckpoints
from colocate.config import EvalConfig, RunConfig
from colocate.core.settings import Settings
from colocate.core.types import GroupId
from colocate.data.check import Needs
from colocate.data.make import RunData, make_data
from colocate.driver import Ports
from colocate.machine import Device, read_gpus, resolve_device
from colocate.ports import MemoryProbe, PromptSource
from colocate.problems import ConfigurationError, Problem
from colocate.rewards.weighted import make_reward
from colocate.rollout.evaluation import EvaluationPlan
from colocate.rollout.runner import RolloutRules
from colocate.rollout.turns import Turns

if TYPE_CHECKING:
    from colocate.adapters.engine_pool import EnginePool
    from colocate.adapters.vllm.engine import VllmInference


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a run lives.

    Attributes:
        run_dir: Its folder.
        model: Folder or hub name of the model that it starts from.
        run_id: Marks its processes and its shared memory.
        device: Resolved from ``device``.
    """

    run_dir: Path
    model: str
    run_id: str
    device: Device
    socket_dir: Path

    @property
    def logs(self) -> Path:
        return self.run_dir / "logs"


def core_settings(config: RunConfig) -> Settings:
    """What the core reads of the configuration."""
    return Settings(
        steps=config.steps,
        group_size=config.algorithm.group_size,
        groups_per_step=config.algorithm.groups_per_step,
        max_staleness=config.buffer.max_staleness,
        policy=config.scheduler.policy,
        swap_interval=config.scheduler.swap_interval,
        period_s=config.scheduler.period_s,
        expiry_grace_s=config.scheduler.expiry_grace_s,
        warmup_swaps=config.scheduler.warmup_swaps,
        hysteresis=config.scheduler.hysteresis,
        max_inflight=config.buffer.max_inflight,
        on_stale=config.buffer.on_stale,
        max_filtered_fraction=config.buffer.max_filtered_fraction,
        redundant_per_group=config.rollout.redundant_per_group,
        redundant_groups=config.rollout.redundant_groups,
        spare_groups=config.rollout.spare_groups,
        mask_truncated=config.algorithm.overlong.mode == "mask",
        replay_groups=config.buffer.replay_groups,
        replay_min_std=config.buffer.replay_min_std,
        replay_min_mean=config.buffer.replay_min_mean,
        replay_max_staleness=config.buffer.replay_max_staleness,
        replay_max_uses=config.buffer.replay_max_uses,
        dynamic_sampling=config.algorithm.dynamic_sampling,
        dynamic_sampling_max_groups=config.algorithm.dynamic_sampling_max_groups,
        sleep=str(config.inference.sleep),  # type: ignore[arg-type]  # one of its literals
        verify_every=config.inference.verify_every,
        mismatch_warn=config.inference.warns_of_mismatch_above(
            config.model.dtype, config.trainer.dtype or config.model.dtype
        ),
        margin_bytes=config.memory.margin_bytes,
        # Two exist at a time: one is packed while the other is loaded.
        bucket_bytes=2 * config.trainer.bucket_bytes(resolve_device(config.device, os.environ)),
        remedy_after_s=config.memory.remedy_after_s,
        checkpoint_every_steps=config.checkpoint.every_steps,
        checkpoint_every_s=config.checkpoint.every_s,
        keep_best=config.checkpoint.keep_best,
        start_timeout_s=config.supervision.start_timeout_s,
        phase_timeout_s=config.supervision.phase_timeout_s,
        training_timeout_s=config.supervision.training_timeout_s,
        idle_timeout_s=config.supervision.idle_timeout_s,
        grace_s=config.supervision.grace_s,
        max_restarts=config.supervision.max_restarts,
        restart_window_s=config.supervision.restart_window_s,
    )


def settings_with(settings: Settings, config: EvalConfig, num_samples: int) -> Settings:
    """The core's settings, with so many samples in each evaluation; 0: with none."""
    if not num_samples:
        return settings
    return replace(
        settings,
        eval_every_steps=config.every_steps,
        eval_before_first_step=config.before_first_step,
        eval_num_samples=num_samples,
        eval_timeout_s=config.timeout_s,
    )


def make_evaluation(
    config: RunConfig, data: RunData, rules: RolloutRules, *, max_episodes: int
) -> EvaluationPlan | None:
    """What evaluations play; None where there are none.

    Raises:
        ConfigurationError: no prompt of the evaluation split can be used.
    """
    section = config.eval
    if not section.every_steps:
        return None
    assert data.evaluation is not None, "preflight has refused it"
    num_rows = len(data.evaluation)
    if not num_rows:
        raise ConfigurationError(
            [
                Problem(
                    field="data.eval_split",
                    value=config.data.eval_split,
                    rule="must hold a prompt that fits inference.max_model_len = "
                    f"{config.inference.max_model_len}; none does",
                    remedy="use shorter prompts, or set eval.every_steps=0",
                )
            ]
        )
    count = min(section.num_prompts or num_rows, num_rows)
    return EvaluationPlan(
        prompts=[data.evaluation[index * num_rows // count] for index in range(count)],
        rules=replace(
            rules,
            temperature=section.temperature,
            max_new_tokens=section.max_new_tokens or rules.max_new_tokens,
            max_turns=section.max_turns or rules.max_turns,
        ),
        samples_per_prompt=section.samples_per_prompt,
        k=section.k or section.samples_per_prompt,
        pass_reward=section.pass_reward,
        max_episodes=max_episodes,
    )


def make_model(config: RunConfig, run_dir: Path) -> str:
    """Folder or hub name of the model; the embedded one is made in the run's folder."""
    if config.model.embedded is None:
        assert config.model.path is not None
        return config.model.path
    from colocate.embedded.model import build_embedded_model

    folder = build_embedded_model(
        run_dir / "model",
        config.model.embedded,
        seed=config.seed,
        dtype=config.model.dtype,
        max_model_len=config.inference.max_model_len,
    )
    return str(folder)


def rollout_rules(config: RunConfig, tokenizer: HuggingFaceTokenizer) -> RolloutRules:
    """Stop strings that are one token stop as tokens: exact, and cheaper for the engine.

    Raises:
        ChatTemplateError: the model's chat template cannot be followed.
    """
    turns = _make_turns(config, tokenizer)
    single = {s: t[0] for s in config.rollout.stop if len(t := tokenizer.encode(s)) == 1}
    return RolloutRules(
        seed=config.seed,
        max_new_tokens=config.rollout.max_new_tokens,
        max_turns=config.rollout.max_turns,
        max_model_len=config.inference.max_model_len,
        temperature=config.rollout.temperature,
        stop=tuple(s for s in config.rollout.stop if s not in single),
        stop_token_ids=tuple(dict.fromkeys((*single.values(), *sorted(turns.stop_tokens)))),
        step_timeout_s=config.environment.step_timeout_s,
        turns=turns,
    )


def make_run_data(config: RunConfig, tokenizer: HuggingFaceTokenizer) -> RunData:
    """The prompts of a run.

    Raises:
        ConfigurationError: the data set cannot be used.
        ChatTemplateError: the model's chat template cannot be followed.
    """
    if config.data.source is not None:
        return _from_source(config)
    turns = _make_turns(config, tokenizer)
    return make_data(
        config.data,
        needs=Needs(
            num_rows=config.algorithm.groups_per_step,
            max_model_len=config.inference.max_model_len,
            max_prompt_tokens=config.data.max_prompt_tokens,
        ),
        seed=config.seed,
        count=lambda prompt: len(turns.opening(prompt, "")),
    )


def _from_source(config: RunConfig) -> RunData:
    data = config.data
    assert data.source is not None
    prompts = _call(data.source, data.options)
    if data.eval_options is None or not config.eval.every_steps:
        return RunData(prompts=prompts)
    held_out = _call(data.source, {**data.options, **data.eval_options})
    count = config.eval.num_prompts
    assert count is not None, "preflight has refused it"
    evaluation = [held_out.prompt(GroupId(position)) for position in range(count)]
    return RunData(prompts=prompts, evaluation=evaluation)


def _make_turns(config: RunConfig, tokenizer: HuggingFaceTokenizer) -> Turns:
    return make_turns(
        tokenizer,
        config.model.chat_template,
        config.model.chat_template_options,
        config.environment.observation_role,
        max_turns=config.rollout.max_turns,
    )


def make_ports(
    config: RunConfig,
    place: Place,
    tokenizer: HuggingFaceTokenizer,
    resume_from: Path | None,
    prompts: PromptSource | None = None,
) -> tuple[Ports, MemoryProbe]:
    """The real adapters; nothing is started yet. ``prompts``: None: the configuration's."""
    from colocate.adapters.deepspeed.client import DeepSpeedTrainer
    from colocate.adapters.weights import StreamedTransfer

    trainer = DeepSpeedTrainer(
        place.model,
        config.trainer,
        config.algorithm,
        dtype=config.trainer.dtype or config.model.dtype,
        publish_dtype=config.model.dtype,
        temperature=config.rollout.temperature,
        fp32_head=config.inference.fp32_head,
        lora=config.model.lora,
        steps=config.steps,
        seed=config.seed,
        device=place.device,
        log_dir=place.logs,
        run_id=place.run_id,
        socket_dir=place.socket_dir,
    )
    inference = _make_inference(config, place)
    probe = make_probe(
        place.device,
        {"engine": inference.process_ids, "trainer": trainer.process_ids},
        config.memory.budget_bytes,
        environment=os.environ,
        num_devices=max(
            config.trainer.num_ranks,
            config.inference.num_engines * config.inference.tensor_parallel_size,
        ),
        host_budget_bytes=config.memory.host_budget_bytes,
    )
    ports = Ports(
        inference=inference,
        trainer=trainer,
        transfer=StreamedTransfer(
            trainer,
            inference,
            max_model_len=config.inference.max_model_len,
            seed=config.seed,
            tolerance=config.inference.verify_tolerance,
        ),
        measure=lambda: asyncio.to_thread(probe.sample),
        telemetry=lambda: asyncio.to_thread(probe.telemetry),
        make_environment=make_environment_factory(config.environment),
        prompts=prompts or make_run_data(config, tokenizer).prompts,
        tokenizer=tokenizer,
        reward=make_reward(
            config.reward,
            timeout_s=config.environment.step_timeout_s,
            end_texts=[tokenizer.decode([token]) for token in tokenizer.end_tokens()],
            log=place.logs / "rewards.log",
        ),
        checkpoints=FolderCheckpoints(
            place.run_dir, keep=config.checkpoint.keep, resume_from=resume_from
        ),
    )
    return ports, probe


def _make_inference(config: RunConfig, place: Place) -> VllmInference | EnginePool:
    """One engine, or a pool of several that share the devices of the run evenly."""
    from colocate.adapters.engine_pool import EnginePool
    from colocate.adapters.vllm.engine import VllmInference

    count, width = config.inference.num_engines, config.inference.tensor_parallel_size
    # By UUID: what CUDA_VISIBLE_DEVICES holds may be shortened, and vLLM takes whole ones only.
    uuids = [gpu.uuid for gpu in read_gpus(os.environ).devices] if place.device == "cuda" else []
    engines = [
        VllmInference(
            place.model,
            config.inference,
            dtype=config.model.dtype,
            device=place.device,
            seed=config.seed,
            log_file=place.logs / ("vllm.log" if count == 1 else f"vllm.{index}.log"),
            run_id=place.run_id,
            devices=uuids[index * width : (index + 1) * width] or None,
        )
        for index in range(count)
    ]
    if count == 1:
        return engines[0]
    return EnginePool(engines, one_device=place.device == "cpu")


def _call(path: str, options: Mapping[str, Any]) -> Any:
    return _import(path)(**options)


def _import(path: str) -> Any:
    """Preflight has shown that it can be imported."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)
