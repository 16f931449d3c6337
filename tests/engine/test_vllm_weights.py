"""After a publication the engine generates with the new weights and remembers nothing of the old.

The reference is transformers' forward pass over the same folders, in float32.
"""

from __future__ import annotations

import asyncio

import pytest
from vllm_support import make_request, max_difference, publish, reference_logprobs

from colocate.adapters.weights import StreamedTransfer
from colocate.core.types import FinishReason, SleepMode, Span, Version

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="session")]

TOLERANCE = 1e-3
PROMPT = [index % 17 for index in range(300)]
"""Longer than two KV blocks of 128 tokens, so that the prefix cache takes part."""


async def assert_serves(engine, folder, *, not_like=None):
    result = await engine.generate(make_request("probe", PROMPT))
    expected = reference_logprobs(folder, PROMPT, result.token_ids)
    assert max_difference(result.logprobs, expected) < TOLERANCE
    if not_like is not None:
        other = reference_logprobs(not_like, PROMPT, result.token_ids)
        assert max_difference(result.logprobs, other) > 100 * TOLERANCE
    return result


async def sleep_and_publish(engine, trainer, *, version):
    await engine.park()
    await engine.sleep(SleepMode.LEVEL_2)
    return await publish(engine, trainer, version=version)


async def test_tied_weights_are_served_after_each_of_two_level_2_sleeps(
    engine, tied_models, exporter
):
    await assert_serves(engine, tied_models.first, not_like=tied_models.second)
    publication = await sleep_and_publish(engine, exporter(tied_models.second), version=1)
    assert publication.num_tensors == len(await engine.expected_weight_names())
    await assert_serves(engine, tied_models.second, not_like=tied_models.first)
    await sleep_and_publish(engine, exporter(tied_models.first), version=2)
    await assert_serves(engine, tied_models.first, not_like=tied_models.second)


async def test_untied_weights_are_served_after_each_of_two_level_2_sleeps(
    untied_engine, untied_models, exporter
):
    assert "lm_head.weight" in await untied_engine.expected_weight_names()
    await assert_serves(untied_engine, untied_models.first, not_like=untied_models.second)
    await sleep_and_publish(untied_engine, exporter(untied_models.second), version=1)
    await assert_serves(untied_engine, untied_models.second, not_like=untied_models.first)
    await sleep_and_publish(untied_engine, exporter(untied_models.first), version=2)
    await assert_serves(untied_engine, untied_models.first, not_like=untied_models.second)


async def test_weights_are_replaced_while_resident(engine, tied_models, exporter):
    await publish(engine, exporter(tied_models.second), version=1)
    await assert_serves(engine, tied_models.second, not_like=tied_models.first)


async def test_one_bucket_for_all_weights_does_as_well_as_many(engine, tied_models, exporter):
    trainer = exporter(tied_models.second, bucket_bytes=2**30)
    await publish(engine, trainer, version=1)
    await assert_serves(engine, tied_models.second, not_like=tied_models.first)


async def test_the_prefix_cache_does_not_outlive_the_weights(engine, tied_models, exporter):
    await engine.generate(make_request("fill", PROMPT))
    cached = await engine.generate(make_request("hit", PROMPT))
    assert cached.num_cached_tokens >= 256
    await publish(engine, exporter(tied_models.second), version=1)
    result = await assert_serves(engine, tied_models.second, not_like=tied_models.first)
    assert result.num_cached_tokens == 0


async def test_tokens_carry_the_version_that_sampled_them(engine, tied_models, exporter):
    before = await engine.generate(make_request("before", PROMPT, max_new_tokens=5))
    assert before.spans == (Span(version=Version(0), length=5),)
    await publish(engine, exporter(tied_models.second), version=7)
    after = await engine.generate(
        make_request("after", [*PROMPT, *before.token_ids], max_new_tokens=3)
    )
    assert after.spans == (Span(version=Version(7), length=3),)


async def test_a_trainer_with_other_names_is_refused_before_anything_changes(
    engine, tied_models, exporter
):
    trainer = exporter(tied_models.second)
    del trainer.tensors["model.norm.weight"]
    await engine.park()
    with pytest.raises(RuntimeError, match=r"1 missing \['model.norm.weight'\]"):
        await StreamedTransfer(trainer, engine).publish(Version(1))
    await engine.resume()
    await assert_serves(engine, tied_models.first)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ({"withhold": ("model.layers.1.self_attn.k_proj.weight",)}, "never sent"),
        ({"withhold": ("model.norm.weight", "model.layers.0.mlp.up_proj.weight")}, "never sent"),
        ({"spoil": "model.layers.0.mlp.down_proj.weight"}, "checksum"),
        ({"spoil": "model.layers.1.self_attn.k_proj.weight"}, "checksum"),
    ],
)
@pytest.mark.parametrize("mode", [None, SleepMode.LEVEL_2])
async def test_a_broken_update_is_not_served_and_a_whole_one_mends_it(
    engine, tied_models, exporter, fault, message, mode
):
    await engine.park()
    if mode is not None:
        await engine.sleep(mode)
        await engine.wake("weights")
    with pytest.raises(Exception, match=message):
        await StreamedTransfer(exporter(tied_models.second, **fault), engine).publish(Version(1))
    assert engine.weights_version is None
    await engine.wake("kv_cache")
    with pytest.raises(RuntimeError, match="cannot be served"):
        await engine.generate(make_request("refused", PROMPT))
    await publish(engine, exporter(tied_models.second), version=2)
    await assert_serves(engine, tied_models.second, not_like=tied_models.first)


async def test_a_weight_sent_twice_is_refused(engine, tied_models, exporter):
    trainer = exporter(tied_models.second)
    await engine.park()
    await engine.begin_weight_update()
    async for bucket in trainer.export_buckets():
        await engine.load_bucket(bucket)
        with pytest.raises(Exception, match="came twice"):
            await engine.load_bucket(bucket)
        break


async def test_a_version_that_the_engine_holds_is_not_sent_again(engine, tied_models, exporter):
    transfer = StreamedTransfer(exporter(tied_models.second), engine)
    await engine.park()
    first = await transfer.publish(Version(1))
    assert (await transfer.publish(Version(1))).num_tensors == 0
    await engine.sleep(SleepMode.LEVEL_1)
    await engine.wake("weights")
    assert (await transfer.publish(Version(1))).num_bytes == 0
    await engine.wake("kv_cache")
    await assert_serves(engine, tied_models.second, not_like=tied_models.first)
    await engine.park()
    await engine.sleep(SleepMode.LEVEL_2)
    await engine.wake("weights")
    assert (await transfer.publish(Version(1))).num_bytes == first.num_bytes
    assert (await transfer.publish(Version(2))).num_bytes == first.num_bytes
    # Another trainer of the same version need not have the same weights.
    other = StreamedTransfer(exporter(tied_models.first), engine)
    assert (await other.publish(Version(2))).num_bytes == first.num_bytes
    await engine.wake("kv_cache")
    await assert_serves(engine, tied_models.first, not_like=tied_models.second)


async def test_a_publication_says_what_each_of_its_parts_took(engine, tied_models, exporter):
    publication = await publish(engine, exporter(tied_models.second), version=1)
    assert {"copy", "receive_checksum", "load", "finish"} <= publication.seconds.keys()
    received = {part: publication.seconds[part] for part in ("receive_checksum", "load", "finish")}
    assert all(seconds > 0 for seconds in received.values()), received


async def test_transport_can_be_timed_without_changing_the_engine(engine, tied_models, exporter):
    transfer = StreamedTransfer(exporter(tied_models.second), engine)
    await engine.park()
    rehearsal = await transfer.rehearse()
    await engine.resume()
    sizes = [tensor.nbytes for tensor in exporter(tied_models.second).tensors.values()]
    assert rehearsal.num_bytes == sum(sizes)
    assert 0 < rehearsal.seconds["receive"] < rehearsal.wall_s
    assert engine.weights_version == 0
    await assert_serves(engine, tied_models.first, not_like=tied_models.second)


@pytest.mark.parametrize("parked", [True, False])
async def test_the_engine_scores_prompts_as_transformers_does(engine, tied_models, parked):
    prompts = [PROMPT, PROMPT[:2], PROMPT[:130]]
    # Filled, the prefix cache would spare the engine most of the logits that are asked for.
    await engine.generate(make_request("fill", PROMPT))
    if parked:
        await engine.park()
    ((*scores,),) = await engine.prompt_logprobs(prompts)
    for prompt, logprobs in zip(prompts, scores, strict=True):
        expected = reference_logprobs(tied_models.first, prompt[:1], prompt[1:])
        assert max_difference(logprobs, expected) < TOLERANCE
    if parked:
        assert await engine._running().is_paused()
        await engine.resume()


async def test_nobody_else_is_let_in_while_a_parked_engine_scores(engine):
    await engine.park()
    scoring = asyncio.create_task(engine.prompt_logprobs([PROMPT]))
    results = []
    while not scoring.done():
        results.append(await engine.generate(make_request(f"early-{len(results)}", PROMPT)))
        await asyncio.sleep(0)
    assert {result.finish_reason for result in results} == {FinishReason.ABORT}
    await scoring
    await engine.resume()


async def test_prompts_are_not_scored_without_memory_or_without_weights(engine):
    await engine.park()
    await engine.sleep(SleepMode.KV)
    with pytest.raises(RuntimeError, match="must be awake"):
        await engine.prompt_logprobs([PROMPT])
    await engine.wake("kv_cache")
    await engine.reject_weights("they are somebody else's")
    with pytest.raises(RuntimeError, match="somebody else's"):
        await engine.prompt_logprobs([PROMPT])


async def test_weights_that_compute_what_the_trainer_computes_are_verified(
    engine, tied_models, exporter
):
    trainer = exporter(tied_models.second)
    trainer.version = 1
    transfer = StreamedTransfer(trainer, engine)
    await transfer.expect()
    with pytest.raises(RuntimeError, match="holds version 0, but the trainer scored 1"):
        await transfer.verify()
    await engine.park()
    await transfer.publish(Version(1))
    await transfer.verify()
    await engine.wake("kv_cache")
    await transfer.verify()
    await assert_serves(engine, tied_models.second, not_like=tied_models.first)


async def test_an_engine_that_computes_something_else_serves_nothing_more(
    engine, tied_models, exporter
):
    trainer = exporter(tied_models.second)
    trainer.version = 1
    # Names, shapes and checksums are right: only what the engine computes is not.
    trainer.tensors["model.norm.weight"] = trainer.tensors["model.norm.weight"] * 1.01
    transfer = StreamedTransfer(trainer, engine, tolerance=0.01)
    await transfer.expect()
    await engine.park()
    await transfer.publish(Version(1))
    await engine.wake("kv_cache")
    with pytest.raises(RuntimeError, match=r"engine 0 and trainer differ by 0\.\d+ .* most 0\.01"):
        await transfer.verify()
    with pytest.raises(RuntimeError, match="cannot be served: verify"):
        await engine.generate(make_request("refused", PROMPT))
    lenient = StreamedTransfer(trainer, engine, tolerance=5.0)
    await lenient.expect()
    await engine.park()
    assert (await lenient.publish(Version(1))).num_tensors > 0
    await engine.wake("kv_cache")
    await lenient.verify()


async def test_weights_cannot_be_written_while_requests_may_run(engine):
    with pytest.raises(RuntimeError, match="must be parked"):
        await engine.begin_weight_update()
