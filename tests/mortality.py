"""Gives a simulated port a life that can end: its process dies, or does not answer any more."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any, Literal

Fate = Literal["dies", "hangs"]


class Mortal:
    """Wraps every call of a port, in place.

    From ``strike`` on each call, pending ones too, raises what the real adapter raises of a process
    that is gone, or never returns. ``close`` ends what is left of the process, and ``start`` begins
    another one, as the real adapters do.
    """

    def __init__(self, port: Any, error: type[Exception], name: str) -> None:
        self._error = error
        self._name = name
        self._fate: Fate | None = None
        self._struck = asyncio.Event()
        self.num_strikes = 0
        for method in dir(type(port)):
            call = getattr(port, method)
            if not method.startswith("_") and inspect.iscoroutinefunction(call):
                setattr(port, method, self._wrap(method, call))

    def strike(self, fate: Fate) -> None:
        """Whoever is dead or stopped already stays so."""
        if self._fate is None:
            self._fate = fate
            self.num_strikes += 1
            self._struck.set()

    def _wrap(self, method: str, intact: Any) -> Any:
        async def call(*args: Any, **kwargs: Any) -> Any:
            if method == "close":
                self._revive()
                return await intact(*args, **kwargs)
            return await self._race(intact(*args, **kwargs))

        return call

    def _revive(self) -> None:
        self._fate = None
        self._struck = asyncio.Event()

    async def _race(self, call: Any) -> Any:
        struck = self._struck
        work = asyncio.ensure_future(call)
        doom = asyncio.ensure_future(struck.wait())
        try:
            await asyncio.wait({work, doom}, return_when=asyncio.FIRST_COMPLETED)
            if not struck.is_set():
                return work.result()
            if self._fate == "dies":
                raise self._error(f"{self._name} died: killed by SIGKILL")
            await asyncio.Event().wait()
        finally:
            doom.cancel()
            if not work.done():
                work.cancel()
            await asyncio.gather(work, doom, return_exceptions=True)
