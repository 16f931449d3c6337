"""Prints pip's own configuration as shell exports that mean the same to uv.

Whoever has set up pip for a mirror, a proxy's certificate or a folder of wheels has set up this
project too. Run with the interpreter whose pip is meant; needs nothing but pip.
"""

from __future__ import annotations

import ast
import shlex
import subprocess
import sys

# pip separates several values by white space; uv too, but for find-links.
_NAMES = {
    "index-url": ("UV_DEFAULT_INDEX", " "),
    "extra-index-url": ("UV_INDEX", " "),
    "find-links": ("UV_FIND_LINKS", ","),
    "constraint": ("UV_CONSTRAINT", " "),
    "cert": ("SSL_CERT_FILE", " "),
    "timeout": ("UV_HTTP_TIMEOUT", " "),
    "default-timeout": ("UV_HTTP_TIMEOUT", " "),
}


def main() -> None:
    listing = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    ).stdout
    # pip lists files before the environment, which wins.
    settings = dict(line.split("=", 1) for line in listing.splitlines() if "=" in line)
    exports = {}
    for key, value in settings.items():
        name, separator = _NAMES.get(key.rpartition(".")[2], ("", ""))
        if name:
            exports[name] = separator.join(str(ast.literal_eval(value)).split())
    for name, value in exports.items():
        print(f"export {name}={shlex.quote(value)}")


if __name__ == "__main__":
    main()
