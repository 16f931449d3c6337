"""A task's folder, between commands that run in sandboxes of their own.

The folder goes in and comes out as one archive, made and opened by ``tar`` inside the sandbox.
Outside it is bytes that nobody looks into: what a model puts there can hurt its own folder only.
"""

from __future__ import annotations

import io
import os.path
import sys
import tarfile
from collections.abc import Mapping, Sequence

from colocate.sandbox.limits import SandboxLimits
from colocate.sandbox.result import SandboxResult
from colocate.sandbox.run import Isolation, run

FOLDER = "task"
_IN, _OUT = ".folder-in.tar", ".folder-out.tar"
_OPEN = f"tar -xf {_IN} && rm {_IN} && cd {FOLDER}"
# ``python3`` is this interpreter.
_PATH = {"PATH": f"{os.path.dirname(sys.executable)}:/usr/local/bin:/usr/bin:/bin"}
_NOT_OPENED = 125
_RUN = f"""{_OPEN} || exit {_NOT_OPENED}
sh -c "$1" </dev/null
status=$?
cd "$HOME" && tar -cf {_OUT} {FOLDER}
exit $status
"""


def pack(files: Mapping[str, str]) -> bytes:
    """A folder of text files, by relative path."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        root = tarfile.TarInfo(FOLDER)
        root.type, root.mode = tarfile.DIRTYPE, 0o755
        archive.addfile(root)
        for name, text in files.items():
            content = text.encode()
            entry = tarfile.TarInfo(f"{FOLDER}/{name}")
            entry.size, entry.mode = len(content), 0o644
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


async def run_in(
    folder: bytes, command: str, limits: SandboxLimits, isolation: Isolation
) -> tuple[SandboxResult, bytes | None]:
    """Runs a shell command in a folder.

    Returns:
        What it did, and the folder after it: None where the sandbox ended the command, or the
        command its own shell, so that the folder is as it was before.

    Raises:
        RuntimeError: the folder could not be opened, for want of ``tar`` or of room.
    """
    result = await run(
        ("sh", "-c", _RUN, "sh", command),
        files={_IN: folder},
        collect=(_OUT,),
        environment=_PATH,
        limits=limits,
        isolation=isolation,
    )
    after = result.files.get(_OUT)
    if after is None and result.status == _NOT_OPENED:
        raise RuntimeError(f"the task's folder could not be opened: {result.text()}")
    return result, after


async def files_of(
    folder: bytes, names: Sequence[str], limits: SandboxLimits, isolation: Isolation
) -> dict[str, str]:
    """Text of files in a folder, by relative path; without those that are not there."""
    result = await run(
        ("sh", "-c", _OPEN),
        files={_IN: folder},
        collect=tuple(f"{FOLDER}/{name}" for name in names),
        limits=limits,
        isolation=isolation,
    )
    return {
        name.removeprefix(f"{FOLDER}/"): content.decode(errors="replace")
        for name, content in result.files.items()
    }


async def run_beside(
    folder: bytes, argv: Sequence[str], script: str, limits: SandboxLimits, isolation: Isolation
) -> SandboxResult:
    """Runs our program ``main.py`` beside a copy of the folder, which it may import from."""
    return await run(
        ("sh", "-c", f'{_OPEN} && cd .. && exec "$@"', "sh", *argv, "main.py"),
        files={_IN: folder, "main.py": script.encode()},
        limits=limits,
        isolation=isolation,
    )
