"""Builds what the agent sees and is told: its workspace, its instructions and its prompts.

/workspace/
  description.md     the task
  instructions.md    the rules, the map, the grading API with working examples, the clock
  run_meta.json      the same for programs
  check_contamination.py   the rule by which the harness looks for evaluation data, on training data
  eval.py            the task's evaluation, for training data
  data/              train.jsonl and whatever else the task shows (read-only); world.json names its world
  models/<name>/     the base model (read-only)
  SKILL.md           how to keep notes of attempts; AGENTS.md, CLAUDE.md and GEMINI.md point to it
  reports/           for those notes
  code/              for the agent's code
  output/            for the models it trains

The words are in instructions.md, go_on.md, resumed.md and skill.md beside this module. Agents of
different makers look for instructions in files of different names; each of those points to the one skill.
"""

import json
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from string import Template

from agent2rl.analysis import contamination
from agent2rl.core.agent import Brief
from agent2rl.core.errors import UserError
from agent2rl.core.grading_records import EvalScore, Submission
from agent2rl.core.records import RunSpec
from agent2rl.core.sandbox import Mount
from agent2rl.core.task import ExportableEvaluator, Task
from agent2rl.record.files import remove_tree
from agent2rl.run import training_data, training_services
from agent2rl.run.assets import Assets, is_directory

# What an agent is told: one brief for all of them, and what is said to one that goes on.

INSTRUCTIONS_VERSION = 2
"""Of instructions.md; grows when its rules or its wording change what an agent may make of them. It is noted
in the ledger when the agent starts; a ledger without it is from version 1."""
SKILL = "SKILL.md"
POINTERS = ("AGENTS.md", "CLAUDE.md", "GEMINI.md")
REPORTS = "reports"
MOST_LISTED, LONGEST_MESSAGE = 20, 200
POINTER = (
    f"Read `instructions.md` (what you are to do) and `{SKILL}` (how to keep the record of it), then begin.\n"
)


def render_template(name: str, **values: object) -> str:
    return Template(Path(__file__).with_name(name).read_text(encoding="utf-8")).substitute(values)


def write_skill_files(workspace: Path, seen_at: PurePosixPath) -> None:
    (workspace / REPORTS).mkdir()
    (workspace / SKILL).write_text(render_template("skill.md", workspace=seen_at), encoding="utf-8")
    for name in POINTERS:
        (workspace / name).write_text(POINTER, encoding="utf-8")


def make_first_prompt(instructions: str, description: str) -> str:
    """For agents that read a prompt: all of it, so that none begins without having read it."""
    return f"{instructions}\n# The task\n\n{description}\n{POINTER}"


def make_continue_prompt(seconds: float, baseline: EvalScore, best: Submission | None) -> str:
    return render_template(
        "go_on.md", left=_format_time_left(seconds), state=_format_best_score(baseline, best)
    )


def make_resume_prompt(
    seconds: float, baseline: EvalScore, best: Submission | None, submissions: Sequence[Submission]
) -> str:
    """How things stand, for an agent whose harness died."""
    listed = [_format_verdict(one) for one in submissions[-MOST_LISTED:]]
    left_out = len(submissions) - len(listed)
    said = "Your submissions:\n\n" if listed else "You have submitted nothing yet."
    said += f"- {left_out} earlier ones: `GET $GRADING_SERVER_URL/submissions`\n" if left_out else ""
    return render_template(
        "resumed.md",
        left=_format_time_left(seconds),
        state=_format_best_score(baseline, best),
        submissions=said + "\n".join(listed),
    )


def _format_verdict(one: Submission) -> str:
    score = f" {one.score.value:.2f}" if one.score else ""
    message = f" ({one.message[:LONGEST_MESSAGE]})" if one.message else ""
    return f"- {one.id}, `{one.path}`: {one.verdict or 'not graded yet'}{score}{message}"


def _format_best_score(baseline: EvalScore, best: Submission | None) -> str:
    if best is None or best.score is None:
        return f"Nothing that you submitted has a score yet; the base model's is {baseline.value:.2f}."
    return f"Your best submission has {best.score.value:.2f}; the base model has {baseline.value:.2f}."


def _format_time_left(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 3600:.1f} hours" if seconds >= 7200 else f"{seconds / 60:.0f} minutes"


MODES = {
    "free": "Train in any way you like.",
    "sft-only": "Supervised fine-tuning only: no training signal may come from rewards.",
    "rl-only": "Reinforcement learning only: no supervised training on answers.",
    "multi": "Try more than one training paradigm, compare them, and submit the results of each.",
}


RANKING = {
    "heldout": (
        "The score you see is on a feedback split. The ranking uses a held-out split that is graded once,\n"
        "after your time, for the submission with the best feedback score."
    ),
    "paper": "The score you see is on the whole test set, and your best submission is what ranks.",
}
CHECK = "check_contamination.py"
EVAL = "eval.py"
RESERVED = (
    "description.md",
    "instructions.md",
    "run_meta.json",
    CHECK,
    "agent",
    SKILL,
    *POINTERS,
)
HARNESS_FILES = frozenset({*RESERVED, EVAL})
"""What lies in the workspace and is not the agent's."""


def get_model_path(spec: RunSpec) -> PurePosixPath:
    """Where the base model is seen, below the workspace."""
    name = Path(spec.model).name if is_directory(spec.model) else spec.model.partition("@")[0]
    return PurePosixPath("models") / name


def build_workspace(
    workspace: Path, seen_at: PurePosixPath, spec: RunSpec, task: Task, assets: Assets
) -> None:
    """All that the agent is given, in a workspace that is not there yet."""
    for name in ("data", "code", "output", str(get_model_path(spec).parent)):
        (workspace / name).mkdir(parents=True)
    training_data.write_training_data(
        workspace / "data", task, assets.train, assets.folders, assets.base.templated
    )
    for name, source in task.exposes.items():
        target = workspace / name
        if target.exists() or name in RESERVED:
            raise UserError(f"The task exposes {name!r}, a name that the workspace has already.")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(source.read_bytes())
    if isinstance(task.evaluator, ExportableEvaluator):
        (workspace / EVAL).write_text(task.evaluator.program(), encoding="utf-8")
    (workspace / "description.md").write_text(task.description, encoding="utf-8")
    (workspace / "instructions.md").write_text(_render_instructions(seen_at, spec, task), encoding="utf-8")
    write_skill_files(workspace, seen_at)
    (workspace / CHECK).write_bytes(Path(__file__).with_name(CHECK).read_bytes())


def make_brief(seen_at: PurePosixPath, spec: RunSpec, task: Task, gpus: str | None = None) -> Brief:
    """What the agent is told of it, and of the GPUs where it should not use all."""
    instructions = _render_instructions(seen_at, spec, task)
    environment = {
        "TASK": task.id,
        "BASE_MODEL": str(get_model_path(spec).relative_to("models")),
        "WORKSPACE": str(seen_at),
        "MODEL_PATH": str(seen_at / get_model_path(spec)),
        "DATA_PATH": str(seen_at / "data"),
        "OUTPUT_DIR": str(seen_at / "output"),
    }
    environment |= {} if gpus is None else {"CUDA_VISIBLE_DEVICES": gpus}
    prompt = make_first_prompt(instructions, task.description)
    return Brief(task.id, spec.mode, spec.budget, seen_at, instructions, environment, prompt)


def list_given_texts(task: Task, brief: Brief, assets: Assets) -> tuple[str, ...]:
    """Every text that the agent was given: where it stands again, it was not found out.

    Answers that were withheld are among them: the agent may find the same by itself.
    """
    exposed = (path.read_text(encoding="utf-8", errors="replace") for path in task.exposes.values())
    train = (
        part.text
        for example in assets.whole
        for part in contamination.split_example(
            "train", example.id, example.prompt, example.target, example.meta
        )
    )
    evaluation = [task.evaluator.program()] if isinstance(task.evaluator, ExportableEvaluator) else []
    return (task.description, brief.instructions, *exposed, *evaluation, *train)


def write_run_meta(workspace: Path, spec: RunSpec, task: Task, started_at: float) -> None:
    """The clock for programs, written when it starts. An agent that was there before may have put anything in
    its place, so nothing is followed."""
    meta = {
        "task": task.id,
        "base_model": str(get_model_path(spec).relative_to("models")),
        "mode": spec.mode,
        "seed": spec.seed,
        "samples": spec.samples,
        "start_time": int(started_at),
        "timeout_s": int(spec.budget.wall_seconds),
        "max_submissions": spec.budget.submissions,
        "max_environment_steps": spec.budget.environment_steps,
    }
    path = workspace / "run_meta.json"
    if path.is_dir() and not path.is_symlink():
        remove_tree(path)
    path.unlink(missing_ok=True)
    with path.open("x", encoding="utf-8") as file:
        file.write(json.dumps(meta, indent=2) + "\n")


def list_read_only_mounts(workspace: Path, spec: RunSpec, assets: Assets) -> tuple[Mount, ...]:
    """What of the workspace is read-only."""
    return (
        Mount(assets.base.directory, str(get_model_path(spec))),
        Mount(workspace / "data", "data"),
        *(
            Mount(folder, f"data/{name}")
            for name, folder in assets.folders.items()
            if isinstance(folder, Path)
        ),
    )


def _render_instructions(seen_at: PurePosixPath, spec: RunSpec, task: Task) -> str:
    most = spec.budget.submissions
    return render_template(
        "instructions.md",
        workspace=seen_at,
        model=seen_at / get_model_path(spec),
        wall=f"{spec.budget.wall_seconds:g}",
        submissions="as often as you like" if most is None else f"at most {most} times",
        mode=spec.mode,
        rule=MODES[spec.mode],
        ranking=RANKING[spec.protocol],
        world=training_services.render_world_instructions(task, spec.budget)
        + training_services.render_judge_instructions(spec),
    )
