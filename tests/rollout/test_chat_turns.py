"""Token in, token out: what is trained is what was sampled, between what the template writes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from colocate.adapters.chat import ChatTemplateError, make_chat
from colocate.adapters.tokenizer import HuggingFaceTokenizer
from colocate.core.events import TrajectoryFinished, TrajectoryLost
from colocate.core.types import FinishReason
from colocate.ports import Message, Prompt, Role
from colocate.rollout.chat import ChatTurns
from colocate.rollout.chat_probes import examine
from tests.rollout.chat_models import FAMILIES, save_tokenizer
from tests.rollout.conversation import Played, Sampled, play

FOLLOWED: list[tuple[str, Role]] = [
    *((name, "user") for name in ("chatml", "llama3", "gemma", "mistral", "phi", "zephyr")),
    *((name, "tool") for name in ("chatml", "llama3", "phi", "zephyr", "thinking")),
]
TURNS = 5
LEAD = {"mistral": " "}
"""White space that the template has before an answer, and that the model has to sample."""


@pytest.fixture(scope="module")
def tokenizer_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], HuggingFaceTokenizer]:
    made: dict[str, HuggingFaceTokenizer] = {}

    def make(name: str) -> HuggingFaceTokenizer:
        if name not in made:
            folder: Path = tmp_path_factory.mktemp("tokenizer")
            made[name] = HuggingFaceTokenizer(str(save_tokenizer(FAMILIES[name], folder)))
        return made[name]

    return make


@functools.cache
def chat_of(tokenizer: HuggingFaceTokenizer, role: Role = "user", max_turns: int = 9) -> ChatTurns:
    chat = make_chat(tokenizer, "auto", {}, role, max_turns=max_turns)
    assert chat is not None
    return chat


def at_once(
    tokenizer: HuggingFaceTokenizer, answers: list[str], observations: list[str], role: Role
) -> list[int]:
    """What the template writes for the whole conversation."""
    messages = [Message(role="user", content="Which word?")]
    for answer, observation in zip(answers, observations, strict=True):
        messages += [Message(role="assistant", content=answer)]
        messages += [Message(role=role, content=observation)]
    return tokenizer.encode(tokenizer.renderer(None, {})(messages))


def sampled(tokenizer: HuggingFaceTokenizer, lead: str, answer: str) -> list[int]:
    """The answer's tokens after a special token, which is where it stands."""
    tokens = tokenizer.encode("</s>" + lead + answer)
    return tokens[1:]


def check_books(played: Played, script: list[Sampled]) -> None:
    """The trained tokens are the sampled ones, each with its own log-probability and version."""
    content = played.content
    trained = [
        (token, logprob, version)
        for token, mask, logprob, version in zip(
            content.token_ids, content.loss_mask, content.logprobs, content.versions, strict=True
        )
        if mask
    ]
    assert trained == [
        (token, -1.0 - 0.001 * token, number)
        for number, turn in enumerate(script, start=1)
        for token in turn.tokens
    ]
    rest = zip(content.loss_mask, content.logprobs, content.versions, strict=True)
    assert {(logprob, version) for mask, logprob, version in rest if not mask} == {(0.0, -1)}


# No merge of the tokenizers has a Q, so that an answer's tokens do not depend on its neighbours.
answers = st.lists(
    st.text(max_size=12).map(lambda text: f"Q{text}".strip()), min_size=TURNS, max_size=TURNS
)
observations = st.lists(st.text(max_size=20), min_size=TURNS - 1, max_size=TURNS - 1)


@pytest.mark.parametrize(("name", "role"), FOLLOWED)
@settings(max_examples=8)
@given(said=answers, replies=observations, cut=st.sets(st.integers(0, TURNS - 1)))
async def test_five_turns_are_what_the_template_writes_at_once(
    tokenizer_of: Callable[[str], HuggingFaceTokenizer],
    name: str,
    role: Role,
    said: list[str],
    replies: list[str],
    cut: set[int],
) -> None:
    tokenizer = tokenizer_of(name)
    chat = chat_of(tokenizer, role)
    script = []
    for turn, answer in enumerate(said):
        tokens = sampled(tokenizer, LEAD.get(name, ""), answer)
        # A turn without room ends without the template's token, which is then observed.
        finish = FinishReason.LENGTH if turn in cut else FinishReason.STOP
        end = [] if turn in cut else [chat.end_token]
        script.append(Sampled((*tokens, *end), finish))

    played = await play(tokenizer, chat, Prompt(text="Which word?"), script, replies)

    assert isinstance(played.ending, TrajectoryFinished)
    check_books(played, script)
    last = len(script[-1].tokens)
    whole = at_once(tokenizer, said[:-1], replies, role)
    assert played.content.token_ids.tolist()[:-last] == whole
    decoded = [tokenizer.decode(sampled(tokenizer, LEAD.get(name, ""), each)) for each in said]
    assert played.actions == decoded


@pytest.mark.parametrize(("name", "role"), FOLLOWED)
@settings(max_examples=8)
@given(data=st.data())
async def test_whatever_was_sampled_stays_as_it_was(
    tokenizer_of: Callable[[str], HuggingFaceTokenizer], name: str, role: Role, data: st.DataObject
) -> None:
    """Any tokens: halves of characters, special ones, such as no text would ever give."""
    tokenizer = tokenizer_of(name)
    chat = chat_of(tokenizer, role)
    assert chat.end_token is not None
    tokens = st.integers(0, len(tokenizer.inner) - 1)
    turns = data.draw(st.lists(st.lists(tokens, min_size=1, max_size=6), min_size=2, max_size=6))
    script = [Sampled(tuple(turn)) for turn in turns]
    replies = ["a reply"] * (len(turns) - 1)

    played = await play(tokenizer, chat, Prompt(text="Which word?"), script, replies)

    check_books(played, script)
    assert played.runs(1) == turns
    opening, *between = played.runs(0)
    assert opening == at_once(tokenizer, [], [], role)
    for turn, observed in zip(turns, between, strict=False):
        ended = turn[-1] == chat.end_token
        assert (observed[0] == chat.end_token) is not ended
    # Each request begins with all that was there before, token by token.
    for before, after in zip(played.prompts, played.prompts[1:], strict=False):
        assert after[: len(before)] == before


@pytest.mark.parametrize("name", ["chatml", "mistral"])
async def test_a_park_in_the_middle_of_a_turn_changes_nothing(
    tokenizer_of: Callable[[str], HuggingFaceTokenizer], name: str
) -> None:
    tokenizer = tokenizer_of(name)
    chat = chat_of(tokenizer)
    assert chat.end_token is not None
    tokens = (*sampled(tokenizer, "", "Qué, 你好?"), chat.end_token)
    parts = [Sampled(tokens[:4], FinishReason.ABORT), Sampled((), FinishReason.ABORT)]
    script = [*parts, Sampled(tokens[4:]), Sampled((chat.end_token,))]

    played = await play(tokenizer, chat, Prompt(text="Which word?"), script, ["yes"])

    check_books(played, script)
    assert played.actions[0] == "Qué, 你好?"
    whole = at_once(tokenizer, ["Qué, 你好?"], ["yes"], "user")
    if name == "chatml":
        assert played.content.token_ids.tolist()[:-1] == whole


async def test_a_stop_string_leaves_the_end_of_the_turn_to_the_template(
    tokenizer_of: Callable[[str], HuggingFaceTokenizer],
) -> None:
    tokenizer = tokenizer_of("chatml")
    chat = chat_of(tokenizer)
    script = [Sampled(tuple(sampled(tokenizer, "", "Q stop"))), Sampled((5, 6))]
    played = await play(
        tokenizer, chat, Prompt(text="Which word?"), script, ["yes"], stop=("stop",)
    )
    check_books(played, script)
    assert played.content.token_ids.tolist()[:-2] == at_once(tokenizer, ["Q stop"], ["yes"], "user")


async def test_a_prompts_history_is_written_before_it_and_its_text_is_shown(
    tokenizer_of: Callable[[str], HuggingFaceTokenizer],
) -> None:
    tokenizer = tokenizer_of("llama3")
    history = (
        Message(role="system", content="Be brief."),
        Message(role="user", content="Hello"),
        Message(role="assistant", content="Hi."),
    )
    prompt = Prompt(text="Which word?", history=history)
    played = await play(tokenizer, chat_of(tokenizer), prompt, [Sampled((9,))], [])
    messages = [*history, Message(role="user", content="Which word?")]
    expected = tokenizer.encode(tokenizer.renderer(None, {})(messages))
    assert played.content.token_ids.tolist() == [*expected, 9]
    shown = "[system] Be brief.\n[user] Hello\n[assistant] Hi.\nWhich word?"
    assert played.content.turns[0] == ("prompt", shown)


@pytest.mark.parametrize(("name", "max_turns"), [("gemma", 9), ("gemma", 1), ("mistral", 9)])
async def test_a_message_that_the_template_cannot_write_loses_the_trajectory_with_the_reason(
    tokenizer_of: Callable[[str], HuggingFaceTokenizer], name: str, max_turns: int
) -> None:
    tokenizer = tokenizer_of(name)
    chat = chat_of(tokenizer, max_turns=max_turns)
    prompt = Prompt(text="?", history=(Message(role="system", content="Be brief."),))
    played = await play(tokenizer, chat, prompt, [], [])
    assert isinstance(played.ending, TrajectoryLost)
    assert "a message cannot be written as tokens" in played.ending.reason


async def test_a_role_that_the_template_does_not_have_loses_the_trajectory_with_the_reason(
    tokenizer_of: Callable[[str], HuggingFaceTokenizer],
) -> None:
    tokenizer = tokenizer_of("gemma")
    script = [Sampled((9,))]
    played = await play(tokenizer, chat_of(tokenizer), Prompt(text="?"), script, ["4"], role="tool")
    assert isinstance(played.ending, TrajectoryLost)
    assert "cannot go on with messages of role 'tool'" in played.ending.reason


async def test_messages_before_a_prompt_need_a_template(
    tokenizer_of: Callable[[str], HuggingFaceTokenizer],
) -> None:
    prompt = Prompt(text="?", history=(Message(role="system", content="Be brief."),))
    played = await play(tokenizer_of("chatml"), None, prompt, [], [])
    assert isinstance(played.ending, TrajectoryLost)
    assert "needs a model with a chat template" in played.ending.reason


async def test_an_observation_without_room_ends_the_trajectory_without_it(
    tokenizer_of: Callable[[str], HuggingFaceTokenizer],
) -> None:
    tokenizer = tokenizer_of("chatml")
    chat = chat_of(tokenizer)
    prompt, script = Prompt(text="?"), [Sampled((9, 9))]
    room = len(chat.opening(prompt, "")) + 5
    played = await play(tokenizer, chat, prompt, script, ["long " * 9], max_model_len=room)
    assert isinstance(played.ending, TrajectoryFinished)
    assert played.ending.truncated == "inference.max_model_len"
    assert played.runs(1) == [[9, 9]]
    assert len(played.runs(0)) == 1


REFUSED: list[tuple[str, Role, str]] = [
    ("thinking", "user", "with thinking in the model's turns, differently once further messages"),
    ("forced thinking", "user", "before the model's first turn differently once turns follow"),
    ("alpaca", "user", "does not begin with a special token"),
    ("only last", "user", "does not keep what the model wrote as it is"),
    ("shouting", "user", "does not keep what the model wrote as it is"),
    ("gemma", "tool", "roles must alternate"),
    ("mistral", "tool", "Tool messages need a tool call id"),
]


@pytest.mark.parametrize(("name", "role", "reason"), REFUSED)
def test_a_template_that_cannot_be_followed_is_refused_with_a_remedy(
    tokenizer_of: Callable[[str], HuggingFaceTokenizer], name: str, role: Role, reason: str
) -> None:
    with pytest.raises(ChatTemplateError) as caught:
        chat_of(tokenizer_of(name), role)
    assert reason in caught.value.rule
    assert "model.chat_template=none" in caught.value.remedy
    other_works = name in ("gemma", "mistral", "thinking")
    assert ("set environment.observation_role=" in caught.value.remedy) is other_works


@pytest.mark.parametrize("name", ["thinking", "forced thinking", "shouting"])
async def test_with_one_turn_no_template_has_to_be_followed(
    tokenizer_of: Callable[[str], HuggingFaceTokenizer], name: str
) -> None:
    tokenizer = tokenizer_of(name)
    chat = chat_of(tokenizer, max_turns=1)
    end = tokenizer.inner.eos_token_id if chat.end_token is None else chat.end_token
    assert end in chat.stop_tokens
    played = await play(tokenizer, chat, Prompt(text="Which word?"), [Sampled((9, end))], [])
    assert played.actions == [tokenizer.decode([9])]
    assert played.runs(0) == [at_once(tokenizer, [], [], "user")]


@pytest.mark.parametrize("name", list(FAMILIES))
def test_the_end_of_a_turn_and_the_trimming_of_white_space_are_found(
    tokenizer_of: Callable[[str], HuggingFaceTokenizer], name: str
) -> None:
    tokenizer = tokenizer_of(name)
    facts = examine(tokenizer.renderer(None, {}), tokenizer.encode, tokenizer.added_tokens())
    if name in ("alpaca", "only last", "shouting"):
        assert facts.end_token is None
    else:
        assert facts.end_token == tokenizer.inner.convert_tokens_to_ids(FAMILIES[name].end)
    assert facts.trims is (name in ("llama3", "gemma", "mistral"))


def test_a_template_of_ones_own_is_read_from_a_file(
    tokenizer_of: Callable[[str], HuggingFaceTokenizer], tmp_path: Path
) -> None:
    path = tmp_path / "keeps.jinja"
    path.write_text(FAMILIES["chatml"].template)
    chat = make_chat(tokenizer_of("thinking"), str(path), {}, "user", max_turns=9)
    assert chat is not None
    assert chat.refused == {}


def test_variables_reach_the_template(
    tokenizer_of: Callable[[str], HuggingFaceTokenizer], tmp_path: Path
) -> None:
    path = tmp_path / "greets.jinja"
    path.write_text("{{ greeting }}" + FAMILIES["chatml"].template)
    tokenizer = tokenizer_of("chatml")
    chat = make_chat(tokenizer, str(path), {"greeting": "Hello"}, "user", max_turns=9)
    assert chat is not None
    assert tokenizer.decode(chat.opening(Prompt(text="?"), "")).startswith("Hello<|im_start|>")


def test_without_a_template_or_where_none_is_wanted_a_conversation_is_plain_text(
    tokenizer_of: Callable[[str], HuggingFaceTokenizer], tmp_path: Path
) -> None:
    folder = save_tokenizer(FAMILIES["chatml"], tmp_path)
    (folder / "chat_template.jinja").unlink()
    bare = HuggingFaceTokenizer(str(folder))
    assert not bare.has_template
    assert make_chat(bare, "auto", {}, "user", max_turns=9) is None
    assert make_chat(tokenizer_of("alpaca"), "none", {}, "user", max_turns=9) is None
