"""Programs and commands of a model in the real sandbox, and what they earn."""

from __future__ import annotations

import pytest

from colocate.core.types import GroupId
from colocate.environments import arithmetic_tasks, terminal_tasks
from colocate.environments.arithmetic_tasks import ArithmeticPrompts
from colocate.environments.faulty_functions import FAULTS, Fault
from colocate.environments.python_tool import PythonTool
from colocate.environments.terminal import Terminal
from colocate.environments.terminal_tasks import TerminalPrompts
from colocate.ports import Prompt, StepOutcome
from tests.patience import patient

sandboxed = pytest.mark.usefixtures("namespaces_allowed")


def block(code: str, language: str = "bash") -> str:
    return f"I try.\n```{language}\n{code}\n```\n"


async def play(environment: PythonTool | Terminal, prompt: Prompt, *turns: str) -> StepOutcome:
    """The last outcome."""
    await environment.reset(prompt, 0)
    for turn in turns[:-1]:
        assert not (await environment.step(turn)).done
    try:
        return await environment.step(turns[-1])
    finally:
        await environment.close()


@sandboxed
async def test_a_program_runs_and_its_output_comes_back() -> None:
    environment = PythonTool(program_reward=0.25, timeout_s=patient(10))
    prompt = Prompt(text="What is 6 * 7?", columns={"answer": "42"})
    opening = await environment.reset(prompt, 0)
    assert "```python\nprint(6 * 7)\n```" in opening
    first = await environment.step(block("print(6 * 7)", "python"))
    assert (first.observation, first.reward, first.done) == (
        "\nOutput:\n```\n42\n```\n",
        0.25,
        False,
    )
    again = await environment.step(block("print(6 * 7)", "python"))
    assert again.reward == 0.0
    broken = await environment.step(block("print(1 / 0)", "python"))
    assert "ZeroDivisionError" in broken.observation
    last = await environment.step("So it is\nAnswer: 42")
    assert (last.reward, last.done) == (1.0, True)
    assert last.facts == {
        "programs": 3,
        "sound_programs": 2,
        "malformed_calls": 0,
        "answered": True,
        "right": True,
    }


@sandboxed
async def test_a_program_without_end_is_told_and_the_episode_goes_on() -> None:
    outcome = await play(
        PythonTool(timeout_s=1.0),
        Prompt(text="?", columns={"answer": "1"}),
        block("while True: pass", "python"),
    )
    assert "[ended by the sandbox: " in outcome.observation
    assert not outcome.done


@sandboxed
async def test_long_output_is_shown_without_its_middle() -> None:
    outcome = await play(
        PythonTool(max_output_characters=100, timeout_s=patient(10)),
        Prompt(text="?", columns={"answer": "1"}),
        block("print('a' * 500 + 'b' * 500)", "python"),
    )
    assert "a\n[900 characters left out]\nb" in outcome.observation


@pytest.mark.parametrize(
    ("turn", "right"), [("Answer: 41", False), ("It is 42.", False), ("Answer: 42.0", True)]
)
async def test_an_answer_without_a_program_is_an_answer(turn: str, right: bool) -> None:
    outcome = await play(PythonTool(), Prompt(text="?", columns={"answer": "42"}), turn)
    assert outcome.done
    assert outcome.reward == float(right)


async def test_a_malformed_call_is_told_to_the_model() -> None:
    prompt = Prompt(text="?", columns={"answer": "42"})
    outcome = await play(PythonTool(grammar="json"), prompt, "<tool_call>6 * 7</tool_call>")
    assert "Error: the call is no JSON" in outcome.observation
    assert not outcome.done


def task(kind: str, position: int = 0) -> Prompt:
    return TerminalPrompts(kinds=[kind]).prompt(GroupId(position))


def terminal() -> Terminal:
    return Terminal(timeout_s=patient(10), command_reward=0.1)


@sandboxed
async def test_what_a_command_writes_is_there_for_the_next() -> None:
    environment = terminal()
    await environment.reset(task("write"), 0)
    await environment.step(block("mkdir new && echo 'two words' > new/x.txt"))
    outcome = await environment.step(block("pwd; cat new/x.txt; ls -a"))
    assert outcome.observation == (
        "\nOutput:\n```\n/home/sandbox/task\ntwo words\n.\n..\nnew\n```\n"
    )
    assert outcome.reward == 0.1


@sandboxed
async def test_a_command_that_is_killed_leaves_the_folder_as_it_was() -> None:
    environment = terminal()
    await environment.reset(task("read"), 0)
    outcome = await environment.step(block("rm *; kill -9 $PPID"))
    assert "[the folder is as it was before this command]" in outcome.observation
    assert ".txt" in (await environment.step(block("ls"))).observation


@sandboxed
async def test_answers_that_are_asked_for_are_checked() -> None:
    read = task("read")
    word = read.columns["check"]["wanted"]
    assert (await play(terminal(), read, block("cat *"), f"Answer: {word}")).reward == 1.0
    assert (await play(terminal(), read, "Answer: something")).reward == 0.0
    assert (await play(terminal(), read, f"It says {word}")).reward == 0.0
    count = task("count")
    environment = terminal()
    await environment.reset(count, 0)
    output = (await environment.step(block("grep -c ^ERROR run.log"))).observation
    assert output == f"\nOutput:\n```\n{count.columns['check']['wanted']}\n```\n"
    search = task("search")
    wanted = search.columns["check"]["wanted"]
    named = search.text.split('"')[1]
    environment = terminal()
    await environment.reset(search, 0)
    output = (await environment.step(block(f"grep -rlw {named} notes"))).observation
    assert output == f"\nOutput:\n```\nnotes/{wanted}\n```\n"


@sandboxed
async def test_files_that_are_asked_for_are_checked() -> None:
    write = task("write")
    [(path, text)] = write.columns["check"]["wanted"].items()
    command = f"mkdir -p $(dirname {path}) && echo '{text}' > {path}"
    assert (await play(terminal(), write, block(command), "Done.")).reward == 1.0
    assert (await play(terminal(), write, "Done.")).reward == 0.0
    link = f"mkdir -p $(dirname {path}) && echo '{text}' > x && ln -s ../x {path}"
    assert (await play(terminal(), write, block(link), "Done.")).reward == 0.0
    order = task("sort")
    assert (
        await play(terminal(), order, block("sort words.txt > sorted.txt"), "Done.")
    ).reward == 1.0


@sandboxed
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.module)
async def test_a_mended_function_is_told_from_one_that_only_passes_what_is_shown(
    fault: Fault,
) -> None:
    prompt = next(
        prompt
        for prompt in (task("fix", position) for position in range(100))
        if prompt.columns["check"]["module"] == fault.module
    )
    name, function = fault.module, fault.function
    environment = terminal()
    await environment.reset(prompt, 0)
    before = await environment.step(block(f"python3 test_{name}.py"))
    assert "AssertionError" in before.observation
    # A test that is changed, or a program that says that all is well, proves nothing.
    cheat = f"echo 'print(\"passed\"); raise SystemExit(0)' > {name}.py; echo > test_{name}.py"
    assert (await play(terminal(), prompt, block(cheat), "Done.")).reward == 0.0
    mend = f"printf '%s' {_quoted(RIGHT[function])} > {name}.py && python3 test_{name}.py"
    environment = terminal()
    await environment.reset(prompt, 0)
    assert "passed" in (await environment.step(block(mend))).observation
    assert (await environment.step("Done.")).reward == 1.0


RIGHT = {
    "largest": "largest = max",
    "total": "total = sum",
    "count_vowels": "def count_vowels(text): return sum(text.count(v) for v in 'aeiou')",
    "is_leap": "import calendar; is_leap = calendar.isleap",
    "clamp": "def clamp(value, low, high): return max(low, min(value, high))",
}


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\"'\"'") + "'"


@pytest.mark.parametrize("source", [ArithmeticPrompts, TerminalPrompts])
def test_tasks_are_the_same_for_the_same_seed_and_others_for_others(
    source: type[ArithmeticPrompts | TerminalPrompts],
) -> None:
    first, again, other = source(seed=1), source(seed=1), source(seed=2)
    positions = [GroupId(position) for position in range(48)]
    assert [first.prompt(p) for p in positions] == [again.prompt(p) for p in positions]
    assert [first.prompt(p).text for p in positions] != [other.prompt(p).text for p in positions]
    kinds = arithmetic_tasks.KINDS if source is ArithmeticPrompts else terminal_tasks.KINDS
    assert {first.prompt(p).columns["kind"] for p in positions} == set(kinds)
    with pytest.raises(ValueError, match=r"data\.options\.kinds"):
        source(kinds=["nonsense"])


@sandboxed
async def test_a_program_gives_the_answers_of_the_arithmetic_tasks() -> None:
    """Computed once more, by other means, for kinds where that is easy."""
    prompts = ArithmeticPrompts(kinds=["product"])
    prompt = prompts.prompt(GroupId(0))
    question = prompt.text.removeprefix("What is ").removesuffix("?")
    environment = PythonTool(timeout_s=patient(10))
    await environment.reset(prompt, 0)
    output = (await environment.step(block(f"print({question})", "python"))).observation
    number = output.split("\n")[3]
    assert (await environment.step(f"Answer: {number}")).reward == 1.0
