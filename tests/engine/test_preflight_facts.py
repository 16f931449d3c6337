"""What preflight knows of vLLM, DeepSpeed and the embedded model, importing none of them, is so.

And what it lets through reaches them.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from colocate.adapters.deepspeed.engine import deepspeed_config
from colocate.adapters.vllm.engine import VllmInference
from colocate.config import EmbeddedModelConfig, InferenceConfig, TrainerConfig
from colocate.embedded.model import build_embedded_model
from colocate.preflight import deepspeed as deepspeed_rules
from colocate.preflight.model_size import model_size
from colocate.preflight.signatures import field_names

pytestmark = pytest.mark.engine


def test_the_arguments_read_from_source_are_those_that_vllm_takes() -> None:
    from vllm.engine.arg_utils import AsyncEngineArgs

    taken = {field.name for field in dataclasses.fields(AsyncEngineArgs)}

    read = field_names("vllm", "engine/arg_utils.py", ("EngineArgs", "AsyncEngineArgs"))

    assert read == {name for name in taken if not name.startswith("_")}


@pytest.mark.asyncio
async def test_an_engine_takes_arguments_of_the_users_over_those_of_its_device(
    tied_models, tmp_path
):
    config = InferenceConfig(
        kv_cache_memory_bytes=2**24,
        max_model_len=64,
        max_num_seqs=8,
        engine_args={"max_num_batched_tokens": 96, "scheduling_policy": "priority"},
    )
    inference = VllmInference(
        tied_models.first,
        config,
        dtype="float32",
        device="cpu",
        seed=0,
        log_file=tmp_path / "engine.log",
        run_id="options",
        threads=1,
    )
    await inference.start()
    try:
        scheduler = inference._engine.vllm_config.scheduler_config
        assert scheduler.max_num_batched_tokens == 96
        assert scheduler.policy == "priority"
        assert not scheduler.enable_chunked_prefill
    finally:
        await inference.close()


def test_the_keys_read_from_source_are_those_that_deepspeed_takes() -> None:
    from deepspeed.compile.config import CompileConfig
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig

    for section, file in (
        (DeepSpeedZeroConfig, "runtime/zero/config.py"),
        (CompileConfig, "compile/config.py"),
    ):
        fields = section.model_fields
        aliases = {info.alias for info in fields.values() if info.alias}
        assert field_names("deepspeed", file, (section.__name__,)) == fields.keys() | aliases


def test_keys_that_go_through_to_deepspeed_are_ones_that_it_reads() -> None:
    import deepspeed

    folder = Path(deepspeed.__file__).parent
    source = "".join(file.read_text() for file in folder.rglob("*.py"))

    unread = {k for k in deepspeed_rules._PASSED if not re.search(rf"""["']{k}["']""", source)}

    assert unread == set()


def test_options_of_the_users_reach_deepspeed_beside_those_of_the_trainer() -> None:
    trainer = TrainerConfig(
        zero_stage=2, deepspeed={"zero_optimization": {"reduce_bucket_size": 5}, "timers": {}}
    )

    config = deepspeed_config(trainer, dtype="float32", num_elements=100)

    assert config["zero_optimization"]["stage"] == 2
    assert config["zero_optimization"]["reduce_bucket_size"] == 5
    assert config["timers"] == {}
    assert config["gradient_clipping"] == trainer.max_grad_norm


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize(("layers", "heads", "kv_heads"), [(1, 2, 1), (3, 4, 4)])
def test_the_embedded_model_is_as_large_as_said(
    tied: bool, layers: int, heads: int, kv_heads: int, tmp_path: Path
) -> None:
    shape = {
        "num_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "tie_word_embeddings": tied,
        "hidden_size": 48,
    }
    built = build_embedded_model(
        tmp_path,
        EmbeddedModelConfig.model_validate(shape),
        seed=0,
        dtype="bfloat16",
        max_model_len=16,
    )

    assert model_size(None, shape) == model_size(str(built), None)
