"""The judge against a real server on loopback."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from colocate.rewards.judge import JudgeError, LlmJudge
from tests.patience import patient
from tests.rewards.episodes import episode

Answer = tuple[int, str] | tuple[int, str, dict[str, str]]


def says(text: str) -> Answer:
    return 200, json.dumps({"choices": [{"message": {"content": text}}]})


class Server(ThreadingHTTPServer):
    """Gives its answers one after the other, the last for ever; remembers what it was asked."""

    daemon_threads = True

    def __init__(self, answers: Sequence[Answer], delay_s: float) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers = answers
        self.delay_s = delay_s
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.times_s: list[float] = []
        self.running = 0
        self.most_running = 0
        self.lock = threading.Lock()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that has gone is what some tests are about."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        server = self.server
        body = self.rfile.read(int(self.headers["content-length"]))
        with server.lock:
            server.running += 1
            server.most_running = max(server.most_running, server.running)
            number = len(server.requests)
            server.requests.append({"path": self.path, **json.loads(body)})
            server.headers.append({name.lower(): text for name, text in self.headers.items()})
            server.times_s.append(time.monotonic())
        time.sleep(server.delay_s)
        status, text, *more = server.answers[min(number, len(server.answers) - 1)]
        with server.lock:
            server.running -= 1
        self.send_response(status)
        for name, value in (more[0] if more else {}).items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: Any) -> None:
        return


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    servers: list[Server] = []

    def start(*answers: Answer, delay_s: float = 0.0) -> Server:
        server = Server(answers, delay_s)
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


async def judged(server: Server, **options: Any) -> float:
    judge = LlmJudge(server.url, "judge-1", retry_wait_s=0.01, **options)
    try:
        return await judge(episode("It is 4.", prompt="2 + 2?"), hint="four")
    finally:
        await judge.close()


async def test_the_score_is_put_on_a_scale_from_0_to_1(serve: Callable[..., Server]) -> None:
    server = serve(says("Score: 2? No.\nScore: 7.5"))

    assert await judged(server) == 0.75
    [request] = server.requests
    assert request["path"] == "/v1/chat/completions"
    assert request["model"] == "judge-1"
    assert "2 + 2?" in request["messages"][0]["content"]
    assert "It is 4." in request["messages"][0]["content"]
    assert "authorization" not in server.headers[0]


async def test_template_scale_and_key_can_be_chosen(
    serve: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUDGES_KEY", "secret")
    server = serve(says("[[4]]"))

    score = await judged(
        server,
        template="{hint}: {completion}",
        system="Be just.",
        score_pattern=r"\[\[(\d)\]\]",
        low=1,
        high=5,
        api_key_variable="JUDGES_KEY",
    )

    assert score == 0.75
    assert server.requests[0]["messages"] == [
        {"role": "system", "content": "Be just."},
        {"role": "user", "content": "four: It is 4."},
    ]
    assert server.headers[0]["authorization"] == "Bearer secret"


@pytest.mark.parametrize(
    "first",
    [
        (500, "oops"),
        (503, "busy"),
        (429, "slow down"),
        says("I would rather not."),
        says("Score: 11"),
    ],
)
async def test_what_may_pass_is_tried_again(serve: Callable[..., Server], first: Answer) -> None:
    server = serve(first, says("Score: 10"))

    assert await judged(server) == 1.0
    assert len(server.requests) == 2


async def test_a_server_that_asks_for_patience_gets_it(serve: Callable[..., Server]) -> None:
    server = serve((429, "slow down", {"Retry-After": "0.6"}), says("Score: 10"))

    await judged(server)

    assert server.times_s[1] - server.times_s[0] >= 0.6


@pytest.mark.parametrize(
    ("answer", "named", "tries"),
    [
        ((500, "oops"), "answered 500: 'oops'", 3),
        (says("no"), "no score in the judge's answer", 3),
        ((401, "who are you"), "answered 401", 1),
        ((200, "no JSON"), "answered 'no JSON'", 1),
        ((200, '{"choices": []}'), "answered", 1),
    ],
)
async def test_what_does_not_pass_is_an_error_with_its_cause(
    serve: Callable[..., Server], answer: Answer, named: str, tries: int
) -> None:
    server = serve(answer)

    with pytest.raises(JudgeError, match=named):
        await judged(server, max_retries=2)
    assert len(server.requests) == tries


async def test_a_judge_that_hangs_is_given_up(serve: Callable[..., Server]) -> None:
    server = serve(says("Score: 1"), delay_s=patient(4.0))

    with pytest.raises(JudgeError, match="ReadTimeout"):
        await judged(server, timeout_s=patient(1.0), max_retries=1)


async def test_a_server_that_is_not_there_is_an_error(serve: Callable[..., Server]) -> None:
    server = serve(says("Score: 1"))
    server.shutdown()
    server.server_close()

    with pytest.raises(JudgeError, match="ConnectError"):
        await judged(server, max_retries=1)


async def test_requests_at_a_time_are_bounded(serve: Callable[..., Server]) -> None:
    server = serve(says("Score: 5"), delay_s=0.1)
    judge = LlmJudge(server.url, "judge-1", max_parallel=3)

    scores = await asyncio.gather(*(judge(episode("a")) for _ in range(12)))
    await judge.close()

    assert scores == [0.5] * 12
    assert server.most_running == 3


def test_a_missing_key_is_told_at_once() -> None:
    with pytest.raises(ValueError, match="NO_SUCH_KEY is not set"):
        LlmJudge("http://127.0.0.1:1", "m", api_key_variable="NO_SUCH_KEY")
