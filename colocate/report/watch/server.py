"""The pages of `colocate watch`, for browsers on this machine only.

/           the page: strip, an empty place for the report, and what it loads below
/watch.js   its script
/report     the report, as it was drawn last
/events     server-sent events: ``strip`` (HTML), ``report`` (a new one is there), ``end``
"""

from __future__ import annotations

import json
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from markupsafe import Markup

from colocate.report.page import TEMPLATES, render

LOOPBACK = "127.0.0.1"
KEEPALIVE_S = 15.0
"""After which a connection on which nothing is sent is tried, so that those that are gone end."""

_HOSTS = (LOOPBACK, "localhost")
_SCRIPT = "watch.js"
_POLICY = (
    "default-src 'none'; script-src 'self'; connect-src 'self'; img-src data:; "
    "style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    # What a run wrote is escaped; should any of it get through, it can load and run nothing.
    "Content-Security-Policy": _POLICY,
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class Board:
    """What there is to show now. Written by one thread, read by one for each connection."""

    def __init__(self, title: str) -> None:
        self.title = title
        self._changed = threading.Condition()
        self._strip = ""
        self._page = ""
        self._revision = 0
        self._ended = False

    def show(self, strip: str, page: str, revision: int) -> None:
        """Puts up what is new, and wakes those that wait where anything is."""
        with self._changed:
            if (strip, revision) == (self._strip, self._revision):
                return
            self._strip, self._page, self._revision = strip, page, revision
            self._changed.notify_all()

    def end(self) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def read(self) -> tuple[str, str, int, bool]:
        """Strip, page, revision, and whether the end has come."""
        with self._changed:
            return self._strip, self._page, self._revision, self._ended

    def wait(self, strip: str, revision: int) -> tuple[str, str, int, bool]:
        """As ``read``, once it differs from what is known, or after ``KEEPALIVE_S``."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._ended or (strip, revision) != (self._strip, self._revision),
                KEEPALIVE_S,
            )
            return self._strip, self._page, self._revision, self._ended


class WatchServer:
    """Serves a board on the loopback interface from enter to exit.

    Args:
        board: What is shown.
        port: 0: any that is free.

    Raises:
        OSError: on creation, where the port is taken or not ours to take.
    """

    def __init__(self, board: Board, port: int = 0) -> None:
        self._board = board
        self._server = _Server(board, port)
        self._thread = threading.Thread(target=self._server.serve_forever, name="watch-server")

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self._server.server_port}/"

    def __enter__(self) -> WatchServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._board.end()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # A stream that nobody reads must not hold up the end.
    block_on_close = False

    def __init__(self, board: Board, port: int) -> None:
        super().__init__((LOOPBACK, port), _Handler)
        self.board = board

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that goes away in the middle of an answer is no news."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    server_version = "colocate"
    sys_version = ""

    def do_GET(self) -> None:
        # A page of another site whose name was made to point here would come with that name. The
        # port is that of the browser's end, which may be another's end of a tunnel.
        if (self.headers.get("Host") or "").partition(":")[0] not in _HOSTS:
            told = f"This host is not served; ask for {LOOPBACK} or localhost.\n"
            self._send(HTTPStatus.FORBIDDEN, "text/plain", told)
            return
        board = self.server.board
        strip, page, revision, _ = board.read()
        match self.path:
            case "/":
                shell = render("watch.html.j2", {"title": board.title, "strip": Markup(strip)})
                self._send(HTTPStatus.OK, "text/html", shell)
            case "/watch.js":
                self._send(HTTPStatus.OK, "text/javascript", _script())
            case "/report" if revision:
                self._send(HTTPStatus.OK, "text/html", page, {"X-Revision": str(revision)})
            case "/events":
                self._stream()
            case _:
                self._send(HTTPStatus.NOT_FOUND, "text/plain", "There is no such page.\n")

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not logged: the terminal is for what the watcher has to say."""

    def _send(
        self, status: HTTPStatus, kind: str, text: str, more: dict[str, str] | None = None
    ) -> None:
        content = text.encode()
        self.send_response(status)
        length = {"Content-Type": f"{kind}; charset=utf-8", "Content-Length": str(len(content))}
        for name, value in {**_HEADERS, **length, **(more or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def _stream(self) -> None:
        """What is there at first, then what changes, until either side ends."""
        self.close_connection = True
        self.send_response(HTTPStatus.OK)
        for name, value in {**_HEADERS, "Content-Type": "text/event-stream"}.items():
            self.send_header(name, value)
        self.end_headers()
        sent_strip, sent_revision = "", 0
        while True:
            strip, _, revision, ended = self.server.board.wait(sent_strip, sent_revision)
            if strip != sent_strip:
                self._event("strip", json.dumps(strip))
            if revision != sent_revision:
                self._event("report", str(revision))
            if ended:
                self._event("end", "0")
                return
            if (strip, revision) == (sent_strip, sent_revision):
                self.wfile.write(b": still here\n\n")
            sent_strip, sent_revision = strip, revision

    def _event(self, name: str, data: str) -> None:
        self.wfile.write(f"event: {name}\ndata: {data}\n\n".encode())


def _script() -> str:
    return (TEMPLATES / _SCRIPT).read_text(encoding="utf-8")
