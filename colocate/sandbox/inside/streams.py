"""The warden's ends of the program's pipes. None of them ever blocks."""

from __future__ import annotations

import os
import select

_CHUNK = 65536


class Tap:
    """Keeps what a pipe delivers, up to a number of bytes.

    Attributes:
        descriptor: The end to read.
        kept: The bytes.
        cut: Whether there was more.
    """

    def __init__(self, descriptor: int, most_bytes: int) -> None:
        os.set_blocking(descriptor, False)
        self.descriptor = descriptor
        self.kept = bytearray()
        self.cut = False
        self._most_bytes = most_bytes

    def pull(self) -> bool:
        """Reads once; False at the end of the file."""
        chunk = os.read(self.descriptor, _CHUNK)
        room = self._most_bytes - len(self.kept)
        self.kept += chunk[:room]
        self.cut = self.cut or len(chunk) > room
        return bool(chunk)

    def drain(self) -> None:
        """Reads what is there."""
        try:
            while not self.cut and self.pull():
                pass
        except BlockingIOError:
            pass


class Feed:
    """Writes bytes into a pipe as it takes them, then closes it.

    Attributes:
        descriptor: The end to write; -1 when closed.
    """

    def __init__(self, descriptor: int, content: bytes) -> None:
        os.set_blocking(descriptor, False)
        self.descriptor = descriptor
        self._left = memoryview(content)

    def register(self, poll: select.poll) -> None:
        if self._left:
            poll.register(self.descriptor, select.POLLOUT)
        else:
            self.close()

    def push(self, poll: select.poll) -> None:
        """Writes once; a reader that has gone is no fault."""
        try:
            self._left = self._left[os.write(self.descriptor, self._left[:_CHUNK]) :]
        except BlockingIOError:
            return
        except BrokenPipeError:
            self._left = self._left[:0]
        if not self._left:
            poll.unregister(self.descriptor)
            self.close()

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def write_all(descriptor: int, content: bytes) -> None:
    left = memoryview(content)
    while left:
        left = left[os.write(descriptor, left) :]
