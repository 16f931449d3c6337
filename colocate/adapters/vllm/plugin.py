"""The ``vllm.general_plugins`` entry point: vLLM calls it in each of its processes."""

from __future__ import annotations

import multiprocessing
import os

from colocate.adapters.vllm.child import DRIVER_PID, die_with_parent

TRANSFER_BACKEND = "colocate"
"""Name under which vLLM knows our weight transfer engine."""


def register() -> None:
    """Registers the weight transfer engine; in our own engine processes, ties them to their parent.

    In a program of someone else's that merely shares the environment, only a name is added to a
    registry. May be called any number of times.
    """
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    if TRANSFER_BACKEND not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(
            TRANSFER_BACKEND, "colocate.adapters.vllm.transfer", "StreamedWeightTransferEngine"
        )
    driver_pid = os.environ.get(DRIVER_PID)
    parent = multiprocessing.parent_process()
    if driver_pid not in (None, str(os.getpid())) and parent is not None:
        assert parent.pid is not None
        die_with_parent(parent.pid)
