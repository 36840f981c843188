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

WALL = 3600.0
LOADER = "/usr/lib/python3.11/site-packages/transformers/modeling_utils.py"
CRASH = f"""loading the model
Traceback (most recent call last):
  File "/workspace/code/train.py", line 3, in <module>
    model = load(path)
            ^^^^^^^^^^
  File "/workspace/code/train.py", line 2, in load
    return AutoModelForCausalLM.from_pretrained(path)
  File "{LOADER}", line 3912, in from_pretrained
    raise OSError(message)
OSError: models/bse is not a local folder
"""
CODE = "def load(path):\n    return AutoModelForCausalLM.from_pretrained(path)\nmodel = load(path)\n"
OOM = """Traceback (most recent call last):
  File "/workspace/code/train.py", line 88, in <module>
    loss.backward()
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79 GiB
"""
INTERRUPTED = """Traceback (most recent call last):
  File "/workspace/code/train.py", line 60, in <module>
    step()
KeyboardInterrupt
"""


def score(value: float, half: float = 4.0) -> EvalScore:
    low, high = max(0.0, value - half), min(100.0, value + half)
    return EvalScore(value=value, ci=Interval(low=low, high=high, method="wilson"), n=200, split="feedback")


def submitted(value: float | None = None, **more: Any) -> Submission:
    verdict = "scored" if value is not None else more.pop("verdict", None)
    given: dict[str, Any] = {
        "id": 2,
        "path": "output/two",
        "accepted_at": 100.0,
        "lineage": "derived",
        **more,
    }
    return Submission(score=None if value is None else score(value), verdict=verdict, **given)


def span(
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
        sources=(AgentSourceFile(4, "code/train.py", CODE),),
        changed=("code/train.py",),
        processes=tuple(processes),
        weights=(),
        rollouts=Rollouts(witnessed=rollouts or RolloutCounts()),
        printed=(PrintedText("agent.log", text, first_line=11), *logs) if text else tuple(logs),
        last=submission is None if last is None else last,
    )


def log(course: Callable[[int], str], steps: int = 60) -> str:
    return "".join(f"step {step} {course(step)}\n" for step in range(1, steps + 1))


def noise(step: int, size: float = 0.1) -> float:
    return random.Random(step).gauss(0.0, size)


def results(
    form: Callable[[int], str], right: Callable[[int], bool], n: int = 60
) -> tuple[ExampleResult, ...]:
    return tuple(ExampleResult(id=f"e{i}", output=form(i), score=float(right(i))) for i in range(n))


def exchange(outcome: Outcome = "answered", lost: float = 0.0, message: str = "") -> LlmExchange:
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
class Labelled:
    kind: FailureKind
    span: AttemptSpan
    seen: AttemptContext = field(default_factory=AttemptContext)
    says: str = ""
    """Part of the message."""


BASE: dict[str, Any] = {"baseline": 20.0, "wall_seconds": WALL, "left_seconds": 1800.0}
FELL = log(lambda step: f"loss {2.0 / step + 0.5 + noise(step, 0.02):.4f}")
GOOD = results(lambda i: f"so it is {i}.\n#### {i}", lambda i: i % 5 == 0)
TRAINING = RecordedProcess(77, "python code/train.py", 900.0, None, 800.0, 1 << 30)
TRADED = log(lambda step: f"loss 0.01 reward {0.2 + 0.01 * step + noise(step, 0.03):.4f}")
WORLD = "baseline took 12 s\n" + log(lambda step: f"loss 0.02 reward {0.1 + noise(step, 0.02):.3f}")

SPANS: dict[str, Labelled] = {
    "a file that is not there": Labelled(
        "code-error", span(CRASH), AttemptContext(**BASE, ending="agent-failed"), "OSError: models/bse"
    ),
    "a program that does not parse": Labelled(
        "code-error",
        span(
            '  File "train.py", line 3\n    for x in range(3)\n'
            "                     ^\nSyntaxError: expected ':'\n"
        ),
        AttemptContext(**BASE, ending="agent-failed"),
        "SyntaxError",
    ),
    "a command that does not exist": Labelled(
        "code-error",
        span("bash: line 3: accelerat: command not found\n"),
        AttemptContext(**BASE, ending="agent-failed"),
    ),
    "a module that is missing, in a tool's JSON": Labelled(
        "code-error",
        span(
            '{"stderr": "Traceback (most recent call last):\\n  File \\"train.py\\", line 1, in <module>\\n'
            "    import trl\\nModuleNotFoundError: No module named 'trl'\\n\"}\n"
        ),
        AttemptContext(**BASE, ending="agent-failed"),
        "No module named 'trl'",
    ),
    "an error after training for a while": Labelled(
        "code-error", span(FELL + CRASH), AttemptContext(**BASE, ending="agent-failed"), "OSError"
    ),
    "an agent that ended with an error, unexplained": Labelled(
        "code-error", span("working\n"), AttemptContext(**BASE, ending="agent-failed")
    ),
    "too many processes": Labelled(
        "code-error", span("working\n"), AttemptContext(**BASE, ending="too-many-processes")
    ),
    "a GPU that is too small": Labelled(
        "out-of-memory", span(FELL + OOM), AttemptContext(**BASE, ending="agent-failed"), "Tried to allocate"
    ),
    "a process that the kernel killed": Labelled(
        "out-of-memory", span(FELL + "Killed\n"), AttemptContext(**BASE, ending="agent-failed")
    ),
    "an exit code of 137": Labelled(
        "out-of-memory",
        span(FELL + "train.py exited with code 137\n"),
        AttemptContext(**BASE, ending="completed"),
    ),
    "a C++ program out of memory": Labelled(
        "out-of-memory",
        span("terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc\n"),
        AttemptContext(**BASE, ending="agent-failed"),
    ),
    "the sandbox's limit of memory": Labelled(
        "out-of-memory", span(FELL), AttemptContext(**BASE, ending="out-of-memory")
    ),
    "a loss that is no number": Labelled(
        "diverged",
        span(log(lambda step: "loss nan" if step > 20 else f"loss {2 / step}"), submitted(1.0)),
        AttemptContext(**BASE),
        "from step 21 on",
    ),
    "a loss that rose and stayed": Labelled(
        "diverged",
        span(log(lambda step: f"loss {(1.5 if step < 30 else 6.0) + noise(step):.3f}"), submitted(2.0)),
        AttemptContext(**BASE),
        "from step 30 on",
    ),
    "a loss that exploded in a few lines": Labelled(
        "diverged",
        span("step 1 loss 2.1\nstep 2 loss 9.5\nstep 3 loss 140.2\nstep 4 loss 99182.0\n", submitted(0.0)),
        AttemptContext(**BASE),
    ),
    "a KL that exploded": Labelled(
        "diverged",
        span(log(lambda step: f"reward {noise(step):.3f} kl {0.02 * 1.2**step:.4f}"), submitted(5.0)),
        AttemptContext(**BASE),
        "kl grew",
    ),
    "an entropy that collapsed": Labelled(
        "diverged",
        span(
            log(lambda step: f"reward {0.3 + noise(step, 0.02):.3f} entropy {3 * 0.8**step:.5f}"),
            submitted(15.0),
        ),
        AttemptContext(**BASE),
        "entropy",
    ),
    "weights that could not be graded after a divergence": Labelled(
        "diverged",
        span(
            log(lambda step: f"loss {'nan' if step > 5 else 1.0}"),
            submitted(verdict="failed", message="crashed"),
        ),
        AttemptContext(**BASE),
    ),
    "its own reward, which is not the task's": Labelled(
        "reward-hacking", span(TRADED, submitted(8.0)), AttemptContext(**BASE), "rose from"
    ),
    "its own reward rose and the score stayed": Labelled(
        "reward-hacking", span(TRADED, submitted(20.0)), AttemptContext(**BASE)
    ),
    "no episode was won": Labelled(
        "rollout-logic",
        span(WORLD, submitted(20.0), RolloutCounts(episodes=400, steps=12000, successes=0)),
        AttemptContext(**BASE),
        "400 episodes",
    ),
    "episodes that end at once": Labelled(
        "rollout-logic",
        span("playing\n", submitted(19.0), RolloutCounts(episodes=64, steps=64)),
        AttemptContext(**BASE),
    ),
    "a reward that is always the same": Labelled(
        "rollout-logic",
        span(log(lambda step: f"loss 0.0 reward 0.000 reward_std 0.0 step_time {step}"), submitted(20.0)),
        AttemptContext(**BASE),
        "nothing to learn from",
    ),
    "answers without their mark": Labelled(
        "format-drift",
        span(FELL, submitted(3.0)),
        AttemptContext(
            **BASE,
            baseline_results=GOOD,
            results=results(lambda i: f"so it is {i}.", lambda _: False),
        ),
        "have no ####",
    ),
    "empty answers": Labelled(
        "format-drift",
        span(FELL, submitted(2.0)),
        AttemptContext(
            **BASE,
            baseline_results=GOOD,
            results=results(lambda i: "" if i % 4 else f"#### {i}", lambda _: False),
        ),
        "are empty",
    ),
    "answers in circles": Labelled(
        "format-drift",
        span(FELL, submitted(2.0)),
        AttemptContext(
            **BASE,
            baseline_results=GOOD,
            results=results(lambda i: f"#### {i}" + " and so on" * 60, lambda _: False),
        ),
    ),
    "programs that do not parse": Labelled(
        "format-drift",
        span(FELL, submitted(2.0)),
        AttemptContext(
            **BASE,
            baseline_results=GOOD,
            results=tuple(
                one.model_copy(update={"note": "SyntaxError: invalid syntax (<program>, line 1)"})
                for one in GOOD
            ),
        ),
        "could not be read",
    ),
    "actions that no world takes": Labelled(
        "format-drift",
        span(FELL, submitted(2.0)),
        AttemptContext(
            **BASE,
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
        "come to no action",
    ),
    "training when the time ended": Labelled(
        "timeout",
        span(FELL, processes=[TRAINING]),
        AttemptContext(**{**BASE, "left_seconds": 0.0}, ending="deadline"),
        "while it trained",
    ),
    "nothing submitted when the time ended": Labelled(
        "timeout", span("thinking\n"), AttemptContext(**{**BASE, "left_seconds": 0.0}, ending="deadline")
    ),
    "an early slip, and training when the time ended": Labelled(
        "timeout",
        span(CRASH + FELL, processes=[TRAINING]),
        AttemptContext(**{**BASE, "left_seconds": 0.0}, ending="deadline"),
    ),
    "the base model itself": Labelled(
        "copied", span("cp -r base output\n", submitted(20.0, lineage="copied"))
    ),
    "the base model after a crash": Labelled(
        "copied", span(OOM, submitted(20.0, lineage="copied")), AttemptContext(**BASE)
    ),
    "what was submitted before": Labelled(
        "copied", span("", submitted(20.0, same_as=1)), AttemptContext(**BASE)
    ),
    "a model without a file": Labelled(
        "rejected",
        span(FELL, submitted(verdict="rejected", message="There is no config.json.")),
        AttemptContext(**BASE),
        "There is no config.json.",
    ),
    "a grading that failed": Labelled(
        "evaluation-failure",
        span(FELL, submitted(verdict="failed", message="The grading child crashed (exit code 1).")),
        AttemptContext(**BASE),
        "exit code 1",
    ),
    "a key that is refused": Labelled(
        "provider-failure", span("error\n"), AttemptContext(**BASE, ending="login-failed")
    ),
    "dollars that ran out": Labelled(
        "provider-failure", span(FELL), AttemptContext(**BASE, ending="budget-exhausted"), "used up"
    ),
    "a provider that hardly answers": Labelled(
        "provider-failure",
        span("retrying\n"),
        AttemptContext(
            **BASE,
            ending="agent-failed",
            exchanges=(exchange(), *(exchange("provider-error", 90.0, "Overloaded") for _ in range(8))),
        ),
        "8 of 9 requests",
    ),
    "an agent that did nothing": Labelled(
        "gave-up",
        span(""),
        AttemptContext(baseline=20.0, wall_seconds=WALL, left_seconds=3590.0, ending="completed"),
    ),
    "an agent that stopped after trying": Labelled(
        "gave-up",
        span("I could not find a way.\n"),
        AttemptContext(**BASE, best_before=18.0, ending="completed"),
    ),
    "trained well by all figures": Labelled(
        "no-gain", span(FELL, submitted(19.5)), AttemptContext(**BASE), "19.5"
    ),
    "better than the base, not than the best": Labelled(
        "no-gain",
        span(FELL, submitted(24.0)),
        AttemptContext(**BASE, best_before=30.0),
        "the best before 30.0",
    ),
    "an error that was mended": Labelled(
        "no-gain", span(CRASH + FELL, submitted(20.0)), AttemptContext(**BASE)
    ),
    "an error that was caught": Labelled(
        "no-gain",
        span(
            log(lambda step: f"loss {2 / step:.3f}", 20)
            + CRASH
            + "".join(f"step {step} loss {2 / step:.3f}\n" for step in range(21, 60)),
            submitted(20.0),
        ),
        AttemptContext(**BASE),
    ),
    "a run that somebody stopped": Labelled(
        "no-gain", span(FELL), AttemptContext(**BASE, ending="interrupted")
    ),
    "policy gradients, whose loss rises with the reward": Labelled(
        "no-gain",
        span(log(lambda step: f"loss {0.01 * step:.3f} reward {0.2 + 0.005 * step:.3f}"), submitted(29.0)),
        AttemptContext(**BASE, best_before=30.0),
    ),
    "training that the agent itself stopped": Labelled(
        "no-gain", span(FELL + INTERRUPTED, submitted(18.0)), AttemptContext(**BASE)
    ),
}
