"""Build the agent's workspace, its instructions and its prompts.

/workspace/
  description.md     the task
  instructions.md    the rules, the file list, the grading API with working examples, the time limit
  run_meta.json      the same facts for programs, and when it started, submitted last and ended
  scores.json        the verdicts so far, in the published form (grading/scores_file.py)
  installed_packages.txt   the packages of the agent's Python, with their versions
  check_contamination.py   the harness's search for evaluation data, applied to training data
  eval.py            the task's evaluation, for training data
  data/              train.jsonl and other files of the task (read-only); world.json names its world
  models/<name>/     the base model (read-only)
  SKILL.md           how to keep notes of attempts; AGENTS.md, CLAUDE.md and GEMINI.md point to it
  reports/           for these notes
  code/              for the agent's code
  output/            for the models it trains

The texts are in instructions.md, go_on.md, resumed.md and skill.md next to this module. Agents of
different vendors look for instructions in files with different names. Each of these files points to SKILL.md.
"""

import json
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from string import Template

from agent2rl.analysis import contamination
from agent2rl.core.agent import Brief
from agent2rl.core.errors import MachineError, UserError
from agent2rl.core.grading_records import EvalScore, Submission
from agent2rl.core.network import parse_network_policy
from agent2rl.core.records import TRAINING_PACKAGES, RunSpec
from agent2rl.core.sandbox import Mount
from agent2rl.core.task import ExportableEvaluator, Task
from agent2rl.grading.scores_file import SCORES_FILE
from agent2rl.record.files import remove_tree
from agent2rl.record.untrusted_files import replace_untrusted_file
from agent2rl.run import task_data, training_services
from agent2rl.run.agent_network import render_network_instructions
from agent2rl.run.agent_python import AgentPython, find_own_python
from agent2rl.run.assets import Assets, is_directory
from agent2rl.run.package_overlay import can_use_apt
from agent2rl.training.demonstrations import DEMONSTRATIONS_FILE

# Prompts: the first one is the same for all agents; the others continue or resume a run.

INSTRUCTIONS_VERSION = 10
"""Version of the prompt files. Increase it when a change of rules or wording may change how agents behave.
spec.json records the version that the run began with, and the ledger the version at each start of the agent.
A ledger without it is from version 1. docs/run-directory.md says what changed."""
SKILL = "SKILL.md"
POINTERS = ("AGENTS.md", "CLAUDE.md", "GEMINI.md")
REPORTS = "reports"
MOST_LISTED, LONGEST_MESSAGE = 20, 200
POINTER = (
    f"Read `instructions.md` (your job) and `{SKILL}` (how to keep notes on your attempts), then begin.\n"
)


def render_template(name: str, **values: object) -> str:
    return Template(Path(__file__).with_name(name).read_text(encoding="utf-8")).substitute(values)


def write_skill_files(workspace: Path, seen_at: PurePosixPath) -> None:
    (workspace / REPORTS).mkdir()
    (workspace / SKILL).write_text(render_template("skill.md", workspace=seen_at), encoding="utf-8")
    for name in POINTERS:
        (workspace / name).write_text(POINTER, encoding="utf-8")


def make_first_prompt(instructions: str, description: str) -> str:
    """Return the whole text as one prompt, so that no agent begins without having read it."""
    return f"{instructions}\n# The task\n\n{description}\n{POINTER}"


def make_continue_prompt(seconds: float, baseline: EvalScore, best: Submission | None) -> str:
    return render_template(
        "go_on.md", left=_format_time_left(seconds), state=_format_best_score(baseline, best)
    )


def make_resume_prompt(
    seconds: float, baseline: EvalScore, best: Submission | None, submissions: Sequence[Submission]
) -> str:
    """Return the prompt for an agent that starts again after the harness crashed."""
    lines = [_format_verdict(submission) for submission in submissions[-MOST_LISTED:]]
    left_out = len(submissions) - len(lines)
    text = "Your submissions:\n\n" if lines else "You have submitted nothing yet."
    text += f"- {left_out} earlier ones: `GET $GRADING_SERVER_URL/submissions`\n" if left_out else ""
    return render_template(
        "resumed.md",
        left=_format_time_left(seconds),
        state=_format_best_score(baseline, best),
        submissions=text + "\n".join(lines),
    )


def _format_verdict(submission: Submission) -> str:
    score = f" {submission.score.value:.2f}" if submission.score else ""
    message = f" ({submission.message[:LONGEST_MESSAGE]})" if submission.message else ""
    verdict = submission.verdict or "not graded yet"
    return f"- {submission.id}, `{submission.path}`: {verdict}{score}{message}"


def _format_best_score(baseline: EvalScore, best: Submission | None) -> str:
    if best is None or best.score is None:
        return f"You have no best submission yet. The base model scores {baseline.value:.2f}."
    return f"Your best submission scores {best.score.value:.2f}. The base model scores {baseline.value:.2f}."


def _format_time_left(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 3600:.1f} hours" if seconds >= 7200 else f"{seconds / 60:.0f} minutes"


MODES = {
    "free": "Use any training method.",
    "sft-only": "Supervised fine-tuning only: no training signal may come from rewards.",
    "rl-oriented": (
        "Improve the model by reinforcement learning. Supervised training on answers may\n"
        "come first, as a warm-up. The last training stage of your best submission must be reinforcement\n"
        "learning, so do not submit a model that had only the warm-up."
    ),
    "rl-only": "Reinforcement learning only: no supervised training on answers, not even as a warm-up.",
    "multi": "Try more than one training paradigm, compare them, and submit the results of each.",
}


RANKING = {
    "default": (
        "The scores that you see are measured on a feedback split. The ranking uses a held-out split. It is\n"
        "graded once, after your time is over, for your best submission on the feedback split."
    ),
    "paper": (
        "The scores that you see are measured on the whole test set. The ranking uses the score of your\n"
        "best submission."
    ),
}
CLOCKS = {
    "all": (
        "You have $wall seconds from your start. The clock also runs while a submission waits and is graded."
    ),
    "training": (
        "You have $wall seconds. The clock stops while a submission of yours is copied, waits, is\n"
        "checked or is graded, even if you work in that time. In any case, your time is over\n"
        "$max_wall seconds after your start. `GET /time` says how much time you have used on both clocks\n"
        "(`training_seconds`, `wall_seconds`), and in `remaining` how much is left."
    ),
}
GPU_LIMIT = (
    "\nYour GPU time is limited to $gpu seconds. It is the number of your GPUs times the wall time since\n"
    "your start, even while they are idle. When it is used up, your time is over."
)
RUN_META = "run_meta.json"
CHECK = "check_contamination.py"
EVAL = "eval.py"
PACKAGES = "installed_packages.txt"
RESERVED = (
    "description.md",
    "instructions.md",
    RUN_META,
    SCORES_FILE,
    CHECK,
    PACKAGES,
    "agent",
    SKILL,
    *POINTERS,
)
HARNESS_FILES = frozenset({*RESERVED, EVAL})
"""Files in the workspace that the harness wrote."""


def get_model_path(spec: RunSpec) -> PurePosixPath:
    """Return the path at which the agent sees the base model, relative to the workspace."""
    name = Path(spec.model).name if is_directory(spec.model) else spec.model.partition("@")[0]
    return PurePosixPath("models") / name


def build_workspace(
    workspace: Path,
    seen_at: PurePosixPath,
    spec: RunSpec,
    task: Task,
    assets: Assets,
    python: AgentPython | None = None,
) -> None:
    """Create the workspace with all files that the agent is given. `python` defaults to the harness's own."""
    python = python or find_own_python()
    for name in ("data", "code", "output", str(get_model_path(spec).parent)):
        (workspace / name).mkdir(parents=True)
    task_data.write_training_data(
        workspace / "data",
        task,
        assets.train,
        assets.folders,
        assets.base.templated,
        expert=spec.expert == "full",
    )
    if assets.demonstrations:
        (workspace / "data" / DEMONSTRATIONS_FILE).write_text(assets.demonstrations, encoding="utf-8")
    for name, source in task.exposes.items():
        target = workspace / name
        if target.exists() or name in RESERVED:
            raise UserError(f"The task exposes {name!r}, but the workspace already has a file of that name.")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(source.read_bytes())
    if isinstance(task.evaluator, ExportableEvaluator):
        (workspace / EVAL).write_text(task.evaluator.export_program(), encoding="utf-8")
    (workspace / "description.md").write_text(task.description, encoding="utf-8")
    instructions = _render_instructions(seen_at, spec, task, python)
    (workspace / "instructions.md").write_text(instructions, encoding="utf-8")
    (workspace / PACKAGES).write_text(python.render_package_list(), encoding="utf-8")
    write_skill_files(workspace, seen_at)
    (workspace / CHECK).write_bytes(Path(__file__).with_name(CHECK).read_bytes())


def make_brief(
    seen_at: PurePosixPath,
    spec: RunSpec,
    task: Task,
    gpus: Sequence[str] | None = None,
    python: AgentPython | None = None,
) -> Brief:
    """Return the agent's brief. `gpus` are those that CUDA_VISIBLE_DEVICES names; None: it is not set."""
    python = python or find_own_python()
    instructions = _render_instructions(seen_at, spec, task, python)
    environment = {
        "TASK": task.id,
        "BASE_MODEL": str(get_model_path(spec).relative_to("models")),
        "WORKSPACE": str(seen_at),
        "MODEL_PATH": str(seen_at / get_model_path(spec)),
        "DATA_PATH": str(seen_at / "data"),
        "OUTPUT_DIR": str(seen_at / "output"),
        "AGENT2RL_PYTHON": sys.executable,
    }
    environment |= {} if gpus is None else {"CUDA_VISIBLE_DEVICES": ",".join(gpus)}
    prompt = make_first_prompt(instructions, task.description)
    return Brief(
        task.id,
        spec.mode,
        spec.budget,
        seen_at,
        instructions,
        environment,
        prompt,
        python=str(python.interpreter),
        agent2rl_python="python" if python.is_own else sys.executable,
    )


def list_given_texts(task: Task, brief: Brief, assets: Assets) -> tuple[str, ...]:
    """Return every text that the agent was given, which the contamination search ignores.

    Withheld answers to training examples are included, because the agent may find the same answers itself.
    """
    exposed = (path.read_text(encoding="utf-8", errors="replace") for path in task.exposes.values())
    train = (
        part.text
        for example in assets.whole
        for part in contamination.split_example(
            "train", example.id, example.prompt, example.target, example.meta
        )
    )
    evaluation = [task.evaluator.export_program()] if isinstance(task.evaluator, ExportableEvaluator) else []
    return (task.description, brief.instructions, *exposed, *evaluation, *train, assets.demonstrations)


@dataclass(frozen=True)
class RunTimes:
    """When the agent started, submitted last and ended, and how much time it has used."""

    started_at: float
    last_submit_at: float | None = None
    ended_at: float | None = None
    wall_seconds: float = 0.0
    training_seconds: float = 0.0
    gpu_seconds: float | None = None


def write_run_meta(workspace: Path, spec: RunSpec, task: Task, times: RunTimes) -> bool:
    """Write the run's settings and times for programs, and return whether that was possible.

    The agent may have put anything at this path, so no link is followed, and a directory stays.
    """
    max_gpu_seconds = spec.budget.gpu_seconds
    meta = {
        "task": task.id,
        "base_model": str(get_model_path(spec).relative_to("models")),
        "mode": spec.mode,
        "expert": spec.expert,
        "network": spec.network,
        "seed": spec.seed,
        "samples": spec.samples,
        "start_time": int(times.started_at),
        "timeout_s": int(spec.budget.wall_seconds),
        "last_submit_time": None if times.last_submit_at is None else int(times.last_submit_at),
        "end_time": None if times.ended_at is None else int(times.ended_at),
        "clock": spec.clock,
        "wall_timeout_s": int(spec.budget.max_wall_seconds(spec.clock)),
        "wall_s": int(times.wall_seconds),
        "training_s": int(times.training_seconds),
        "gpu_s": None if times.gpu_seconds is None else int(times.gpu_seconds),
        "max_submissions": spec.budget.submissions,
        "max_environment_steps": spec.budget.environment_steps,
        "max_gpu_s": None if max_gpu_seconds is None else int(max_gpu_seconds),
    }
    content = json.dumps(meta, indent=2) + "\n"
    return replace_untrusted_file(workspace, RUN_META, content.encode(), 0o644)


def write_first_run_meta(workspace: Path, spec: RunSpec, task: Task, times: RunTimes) -> None:
    """Write run_meta.json before the agent starts, in place of anything that an earlier start left there."""
    path = workspace / RUN_META
    if path.is_dir() and not path.is_symlink():
        remove_tree(path)
    if not write_run_meta(workspace, spec, task, times):
        raise MachineError(f"{RUN_META} cannot be written to the workspace.")


def list_read_only_mounts(workspace: Path, spec: RunSpec, assets: Assets) -> tuple[Mount, ...]:
    """Return the read-only parts of the workspace."""
    return (
        Mount(assets.base.directory, str(get_model_path(spec))),
        Mount(workspace / "data", "data"),
        *(
            Mount(folder, f"data/{name}")
            for name, folder in assets.folders.items()
            if isinstance(folder, Path)
        ),
    )


def _render_instructions(seen_at: PurePosixPath, spec: RunSpec, task: Task, python: AgentPython) -> str:
    max_submissions = spec.budget.submissions
    return render_template(
        "instructions.md",
        workspace=seen_at,
        model=seen_at / get_model_path(spec),
        clock=_render_clock(spec),
        submissions="as often as you like" if max_submissions is None else f"at most {max_submissions} times",
        python=_describe_python(python),
        agent2rl_python="python" if python.has_agent2rl else '"$AGENT2RL_PYTHON"',
        mode=spec.mode,
        rule=MODES[spec.mode],
        network=render_network_instructions(parse_network_policy(spec.network), can_use_apt(spec.sandbox)),
        ranking=RANKING[spec.protocol],
        world=training_services.render_world_instructions(task, spec)
        + training_services.render_judge_instructions(spec),
    )


NO_AGENT2RL = (
    "It does not have the package `agent2rl`. `$AGENT2RL_PYTHON` is another Python, which has it. Use that "
    "one in place of `python` for programs that import `agent2rl`, such as `eval.py` and the examples on "
    "these pages."
)


def _describe_python(python: AgentPython) -> str:
    """Return which Python and which training packages the agent has."""
    installed = python.lock.training_packages
    missing = [name for name in TRAINING_PACKAGES if name not in installed]
    packages = ", ".join(f"{name} {version}" for name, version in installed.items())
    text = f"`python` is Python {python.lock.version}{' with ' if packages else ''}{packages}."
    text += f" Not installed: {', '.join(missing)}." if missing else ""
    text += "" if python.has_agent2rl else f" {NO_AGENT2RL}"
    return textwrap.fill(text, 100, break_long_words=False, break_on_hyphens=False)


def _render_clock(spec: RunSpec) -> str:
    """Return what the agent is told about its time and its GPU time."""
    text = CLOCKS[spec.clock] + ("" if spec.budget.gpu_seconds is None else GPU_LIMIT)
    return Template(text).substitute(
        wall=f"{spec.budget.wall_seconds:g}",
        max_wall=f"{spec.budget.max_wall_seconds(spec.clock):g}",
        gpu=f"{spec.budget.gpu_seconds or 0:g}",
    )
