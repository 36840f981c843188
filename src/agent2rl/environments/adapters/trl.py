"""Use a world with TRL's GRPOTrainer: an `environment_factory` and the rows of a dataset.

    trainer = GRPOTrainer(
        model,
        args=GRPOConfig(...),
        train_dataset=Dataset.from_list(rows(world, EVALUATOR.prompt.chat)),
        environment_factory=environment_factory(world, extract_action=EVALUATOR.action),
        processing_class=make_plain_reply_tokenizer(tokenizer),
    )

In a run, the episodes are played in the world that the harness serves at `$ENVIRONMENT_URL`, so the harness
witnesses them. The reward is that of the episode. Each row names a game, so that the rollouts of a group play
the same one. TRL passes exceptions of a tool on to the model, so a used-up budget ends the training only at
the next `reset`.

TRL plays by tool calls, and grading offers no tools: there, the model acts in plain text. With
`extract_action` and `make_plain_reply_tokenizer` as above, each reply is a call of the one tool `act`, and
the model reads and generates the tokens of grading. Without them, the tools are the actions of the world,
and the tokenizer's own template must support tool calls.

TRL itself is not imported here.
"""

import copy
import functools
import inspect
import os
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

from agent2rl.core.environment import World
from agent2rl.core.errors import UserError
from agent2rl.environments.adapters.client import ServedWorld
from agent2rl.environments.adapters.episodes import GameSelector, open_world
from agent2rl.environments.adapters.rollout_reports import ROLLOUT_REPORTER

OVER = "The episode is over."
"""Ends the last observation of an episode."""
PLAIN_REPLY_TEMPLATE = """\
{%- set plain = namespace(messages=[]) -%}
{%- for message in messages -%}
{%- if message['role'] == 'tool' -%}
{%- set plain.messages = plain.messages + [{'role': 'user', 'content': message['content']}] -%}
{%- elif message.get('tool_calls') -%}
{%- set function = message['tool_calls'][0]['function'] -%}
{%- set is_act = function['name'] == 'act' -%}
{%- set reply = function['arguments'].get('action', '') if is_act else function | tojson -%}
{%- set plain.messages = plain.messages + [{'role': 'assistant', 'content': reply}] -%}
{%- else -%}
{%- set plain.messages = plain.messages + [message] -%}
{%- endif -%}
{%- endfor -%}
{%- set messages = plain.messages -%}
{%- set tools = none -%}
"""
"""Comes before a model's own chat template: it turns a call of `act` into a plain reply and the result of a
tool into a user message. TRL wants to see other calls rendered as well, and never makes any."""


def rows(world: World | None = None, preface: str = "") -> list[dict[str, Any]]:
    """Return one row per game, with the preface as its prompt. TRL appends the first observation to it."""
    world = world or open_world()
    content = f"{preface.strip()}\n\n" if preface else ""
    return [{"prompt": [{"role": "user", "content": content}], "game": game.id} for game in world.games]


def environment_factory(
    world: World | None = None,
    *,
    extract_action: Callable[[str], str] | None = None,
    served: bool | None = None,
) -> type["TrlEnvironment"]:
    """Return a class that has the world's tools as methods.

    With `extract_action`, the only tool is `act`, whose argument is a whole reply. `served` is whether
    episodes are played at `$ENVIRONMENT_URL`, by default if that is set. It must be False for a world that is
    not the run's own.
    """
    world = world or open_world()
    if bool(os.environ.get("ENVIRONMENT_URL")) if served is None else served:
        world = replace(world, environment=ServedWorld)
    tools = world.tools if world.tools and extract_action is None else (act,)
    methods = {tool.__name__: _make_tool_method(tool) for tool in tools}
    attributes = {
        "_world": world,
        "_games": GameSelector(world),
        "_extract_action": staticmethod(extract_action or (lambda action: action)),
    }
    return type("WorldPlayer", (TrlEnvironment,), {**attributes, **methods})


def make_plain_reply_tokenizer(tokenizer: Any) -> Any:
    """Return a copy of a tokenizer for training, with which each reply of the model is a call of `act`.

    Save the model with the original tokenizer: a submission's chat template must be the base model's.
    """
    if not tokenizer.chat_template or not tokenizer.eos_token:
        raise UserError(
            "The tokenizer has no chat template, or no end-of-sequence token.",
            "Use agent2rl.training.rollouts for a model that continues plain text.",
        )
    # A copy: the original is saved with the submission, and its chat template must not change.
    copied = copy.deepcopy(tokenizer)
    copied.chat_template = PLAIN_REPLY_TEMPLATE + tokenizer.chat_template
    call = {"name": "act", "arguments": {"action": "{content}"}}
    copied.response_template = {
        "defaults": {"role": "assistant"},
        # Of what the model has read, only the end of the episode matters: a reply to it is no call.
        "start_anchor_pattern": rf"\A.*?(?={re.escape(OVER)}|\Z)",
        "fields": {
            "content": {"open": OVER, "content": "text"},
            "tool_calls": {
                "close": tokenizer.eos_token,
                "repeats": True,
                "content": "text",
                "transform": {"type": "function", "function": call},
            },
        },
    }
    return copied


class TrlEnvironment:
    """Play one rollout at a time. TRL takes every public method but `reset` and `get_reward` as a tool."""

    _world: ClassVar[World]
    _games: ClassVar[GameSelector]
    _extract_action: ClassVar[Callable[[str], str]]

    def __init__(self) -> None:
        self._slot = ROLLOUT_REPORTER.open_slot(self._world)

    def reset(self, game: str | None = None, **_: object) -> str:
        """Begin the game that a row names; other columns are ignored."""
        if game is None:
            raise UserError(
                "The dataset's rows have no `game`, so the rollouts of a group would play different games.",
                "Build them with agent2rl.environments.adapters.trl.rows().",
            )
        return self._slot.reset(self._games.find_game(game)).observation

    def get_reward(self) -> float:
        return self._slot.reward

    def _take_action(self, action: str) -> str:
        if self._slot.over:
            return OVER
        step = self._slot.step(type(self)._extract_action(action))
        return f"{step.observation}\n{OVER}" if step.done else step.observation


def act(action: str) -> str:
    """Act in the world.

    Args:
        action: What to do, in words.
    """
    return action


def _make_tool_method(tool: Callable[..., str]) -> Callable[..., str]:
    """Turn a tool into a method that takes its action, with the tool's signature and docstring."""

    @functools.wraps(tool)
    def method(self: TrlEnvironment, *arguments: Any, **named: Any) -> str:
        return self._take_action(tool(*arguments, **named))

    signature = inspect.signature(tool)
    self_parameter = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    method.__signature__ = signature.replace(parameters=[self_parameter, *signature.parameters.values()])  # type: ignore[attr-defined]
    return method
