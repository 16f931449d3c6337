"""Phases and quantities in words, the same on the terminal, in the ending and in pictures."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from colocate.core.phases import SWAP, Phase

PHASE_WORDS: dict[Phase, str] = {
    Phase.STARTING: "starting",
    Phase.ROLLOUT: "rollout: vLLM generates, environments answer",
    Phase.PARKING: "swap: parking unfinished work",
    Phase.SLEEPING: "swap: vLLM gives up its memory",
    Phase.TRAINER_WAKING: "swap: DeepSpeed takes its memory back",
    Phase.TRAINING: "training: DeepSpeed takes a training step",
    Phase.TRAINER_OFFLOADING: "swap: DeepSpeed gives up its memory",
    Phase.WEIGHTS_WAKING: "swap: vLLM makes room for the new weights",
    Phase.PUBLISHING: "swap: new weights go to vLLM",
    Phase.KV_WAKING: "swap: vLLM takes its cache back",
    Phase.CLOSING: "closing: saving, ending all processes",
    Phase.CLOSED: "closed",
    Phase.FAILED: "failed",
}

STATE_WORDS = {
    "queued": "queued",
    "generating": "generating",
    "environment": "in environment",
    "finished": "finished",
    "leased": "in training",
}

TENANT_WORDS = {"engine": "vLLM", "trainer": "DeepSpeed", "other": "other"}


class Owner(StrEnum):
    """Who has the device in a phase."""

    ROLLOUT = "rollout"
    TRAINING = "training"
    SWAP = "swap"
    OTHER = "other"


def owner_of(phase: Phase) -> Owner:
    if phase == Phase.ROLLOUT:
        return Owner.ROLLOUT
    if phase == Phase.TRAINING:
        return Owner.TRAINING
    return Owner.SWAP if phase in SWAP else Owner.OTHER


def duration(seconds: float) -> str:
    """As a clock shows it: ``0:07``, ``12:34``, ``1:02:03``."""
    minutes, rest = divmod(round(max(0.0, seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def count(number: int) -> str:
    """Exact below ten thousand, then in thousands, millions, billions: ``9,999``, ``12.3k``."""
    if number < 10_000:
        return f"{number:,}"
    for power, suffix in ((1, "k"), (2, "M")):
        if round(number / 1000**power, 1) < 1000:
            return f"{number / 1000**power:.1f}{suffix}"
    return f"{number / 1000**3:.1f}G"


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """A number with its noun: ``1 swap``, ``12.3k swaps``. The plural takes an s unless given."""
    return f"{count(number)} {noun if number == 1 else plural or noun + 's'}"


def size(num_bytes: int) -> str:
    """In MiB below one GiB, else in GiB."""
    value, unit = _scaled(num_bytes, num_bytes)
    return f"{value} {unit}"


def size_of(part: int, whole: int) -> str:
    """Both in the unit of the larger: ``710 of 900 MiB``."""
    value, unit = _scaled(part, max(part, whole))
    return f"{value} of {_scaled(whole, max(part, whole))[0]} {unit}"


def _scaled(num_bytes: int, largest: int) -> tuple[str, str]:
    if largest < 2**30:
        return f"{num_bytes / 2**20:.0f}", "MiB"
    return f"{num_bytes / 2**30:.1f}", "GiB"


def share(part: float, whole: float) -> str:
    """A share that is not nothing never reads as ``0%``."""
    if whole <= 0:
        return "0%"
    percent = 100 * part / whole
    return "<1%" if 0 < percent < 0.5 else f"{percent:.0f}%"


def evaluation_words(metrics: Mapping[str, float]) -> str:
    """An evaluation in one line: ``pass@1 0.412 (0.300 to 0.534), mean reward 0.512``."""
    shares = [
        name
        for name in metrics
        if name.startswith("pass@") and not name.endswith(("_low", "_high"))
    ]
    parts = []
    for name in (*shares, "reward_mean"):
        interval = ""
        if f"{name}_low" in metrics:
            low, high = metrics[f"{name}_low"], metrics[f"{name}_high"]
            interval = f" ({low:.3f} to {high:.3f})"
        label = "mean reward" if name == "reward_mean" else name
        parts.append(f"{label} {metrics[name]:.3f}{interval}")
    return ", ".join(parts)
