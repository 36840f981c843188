"""What an agent is told: one brief for all of them, and what is said to one that goes on.

The words are in instructions.md, go_on.md, resumed.md and skill.md beside this module. Agents of different
makers look for instructions in files of different names; each of those points to the one skill.
"""

from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from string import Template

from agent2rl.core.records import EvalScore, Submission

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
