"""Small functions with a fault each, and the right ones to compare with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """``source`` is the faulty module; ``right`` what its function should return."""

    module: str
    function: str
    source: str
    right: Callable[..., Any]
    arguments: Callable[[Random], list[Any]]


def _numbers(draw: Random) -> list[Any]:
    return [[draw.randint(-50, 50) for _ in range(draw.randint(3, 9))]]


def _text(draw: Random) -> list[Any]:
    return [" ".join("".join(draw.choices("abcdeo", k=4)) for _ in range(draw.randint(2, 6)))]


def _year(draw: Random) -> list[Any]:
    return [draw.choice([1900, 2000, 2100, draw.randint(1800, 2200), 4 * draw.randint(450, 550)])]


def _bounds(draw: Random) -> list[Any]:
    low = draw.randint(-20, 20)
    return [draw.randint(-60, 60), low, low + draw.randint(0, 30)]


FAULTS = (
    Fault(
        module="largest",
        function="largest",
        source=(
            "def largest(numbers):\n"
            "    best = 0\n"
            "    for number in numbers[1:]:\n"
            "        if number > best:\n"
            "            best = number\n"
            "    return best\n"
        ),
        right=max,
        arguments=_numbers,
    ),
    Fault(
        module="total",
        function="total",
        source=(
            "def total(numbers):\n"
            "    result = 0\n"
            "    for index in range(len(numbers) - 1):\n"
            "        result += numbers[index]\n"
            "    return result\n"
        ),
        right=sum,
        arguments=lambda draw: [[number + 60 for number in _numbers(draw)[0]]],
    ),
    Fault(
        module="vowels",
        function="count_vowels",
        source=(
            'def count_vowels(text):\n    return sum(letter not in "aeiou" for letter in text)\n'
        ),
        right=lambda text: sum(letter in "aeiou" for letter in text),
        arguments=lambda draw: [_text(draw)[0] + "bcd"],
    ),
    Fault(
        module="years",
        function="is_leap",
        source="def is_leap(year):\n    return year % 4 != 0\n",
        right=lambda year: year % 4 == 0 and (year % 100 != 0 or year % 400 == 0),
        arguments=_year,
    ),
    Fault(
        module="clamp",
        function="clamp",
        source="def clamp(value, low, high):\n    return min(low, max(value, high))\n",
        right=lambda value, low, high: max(low, min(value, high)),
        arguments=lambda draw: [100, *_bounds(draw)[1:]],
    ),
)


def failing_arguments(fault: Fault, draw: Random) -> list[Any]:
    """Arguments with which the faulty function returns something wrong."""
    module: dict[str, Any] = {}
    exec(fault.source, module)  # one of the texts above
    while True:
        arguments = fault.arguments(draw)
        if module[fault.function](*arguments) != fault.right(*arguments):
            return arguments


def shown_test(fault: Fault, arguments: list[Any]) -> str:
    """A test script that shows one case."""
    call = f"{fault.function}({', '.join(map(repr, arguments))})"
    return (
        f"from {fault.module} import {fault.function}\n\n"
        f"got, wanted = {call}, {fault.right(*arguments)!r}\n"
        "assert got == wanted, f'{got} is not {wanted}'\n"
        "print('passed')\n"
    )
