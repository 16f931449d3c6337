"""What trainer and engine must agree on to share a GPU buffer as plain data, without pickle."""

from __future__ import annotations

HANDLE_FIELDS = (
    "handle",
    "size_bytes",
    "offset_bytes",
    "ref_counter_handle",
    "ref_counter_offset",
    "event_handle",
    "event_sync_required",
)
"""What ``torch.UntypedStorage._new_shared_cuda`` takes after the device's index, in order."""
