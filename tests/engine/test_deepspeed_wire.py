"""What crosses the socket between driver and ranks, and how weights are cut into buckets."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest
from deepspeed_support import make_batch
from hypothesis import given
from hypothesis import strategies as st

from colocate.adapters.deepspeed import wire
from colocate.adapters.deepspeed.export import plan_buckets


def body_of(frame: bytes) -> bytes:
    prefix, body = frame[: wire.LENGTH_BYTES], frame[wire.LENGTH_BYTES :]
    assert wire.body_length(prefix) == len(body)
    return body


def test_a_batch_arrives_as_it_was_sent():
    batch = make_batch(3)
    replayed = dataclasses.replace(batch.samples[-1], origin=0)
    batch = dataclasses.replace(batch, samples=[*batch.samples[:-1], replayed])
    request = wire.decode_request(body_of(wire.encode(wire.to_train(batch))))
    assert isinstance(request, wire.Train)
    arrived = wire.to_batch(request)
    assert (arrived.batch, arrived.version) == (batch.batch, batch.version)
    for sent, got in zip(batch.samples, arrived.samples, strict=True):
        for name in ("trajectory", "group", "reward", "masked", "origin"):
            assert getattr(got, name) == getattr(sent, name), name
        for name in ("token_ids", "loss_mask", "logprobs", "versions"):
            assert list(getattr(got, name)) == list(getattr(sent, name)), name


@pytest.mark.parametrize(
    "body",
    [
        {"type": "Unknown"},
        {"type": "Restore", "folder": 3},
        {"type": "Restore", "folder": "/tmp/x", "also": 1},
        {"type": "Trained", "version": 1, "metrics": {}},
    ],
)
def test_a_message_that_is_no_known_request_is_not_decoded(body):
    with pytest.raises(msgspec.ValidationError):
        wire.decode_request(msgspec.msgpack.encode(body))


@given(st.lists(st.integers(1, 50), max_size=30), st.integers(1, 60))
def test_buckets_hold_each_name_once_in_order_within_their_size(sizes, bucket_bytes):
    named = [(str(index), size) for index, size in enumerate(sizes)]
    buckets = plan_buckets(named, bucket_bytes)
    assert [name for bucket in buckets for name in bucket] == [name for name, _ in named]
    for bucket in buckets:
        assert len(bucket) == 1 or sum(sizes[int(name)] for name in bucket) <= bucket_bytes
