"""Both ends of the shared memory that weights go through, without the engines behind them."""

from __future__ import annotations

import mmap
import os
import resource
import stat
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from colocate.adapters.deepspeed.buffers import SharedMemoryBuffers
from colocate.adapters.deepspeed.export import Exporter
from colocate.adapters.deepspeed.shared_memory import FOLDER, file_prefix
from colocate.adapters.vllm.buffers import OpenBuffers
from colocate.learn.lora import Weight

RUN_ID = "buffers"


@pytest.fixture
def writer() -> Iterator[SharedMemoryBuffers]:
    buffers = SharedMemoryBuffers(RUN_ID, rank=0, num_ranks=1)
    yield buffers
    buffers.release()
    assert not files()


@pytest.fixture
def reader() -> OpenBuffers:
    return OpenBuffers(torch.device("cpu"))


def files() -> list[Path]:
    return sorted(FOLDER.glob(f"{file_prefix(RUN_ID)}*"))


def path_of(writer: SharedMemoryBuffers, slot: int) -> Path:
    handle = writer.handle(slot)
    assert handle is not None
    return Path(handle["path"])


def send(writer: SharedMemoryBuffers, reader: OpenBuffers, slot: int, values: list[int]) -> None:
    data = torch.tensor(values, dtype=torch.uint8)
    writer.open(slot, len(values)).copy_(data)
    handle = writer.handle(slot)
    assert handle is not None
    assert torch.equal(reader.open(handle)[: len(values)], data)


def test_bucket_after_bucket_goes_through_the_same_two_files(writer, reader):
    seen = []
    for index in range(6):
        send(writer, reader, index % 2, [index + 1] * 5000)
        seen.append({path.stat().st_ino for path in files()})
    assert [len(inodes) for inodes in seen] == [1, 2, 2, 2, 2, 2]
    assert all(inodes == seen[-1] for inodes in seen[1:])


def test_the_next_publication_finds_the_files_of_the_last(writer, reader):
    send(writer, reader, 0, [1] * 5000)
    before = [path.stat().st_ino for path in files()]
    reader.close()
    writer.rest()
    send(writer, reader, 0, [2] * 5000)
    assert [path.stat().st_ino for path in files()] == before


def test_a_file_that_somebody_removed_is_made_again(writer, reader):
    send(writer, reader, 0, [1] * 5000)
    path_of(writer, 0).unlink()
    send(writer, reader, 0, [2] * 5000)
    path_of(writer, 0).unlink()
    path_of(writer, 0).write_bytes(b"another's")
    send(writer, reader, 0, [3] * 5000)
    assert path_of(writer, 0).read_bytes() == bytes([3]) * 5000


def test_a_slot_grows_for_a_larger_bucket_and_serves_smaller_ones(writer, reader):
    for index, size in enumerate([100, 70_000, 30, 200_000]):
        send(writer, reader, 0, [index + 1] * size)
    assert path_of(writer, 0).stat().st_size == 200_000


def test_pages_are_in_place_before_they_are_written(writer):
    num_pages = 1024
    buffer = writer.open(0, num_pages * mmap.PAGESIZE).numpy()
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    buffer.fill(1)
    assert resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before < num_pages // 8


def test_a_slot_is_made_once_for_the_largest_bucket_that_it_will_hold(writer, reader):
    sizes = (100, 300, 400, 1200, 700, 200)
    parameters = {str(n): nn.Parameter(torch.full((n,), float(n))) for n in sizes}
    exporter = Exporter(
        SimpleNamespace(weights=lambda: {n: Weight(p) for n, p in parameters.items()}),
        writer,
        dtype=torch.float32,
        bucket_bytes=1,
        rank=0,
        num_ranks=1,
    )
    made: dict[str, set[tuple[int, int]]] = {}
    for index, size in enumerate(sizes):
        packed = exporter.pack(index, checksums=False)
        status = Path(packed.handle["path"]).stat()
        made.setdefault(packed.handle["path"], set()).add((status.st_ino, status.st_size))
        values = reader.open(packed.handle)[: 4 * size].view(torch.float32)
        assert torch.equal(values, parameters[str(size)].detach())
    assert [sorted(size for _, size in files) for files in made.values()] == [[2800], [4800]]


def test_a_sender_may_use_one_name_for_files_one_after_another(tmp_path, reader):
    path = tmp_path / "bucket"
    for index in range(4):
        path.write_bytes(bytes([index]) * 4096)
        assert reader.open({"kind": "shm", "path": str(path)}).unique().tolist() == [index]
        path.unlink()


def test_only_this_user_can_open_the_files(writer):
    writer.open(0, 10)
    assert stat.S_IMODE(path_of(writer, 0).stat().st_mode) == 0o600


def test_what_lies_in_the_way_is_replaced_and_never_followed(writer, tmp_path):
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    path_of(writer, 0).symlink_to(victim)
    path_of(writer, 1).write_bytes(b"left by a rank that was killed")
    for slot in (0, 1):
        writer.open(slot, 100).fill_(7)
        assert path_of(writer, slot).read_bytes() == bytes([7]) * 100
    assert victim.read_bytes() == b"precious"


def test_too_little_room_is_said_before_a_byte_is_written(writer):
    room = os.statvfs(FOLDER)
    with pytest.raises(OSError, match=r"no room .*lower trainer.publish_bucket_bytes.*--shm-size"):
        writer.open(0, (room.f_blocks + 1) * room.f_frsize)
    assert not files()
    writer.open(0, 100).fill_(1)
