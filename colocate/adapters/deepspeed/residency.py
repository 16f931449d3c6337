"""What one rank's state takes of its device, by part, and the proof that a move has moved it.

Bytes are counted over the tensors that really hold the state, each storage once: under ZeRO 3 the
shards and not the parameters, which are empty then; under ZeRO 1 and 2 the flat buffers that the
parameters are views of. Buffers of the model that are no parameters (rotary tables, some KB) stay
where they are and are not counted, nor are small parameters that ZeRO 3 keeps gathered.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import torch

from colocate.adapters.deepspeed.moves import FrozenReference, ZeroState, flat, release_caches
from colocate.core.types import TRAINER_PARTS, Part

RESIDUE_BYTES = 2**20
"""What may stay of a part that has left: counters of the optimizer, an allocator's rounding."""

_Key = TypeVar("_Key", bound=Hashable)


class StillHeldError(RuntimeError):
    """The device holds bytes of a part that should have left it. The state is known and whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holdings:
    """What a rank holds, in bytes.

    Attributes:
        device: Of the device, by part; every part of a trainer is there. On CPU the device is the
            host.
        host: Of the machine's memory beside a GPU: what has left it, and the pinned copies that
            are kept for the next time. 0 on CPU.
    """

    device: Mapping[Part, int]
    host: int


class Residency:
    """Where a rank's parts are. It has them moved, and counts what that has done.

    Args:
        reference: None where there is no KL term.
    """

    def __init__(
        self, state: ZeroState, reference: FrozenReference | None, *, device: torch.device
    ) -> None:
        self._state = state
        self._reference = reference
        self._device = device
        self._before: dict[Part, int] = {}

    @property
    def offloaded(self) -> frozenset[Part]:
        reference = self._reference
        return self._state.offloaded | (reference.offloaded if reference else frozenset())

    def holdings(self) -> Holdings:
        """Counts, and moves nothing. Takes milliseconds."""
        tensors = self._state.tensors()
        copies = self._state.host_copies()
        if self._reference is not None:
            tensors[Part.REFERENCE] = self._reference.tensors()
            copies += self._reference.host_copies()
        held = count_bytes(tensors)
        on_gpu = self._device.type != "cpu"
        host = count_bytes({"host": [tensors, copies]}).get(("host", "cpu"), 0) if on_gpu else 0
        return Holdings(
            device={part: held.get((part, self._device.type), 0) for part in sorted(TRAINER_PARTS)},
            host=host,
        )

    def offload(self, parts: Collection[Part]) -> None:
        """Moves parts to the host. On CPU only gradients leave, and nothing takes their place.

        Raises:
            StillHeldError: the device holds what should have left it.
            RuntimeError: on CPU, where bytes of something else have come or gone.
        """
        self._state.settle(parts)
        leaving = frozenset(parts) - self.offloaded
        before = self.holdings().device
        allocated = _allocated(self._device)
        self._before |= {part: before[part] for part in leaving}
        self._state.offload(parts)
        if self._reference is not None and Part.REFERENCE in parts:
            self._reference.offload()
        release_caches()
        held = self.holdings().device
        if self._device.type == "cpu":
            check_conserved(held, before, leaving=leaving & {Part.GRADIENTS})
        else:
            check_gone(held, parts, device=str(self._device))
            freed = allocated - _allocated(self._device)
            check_freed(freed, {part: before[part] for part in leaving})

    def load(self) -> None:
        """Brings every part back.

        Raises:
            RuntimeError: a part does not take what it took before it left.
        """
        self._state.load()
        if self._reference is not None:
            self._reference.load()
        check_back(self.holdings().device, self._before)
        self._before.clear()


def count_bytes(tensors: Mapping[_Key, object]) -> dict[tuple[_Key, str], int]:
    """Bytes by key and by type of device (``"cpu"``, ``"cuda"``).

    Args:
        tensors: As ``flat`` reads them. A storage that several refer to counts once, for the first.
    """
    totals: dict[tuple[_Key, str], int] = {}
    seen: set[tuple[torch.device, int]] = set()
    for key, value in tensors.items():
        for tensor in flat(value):
            storage = tensor.untyped_storage()
            name = (storage.device, storage.data_ptr())
            if storage.nbytes() and name not in seen:
                seen.add(name)
                place = (key, storage.device.type)
                totals[place] = totals.get(place, 0) + storage.nbytes()
    return totals


def check_gone(held: Mapping[Part, int], parts: Collection[Part], *, device: str) -> None:
    """Raises StillHeldError where tensors of parts that left are still on the device."""
    staying = {part: held[part] for part in sorted(parts) if held[part] > RESIDUE_BYTES}
    if staying:
        raise StillHeldError(
            f"offload: {device} still holds {_listed(staying)}; at most {RESIDUE_BYTES} bytes of "
            f"each may stay"
        )


def check_freed(freed: int, left: Mapping[Part, int]) -> None:
    """Raises StillHeldError where torch's allocator got back less than what has left.

    Then something that is counted nowhere still refers to the memory.
    """
    expected = sum(left.values())
    if freed < expected - RESIDUE_BYTES:
        raise StillHeldError(
            f"offload: {_listed(left)} have left the device, but only {freed} bytes are free for "
            f"it: something else refers to the other {expected - freed}"
        )


def check_conserved(
    held: Mapping[Part, int], before: Mapping[Part, int], *, leaving: Collection[Part]
) -> None:
    """On CPU, where the host is the device: what does not leave must be there, to the byte."""
    expected = {part: 0 if part in leaving else before[part] for part in before}
    if held != expected:
        raise RuntimeError(
            f"offload: {_listed(expected)} must be held, since the device is the host, but held "
            f"are {_listed(held)}"
        )


def check_back(held: Mapping[Part, int], before: Mapping[Part, int]) -> None:
    """Raises RuntimeError where a part takes less or more than before it left."""
    wrong = [part for part in before if abs(held[part] - before[part]) > RESIDUE_BYTES]
    if wrong:
        raise RuntimeError(
            f"load: the device holds {_listed({part: held[part] for part in wrong})}, but before "
            f"they left {_listed({part: before[part] for part in wrong})}"
        )


def _listed(numbers: Mapping[Part, int]) -> str:
    return ", ".join(f"{number} bytes of {part}" for part, number in numbers.items())


def _allocated(device: torch.device) -> int:
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0
