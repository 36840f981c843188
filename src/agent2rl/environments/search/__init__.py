"""Search: questions that are answered by searching and reading, one step after another.

    play = Research(lambda example: Local(documents))
    print(play.reset(example).observation)
    print(play.step("Thought: who founded it?\\nAction: search[founder of Orin Foods]").observation)
    print(play.step("answer[Ada Lorn; Bo Marr]").reward)

What is searched is a `Backend`: `Local` for documents, `live` for search engines, `Elsewhere` for what the
harness searches, `Recording` and `Replay` for whatever should be the same again; `choosing` finds one by its
name. `answers` says what is right without a judge, `actions` finds the action in what a model wrote. Not
covered: prompts, judges.
"""

from agent2rl.core.environment import OpenWorld
from agent2rl.environments.search.actions import spoken
from agent2rl.environments.search.answers import Gold, Marks, gold, mark
from agent2rl.environments.search.backend import Backend, Document, Elsewhere, Result
from agent2rl.environments.search.local import Local
from agent2rl.environments.search.replay import Recording, Replay
from agent2rl.environments.search.research import Research
from agent2rl.environments.search.world import open_world

__all__ = [
    "WORLD",
    "Backend",
    "Document",
    "Elsewhere",
    "Gold",
    "Local",
    "Marks",
    "Recording",
    "Replay",
    "Research",
    "Result",
    "gold",
    "mark",
    "spoken",
]

WORLD: OpenWorld = open_world
