"""``colocate chat``: talk to what a run has trained, or watch it in the run's environment."""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path

from colocate.adapters.chat import ChatTemplateError
from colocate.chat.conversation import Answer, Conversation, adjusted
from colocate.chat.episode import EpisodeEnd, play
from colocate.chat.model import ChatError, Engine, TrainedModel, prepare, started
from colocate.chat.spelling import Spelling
from colocate.export import ExportError
from colocate.machine import resolve_device
from colocate.problems import ConfigurationError
from colocate.report.transcripts import printable, transcript_lines
from colocate.rollout.runner import RolloutRules
from colocate.run_state import Speaker

NEW, QUIT = "/new", "/quit"

StartEngine = Callable[..., AbstractAsyncContextManager[Engine]]
"""``started`` of a model; takes ``on_tokens``."""


def chat_command(arguments: Sequence[str]) -> int:
    """Returns the exit status: 2 for what cannot be done as asked, 1 where it broke on the way."""
    given = _parser().parse_args(list(arguments))
    try:
        with tempfile.TemporaryDirectory(prefix="colocate-chat-") as scratch:
            return _chat(given, Path(scratch))
    except (ChatError, ChatTemplateError, ConfigurationError, ExportError) as error:
        print(f"colocate chat: {error}", file=sys.stderr)
        return 2
    except (OSError, RuntimeError) as error:
        print(f"colocate chat: {error}", file=sys.stderr)
        return 1


def _chat(given: argparse.Namespace, scratch: Path) -> int:
    _tell("reading the checkpoint ...")
    model = prepare(
        given.run_dir, scratch / "model", step=given.step, base=given.base, plays=given.env
    )
    rules = adjusted(
        model.rules,
        seed=given.seed,
        temperature=given.temperature,
        max_new_tokens=given.max_new_tokens,
    )
    device = resolve_device(given.device or model.config.device, os.environ)
    _tell(f"the weights of step {model.version}, by {given.engine} on {device} ...")
    start = partial(started, model, given.engine, device=device)
    with asyncio.Runner() as runner:
        if given.env:
            return runner.run(_episode(model, rules, start, given.episode, scratch))
        if given.prompt is not None:
            return runner.run(_once(model, rules, start, given.prompt))
        return _converse(runner, model, rules, start)


async def _episode(
    model: TrainedModel, rules: RolloutRules, start: StartEngine, position: int, scratch: Path
) -> int:
    async with start() as engine:
        end = await play(model, engine, rules, position, _print_turn, log=scratch / "rewards.log")
    for line in _told(end):
        print(line)
    return 1 if end.lost else 0


def _print_turn(speaker: Speaker, text: str) -> None:
    print("\n".join(transcript_lines(speaker, text)), flush=True)


def _told(end: EpisodeEnd) -> list[str]:
    if end.lost:
        return [f"The episode was lost: {printable(end.lost)}"]
    how = "called invalid by its environment" if end.invalid else ""
    how = how or (f"cut short by {end.truncated}" if end.truncated else "ended")
    lines = [f"Reward {end.reward:.4g}; {how}; {end.num_sampled_tokens} tokens were sampled."]
    lines += [f"  {name}: {value:.4g}" for name, value in end.parts.items()]
    return lines


async def _once(model: TrainedModel, rules: RolloutRules, start: StartEngine, prompt: str) -> int:
    async with start() as engine:
        answer = await Conversation(engine, model.tokenizer, rules).say(prompt)
    _write(answer.text)
    _end_answer(answer)
    return 0


def _converse(
    runner: asyncio.Runner, model: TrainedModel, rules: RolloutRules, start: StartEngine
) -> int:
    """Until the input ends. Ctrl-C ends an answer, and where none is being given, the command."""
    action = model.tokenizer.decode if rules.turns is None else rules.turns.action
    spelling = Spelling(action, _write)
    context = start(on_tokens=spelling.add)
    engine = runner.run(_enter(context))
    try:
        conversation = Conversation(engine, model.tokenizer, rules)
        form = "plain text" if conversation.is_plain else "its chat template"
        _tell(f"{form}; {NEW} begins anew, {QUIT} ends")
        while (text := _read_line()) not in (None, QUIT):
            assert text is not None
            if text == NEW:
                conversation.begin_anew()
                continue
            # The line's end is what ends a plain prompt.
            text = f"{text}\n" if conversation.is_plain else text
            try:
                answer = runner.run(conversation.say(text))
                spelling.end(answer.text)
                _end_answer(answer)
            except ChatError as error:
                _tell(f"{error}; {NEW} begins anew")
            except KeyboardInterrupt:
                spelling.end("")
                _tell("the answer was stopped, and is forgotten")
    finally:
        runner.run(_leave(context))
    return 0


async def _enter(context: AbstractAsyncContextManager[Engine]) -> Engine:
    return await context.__aenter__()


async def _leave(context: AbstractAsyncContextManager[Engine]) -> None:
    await context.__aexit__(None, None, None)


def _read_line() -> str | None:
    """A line without its end; None at the end of the input, or at Ctrl-C."""
    try:
        return input("> " if sys.stdin.isatty() else "")
    except (EOFError, KeyboardInterrupt):
        print(file=sys.stderr)
        return None


def _write(text: str) -> None:
    print("\n".join(printable(line) for line in text.split("\n")), end="", flush=True)


def _end_answer(answer: Answer) -> None:
    print(flush=True)
    if answer.cut_by is not None:
        _tell(f"cut short by {answer.cut_by}")


def _tell(text: str) -> None:
    """Beside the answers, which alone go to standard output."""
    print(f"({text})", file=sys.stderr, flush=True)


def _number(text: str, *, least: int) -> int:
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"takes a whole number from {least} on, not {text!r}")
    return int(text)


def _temperature(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"takes a number from 0 (greedy) on, not {text!r}")
    return value


def _some_text(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError(
            "takes some text, not an empty prompt: the model needs a token to go on from"
        )
    return text


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="colocate chat",
        description="Talks to the model that a run has trained, in the form in which it was "
        "trained (its chat template, or plain text); without --prompt and --env line by line. "
        "DeepSpeed unpickles its files: use only runs that you trust.",
        allow_abbrev=False,
    )
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR", help="a run with a checkpoint")
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--prompt", type=_some_text, metavar="TEXT", help="give one answer to this, and end"
    )
    what.add_argument(
        "--env",
        action="store_true",
        help="play one episode of the run's own environment, and show turns and reward",
    )
    parser.add_argument(
        "--episode",
        type=partial(_number, least=0),
        default=0,
        metavar="N",
        help="with --env: which prompt, of the evaluation split where the run has one (default: 0)",
    )
    parser.add_argument(
        "--step",
        type=partial(_number, least=0),
        metavar="N",
        help="take the checkpoint of this training step (default: the newest)",
    )
    parser.add_argument(
        "--engine",
        choices=("transformers", "vllm"),
        default="transformers",
        help="transformers starts sooner; vllm is what the run generated with",
    )
    parser.add_argument(
        "--device", choices=("auto", "cpu", "cuda"), help="where it computes (default: the run's)"
    )
    parser.add_argument(
        "--temperature", type=_temperature, help="0: greedy (default: rollout.temperature)"
    )
    parser.add_argument(
        "--max-new-tokens",
        type=partial(_number, least=1),
        metavar="N",
        help="of an answer (default: rollout.max_new_tokens)",
    )
    parser.add_argument("--seed", type=partial(_number, least=0), default=0, metavar="N")
    parser.add_argument(
        "--base",
        metavar="MODEL",
        help="the model that the run began with, where its folder does not say it",
    )
    return parser
