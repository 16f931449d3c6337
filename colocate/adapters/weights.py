"""The ``WeightTransfer`` port: from the trainer to every engine worker, bucket by bucket."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Protocol

from colocate.adapters.verification import (
    MAX_PROMPT_TOKENS,
    ScoredPrompts,
    difference_of,
    limit_of,
    probe_prompts,
)
from colocate.core.types import Version
from colocate.ports import Publication, WeightBucket


class WeightSource(Protocol):
    """The trainer, as far as its weights go."""

    async def weight_names(self) -> Sequence[str]:
        """Names of all that ``export_buckets`` will send, each once."""

    async def vocabulary_size(self) -> int:
        """Number of tokens that the model has an embedding for."""

    async def score(self, prompts: Sequence[Sequence[int]]) -> ScoredPrompts:
        """Log-probabilities of each prompt's tokens but the first, at temperature 1.

        Its parameters must be resident.
        """

    def export_buckets(self, *, checksums: bool = True) -> AsyncGenerator[WeightBucket, None]:
        """Full parameters, packed. A bucket is valid until the iterator is asked for the next."""

    def export_seconds(self) -> Mapping[str, float]:
        """Of the last export that was read to its end, by part, of the slowest rank."""


class WeightSink(Protocol):
    """The engine, or several that are updated as one, as far as its weights go.

    Between begin and finish it serves nothing.
    """

    @property
    def weights_version(self) -> Version | None:
        """Of the complete set that every engine holds, asleep or awake; None where there is none.

        None from the beginning of an update to its end, after a level 2 sleep, after
        ``reject_weights``, and where engines differ.
        """

    async def expected_weight_names(self) -> Sequence[str]:
        """Names of the tensors that make one complete update."""

    async def begin_weight_update(self) -> None: ...

    async def load_bucket(self, bucket: WeightBucket) -> None:
        """On return every worker has loaded it and reads it no more."""

    async def finish_weight_update(self, version: Version) -> Mapping[str, float]:
        """Ends the update; returns what it took since its beginning.

        Seconds by part (``"receive_checksum"``, ``"load"``, ``"finish"``), each of the slowest
        worker.
        """

    async def copy_bucket(self, bucket: WeightBucket | None) -> float:
        """Has every worker copy a bucket to memory kept for that; None: gives that memory back.

        Changes nothing of the model. Returns the seconds of the slowest.
        """

    async def prompt_logprobs(
        self, prompts: Sequence[Sequence[int]]
    ) -> Sequence[Sequence[Sequence[float]]]:
        """For each engine, for each prompt: log-probabilities of its tokens but the first.

        Of plain log-softmax at temperature 1. All memory must be awake; while parked no other
        request is let in meanwhile.
        """

    async def reject_weights(self, reason: str) -> None:
        """Has every engine refuse to generate until a whole update has landed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """What transport alone took. Parts overlap, so their sum may exceed ``wall_s``."""

    num_bytes: int
    wall_s: float
    seconds: Mapping[str, float]


class StreamedTransfer:
    """Publishes the source's weights to the sink, and compares what both make of them.

    Names are compared before anything is changed, checksums by each worker as it receives, and
    completeness once more by each worker at the end. After a failure the sink refuses to serve
    until a whole publication has succeeded.

    Args:
        max_model_len: Of the engine; prompts that are scored are shorter.
        seed: Of those prompts.
        tolerance: The difference of log-probabilities that passes, the largest in float32, the
            mean in bfloat16; None: by the types that both sides compute in.
    """

    def __init__(
        self,
        trainer: WeightSource,
        inference: WeightSink,
        *,
        max_model_len: int = MAX_PROMPT_TOKENS + 1,
        seed: int = 0,
        tolerance: float | None = None,
    ) -> None:
        self._trainer = trainer
        self._inference = inference
        self._max_model_len = max_model_len
        self._seed = seed
        self._tolerance = tolerance
        self._published: Version | None = None
        self._expected: ScoredPrompts | None = None

    async def publish(self, version: Version) -> Publication:
        """Streams every parameter and sets the engine's version.

        Where this object published that version before and the engine still holds it, nothing is
        sent, and the publication says so: it has no tensors.

        Raises:
            RuntimeError: names that differ; otherwise what trainer or engine raise.
        """
        if self._published == version and self._inference.weights_version == version:
            return Publication(version=version, num_tensors=0, num_bytes=0)
        self._published = None
        _require_same_names(
            sent=await self._trainer.weight_names(),
            expected=await self._inference.expected_weight_names(),
        )
        num_tensors = num_bytes = 0
        await self._inference.begin_weight_update()
        try:
            async with aclosing(self._trainer.export_buckets()) as buckets:
                async for bucket in buckets:
                    await self._inference.load_bucket(bucket)
                    num_tensors += len(bucket.entries)
                    num_bytes += sum(entry.num_bytes for entry in bucket.entries)
            received = await self._inference.finish_weight_update(version)
        except Exception as error:
            # It refuses since the beginning; this says why, as far as the engine still listens.
            with suppress(Exception):
                await self._inference.reject_weights(f"publishing version {version}: {error}")
            raise
        self._published = version
        return Publication(
            version=version,
            num_tensors=num_tensors,
            num_bytes=num_bytes,
            seconds={**self._trainer.export_seconds(), **received},
        )

    async def expect(self) -> None:
        """Has the trainer score fixed prompts, for ``verify``. Its parameters must be resident."""
        prompts = probe_prompts(
            await self._trainer.vocabulary_size(),
            max_model_len=self._max_model_len,
            seed=self._seed,
        )
        self._expected = await self._trainer.score(prompts)

    async def verify(self) -> None:
        """Compares every engine's log-probabilities of those prompts with the trainer's.

        Raises:
            RuntimeError: they differ by more than the tolerance, and the engine now refuses to
                serve; or the engine holds another version than the trainer scored.
        """
        expected = self._expected
        held = self._inference.weights_version
        if expected is None or expected.version != held:
            scored = "none" if expected is None else expected.version
            raise RuntimeError(
                f"verify: the engine holds version {held}, but the trainer scored {scored}; "
                "call expect while the trainer is at the version that is published"
            )
        limit = limit_of(expected.dtypes, self._tolerance)
        for engine, actual in enumerate(await self._inference.prompt_logprobs(expected.prompts)):
            found = difference_of(expected.logprobs, actual)
            if limit.is_exceeded_by(found):
                problem = (
                    f"verify: engine {engine} and trainer differ by {found.largest:.3g} in the "
                    f"log-probability of token {found.token} of prompt {found.prompt}, by "
                    f"{found.mean:.3g} in the mean, at version {held}; the {limit.of} must be at "
                    f"most {limit.value:.3g} (inference.verify_tolerance) in "
                    f"{'/'.join(dict.fromkeys(expected.dtypes))}; the prompt is "
                    f"{list(expected.prompts[found.prompt])}"
                )
                await self._inference.reject_weights(problem)
                raise RuntimeError(problem)

    async def rehearse(self) -> Rehearsal:
        """Carries all weights to memory of the engine's workers, and has it thrown away.

        What is timed is transport alone, without checksums and without the engine's loading. It
        is done once before the clock runs, for the memory that is copied into to be resident, as
        an engine's own is. The engine must be idle; nothing of it changes.
        """
        for _ in range(2):
            began = time.perf_counter()
            receive = 0.0
            num_bytes = 0
            async with aclosing(self._trainer.export_buckets(checksums=False)) as buckets:
                async for bucket in buckets:
                    receive += await self._inference.copy_bucket(bucket)
                    num_bytes += sum(entry.num_bytes for entry in bucket.entries)
            wall_s = time.perf_counter() - began
        await self._inference.copy_bucket(None)
        return Rehearsal(
            num_bytes=num_bytes,
            wall_s=wall_s,
            seconds={**self._trainer.export_seconds(), "receive": receive},
        )


def _require_same_names(*, sent: Sequence[str], expected: Sequence[str]) -> None:
    missing = sorted(set(expected) - set(sent))
    unknown = sorted(set(sent) - set(expected))
    if missing or unknown or len(sent) != len(set(sent)):
        raise RuntimeError(
            "publish: the trainer's parameters must be the model's weights, each once; "
            f"{len(missing)} missing {missing[:3]}, {len(unknown)} unknown {unknown[:3]}, "
            f"{len(sent) - len(set(sent))} repeated; nothing was changed"
        )
