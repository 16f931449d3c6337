"""Whether a task of the terminal is done: looked at from outside, in a sandbox of its own.

A check is plain data, so that it can stand in a data set:

    {"kind": "answer", "wanted": "lantern"}
    {"kind": "files", "wanted": {"notes/a.txt": "text"}}                 outer white space aside
    {"kind": "calls", "module": "stats", "function": "mean",
     "calls": [[[1, 2]], [[4]]], "wanted": [1.5, 4]}                     what a function returns

What a program says of itself proves nothing: one that is wrong can print "passed" and exit with 0.
So a function is called with arguments that the model has not seen, and what it returns is compared
here.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

from colocate.environments.answers import is_same
from colocate.environments.folders import FOLDER, files_of, run_beside
from colocate.sandbox.limits import SandboxLimits
from colocate.sandbox.run import Isolation

_CALLER = f"""
import importlib, json, os, sys
module, function, calls = json.loads({{task!r}})
sys.path.insert(0, {FOLDER!r})
output = os.dup(1)
os.dup2(2, 1)
function = getattr(importlib.import_module(module), function)
returned = [function(*call) for call in calls]
os.write(output, json.dumps(returned).encode())
"""


async def is_done(
    check: Mapping[str, Any],
    folder: bytes,
    answer: str | None,
    limits: SandboxLimits,
    isolation: Isolation,
) -> bool:
    """
    Args:
        check: As above.
        folder: As the model left it.
        answer: What it answered; None where it did not.

    Raises:
        ValueError: a check of no known kind.
    """
    kind, wanted = check.get("kind"), check.get("wanted")
    if kind == "answer":
        return answer is not None and is_same(answer, str(wanted))
    if kind == "files":
        assert isinstance(wanted, Mapping)
        found = await files_of(folder, list(wanted), limits, isolation)
        return all(found.get(name, "").strip() == text.strip() for name, text in wanted.items())
    if kind == "calls":
        return await _returns(check, folder, limits, isolation)
    raise ValueError(f"a check's kind is {kind!r}; it must be answer, files or calls")


async def _returns(
    check: Mapping[str, Any], folder: bytes, limits: SandboxLimits, isolation: Isolation
) -> bool:
    task = json.dumps([check["module"], check["function"], check["calls"]])
    script = _CALLER.format(task=task)
    argv = (sys.executable, "-B")
    result = await run_beside(folder, argv, script, limits, isolation)
    try:
        return bool(json.loads(result.stdout) == check["wanted"])
    except ValueError:
        return False
