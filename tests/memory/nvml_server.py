"""A process with a memory probe in it, which answers the commands of a test.

A library is found where LD_LIBRARY_PATH said at a process's start, so the probe cannot live in the
test's own. Each line of standard input is a command, each line of standard output its answer.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import sys
from typing import Any

from colocate.adapters.memory.errors import MemoryProbeError
from colocate.adapters.memory.factory import make_probe


def main() -> None:
    logging.basicConfig(stream=sys.stderr, format="%(levelname)s %(message)s")
    options = json.loads(sys.argv[1])
    pids = {name: lambda pids=pids: pids for name, pids in options.pop("tenants").items()}
    total_bytes = options.pop("total_bytes")
    probe: Any = None
    for command in sys.stdin:
        answer: Any
        try:
            match command.strip():
                case "open":
                    probe = make_probe("cuda", pids, total_bytes, environment=os.environ, **options)
                    answer = {"uuids": probe.uuids, "provider": probe.provider}
                case "sample":
                    answer = dataclasses.asdict(probe.sample())
                case "telemetry":
                    answer = probe.telemetry()
                case "release":
                    answer = probe.release()
                case other:
                    raise ValueError(f"no command {other!r}")
        except MemoryProbeError as error:
            answer = {"error": str(error)}
        print(json.dumps(answer), flush=True)


main()
