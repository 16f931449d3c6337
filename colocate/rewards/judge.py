"""A language model as a judge, behind an endpoint that speaks OpenAI's chat protocol."""

from __future__ import annotations

import asyncio
import os
import re
from typing import Any

import httpx
import tenacity

from colocate.rollout.runner import Episode

_PASSING = frozenset({408, 409, 425, 429})
_MAX_WAIT_S = 30.0

TEMPLATE = """\
Judge the answer to a question.

Question:
{prompt}

Answer:
{completion}

Say briefly what is right and what is wrong with it. Then write on a line of its own "Score: N",
with N from {low} (useless) to {high} (perfect)."""


class JudgeError(RuntimeError):
    """The judge gave no score; the message says why."""


class _PassingError(JudgeError):
    """One that may be gone at the next try."""

    def __init__(self, message: str, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class LlmJudge:
    """Its score, from 0 (``low``) to 1 (``high``).

    Args:
        base_url: As ``http://localhost:8000/v1``; ``/chat/completions`` is added.
        model: The name to ask for.
        template: The judge's message, by ``str.format`` from ``prompt``, ``completion``, ``low``,
            ``high`` and the data set's columns. Braces that are meant are doubled.
        system: Message of the system before it; None: none.
        score_pattern: Regular expression whose first group is the score; its last match counts.
        low, high: The scale. A score outside is an error.
        api_key_variable: Environment variable that holds the key; None: no key is sent.
        temperature, max_tokens: Of the judge's sampling.
        max_parallel: Requests at a time, over all trajectories.
        timeout_s: Of one request.
        max_retries: After a request that failed in passing: no connection, no answer in time,
            status 408, 409, 425, 429 or of the server's side, or an answer without a score.
            Waits double from ``retry_wait_s``, with jitter, and are at least what the server asks
            for (``Retry-After``).
        retry_wait_s: Before the first retry, at most.

    Raises:
        ValueError: the key's variable is not set, or the scale is empty.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        template: str = TEMPLATE,
        system: str | None = None,
        score_pattern: str = r"(?i)score\W{0,5}(-?\d+(?:\.\d+)?)",
        low: float = 0.0,
        high: float = 10.0,
        api_key_variable: str | None = None,
        temperature: float = 0.0,
        max_tokens: int = 512,
        max_parallel: int = 8,
        timeout_s: float = 60.0,
        max_retries: int = 3,
        retry_wait_s: float = 1.0,
    ) -> None:
        if not low < high:
            raise ValueError(f"the scale from low = {low} to high = {high} is empty")
        headers = {}
        if api_key_variable is not None:
            if not os.environ.get(api_key_variable):
                raise ValueError(f"the environment variable {api_key_variable} is not set")
            headers["Authorization"] = f"Bearer {os.environ[api_key_variable]}"
        self._url = f"{base_url.rstrip('/')}/chat/completions"
        self._request = {"model": model, "temperature": temperature, "max_tokens": max_tokens}
        self._template = template
        self._system = system
        self._score = re.compile(score_pattern)
        self._low, self._high = low, high
        self._slots = asyncio.Semaphore(max_parallel)
        self._client = httpx.AsyncClient(
            headers=headers,
            timeout=timeout_s,
            limits=httpx.Limits(max_connections=max_parallel),
        )
        self._retry_wait_s = retry_wait_s
        self._max_retries = max_retries

    async def __call__(self, trajectory: Episode, **columns: Any) -> float:
        """
        Raises:
            JudgeError: no score, after all retries.
        """
        values = {
            **columns,
            "prompt": trajectory.prompt.text,
            "completion": trajectory.completion,
            "low": f"{self._low:g}",
            "high": f"{self._high:g}",
        }
        messages = [{"role": "user", "content": self._template.format_map(values)}]
        if self._system is not None:
            messages.insert(0, {"role": "system", "content": self._system})
        attempts = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception_type(_PassingError),
            stop=tenacity.stop_after_attempt(self._max_retries + 1),
            wait=self._wait,
            reraise=True,
        )
        return await attempts(self._ask, messages)

    async def close(self) -> None:
        await self._client.aclose()

    def _wait(self, state: tenacity.RetryCallState) -> float:
        backoff = tenacity.wait_random_exponential(multiplier=self._retry_wait_s, max=_MAX_WAIT_S)
        error = state.outcome.exception() if state.outcome is not None else None
        asked = error.retry_after_s if isinstance(error, _PassingError) else 0.0
        return max(float(backoff(state)), asked)

    async def _ask(self, messages: list[dict[str, str]]) -> float:
        try:
            async with self._slots:
                response = await self._client.post(
                    self._url, json={**self._request, "messages": messages}
                )
        except httpx.TransportError as error:
            raise _PassingError(f"{self._url}: {type(error).__name__}: {error}") from error
        if response.status_code in _PASSING or response.status_code >= 500:
            raise _PassingError(_refusal(response), _retry_after_s(response))
        if not response.is_success:
            raise JudgeError(_refusal(response))
        try:
            text = response.json()["choices"][0]["message"]["content"]
        except (ValueError, LookupError, TypeError) as error:
            raise JudgeError(f"{self._url} answered {response.text[:200]!r}") from error
        return self._read(text or "")

    def _read(self, text: str) -> float:
        scores = self._score.findall(text)
        if not scores:
            raise _PassingError(f"no score in the judge's answer {text[-200:]!r}")
        last = scores[-1]
        score = float(last[0] if isinstance(last, tuple) else last)
        if not self._low <= score <= self._high:
            raise _PassingError(f"the judge's score {score:g} is off its scale")
        return (score - self._low) / (self._high - self._low)


def _refusal(response: httpx.Response) -> str:
    return f"{response.request.url} answered {response.status_code}: {response.text[:200]!r}"


def _retry_after_s(response: httpx.Response) -> float:
    """In seconds, within reason; dates are not read."""
    try:
        asked = float(response.headers.get("retry-after", 0))
    except ValueError:
        return 0.0
    return min(max(asked, 0.0), _MAX_WAIT_S)
