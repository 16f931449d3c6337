"""Whether this machine can run the sandbox, asked of the machine and not of the sandbox."""

from __future__ import annotations

from tests.sandbox.conftest import namespaces_allowed

__all__ = ["namespaces_allowed"]
