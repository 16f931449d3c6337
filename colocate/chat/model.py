"""From a run's folder to a model that answers, and the rules by which it was trained to."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import uuid
from collections.abc import AsyncIterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from colocate.adapters.tokenizer import HuggingFaceTokenizer
from colocate.adapters.transformers_engine import OnTokens, TransformersEngine
from colocate.arithmetic import register_arithmetic
from colocate.assembly import rollout_rules
from colocate.checkpoints import list_checkpoints, read_state
from colocate.config import RunConfig
from colocate.core.types import Version
from colocate.export import export
from colocate.machine import Device
from colocate.ports import Generation, GenerationRequest
from colocate.preflight import RULES, callables, data, rewards, validate
from colocate.problems import ConfigurationError
from colocate.rollout.runner import RolloutRules
from colocate.supervision.guard import RunGuard

EngineKind = Literal["transformers", "vllm"]


class ChatError(Exception):
    """What was asked for cannot be done; the message says why, and what to do."""


class Engine(Protocol):
    """As much of the ``Inference`` port as answering takes."""

    async def start(self) -> None: ...

    async def generate(self, request: GenerationRequest) -> Generation: ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedModel:
    """A checkpoint's weights as an ordinary model folder.

    Attributes:
        config: The run's.
        rules: By which its trajectories were generated.
        version: Training steps that made the weights.
    """

    folder: Path
    config: RunConfig
    tokenizer: HuggingFaceTokenizer
    rules: RolloutRules
    version: Version


_OF_EPISODES = frozenset({callables.__name__, data.__name__, rewards.__name__})
"""Rules of what an episode is made of. The others are of training, on the machine of then."""


def read_config(run_dir: Path, *, plays: bool = False) -> RunConfig:
    """The configuration that a run was started with.

    Args:
        run_dir: The run's folder.
        plays: Whether an episode is to be played: then what that takes is checked.

    Raises:
        ChatError: it is not there, or cannot be used.
    """
    path = run_dir / ".hydra" / "config.yaml"
    if not path.is_file():
        raise ChatError(
            f"{run_dir} is no run's folder: it has no .hydra/config.yaml; give the folder that "
            "the run printed at its end"
        )
    register_arithmetic()
    try:
        tree = OmegaConf.to_container(OmegaConf.load(path), resolve=True)
        assert isinstance(tree, dict)
        rules = [each for each in RULES if plays and each.check.__module__ in _OF_EPISODES]
        return validate({str(key): value for key, value in tree.items()}, rules=rules)
    except (OmegaConfBaseException, ConfigurationError, OSError) as error:
        raise ChatError(f"{path} cannot be used: {error}") from error


def find_step(run_dir: Path, step: int | None) -> Path:
    """The checkpoint of a training step; None: the newest.

    Raises:
        ChatError: there is none; names those that there are.
    """
    found = list_checkpoints(run_dir / "checkpoints")
    if not found:
        raise ChatError(
            f"{run_dir} has no checkpoint; a run writes one at its end, and every "
            "checkpoint.every_steps training steps"
        )
    if step is None:
        return found[-1]
    for path in found:
        if path.name == f"step_{step:06d}":
            return path
    steps = ", ".join(str(int(path.name.removeprefix("step_"))) for path in found)
    raise ChatError(f"--step {step}: {run_dir} has no checkpoint of it; it has those of {steps}")


def prepare(
    run_dir: Path, folder: Path, *, step: int | None, base: str | None, plays: bool
) -> TrainedModel:
    """Exports a checkpoint into a folder that does not exist yet.

    Args:
        run_dir: The run's folder.
        folder: Where the model goes.
        step: As ``find_step`` takes it.
        base: As ``export`` takes it.
        plays: As ``read_config`` takes it.

    Raises:
        ChatError: the run's folder lacks what it takes.
        ExportError, ChatTemplateError: as ``export`` and ``rollout_rules`` say.
    """
    config = read_config(run_dir, plays=plays)
    checkpoint = find_step(run_dir, step)
    # In a process of its own: DeepSpeed, which reads the checkpoint, changes the environment of
    # the process that imports it, and an engine is not to inherit that.
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn, initializer=_speak_on_stderr) as pool:
        pool.submit(export, checkpoint, folder, base=base).result()
    tokenizer = HuggingFaceTokenizer(str(folder))
    return TrainedModel(
        folder=folder,
        config=config,
        tokenizer=tokenizer,
        rules=rollout_rules(config, tokenizer),
        version=read_state(checkpoint).version,
    )


def _speak_on_stderr() -> None:
    """Standard output is for answers, and DeepSpeed prints there."""
    os.dup2(2, 1)


@asynccontextmanager
async def started(
    model: TrainedModel,
    kind: EngineKind,
    *,
    device: Device,
    on_tokens: OnTokens | None = None,
) -> AsyncIterator[Engine]:
    """An engine with the model's weights, for as long as the context lasts."""
    async with AsyncExitStack() as stack:
        engine: Engine
        if kind == "transformers":
            engine = TransformersEngine(
                model.folder,
                version=model.version,
                device=device,
                decode=model.tokenizer.decode,
                on_tokens=on_tokens,
            )
        else:
            engine = await _vllm(model, device, stack)
        try:
            await engine.start()
            yield engine
        finally:
            await engine.close()


async def _vllm(model: TrainedModel, device: Device, stack: AsyncExitStack) -> Engine:
    """The run's own engine, one of it; a guard sees to it that none of its processes stays."""
    from colocate.adapters.vllm.engine import VllmInference

    run_id = uuid.uuid4().hex[:12]
    sockets = Path(tempfile.mkdtemp(prefix=f"colocate-{run_id}-"))
    await stack.enter_async_context(
        RunGuard(run_id, f"colocate-{run_id}", sockets, log_path=Path(os.devnull))
    )
    return VllmInference(
        model.folder,
        model.config.inference,
        dtype=model.config.model.dtype,
        device=device,
        seed=model.config.seed,
        log_file=model.folder.with_name("vllm.log"),
        run_id=run_id,
    )
