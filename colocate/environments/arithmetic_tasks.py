"""Questions that a program of a few lines answers, and a head hardly does: made from a seed."""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Sequence
from random import Random

from colocate.core.types import GroupId
from colocate.ports import Prompt

WORDS = ("kettle", "harbour", "lantern", "meadow", "orchard", "pebble", "saffron", "thistle")

Task = tuple[str, int | str]
"""A question and its answer."""


def _product(draw: Random) -> Task:
    a, b = draw.randint(100, 9_999), draw.randint(100, 9_999)
    return f"What is {a} * {b}?", a * b


def _sum_of_squares(draw: Random) -> Task:
    n = draw.randint(10, 300)
    return f"What is the sum of the squares of 1 to {n}?", sum(i * i for i in range(1, n + 1))


def _digits(draw: Random) -> Task:
    base, power = draw.randint(2, 99), draw.randint(10, 60)
    answer = sum(map(int, str(base**power)))
    return f"What is the sum of the decimal digits of {base} to the power of {power}?", answer


def _primes(draw: Random) -> Task:
    n = draw.randint(50, 2_000)
    count = sum(all(i % d for d in range(2, math.isqrt(i) + 1)) for i in range(2, n + 1))
    return f"How many prime numbers are there from 1 to {n}?", count


def _remainder(draw: Random) -> Task:
    n, m = draw.randint(15, 80), draw.randint(11, 997)
    return f"What is the remainder when {n} factorial plus 1 is divided by {m}?", (
        math.factorial(n) + 1
    ) % m


def _days(draw: Random) -> Task:
    first = datetime.date(draw.randint(1950, 2000), draw.randint(1, 12), draw.randint(1, 28))
    gap = draw.randint(100, 20_000)
    last = first + datetime.timedelta(days=gap)
    return f"How many days are there from {first} to {last}?", gap


def _letters(draw: Random) -> Task:
    text = " ".join(draw.choices(WORDS, k=draw.randint(5, 12)))
    letter = draw.choice("aeort")
    return f'How often does the letter "{letter}" occur in "{text}"?', text.count(letter)


def _reversal(draw: Random) -> Task:
    text = "-".join(draw.sample(WORDS, k=3))
    return f'What is "{text}" written backwards?', text[::-1]


KINDS: dict[str, Callable[[Random], Task]] = {
    "product": _product,
    "sum_of_squares": _sum_of_squares,
    "digits": _digits,
    "primes": _primes,
    "remainder": _remainder,
    "days": _days,
    "letters": _letters,
    "reversal": _reversal,
}


class ArithmeticPrompts:
    """A stream without end: kinds in turn, each position with numbers of its own.

    Args:
        seed: Another seed, other numbers.
        kinds: Of ``KINDS``; all by default.

    Raises:
        ValueError: an unknown kind, or none.
    """

    def __init__(self, seed: int = 0, kinds: Sequence[str] | None = None) -> None:
        self._seed = seed
        self._kinds = tuple(KINDS if kinds is None else kinds)
        unknown = [kind for kind in self._kinds if kind not in KINDS]
        if unknown or not self._kinds:
            raise ValueError(
                f"data.options.kinds is {list(self._kinds)}; it must be some of {', '.join(KINDS)}"
            )

    def prompt(self, position: GroupId) -> Prompt:
        kind = self._kinds[position % len(self._kinds)]
        question, answer = KINDS[kind](Random(f"{self._seed}/{position}"))
        return Prompt(text=question, columns={"answer": str(answer), "kind": kind})
