"""Real engines, started once for all tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio
from vllm_support import FolderExporter, publish

from colocate.config import EmbeddedModelConfig, InferenceConfig
from colocate.embedded.model import build_embedded_model
from tests.patience import patient

MAX_MODEL_LEN = 512
KV_CACHE_BYTES = 256 * 2**20

FIRST = [
    "test_contracts.py",
    "test_deepspeed_training.py",
    "test_whole_runs.py",
    "test_publication.py",
    "test_deepspeed_residency.py",
    "test_vllm_swap.py",
    "test_broken_swaps.py",
]
"""The most telling ones: where the time for tests is bounded, the last ones are left out."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    here = [item for item in items if item.path.parent == Path(__file__).parent]
    order = {name: place for place, name in enumerate(FIRST)}
    here.sort(key=lambda item: order.get(item.path.name, len(order)))
    others = [item for item in items if item.path.parent != Path(__file__).parent]
    items[:] = [*others, *here]
    for item in here:
        limit = item.get_closest_marker("timeout")
        seconds = limit.args[0] if limit else float(config.getini("timeout"))
        item.add_marker(pytest.mark.timeout(patient(seconds)), append=False)


@dataclass(frozen=True)
class ModelPair:
    """Two models of one shape, with different weights."""

    first: Path
    second: Path


@pytest.fixture(scope="session")
def tied_models(tmp_path_factory: pytest.TempPathFactory) -> ModelPair:
    return _build_pair(tmp_path_factory.mktemp("tied"), tie_word_embeddings=True)


@pytest.fixture(scope="session")
def untied_models(tmp_path_factory: pytest.TempPathFactory) -> ModelPair:
    return _build_pair(tmp_path_factory.mktemp("untied"), tie_word_embeddings=False)


def _build_pair(folder: Path, *, tie_word_embeddings: bool) -> ModelPair:
    # A wide initial spread, so that the two models' log-probabilities lie far apart.
    shape = EmbeddedModelConfig(tie_word_embeddings=tie_word_embeddings, initializer_range=0.2)
    first, second = (
        build_embedded_model(
            folder / str(seed), shape, seed=seed, dtype="float32", max_model_len=MAX_MODEL_LEN
        )
        for seed in (1, 2)
    )
    return ModelPair(first=first, second=second)


@pytest.fixture
def exporter(tmp_path: Path) -> Callable[..., FolderExporter]:
    def make(folder: Path, **options: object) -> FolderExporter:
        return FolderExporter(folder, tmp_path, **options)  # type: ignore[arg-type]

    return make


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def tied_engine(tied_models: ModelPair, tmp_path_factory) -> AsyncIterator:  # type: ignore[no-untyped-def, type-arg]
    async for engine in _running_engine(tied_models.first, tmp_path_factory.mktemp("engine")):
        yield engine


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def untied_engine(untied_models: ModelPair, tmp_path_factory) -> AsyncIterator:  # type: ignore[no-untyped-def, type-arg]
    async for engine in _running_engine(untied_models.first, tmp_path_factory.mktemp("engine")):
        yield engine


async def _running_engine(model: Path, folder: Path) -> AsyncIterator:  # type: ignore[type-arg]
    from colocate.adapters.vllm.engine import VllmInference

    engine = VllmInference(
        model,
        InferenceConfig(
            kv_cache_memory_bytes=KV_CACHE_BYTES, max_model_len=MAX_MODEL_LEN, max_num_seqs=64
        ),
        dtype="float32",
        device="cpu",
        seed=0,
        log_file=folder / "engine.log",
        run_id="tests",
        threads=1,
    )
    await engine.start()
    yield engine
    await engine.close()
    assert not engine.process_ids()


@pytest_asyncio.fixture(loop_scope="session")
async def engine(tied_engine, tied_models, exporter):  # type: ignore[no-untyped-def]
    """The engine with tied embeddings: awake, serving the first model at version 0."""
    yield tied_engine
    await publish(tied_engine, exporter(tied_models.first), version=0)
