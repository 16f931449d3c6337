"""``python -m tools.gpu_checks PART DEVICE FOLDER``: writes ``FOLDER/rows.json``."""

from __future__ import annotations

import importlib
import sys
import traceback
from pathlib import Path

from tools.gpu_checks.checks import Checks


def main() -> None:
    part, device, folder = sys.argv[1:]
    checks = Checks(Path(folder) / "rows.json", part)
    try:
        importlib.import_module(f"tools.gpu_checks.{part}").run(checks, device, Path(folder))
    except Exception as error:
        traceback.print_exc()
        checks.broke(error)


if __name__ == "__main__":
    main()
