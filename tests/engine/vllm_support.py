"""A stand-in for the trainer with real bytes, requests, and transformers as the reference."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

from colocate.adapters.verification import ScoredPrompts
from colocate.adapters.weights import StreamedTransfer
from colocate.core.types import Version
from colocate.ports import GenerationRequest, Publication, TensorEntry, WeightBucket


class FolderExporter:
    """Publishes the model of a folder as the trainer would its own.

    Args:
        folder: Of a Hugging Face model.
        scratch: Where the buckets' files are.
        bucket_bytes: Small, so that layers are cut by the ends of buckets.
        withhold: Names that are announced, but never sent.
        spoil: Flips one byte of this tensor after its checksum was taken.
    """

    def __init__(
        self,
        folder: Path,
        scratch: Path,
        *,
        bucket_bytes: int = 100_000,
        withhold: Sequence[str] = (),
        spoil: str | None = None,
    ) -> None:
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_pretrained(folder)
        self.tensors = {name: value.detach() for name, value in model.named_parameters()}
        self.version = 0
        self._folder = folder
        self._vocabulary_size = model.config.vocab_size
        self._scratch = scratch
        self._bucket_bytes = bucket_bytes
        self._withhold = withhold
        self._spoil = spoil

    async def weight_names(self) -> list[str]:
        return list(self.tensors)

    async def vocabulary_size(self) -> int:
        return int(self._vocabulary_size)

    async def score(self, prompts: Sequence[Sequence[int]]) -> ScoredPrompts:
        """Of the folder's own weights, whatever was done to ``tensors``, at ``version``."""
        return ScoredPrompts(
            version=Version(self.version),
            dtypes=("float32", "float32"),
            prompts=prompts,
            logprobs=[
                reference_logprobs(self._folder, prompt[:1], prompt[1:]) for prompt in prompts
            ],
        )

    def export_seconds(self) -> dict[str, float]:
        return {"copy": 0.0}

    async def export_buckets(self, *, checksums: bool = True) -> AsyncGenerator[WeightBucket, None]:
        names = [name for name in self.tensors if name not in self._withhold]
        while names:
            batch = [names.pop(0)]
            size = self.tensors[batch[0]].nbytes
            while names and size + self.tensors[names[0]].nbytes <= self._bucket_bytes:
                size += self.tensors[names[0]].nbytes
                batch.append(names.pop(0))
            bucket = self._pack(batch)
            try:
                yield bucket
            finally:
                _destroy(Path(bucket.handle["path"]))

    def _pack(self, names: Sequence[str]) -> WeightBucket:
        import torch

        from colocate.adapters.checksum import tensor_checksum

        path = self._scratch / f"bucket-{os.getpid()}"
        entries, data = [], bytearray()
        for name in names:
            tensor = self.tensors[name].contiguous()
            entries.append(
                TensorEntry(
                    name=name,
                    dtype=str(tensor.dtype).removeprefix("torch."),
                    shape=tuple(tensor.shape),
                    offset=len(data),
                    num_bytes=tensor.nbytes,
                    checksum=tensor_checksum(tensor),
                )
            )
            content = bytearray(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
            if name == self._spoil:
                content[len(content) // 2] ^= 1
            data += content + bytes(-len(content) % 64)
        path.write_bytes(data)
        return WeightBucket(handle={"kind": "shm", "path": str(path)}, entries=tuple(entries))


def _destroy(path: Path) -> None:
    """Overwrites, not only deletes: the receiver must not depend on a bucket any more."""
    path.write_bytes(b"\xff" * path.stat().st_size)
    path.unlink()


async def publish(engine: Any, trainer: Any, *, version: int) -> Publication:
    """Brings the engine from any state to serving the trainer's weights."""
    await engine.park()
    await engine.wake("weights")
    publication = await StreamedTransfer(trainer, engine).publish(Version(version))
    await engine.wake("kv_cache")
    return publication


def make_request(
    name: str,
    prompt: Sequence[int],
    *,
    max_new_tokens: int = 8,
    seed: int = 0,
    temperature: float = 1.0,
    stop_token_ids: tuple[int, ...] = (),
    stop: tuple[str, ...] = (),
    affinity: str | None = None,
) -> GenerationRequest:
    return GenerationRequest(
        request_id=name,
        prompt_token_ids=prompt,
        max_new_tokens=max_new_tokens,
        seed=seed,
        temperature=temperature,
        stop_token_ids=stop_token_ids,
        stop=stop,
        affinity=affinity,
    )


def reference_logprobs(
    folder: Path, prompt: Sequence[int], completion: Sequence[int], *, temperature: float = 1.0
) -> list[float]:
    """Transformers' log-probabilities of ``completion`` after ``prompt``, in float32."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ids = torch.tensor([[*prompt, *completion]])
    with torch.no_grad():
        logits = model(ids).logits[0, len(prompt) - 1 : -1] / temperature
    chosen = logits.log_softmax(-1).gather(1, ids[0, len(prompt) :, None])
    values: list[float] = chosen[:, 0].tolist()
    return values


def max_difference(left: Sequence[float], right: Sequence[float]) -> float:
    assert len(left) == len(right) > 0
    return max(abs(a - b) for a, b in zip(left, right, strict=True))
