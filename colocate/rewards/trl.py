"""A finished trajectory as TRL's ``GRPOTrainer`` would hand it to a reward function."""

from __future__ import annotations

from typing import Any

from colocate.ports import MESSAGES
from colocate.rollout.runner import Episode

TRL_OWN = frozenset({"prompts", "completions"})
"""Parameters that are given in TRL's way, whatever the data set's columns."""

_ROLES = {"agent": "assistant", "environment": "user"}


def trl_arguments(episode: Episode) -> dict[str, Any]:
    """``prompts`` and ``completions``, each a list of one.

    Both are texts, or lists of messages where the prompt came as one: the data set's, and a
    message for each turn after them.
    """
    messages = episode.prompt.columns.get(MESSAGES)
    if not isinstance(messages, (list, tuple)):
        return {"prompts": [episode.prompt.text], "completions": [episode.completion]}
    completion = [
        {"role": _ROLES[speaker], "content": text}
        for speaker, text in episode.turns
        if speaker in _ROLES
    ]
    return {"prompts": [[dict(message) for message in messages]], "completions": [completion]}
