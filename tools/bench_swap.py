"""Measures what a swap costs, part by part, with the real engine and the real trainer.

    .venv/bin/python tools/bench_swap.py                            the quickstart's model, 20 swaps
    .venv/bin/python tools/bench_swap.py --model 100m --plan 2      126 million parameters
    .venv/bin/python tools/bench_swap.py --swaps 100                does memory grow?
    .venv/bin/python tools/bench_swap.py --model FOLDER trainer.micro_batch_tokens=1024

No training run goes on: swaps follow one another, each with a training step on a small batch. After
them the transport of weights alone is compared with plain copies of the same bytes.

Exit status: 0 done; 1 something broke; 2 a wrong setting; 130 or 143 after a signal.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from colocate.adapters.deepspeed.client import DeepSpeedTrainer
from colocate.adapters.tokenizer import HuggingFaceTokenizer
from colocate.adapters.weights import StreamedTransfer
from colocate.assembly import Place, make_model, make_ports
from colocate.config import RunConfig
from colocate.machine import resolve_device
from colocate.problems import ConfigurationError
from colocate.supervision.guard import RunGuard
from colocate.supervision.signals import StopSignals
from tools.swap_bench.picture import draw
from tools.swap_bench.setting import MODELS, Setting, configure, plan_of
from tools.swap_bench.summary import summarize
from tools.swap_bench.swaps import Swap, Swapper
from tools.swap_bench.table import show
from tools.swap_bench.transport import measure_transport


def main(arguments: Sequence[str] | None = None) -> int:
    setting, out = _read_arguments(arguments)
    out = out.absolute()
    try:
        config = configure(setting, out)
    except ConfigurationError as error:
        print(error, file=sys.stderr)
        return 2
    (out / "logs").mkdir(parents=True, exist_ok=True)
    console = Console()
    bench = Bench(setting, config, out, console)
    run_id = bench.place.run_id
    guard = RunGuard(
        run_id, f"colocate-{run_id}", bench.place.socket_dir, log_path=out / "logs" / "reaper.log"
    )
    try:
        with guard:
            figures = asyncio.run(bench.carry_out())
    except Exception as error:
        while isinstance(error, ExceptionGroup):
            error = error.exceptions[0]
        print(f"bench_swap: {type(error).__name__}: {error}", file=sys.stderr)
        print(f"What vLLM and DeepSpeed said is in {out / 'logs'}", file=sys.stderr)
        return 1
    if figures is None:
        assert bench.stopped_by is not None
        console.print(f"Stopped by {bench.stopped_by.name}; what was measured is in {out}.")
        return 128 + bench.stopped_by
    written = out / "bench_swap.json", out / "bench_swap.png"
    written[0].write_text(json.dumps(figures, indent=1))
    draw(figures, written[1])
    show(figures, console)
    for path in written:
        console.print(f"Written: {path}", soft_wrap=True)
    return 0


def _read_arguments(arguments: Sequence[str] | None) -> tuple[Setting, Path]:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--model", default="quickstart", help=f"{', '.join(MODELS)}, a model's folder or hub name")
    add("--plan", default="2", choices=("pause", "kv", "1", "2"), help="what leaves the device")
    add("--swaps", type=_at_least(3), default=20, help="how many; the first are a warm-up")
    add("--zero-stage", type=int, default=1, choices=(0, 1, 2, 3))
    add("--num-ranks", type=_at_least(1), default=1, help="of the trainer")
    add("--num-engines", type=_at_least(1), default=1)
    add("--kv-bytes", type=_at_least(1), default=512 * 2**20, help="KV cache of one engine worker")
    add("--bare", action="store_true", help="no requests and no training: only the swap itself")
    add("--requests", type=_at_least(1), default=16, help="in flight when a swap begins")
    add("--prompt-tokens", type=_at_least(1), default=128, help="of each request")
    add(
        "--sampled-tokens", type=_at_least(1), default=32, help="of each request, when it is parked"
    )
    add("--rounds", type=_at_least(1), default=9, help="of transport against plain copies")
    add("--out", type=Path, help="folder of the results; outputs/bench_swap/TIME if not given")
    add("overrides", nargs="*", metavar="KEY=VALUE", help="of the configuration, as in a run")
    found = parser.parse_intermixed_args(arguments)
    out = found.out or Path("outputs/bench_swap") / datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    values = {name: value for name, value in vars(found).items() if name != "out"}
    return Setting(**{**values, "overrides": tuple(found.overrides)}), out


def _at_least(least: int) -> Any:
    def read(text: str) -> int:
        value = int(text)
        if value < least:
            raise argparse.ArgumentTypeError(f"must be at least {least}, is {value}")
        return value

    read.__name__ = "integer"
    return read


class Bench:
    """One bench, from starting the adapters to their end.

    Attributes:
        stopped_by: The signal that ended it; None where none did.
    """

    def __init__(self, setting: Setting, config: RunConfig, out: Path, console: Console) -> None:
        self.stopped_by: signal.Signals | None = None
        self._setting = setting
        self._config = config
        self._console = console
        run_id = uuid.uuid4().hex[:12]
        self.place = Place(
            run_dir=out,
            model=make_model(config, out),
            run_id=run_id,
            device=resolve_device(config.device, os.environ),
            socket_dir=Path(tempfile.mkdtemp(prefix=f"colocate-{run_id}-")),
        )

    async def carry_out(self) -> dict[str, Any] | None:
        """All figures; None where a signal stopped it. Adapters are closed in any case."""
        work = asyncio.current_task()
        assert work is not None

        def stop(number: signal.Signals) -> None:
            self.stopped_by = number
            work.cancel()

        with StopSignals(stop):
            try:
                return await self._measure()
            except asyncio.CancelledError:
                if self.stopped_by is None:
                    raise
                work.uncancel()
                return None

    async def _measure(self) -> dict[str, Any]:
        config, place, setting = self._config, self.place, self._setting
        load_before = os.getloadavg()[0]
        ports, probe = make_ports(config, place, HuggingFaceTokenizer(place.model), None)
        trainer, transfer = ports.trainer, ports.transfer
        assert isinstance(trainer, DeepSpeedTrainer)
        assert isinstance(transfer, StreamedTransfer)
        plan = plan_of(setting.plan)
        async with AsyncExitStack() as stack:
            stack.callback(probe.release)
            start_s = {}
            for name, port in (("trainer", trainer), ("engine", ports.inference)):
                self._say(f"Starting the {name} ...")
                stack.push_async_callback(port.close)
                began = time.perf_counter()
                await port.start()
                start_s[name] = time.perf_counter() - began
                if port is trainer and plan.offload:
                    # An engine that measures what is free must find what a run's would.
                    await trainer.offload(plan.offload | plan.offload_after_push)
            swapper = Swapper(
                ports,
                probe,
                setting,
                plan,
                vocabulary=await trainer.vocabulary_size(),
                verify_every=config.inference.verify_every,
                seed=config.seed,
            )
            swaps = await self._swap(swapper)
            self._say(f"Comparing transport with plain copies, {setting.rounds} rounds ...")
            await swapper.stop_before_publishing()
            rounds = await measure_transport(
                trainer, transfer, device=place.device, rounds=setting.rounds
            )
        return summarize(
            setting,
            swaps,
            rounds,
            device=place.device,
            dtype=config.model.dtype,
            start_s=start_s,
            load_average=(load_before, os.getloadavg()[0]),
        )

    async def _swap(self, swapper: Swapper) -> list[Swap]:
        """Records go to a file: kept in memory they would be the growth that is looked for."""
        count = self._setting.swaps
        records = self.place.run_dir / "swaps.jsonl"
        records.write_text("")
        for number in range(1, count + 1):
            swap = await swapper.swap(number)
            with records.open("a") as file:
                file.write(json.dumps(asdict(swap)) + "\n")
            if number == 1 or number % max(1, count // 5) == 0:
                self._say(f"Swap {number} of {count}: {swap.cost_s:.2f} s")
        return [Swap(**json.loads(line)) for line in records.read_text().splitlines()]

    def _say(self, what: str) -> None:
        self._console.print(what, style="dim", highlight=False)


if __name__ == "__main__":
    sys.exit(main())
