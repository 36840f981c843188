"""DeepSearchQA: questions that take several searches, many of them answered by a set of things.

The official questions, from the hub or a directory; what is searched is for the run to say (`--search`). A
model with a chat template is told the actions; one without goes on after two episodes of our own.
"""

from pathlib import Path

from agent2rl.core.engine import Sampling
from agent2rl.core.task import Task
from agent2rl.environments.search.actions import normalize_action
from agent2rl.environments.search.answer_matching import MATCHER
from agent2rl.environments.search.world import make_graded_environment
from agent2rl.evaluators.episode_prompts import EpisodePrompt
from agent2rl.evaluators.episodes import Episodes
from agent2rl.evaluators.prompts import read_prompts
from agent2rl.evaluators.search_grading import settle_searches
from agent2rl.tasks.deepsearchqa import official

RULE = f"deepsearchqa-2-{MATCHER}"
"""Changes whenever the same actions could score otherwise."""

EVALUATOR = Episodes(
    rule=RULE,
    world=make_graded_environment,
    # A thought may stand on a line of its own before its action, so the end of a line ends nothing.
    telling=EpisodePrompt(chat="", stop=("\nQuestion:", "\n>")).prompted(
        read_prompts(Path(__file__).with_name("prompts.toml"))
    ),
    group="problem_category",
    sampling=Sampling(max_tokens=512),
    slow=True,
    action=normalize_action,
    settle=settle_searches,
)

TASK: Task = Task(
    id="deepsearchqa",
    level=3,
    description=Path(__file__).with_name("description.md").read_text(encoding="utf-8"),
    load=official.load,
    evaluator=EVALUATOR,
    world="search",
    desk=frozenset({"search", "judge"}),
)
