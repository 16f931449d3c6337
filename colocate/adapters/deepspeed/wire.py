"""The messages between the driver and its trainer ranks, and how they are framed.

A frame is a 4-byte big-endian length and that many bytes of MessagePack. Both ends decode into
the types below and refuse anything else; nothing is ever unpickled. Each request has one reply.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from typing import Any

import msgspec

from colocate.core.types import BatchId, GroupId, TrajectoryId, Version
from colocate.ports import TrainingBatch, TrainingSample

_LENGTH = struct.Struct(">I")
LENGTH_BYTES = _LENGTH.size
MAX_FRAME_BYTES = 2**32 - 1


class Message(msgspec.Struct, frozen=True, kw_only=True, tag=True, forbid_unknown_fields=True):
    """Base of all messages; the class's name is on the wire."""


class Sample(msgspec.Struct, frozen=True, array_like=True):
    """A ``TrainingSample``; sequences as the bytes of arrays (int32, uint8, float64, int32)."""

    trajectory: int
    group: int
    token_ids: bytes
    loss_mask: bytes
    logprobs: bytes
    versions: bytes
    reward: float
    masked: bool
    truncated: bool
    origin: int | None


class Setup(Message, frozen=True, kw_only=True):
    """The first request: everything a rank needs to build its engine.

    ``trainer`` and ``algorithm`` are JSON of the configuration's sections of those names;
    ``publish_dtype`` is the type that exported weights are cast to. ``lora`` is JSON too, ``null``
    where the whole model is trained.
    """

    model_path: str
    trainer: bytes
    algorithm: bytes
    dtype: str
    publish_dtype: str
    temperature: float
    fp32_head: bool
    lora: bytes
    steps: int
    seed: int
    device: str
    run_id: str
    rendezvous: str


class Train(Message, frozen=True, kw_only=True):
    batch: int
    version: int
    samples: list[Sample]


class Load(Message, frozen=True, kw_only=True):
    pass


class Offload(Message, frozen=True, kw_only=True):
    """Moves these ``Part``s off the device."""

    parts: list[str]


class ReadHoldings(Message, frozen=True, kw_only=True):
    pass


class Collect(Message, frozen=True, kw_only=True):
    pass


class Save(Message, frozen=True, kw_only=True):
    folder: str


class Restore(Message, frozen=True, kw_only=True):
    folder: str


class ListWeights(Message, frozen=True, kw_only=True):
    pass


class ScorePrompts(Message, frozen=True, kw_only=True):
    """Asks for log-probabilities at temperature 1. Each prompt is the bytes of an int32 array."""

    prompts: list[bytes]


class PackBucket(Message, frozen=True, kw_only=True):
    """Packs the parameters of one bucket. Of ``Weights.num_slots`` buckets the oldest is lost."""

    index: int
    checksums: bool


class EndExport(Message, frozen=True, kw_only=True):
    pass


class Close(Message, frozen=True, kw_only=True):
    pass


Request = (
    Setup
    | Train
    | Load
    | Offload
    | ReadHoldings
    | Collect
    | Save
    | Restore
    | ListWeights
    | ScorePrompts
    | PackBucket
    | EndExport
    | Close
)


class Hello(Message, frozen=True, kw_only=True):
    """What a rank says when it connects."""

    rank: int
    pid: int


class Done(Message, frozen=True, kw_only=True):
    pass


class Holdings(Message, frozen=True, kw_only=True):
    """Bytes that a rank holds: of its device by ``Part``, and of the host beside a GPU."""

    device: dict[str, int]
    host: int


class Trained(Message, frozen=True, kw_only=True):
    version: int
    metrics: dict[str, float]


class Restored(Message, frozen=True, kw_only=True):
    version: int


class Weights(Message, frozen=True, kw_only=True):
    """All names in order, how many buckets they make, and how many of these exist at a time."""

    names: list[str]
    num_buckets: int
    num_slots: int
    vocabulary_size: int


class Scored(Message, frozen=True, kw_only=True):
    """Float32 arrays, one for each prompt; the version and the type they were computed in."""

    version: int
    dtype: str
    logprobs: list[bytes]


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """A ``TensorEntry``."""

    name: str
    dtype: str
    shape: list[int]
    offset: int
    num_bytes: int
    checksum: str


class Packed(Message, frozen=True, kw_only=True):
    """A packed bucket. ``handle`` is None on a rank that has no buffer of its own.

    ``seconds`` of this rank, by part: ``"gather"``, ``"copy"`` (with merging), ``"checksum"``.
    """

    handle: dict[str, Any] | None
    entries: list[Entry]
    seconds: dict[str, float]


class Refusal(ValueError):
    """Raised in a rank for a request that every rank refuses alike, with nothing changed."""


class Refused(Message, frozen=True, kw_only=True):
    """The reply that a ``Refusal`` makes."""

    message: str


class FellShort(Message, frozen=True, kw_only=True):
    """The rank did what it could, which was less than asked. It is whole, and goes on."""

    message: str


class Failed(Message, frozen=True, kw_only=True):
    """Something broke; the rank's state is unknown from here on."""

    message: str
    traceback: str


Reply = (
    Done | Holdings | Trained | Restored | Weights | Scored | Packed | Refused | FellShort | Failed
)

_encoder = msgspec.msgpack.Encoder()
_request_decoder: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
_reply_decoder: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)
_hello_decoder: msgspec.msgpack.Decoder[Hello] = msgspec.msgpack.Decoder(Hello)


def encode(message: Message) -> bytes:
    """A whole frame."""
    body = _encoder.encode(message)
    if len(body) > MAX_FRAME_BYTES:
        raise ValueError(
            f"a {type(message).__name__} message of {len(body)} bytes is over the limit of "
            f"{MAX_FRAME_BYTES}; make the batch smaller"
        )
    return _LENGTH.pack(len(body)) + body


def body_length(prefix: bytes) -> int:
    """How many bytes follow a frame's prefix."""
    return int(_LENGTH.unpack(prefix)[0])


def decode_request(body: bytes) -> Request:
    return _request_decoder.decode(body)


def decode_reply(body: bytes) -> Reply:
    return _reply_decoder.decode(body)


def decode_hello(body: bytes) -> Hello:
    return _hello_decoder.decode(body)


def to_train(batch: TrainingBatch) -> Train:
    return Train(
        batch=batch.batch,
        version=batch.version,
        samples=[
            Sample(
                trajectory=sample.trajectory,
                group=sample.group,
                token_ids=_pack("i", sample.token_ids),
                loss_mask=_pack("B", sample.loss_mask),
                logprobs=_pack("d", sample.logprobs),
                versions=_pack("i", sample.versions),
                reward=sample.reward,
                masked=sample.masked,
                truncated=sample.truncated,
                origin=sample.origin,
            )
            for sample in batch.samples
        ],
    )


def to_batch(train: Train) -> TrainingBatch:
    return TrainingBatch(
        batch=BatchId(train.batch),
        version=Version(train.version),
        samples=[
            TrainingSample(
                trajectory=TrajectoryId(sample.trajectory),
                group=GroupId(sample.group),
                token_ids=array("i", sample.token_ids),
                loss_mask=array("B", sample.loss_mask),
                logprobs=array("d", sample.logprobs),
                versions=array("i", sample.versions),
                reward=sample.reward,
                masked=sample.masked,
                truncated=sample.truncated,
                origin=None if sample.origin is None else BatchId(sample.origin),
            )
            for sample in train.samples
        ],
    )


def to_score_prompts(prompts: Sequence[Sequence[int]]) -> ScorePrompts:
    return ScorePrompts(prompts=[_pack("i", prompt) for prompt in prompts])


def to_prompts(request: ScorePrompts) -> list[list[int]]:
    return [array("i", prompt).tolist() for prompt in request.prompts]


def to_logprobs(reply: Scored) -> list[list[float]]:
    return [array("f", values).tolist() for values in reply.logprobs]


def _pack(typecode: str, values: Sequence[int] | Sequence[float]) -> bytes:
    return array(typecode, values).tobytes()
