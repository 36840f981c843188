"""ALFWorld as published: every model continues a text of two examples of the same kind of task (ReAct).

The examples are those of prompts.toml, which are our own, in the published layout. A game of the older
grammar (`put X in/on Y`) gets them in its own wording, because a model copies the commands of its examples.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from agent2rl.core.engine import Sampling
from agent2rl.core.records import PromptTemplates
from agent2rl.core.task import Example, PublishedProfile, Splits
from agent2rl.environments.alfworld import AlfworldGame
from agent2rl.environments.alfworld.environment import AlfworldEnvironment
from agent2rl.evaluators.episodes import Episodes
from agent2rl.evaluators.published_prompts import ReactPrompt, strip_command
from agent2rl.evaluators.task_data import read_prompts

INTRODUCTION = "Do a task in a household with text commands. Two examples show how.\n"
OLDER = "older grammar"
KIND = "examples"
"""The key of an example's meta with the kind of its examples: that of its task, and an older grammar."""
_MOVE = re.compile(r"^> move (.+) to (.+)$", re.MULTILINE)
_MOVED = re.compile(r"^You move the (.+) to the (.+)\.$", re.MULTILINE)


def build_react_text(plain: str) -> str:
    """Return two example episodes in the published layout: without empty lines inside."""
    rooms = [
        part for part in plain.strip().split("\n\n") if "Your task is to:" in part or part.startswith("You ")
    ]
    episodes: list[str] = []
    for part in rooms:
        if part.startswith("Your task is to:"):
            episodes[-1] += f"\n{part}"
        else:
            episodes.append(part)
    return INTRODUCTION + "".join(f"{episode}\n" for episode in episodes)


def translate_commands(text: str) -> str:
    """Return the examples with the command `put X in/on Y` of the older grammar."""
    text = _MOVE.sub(r"> put \1 in/on \2", text)
    return _MOVED.sub(r"You put the \1 in/on the \2.", text)


def build_react_texts(prompts: PromptTemplates) -> Mapping[str, str]:
    plain = prompts.plain if isinstance(prompts.plain, dict) else {"": prompts.plain or ""}
    texts = {kind: build_react_text(text) for kind, text in plain.items()}
    return texts | {name_kind(kind, older=True): translate_commands(text) for kind, text in texts.items()}


def name_kind(kind: str, older: bool) -> str:
    return ", ".join(filter(None, (kind, OLDER))) if older else kind


def mark_kinds(splits: Splits) -> Splits:
    """Add the kind of its examples to every game that carries its file; others have the newer grammar."""
    return replace(
        splits,
        train=tuple(_mark_kind(example) for example in splits.train),
        feedback=tuple(_mark_kind(example) for example in splits.feedback),
        heldout=tuple(_mark_kind(example) for example in splits.heldout),
        test=None if splits.test is None else tuple(_mark_kind(example) for example in splits.test),
    )


def _mark_kind(example: Example) -> Example:
    data = example.meta.get("game")
    commands = AlfworldGame.from_data(data, example.id).grammar.spellings if isinstance(data, dict) else {}
    older = commands.get("putobject", "").startswith("put ") or bool(
        re.search(r"^put .+ in/on ", example.target, re.MULTILINE)
    )
    return replace(example, meta={**example.meta, KIND: name_kind(str(example.meta["task_type"]), older)})


def build_profile(prompts: PromptTemplates, version: int = 1) -> PublishedProfile:
    return PublishedProfile(
        name="paper-alfworld",
        version=version,
        evaluator=Episodes(
            rule="paper-alfworld-1",
            world=AlfworldEnvironment,
            prompt=ReactPrompt(chat="", plain=build_react_texts(prompts), name="paper"),
            group=KIND,
            sampling=Sampling(max_tokens=100, stop=("\n",), plain=True),
            action=strip_command,
        ),
        adapt=mark_kinds,
        scoring=Path(__file__).with_name("paper.md").read_text(encoding="utf-8"),
    )


PAPER = build_profile(read_prompts(Path(__file__).with_name("prompts.toml")))
