"""The ``WeightTransfer`` port: from the trainer to every engine worker, bucket by bucket."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Protocol

from colocate.core.types import Version
from colocate.ports import Publication, WeightBucket


class WeightSource(Protocol):
    """The trainer, as far as its weights go."""

    async def weight_names(self) -> Sequence[str]:
        """Names of all that ``export_buckets`` will send, each once."""

    def export_buckets(self) -> AsyncGenerator[WeightBucket, None]:
        """Full parameters, packed. A bucket is valid until the iterator is asked for the next."""


class WeightSink(Protocol):
    """The engine, as far as its weights go. Between begin and finish it serves nothing."""

    async def expected_weight_names(self) -> Sequence[str]:
        """Names of the tensors that make one complete update."""

    async def begin_weight_update(self) -> None: ...

    async def load_bucket(self, bucket: WeightBucket) -> None: ...

    async def finish_weight_update(self, version: Version) -> None: ...


class StreamedTransfer:
    """Publishes the source's weights to the sink.

    Names are compared before anything is changed, checksums by each worker as it receives, and
    completeness once more by each worker at the end. After a failure the sink refuses to serve
    until a whole publication has succeeded.
    """

    def __init__(self, trainer: WeightSource, inference: WeightSink) -> None:
        self._trainer = trainer
        self._inference = inference

    async def publish(self, version: Version) -> Publication:
        """Streams every parameter and sets the engine's version.

        Raises:
            RuntimeError: names that differ; otherwise what trainer or engine raise.
        """
        _require_same_names(
            sent=await self._trainer.weight_names(),
            expected=await self._inference.expected_weight_names(),
        )
        num_tensors = num_bytes = 0
        await self._inference.begin_weight_update()
        async with aclosing(self._trainer.export_buckets()) as buckets:
            async for bucket in buckets:
                await self._inference.load_bucket(bucket)
                num_tensors += len(bucket.entries)
                num_bytes += sum(entry.num_bytes for entry in bucket.entries)
        await self._inference.finish_weight_update(version)
        return Publication(version=version, num_tensors=num_tensors, num_bytes=num_bytes)


def _require_same_names(*, sent: Sequence[str], expected: Sequence[str]) -> None:
    missing = sorted(set(expected) - set(sent))
    unknown = sorted(set(sent) - set(expected))
    if missing or unknown or len(sent) != len(set(sent)):
        raise RuntimeError(
            "publish: the trainer's parameters must be the model's weights, each once; "
            f"{len(missing)} missing {missing[:3]}, {len(unknown)} unknown {unknown[:3]}, "
            f"{len(sent) - len(set(sent))} repeated; nothing was changed"
        )
