"""The engine's processes end with their driver, however it ends; a dead engine is an error."""

from __future__ import annotations

import json
import multiprocessing.resource_tracker
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from colocate.adapters.vllm.engine import VllmInference
from colocate.config import InferenceConfig
from tests.patience import patient
from tests.processes import runs

pytestmark = pytest.mark.engine

# argv: model folder, log file. Prints one JSON document a line about each stage.
DRIVER = """
import asyncio, json, os, signal, sys
from pathlib import Path
from colocate.adapters.vllm.engine import VllmInference
from colocate.adapters.vllm.liveness import fails_with_the_engine
from colocate.config import InferenceConfig
from vllm_support import make_request

def report(**facts):
    print(json.dumps(facts), flush=True)

class Questioned(VllmInference):
    @fails_with_the_engine
    async def never_answered(self):
        await asyncio.Event().wait()

async def main():
    engine = Questioned(
        Path(sys.argv[1]),
        InferenceConfig(kv_cache_memory_bytes=2**24, max_model_len=512, max_num_seqs=8),
        dtype="float32", device="cpu", seed=0, log_file=Path(sys.argv[2]), run_id="processes",
        threads=1,
    )
    environment = dict(os.environ)
    await engine.start()
    ids = list(engine.process_ids())
    request = make_request("long", [1, 2, 3], max_new_tokens=500)
    pending = asyncio.create_task(engine.generate(request))
    unanswered = asyncio.create_task(engine.never_answered())
    await engine.generate(make_request("short", [1, 2, 3], max_new_tokens=2))
    report(ids=ids, same_environment=dict(os.environ) == environment)
    os.kill(ids[-1], signal.SIGKILL)
    failures = []
    for attempt in (pending, unanswered, engine.generate(make_request("later", [1])),
                    engine.residency()):
        try:
            await attempt
        except Exception as error:
            failures.append(f"{type(error).__name__}: {error}")
    await engine.close()
    await engine.close()
    report(failures=failures, ids=list(engine.process_ids()))
    await engine.start()
    result = await engine.generate(make_request("again", [1, 2, 3]))
    report(ids=list(engine.process_ids()), num_tokens=len(result.token_ids))
    await asyncio.Event().wait()

if __name__ == "__main__":
    asyncio.run(main())
"""


@pytest.fixture
def driver(tied_models, tmp_path):
    script = tmp_path / "driver.py"
    script.write_text(DRIVER)
    with open(tmp_path / "terminal", "w") as terminal:
        process = subprocess.Popen(
            [sys.executable, str(script), str(tied_models.first), str(tmp_path / "engine.log")],
            stdout=subprocess.PIPE,
            stderr=terminal,
            text=True,
            env=os.environ | {"PYTHONPATH": str(Path(__file__).parent)},
        )
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def any_alive(ids: list[int]) -> bool:
    return any(process.pid in ids and runs(process) for process in psutil.process_iter())


def test_an_engine_dies_loudly_starts_again_and_does_not_outlive_its_driver(driver, tmp_path):
    started = json.loads(driver.stdout.readline())
    assert started["ids"]
    assert started["same_environment"]
    died = json.loads(driver.stdout.readline())
    assert died["ids"] == []
    assert len(died["failures"]) == 4
    for failure in died["failures"]:
        assert failure.startswith("EngineDiedError: vLLM's engine died: process ")
        assert "killed by SIGKILL" in failure
        assert str(tmp_path / "engine.log") in failure
    assert not any_alive(started["ids"])
    again = json.loads(driver.stdout.readline())
    assert again["num_tokens"] == 8
    assert all(psutil.pid_exists(pid) for pid in again["ids"])
    # Before the kill: after it, Python's own resource tracker may complain there.
    assert (tmp_path / "terminal").read_text() == ""

    driver.send_signal(signal.SIGKILL)
    driver.wait()
    deadline = time.monotonic() + patient(10)
    while any_alive(again["ids"]):
        assert time.monotonic() < deadline, "engine processes outlived their driver by 10 s"
        time.sleep(0.05)
    assert "EngineCore" in (tmp_path / "engine.log").read_text()


@pytest.mark.asyncio
async def test_an_engine_that_cannot_start_says_why_and_leaves_nothing(tied_models, tmp_path):
    engine = VllmInference(
        tied_models.first,
        InferenceConfig(kv_cache_memory_bytes=2**60, max_model_len=512),
        dtype="float32",
        device="cpu",
        seed=0,
        log_file=tmp_path / "engine.log",
        run_id="processes",
        threads=1,
    )
    multiprocessing.resource_tracker.ensure_running()
    others = set(psutil.Process().children(recursive=True))
    with pytest.raises(RuntimeError, match=r"did not start: .*kv-cache-memory-bytes"):
        await engine.start()
    assert engine.process_ids() == []
    assert set(psutil.Process().children(recursive=True)) <= others
