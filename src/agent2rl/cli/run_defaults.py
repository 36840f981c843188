"""What `agent2rl run` chooses if the command line names neither an agent nor a model, and how it says so."""

import importlib.util
from typing import Any

import click

from agent2rl.core.errors import MachineError, UserError
from agent2rl.core.records import RunSpec
from agent2rl.core.sandbox import AUTO_SANDBOX
from agent2rl.report.formatting import format_duration
from agent2rl.system.unix import require_linux

SHIPPED_SCRIPT, RECIPE = "script", "recipe"
MINIATURE, LANGUAGE_MODEL = "abacus", "seedling"
MINIATURE_TASKS = {"gsm8k", "gsm8k-mini"}
"""Tasks that the miniature model can learn: word problems with a number as the answer."""
TRAINING_PACKAGES = ("torch", "transformers")
INSTALL_HINT = """\
Install what is missing: pip install 'agent2rl[train]'
Without a GPU, get torch's build for CPUs first, which is much smaller:
  pip install torch --index-url https://download.pytorch.org/whl/cpu
A run that needs neither: agent2rl run --task gsm8k-mini"""


def choose_agent_and_model(options: dict[str, Any], model_given: bool) -> dict[str, Any]:
    """Return the options with an agent that needs no LLM, and with a model that fits the task."""
    if options["driver"]:
        raise UserError(
            "--driver names an LLM, but there is no agent that it drives.",
            "Add one, such as --agent claude-code. `agent2rl agents` lists them.",
        )
    model = options["model"]
    if not model_given:
        model = MINIATURE if options["task"] in MINIATURE_TASKS else LANGUAGE_MODEL
    agent = SHIPPED_SCRIPT if model == MINIATURE else RECIPE
    return {**options, "agent": agent, "model": model}


def require_training_packages(what: str) -> None:
    """Raise MachineError if the packages that train language models are missing."""
    missing = [name for name in TRAINING_PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise MachineError(f"{what}, but {' and '.join(missing)} cannot be imported.", INSTALL_HINT)


def announce_choices(spec: RunSpec, quiet: bool) -> None:
    """Print in three lines what was chosen and how to choose otherwise, or raise if it cannot run here."""
    require_linux("Runs")
    if spec.agent == RECIPE:
        require_training_packages(f"The agent {RECIPE!r} trains a language model")
    minutes = format_duration(spec.budget.wall_seconds)
    # Which one works is known after the self-test. The run prints it then.
    automatic = spec.sandbox == AUTO_SANDBOX
    sandbox = "the best sandbox that works here" if automatic else f"the sandbox {spec.sandbox}"
    lines = (
        f"agent:  {spec.agent} (no LLM needed). To change it: --agent NAME (agent2rl list agents)",
        f"model:  {spec.model}. To change it: --model NAME (agent2rl list models)",
        f"limits: {minutes} for the agent, in {sandbox}. To change them: --budget, --sandbox",
    )
    if not quiet:
        click.echo("\n".join(lines), err=True)
