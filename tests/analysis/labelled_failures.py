"""Attempts that brought nothing, each with the reason that a reader of its record would give first."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from agent2rl.analysis.attempts import AgentSourceFile, AttemptSpan, PrintedText, RecordedProcess
from agent2rl.analysis.failures import AttemptContext
from agent2rl.analysis.findings import FailureKind
from agent2rl.core.grading_records import EvalScore, ExampleResult, Interval, Submission, TrajectoryTurn
from agent2rl.core.llm import LlmExchange, Outcome
from agent2rl.core.records import RolloutCounts, Rollouts

WALL_SECONDS = 3600.0
LOADER_PATH = "/usr/lib/python3.11/site-packages/transformers/modeling_utils.py"
CRASH_LOG = f"""loading the model
Traceback (most recent call last):
  File "/workspace/code/train.py", line 3, in <module>
    model = load(path)
            ^^^^^^^^^^
  File "/workspace/code/train.py", line 2, in load
    return AutoModelForCausalLM.from_pretrained(path)
  File "{LOADER_PATH}", line 3912, in from_pretrained
    raise OSError(message)
OSError: models/bse is not a local folder
"""
CRASHING_CODE = "def load(path):\n    return AutoModelForCausalLM.from_pretrained(path)\nmodel = load(path)\n"
OOM_LOG = """Traceback (most recent call last):
  File "/workspace/code/train.py", line 88, in <module>
    loss.backward()
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79 GiB
"""
INTERRUPTED_LOG = """Traceback (most recent call last):
  File "/workspace/code/train.py", line 60, in <module>
    step()
KeyboardInterrupt
"""


def make_score(value: float, half: float = 4.0) -> EvalScore:
    low, high = max(0.0, value - half), min(100.0, value + half)
    return EvalScore(value=value, ci=Interval(low=low, high=high, method="wilson"), n=200, split="feedback")


def make_submission(value: float | None = None, **more: Any) -> Submission:
    verdict = "scored" if value is not None else more.pop("verdict", None)
    given: dict[str, Any] = {
        "id": 2,
        "path": "output/two",
        "accepted_at": 100.0,
        "lineage": "derived",
        **more,
    }
    return Submission(score=None if value is None else make_score(value), verdict=verdict, **given)


def make_span(
    text: str = "",
    submission: Submission | None = None,
    rollouts: RolloutCounts | None = None,
    processes: Sequence[RecordedProcess] = (),
    last: bool | None = None,
    logs: Sequence[PrintedText] = (),
) -> AttemptSpan:
    """An attempt that printed a text to agent.log; without a submission it is the last."""
    return AttemptSpan(
        number=2,
        began=600.0,
        ended=1800.0,
        submission=submission,
        sources=(AgentSourceFile(4, "code/train.py", CRASHING_CODE),),
        changed=("code/train.py",),
        processes=tuple(processes),
        weights=(),
        rollouts=Rollouts(served=rollouts or RolloutCounts()),
        printed=(PrintedText("agent.log", text, first_line=11), *logs) if text else tuple(logs),
        last=submission is None if last is None else last,
    )


def make_log(course: Callable[[int], str], steps: int = 60) -> str:
    return "".join(f"step {step} {course(step)}\n" for step in range(1, steps + 1))


def make_noise(step: int, size: float = 0.1) -> float:
    return random.Random(step).gauss(0.0, size)


def make_results(
    form: Callable[[int], str], right: Callable[[int], bool], n: int = 60
) -> tuple[ExampleResult, ...]:
    return tuple(ExampleResult(id=f"e{i}", output=form(i), score=float(right(i))) for i in range(n))


def make_exchange(outcome: Outcome = "answered", lost: float = 0.0, message: str = "") -> LlmExchange:
    return LlmExchange(
        at=700.0,
        wire="anthropic",
        model="driver",
        path="/v1/messages",
        stream=True,
        status=200 if outcome == "answered" else 529,
        outcome=outcome,
        seconds=5.0,
        stalled_seconds=lost,
        message=message,
    )


@dataclass(frozen=True)
class LabelledAttempt:
    kind: FailureKind
    span: AttemptSpan
    seen: AttemptContext = field(default_factory=AttemptContext)
    says: str = ""
    """Part of the message."""


def make_shop_visits(action: str, invalid: bool) -> tuple[ExampleResult, ...]:
    """Visits whose page looks the same after the action, which the world took or not."""
    turns = (
        TrajectoryTurn(action="", observation="a page"),
        TrajectoryTurn(action=action, observation="a page", invalid=invalid),
    )
    return tuple(ExampleResult(id=f"e{i}", output=action, score=0.0, trajectory=turns) for i in range(40))


BASE_CONTEXT: dict[str, Any] = {"baseline": 20.0, "wall_seconds": WALL_SECONDS, "left_seconds": 1800.0}
FALLING_LOSS_LOG = make_log(lambda step: f"loss {2.0 / step + 0.5 + make_noise(step, 0.02):.4f}")
GOOD_RESULTS = make_results(lambda i: f"so it is {i}.\n#### {i}", lambda i: i % 5 == 0)
TRAINING_PROCESS = RecordedProcess(77, "python code/train.py", 900.0, None, 800.0, 1 << 30)
RISING_REWARD_LOG = make_log(
    lambda step: f"loss 0.01 reward {0.2 + 0.01 * step + make_noise(step, 0.03):.4f}"
)
FLAT_REWARD_LOG = "baseline took 12 s\n" + make_log(
    lambda step: f"loss 0.02 reward {0.1 + make_noise(step, 0.02):.3f}"
)

LABELLED_ATTEMPTS: dict[str, LabelledAttempt] = {
    "a file that is not there": LabelledAttempt(
        "code-error",
        make_span(CRASH_LOG),
        AttemptContext(**BASE_CONTEXT, ending="agent-failed"),
        "OSError: models/bse",
    ),
    "a program that does not parse": LabelledAttempt(
        "code-error",
        make_span(
            '  File "train.py", line 3\n    for x in range(3)\n'
            "                     ^\nSyntaxError: expected ':'\n"
        ),
        AttemptContext(**BASE_CONTEXT, ending="agent-failed"),
        "SyntaxError",
    ),
    "a command that does not exist": LabelledAttempt(
        "code-error",
        make_span("bash: line 3: accelerat: command not found\n"),
        AttemptContext(**BASE_CONTEXT, ending="agent-failed"),
    ),
    "a module that is missing, in a tool's JSON": LabelledAttempt(
        "code-error",
        make_span(
            '{"stderr": "Traceback (most recent call last):\\n  File \\"train.py\\", line 1, in <module>\\n'
            "    import trl\\nModuleNotFoundError: No module named 'trl'\\n\"}\n"
        ),
        AttemptContext(**BASE_CONTEXT, ending="agent-failed"),
        "No module named 'trl'",
    ),
    "an error after training for a while": LabelledAttempt(
        "code-error",
        make_span(FALLING_LOSS_LOG + CRASH_LOG),
        AttemptContext(**BASE_CONTEXT, ending="agent-failed"),
        "OSError",
    ),
    "an agent that ended with an error, unexplained": LabelledAttempt(
        "code-error", make_span("working\n"), AttemptContext(**BASE_CONTEXT, ending="agent-failed")
    ),
    "too many processes": LabelledAttempt(
        "code-error", make_span("working\n"), AttemptContext(**BASE_CONTEXT, ending="too-many-processes")
    ),
    "a GPU that is too small": LabelledAttempt(
        "out-of-memory",
        make_span(FALLING_LOSS_LOG + OOM_LOG),
        AttemptContext(**BASE_CONTEXT, ending="agent-failed"),
        "Tried to allocate",
    ),
    "a process that the kernel killed": LabelledAttempt(
        "out-of-memory",
        make_span(FALLING_LOSS_LOG + "Killed\n"),
        AttemptContext(**BASE_CONTEXT, ending="agent-failed"),
    ),
    "an exit code of 137": LabelledAttempt(
        "out-of-memory",
        make_span(FALLING_LOSS_LOG + "train.py exited with code 137\n"),
        AttemptContext(**BASE_CONTEXT, ending="completed"),
    ),
    "a C++ program out of memory": LabelledAttempt(
        "out-of-memory",
        make_span(
            "terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc\n"
        ),
        AttemptContext(**BASE_CONTEXT, ending="agent-failed"),
    ),
    "the sandbox's limit of memory": LabelledAttempt(
        "out-of-memory", make_span(FALLING_LOSS_LOG), AttemptContext(**BASE_CONTEXT, ending="out-of-memory")
    ),
    "a loss that is no number": LabelledAttempt(
        "diverged",
        make_span(
            make_log(lambda step: "loss nan" if step > 20 else f"loss {2 / step}"), make_submission(1.0)
        ),
        AttemptContext(**BASE_CONTEXT),
        "from step 21 on",
    ),
    "a loss that rose and stayed": LabelledAttempt(
        "diverged",
        make_span(
            make_log(lambda step: f"loss {(1.5 if step < 30 else 6.0) + make_noise(step):.3f}"),
            make_submission(2.0),
        ),
        AttemptContext(**BASE_CONTEXT),
        "from step 30 on",
    ),
    "a loss that exploded in a few lines": LabelledAttempt(
        "diverged",
        make_span(
            "step 1 loss 2.1\nstep 2 loss 9.5\nstep 3 loss 140.2\nstep 4 loss 99182.0\n", make_submission(0.0)
        ),
        AttemptContext(**BASE_CONTEXT),
    ),
    "a KL that exploded": LabelledAttempt(
        "diverged",
        make_span(
            make_log(lambda step: f"reward {make_noise(step):.3f} kl {0.02 * 1.2**step:.4f}"),
            make_submission(5.0),
        ),
        AttemptContext(**BASE_CONTEXT),
        "kl grew",
    ),
    "an entropy that collapsed": LabelledAttempt(
        "diverged",
        make_span(
            make_log(lambda step: f"reward {0.3 + make_noise(step, 0.02):.3f} entropy {3 * 0.8**step:.5f}"),
            make_submission(15.0),
        ),
        AttemptContext(**BASE_CONTEXT),
        "entropy",
    ),
    "weights that could not be graded after a divergence": LabelledAttempt(
        "diverged",
        make_span(
            make_log(lambda step: f"loss {'nan' if step > 5 else 1.0}"),
            make_submission(verdict="failed", message="crashed"),
        ),
        AttemptContext(**BASE_CONTEXT),
    ),
    "its own reward, which is not the task's": LabelledAttempt(
        "reward-hacking",
        make_span(RISING_REWARD_LOG, make_submission(8.0)),
        AttemptContext(**BASE_CONTEXT),
        "rose from",
    ),
    "its own reward rose and the score stayed": LabelledAttempt(
        "reward-hacking", make_span(RISING_REWARD_LOG, make_submission(20.0)), AttemptContext(**BASE_CONTEXT)
    ),
    "no episode was won": LabelledAttempt(
        "rollout-logic",
        make_span(
            FLAT_REWARD_LOG, make_submission(20.0), RolloutCounts(episodes=400, steps=12000, successes=0)
        ),
        AttemptContext(**BASE_CONTEXT),
        "400 episodes",
    ),
    "episodes that end at once": LabelledAttempt(
        "rollout-logic",
        make_span("playing\n", make_submission(19.0), RolloutCounts(episodes=64, steps=64)),
        AttemptContext(**BASE_CONTEXT),
    ),
    "a reward that is always the same": LabelledAttempt(
        "rollout-logic",
        make_span(
            make_log(lambda step: f"loss 0.0 reward 0.000 reward_std 0.0 step_time {step}"),
            make_submission(20.0),
        ),
        AttemptContext(**BASE_CONTEXT),
        "no learning signal",
    ),
    "answers without their mark": LabelledAttempt(
        "format-drift",
        make_span(FALLING_LOSS_LOG, make_submission(3.0)),
        AttemptContext(
            **BASE_CONTEXT,
            baseline_results=GOOD_RESULTS,
            results=make_results(lambda i: f"so it is {i}.", lambda _: False),
        ),
        "have no ####",
    ),
    "empty answers": LabelledAttempt(
        "format-drift",
        make_span(FALLING_LOSS_LOG, make_submission(2.0)),
        AttemptContext(
            **BASE_CONTEXT,
            baseline_results=GOOD_RESULTS,
            results=make_results(lambda i: "" if i % 4 else f"#### {i}", lambda _: False),
        ),
        "are empty",
    ),
    "answers in circles": LabelledAttempt(
        "format-drift",
        make_span(FALLING_LOSS_LOG, make_submission(2.0)),
        AttemptContext(
            **BASE_CONTEXT,
            baseline_results=GOOD_RESULTS,
            results=make_results(lambda i: f"#### {i}" + " and so on" * 60, lambda _: False),
        ),
    ),
    "programs that do not parse": LabelledAttempt(
        "format-drift",
        make_span(FALLING_LOSS_LOG, make_submission(2.0)),
        AttemptContext(
            **BASE_CONTEXT,
            baseline_results=GOOD_RESULTS,
            results=tuple(
                one.model_copy(update={"note": "SyntaxError: invalid syntax (<program>, line 1)"})
                for one in GOOD_RESULTS
            ),
        ),
        "could not be read",
    ),
    "actions that no world takes": LabelledAttempt(
        "format-drift",
        make_span(FALLING_LOSS_LOG, make_submission(2.0)),
        AttemptContext(
            **BASE_CONTEXT,
            baseline_results=tuple(
                ExampleResult(
                    id=f"e{i}",
                    output="look",
                    score=0.0,
                    trajectory=(
                        TrajectoryTurn(action="", observation="a room"),
                        TrajectoryTurn(action="look", observation="a desk"),
                    ),
                )
                for i in range(40)
            ),
            results=tuple(
                ExampleResult(
                    id=f"e{i}",
                    output="I will",
                    score=0.0,
                    trajectory=(
                        TrajectoryTurn(action="", observation="a room"),
                        TrajectoryTurn(action="I will", observation="Nothing happens."),
                    ),
                )
                for i in range(40)
            ),
        ),
        "lead to no valid action",
    ),
    "actions that leave the page of a shop as it is": LabelledAttempt(
        "format-drift",
        make_span(FALLING_LOSS_LOG, make_submission(2.0)),
        AttemptContext(
            **BASE_CONTEXT,
            baseline_results=make_shop_visits("click[red]", invalid=False),
            results=make_shop_visits("I would buy the red one.", invalid=True),
        ),
        "lead to no valid action",
    ),
    "training when the time ended": LabelledAttempt(
        "timeout",
        make_span(FALLING_LOSS_LOG, processes=[TRAINING_PROCESS]),
        AttemptContext(**{**BASE_CONTEXT, "left_seconds": 0.0}, ending="deadline"),
        "during training",
    ),
    "nothing submitted when the time ended": LabelledAttempt(
        "timeout",
        make_span("thinking\n"),
        AttemptContext(**{**BASE_CONTEXT, "left_seconds": 0.0}, ending="deadline"),
    ),
    "an early slip, and training when the time ended": LabelledAttempt(
        "timeout",
        make_span(CRASH_LOG + FALLING_LOSS_LOG, processes=[TRAINING_PROCESS]),
        AttemptContext(**{**BASE_CONTEXT, "left_seconds": 0.0}, ending="deadline"),
    ),
    "the base model itself": LabelledAttempt(
        "copied", make_span("cp -r base output\n", make_submission(20.0, lineage="copied"))
    ),
    "the base model after a crash": LabelledAttempt(
        "copied", make_span(OOM_LOG, make_submission(20.0, lineage="copied")), AttemptContext(**BASE_CONTEXT)
    ),
    "what was submitted before": LabelledAttempt(
        "copied", make_span("", make_submission(20.0, same_as=1)), AttemptContext(**BASE_CONTEXT)
    ),
    "a model without a file": LabelledAttempt(
        "rejected",
        make_span(FALLING_LOSS_LOG, make_submission(verdict="rejected", message="There is no config.json.")),
        AttemptContext(**BASE_CONTEXT),
        "There is no config.json.",
    ),
    "a grading that failed": LabelledAttempt(
        "evaluation-failure",
        make_span(
            FALLING_LOSS_LOG,
            make_submission(verdict="failed", message="The grading child crashed (exit code 1)."),
        ),
        AttemptContext(**BASE_CONTEXT),
        "exit code 1",
    ),
    "a key that is refused": LabelledAttempt(
        "provider-failure", make_span("error\n"), AttemptContext(**BASE_CONTEXT, ending="login-failed")
    ),
    "dollars that ran out": LabelledAttempt(
        "provider-failure",
        make_span(FALLING_LOSS_LOG),
        AttemptContext(**BASE_CONTEXT, ending="budget-exhausted"),
        "used up",
    ),
    "a provider that hardly answers": LabelledAttempt(
        "provider-failure",
        make_span("retrying\n"),
        AttemptContext(
            **BASE_CONTEXT,
            ending="agent-failed",
            exchanges=(
                make_exchange(),
                *(make_exchange("provider-error", 90.0, "Overloaded") for _ in range(8)),
            ),
        ),
        "8 of 9 requests",
    ),
    "an agent that did nothing": LabelledAttempt(
        "gave-up",
        make_span(""),
        AttemptContext(baseline=20.0, wall_seconds=WALL_SECONDS, left_seconds=3590.0, ending="completed"),
    ),
    "an agent that stopped after trying": LabelledAttempt(
        "gave-up",
        make_span("I could not find a way.\n"),
        AttemptContext(**BASE_CONTEXT, best_before=18.0, ending="completed"),
    ),
    "trained well by all figures": LabelledAttempt(
        "no-gain", make_span(FALLING_LOSS_LOG, make_submission(19.5)), AttemptContext(**BASE_CONTEXT), "19.5"
    ),
    "better than the base, not than the best": LabelledAttempt(
        "no-gain",
        make_span(FALLING_LOSS_LOG, make_submission(24.0)),
        AttemptContext(**BASE_CONTEXT, best_before=30.0),
        "the best before 30.0",
    ),
    "an error that was mended": LabelledAttempt(
        "no-gain",
        make_span(CRASH_LOG + FALLING_LOSS_LOG, make_submission(20.0)),
        AttemptContext(**BASE_CONTEXT),
    ),
    "an error that was caught": LabelledAttempt(
        "no-gain",
        make_span(
            make_log(lambda step: f"loss {2 / step:.3f}", 20)
            + CRASH_LOG
            + "".join(f"step {step} loss {2 / step:.3f}\n" for step in range(21, 60)),
            make_submission(20.0),
        ),
        AttemptContext(**BASE_CONTEXT),
    ),
    "a run that somebody stopped": LabelledAttempt(
        "no-gain", make_span(FALLING_LOSS_LOG), AttemptContext(**BASE_CONTEXT, ending="interrupted")
    ),
    "policy gradients, whose loss rises with the reward": LabelledAttempt(
        "no-gain",
        make_span(
            make_log(lambda step: f"loss {0.01 * step:.3f} reward {0.2 + 0.005 * step:.3f}"),
            make_submission(29.0),
        ),
        AttemptContext(**BASE_CONTEXT, best_before=30.0),
    ),
    "training that the agent itself stopped": LabelledAttempt(
        "no-gain",
        make_span(FALLING_LOSS_LOG + INTERRUPTED_LOG, make_submission(18.0)),
        AttemptContext(**BASE_CONTEXT),
    ),
}
