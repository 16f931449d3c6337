"""What engines that share a process must not share, and what they cannot help sharing."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from pathlib import Path

import pytest

from colocate.adapters.vllm.platform import engine_platform
from colocate.adapters.vllm.spawn import vllm_logging_to
from colocate.config import InferenceConfig

CONFIG = InferenceConfig(kv_cache_memory_bytes=2**20, max_model_len=64)


@pytest.mark.parametrize("first_to_end", [0, 1])
def test_logs_of_two_engines_may_end_in_any_order(tmp_path: Path, first_to_end: int) -> None:
    logger = logging.getLogger("vllm")
    before = (list(logger.handlers), logger.propagate, logger.level)
    logs = [tmp_path / "vllm.0.log", tmp_path / "vllm.1.log"]
    contexts = [ExitStack(), ExitStack()]
    for context, log in zip(contexts, logs, strict=True):
        context.enter_context(vllm_logging_to(log))
    logger.warning("said to both")
    contexts[first_to_end].close()
    logger.warning("said to one")
    contexts[1 - first_to_end].close()
    for index, log in enumerate(logs):
        assert log.read_text().count("said to both") == 1
        assert log.read_text().count("said to one") == (index != first_to_end)
    assert (logger.handlers, logger.propagate, logger.level) == before


def test_an_engine_sees_only_the_gpus_it_is_given() -> None:
    some = engine_platform("cuda", CONFIG, None, ("GPU-a", "GPU-b")).environment
    assert some["CUDA_VISIBLE_DEVICES"] == "GPU-a,GPU-b"
    assert "CUDA_VISIBLE_DEVICES" not in engine_platform("cuda", CONFIG, None).environment


@pytest.mark.parametrize("wanted", [True, False])
def test_the_configuration_decides_on_batch_invariance_whatever_a_shell_says(wanted: bool) -> None:
    config = CONFIG.model_copy(update={"batch_invariant": wanted})
    environment = engine_platform("cuda", config, None).environment
    assert environment["VLLM_BATCH_INVARIANT"] == str(int(wanted))
