"""The recipe's program: train, submit, read the score, keep the best, and go on from it until time is up.

It runs inside the sandbox and has what any agent has: the workspace, the grading API and the Python beside
it. A round is SFT or GRPO from the best model so far; GRPO submits in its middle too. A model that does not
rise is thrown away, and after a round without any the next one of its kind learns at half the rate. Rewards
are `eval.py` on training data; a task without one gets SFT.
"""

import json
import os
import runpy
import shutil
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from pathlib import Path
from typing import Any

from agent2rl.agents.recipe import plan
from agent2rl.core.engine import Chat, Message
from agent2rl.core.errors import Agent2RLError, UserError
from agent2rl.training import models, prompts
from agent2rl.training.crew import members
from agent2rl.training.grpo import GrpoSettings, grpo
from agent2rl.training.progress import Progress
from agent2rl.training.sampling import SampleSettings, sample
from agent2rl.training.sft import SftSettings, sft

FIRST_COST = 0.1
"""Of the budget: a guess at loading, saving and grading, until the first round has measured them."""
SUBMISSIONS = {"sft": 1, "grpo": 2}
"""Of a round: GRPO submits in its middle too."""
GROUP = 8


@dataclass(frozen=True)
class Job:
    """What the workspace says."""

    rows: Sequence[dict[str, Any]]
    evaluate: Callable[..., float] | None
    base: Path
    output: Path
    progress: Path
    seed: int

    @classmethod
    def read(cls) -> "Job":
        workspace, data = Path(os.environ["WORKSPACE"]), Path(os.environ["DATA_PATH"])
        return cls(
            rows=_rows(data / "train.jsonl"),
            evaluate=_evaluate(workspace / "eval.py"),
            base=Path(os.environ["MODEL_PATH"]),
            output=Path(os.environ["OUTPUT_DIR"]),
            progress=workspace / "progress.jsonl",
            seed=json.loads((workspace / "run_meta.json").read_text(encoding="utf-8"))["seed"],
        )

    @property
    def answers(self) -> list[str]:
        return [_text(row["answer"]) for row in self.rows]

    def asked(self, tokenizer: Any) -> list[str]:
        """The text that the model reads for each training question."""
        return [prompts.render(tokenizer, chat(row)) for row in self.rows]

    def seed_of(self, now: "Round") -> int:
        return 1000 * self.seed + now.number

    def reward(self, index: int, text: str) -> float:
        """What a text is worth as the answer to a training question."""
        row = self.rows[index]
        more = {key: row[key] for key in row.keys() - {"id", "question", "answer", "prompt"}}
        assert self.evaluate is not None
        return float(
            self.evaluate(question=row["question"], model_answer=text, reference_answer=row["answer"], **more)
        )


@dataclass(frozen=True)
class Round:
    number: int
    stage: str
    start: Path
    """The model that it goes on from."""
    path: Path
    """Where it leaves its own."""
    seconds: float
    factor: float
    """Of the usual learning rate."""
    leader: "Leader"
    """Who is challenged."""


@dataclass
class Leader:
    """The best model so far: at first the untouched one, whose score the first answer tells."""

    job: Job
    path: Path
    score: float | None = None

    def challenge(self, path: Path) -> None:
        """Submit a model; it leads from now on if its score is higher, and is thrown away if not."""
        answer = submit(path)
        won = rises(answer, self.score)
        discard(self.path if won else path, self.job)
        if won:
            self.path, self.score = path, answer["score"]


def main() -> None:
    job = Job.read()
    leader = Leader(job, job.base)
    factors = {"sft": 1.0, "grpo": 1.0}
    cost = FIRST_COST * remaining()
    for number, stage in enumerate(stages(sys.argv[1:], job), start=1):
        seconds = plan.training_seconds(remaining(), SUBMISSIONS[stage] * cost, first=number == 1)
        if not seconds:
            break
        path, factor = job.output / f"{number}-{stage}", factors[stage]
        now = Round(number, stage, leader.path, path, seconds, factor, leader)
        print(
            f"round {number}: {stage} from {now.start.name}, {seconds:.0f} s, rate x {factor:g}", flush=True
        )
        began, before = time.monotonic(), leader.score
        trained = train(job, now)
        if trained is None:
            print(f"round {number}: there is not time enough for a step", flush=True)
            break
        if trained:
            leader.challenge(now.path)
            cost = (time.monotonic() - began - trained) / SUBMISSIONS[stage]
        if leader.score == before:
            factors[stage] /= 2
    print(f"the end: best is {leader.path.name} with {leader.score}", flush=True)


def stages(wanted: Sequence[str], job: Job) -> Iterator[str]:
    """Each stage once, then the last one again and again."""
    possible = [stage for stage in wanted if stage == "sft" or job.evaluate]
    if not possible:
        raise UserError("This task shows no eval.py, so there is no reward.", "Try recipe:sft.")
    return chain(possible, repeat(possible[-1]))


def train(job: Job, now: Round) -> float | None:
    """Train and save; the seconds that the training took, 0 where it came to nothing, None without time."""
    model, tokenizer = models.load(now.start)
    try:
        spent = {"sft": by_sft, "grpo": by_grpo}[now.stage](job, now, model, tokenizer)
    except Agent2RLError as error:
        print(f"round {now.number}: {error}", flush=True)
        return 0.0
    if spent:
        models.save(model, tokenizer, now.path)
    return spent


def by_sft(job: Job, now: Round, model: Any, tokenizer: Any) -> float:
    rate = now.factor * plan.learning_rate("sft", models.parameters(model))
    settings = SftSettings(rate, plan.epochs(len(job.rows)), seconds=now.seconds, seed=job.seed_of(now))
    pairs = list(zip(job.asked(tokenizer), job.answers, strict=True))
    return sft(model, tokenizer, pairs, settings, Progress("sft", job.progress)).seconds


def by_grpo(job: Job, now: Round, model: Any, tokenizer: Any) -> float | None:
    asked, seed = job.asked(tokenizer), job.seed_of(now)
    lengths = [len(tokens) for tokens in prompts.answers(tokenizer, job.answers)]
    sampling = SampleSettings(max_tokens=plan.answer_tokens(lengths), seed=seed)
    probe, each = speed(model, tokenizer, asked[: plan.FEWEST_PROMPTS], sampling)
    seconds = now.seconds - probe
    if seconds <= 0 or plan.steps(seconds, each) < 1:
        return None
    rate = now.factor * plan.learning_rate("grpo", models.parameters(model)) * plan.steadiness(seconds, each)
    shape = GrpoSettings(
        learning_rate=rate,
        steps=10**6,
        seconds=seconds,
        prompts=plan.prompts_per_step(seconds, each),
        group=GROUP,
        max_tokens=sampling.max_tokens,
        seed=seed,
    )
    print(f"grpo: {shape.prompts} questions a step, rate {rate:.1e}", flush=True)

    def halfway() -> None:
        if call("/time")["submissions_left"] == 1:
            return  # it is for the end
        half = now.path.with_name(f"{now.path.name}-half")
        models.save(model, tokenizer, half)
        now.leader.challenge(half)

    progress = Progress("grpo", job.progress)
    return grpo(model, tokenizer, asked, job.reward, shape, progress, halfway).seconds + probe


def speed(model: Any, tokenizer: Any, asked: Sequence[str], sampling: SampleSettings) -> tuple[float, float]:
    """Seconds that finding out took, and that sampling one question's answers takes in GRPO."""
    began = time.monotonic()
    sample(model, tokenizer, asked[:1], sampling, GROUP)  # what is set up on first use
    warm = time.monotonic()
    sample(model, tokenizer, asked, sampling, GROUP)
    end = time.monotonic()
    return end - began, (end - warm) / len(asked) / members(model)


def chat(row: dict[str, Any]) -> Chat:
    """What the model is asked; the bare question where the task does not say."""
    messages = row.get("prompt")
    if not isinstance(messages, list):
        return (Message("user", row["question"]),)
    return tuple(Message(message["role"], message["content"]) for message in messages)


def discard(path: Path, job: Job) -> None:
    """Make room: what was submitted has been copied."""
    if path != job.base and path.exists():
        shutil.rmtree(path)


def rises(answer: dict[str, Any], score: float | None) -> bool:
    """Whether what was submitted is better than the best before it, at first the untouched model."""
    floor = answer.get("baseline_score") if score is None else score
    return floor is not None and answer.get("score") is not None and answer["score"] > floor


def submit(path: Path) -> dict[str, Any]:
    """The grader's answer; empty where it took no submission."""
    try:
        answer = call("/submit", {"model_path": str(path)})
    except urllib.error.HTTPError as error:
        print(f"{path.name}: {error.read().decode(errors='replace')}", flush=True)
        return {}
    print(f"{path.name}: {answer['verdict']}, score {answer['score']}. {answer['message']}", flush=True)
    return answer


def remaining() -> float:
    """Seconds until the end; none where no submission is left."""
    clock = call("/time")
    return 0.0 if clock["submissions_left"] == 0 else float(clock["remaining"])


def call(path: str, body: dict[str, str] | None = None) -> dict[str, Any]:
    """Ask the grading service."""
    request = urllib.request.Request(
        os.environ["GRADING_SERVER_URL"] + path,
        None if body is None else json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as response:
        found: dict[str, Any] = json.load(response)
        return found


def _evaluate(path: Path) -> Callable[..., float] | None:
    """The task's scoring function, where it is shown."""
    if not path.is_file():
        return None
    evaluate: Callable[..., float] = runpy.run_path(str(path))["evaluate"]
    return evaluate


def _rows(path: Path) -> list[dict[str, Any]]:
    """One a line; lines end in \\n alone, since a question may hold what else Unicode calls a line's end."""
    with path.open(encoding="utf-8", newline="\n") as file:
        return [json.loads(line) for line in file]


def _text(answer: object) -> str:
    return answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False)


if __name__ == "__main__":
    main()
