"""How large the bundle of a long run is. Wanted: under 20 MB for 12 hours.

    python -m benchmarks.bundle_size [TEXTS]

The record is that of `benchmarks.recording` (10,000 events, 4,320 samples of 8 GPUs, 500 revisions), and:

    results      40 submissions of 660 answers with 150 words, base model and best on as many held-out ones
    agent.log    100,000 lines of a trainer
    transcript   1,500 turns with a call and its output

Words come from the file TEXTS in its order, from a random place on, or are random ones that are as frequent
as words are. No answer is like another, which is the worst case: real answers of a model resemble each other.
"""

import random
import sys
import tempfile
import time
from itertools import accumulate
from pathlib import Path

from agent2rl.analysis.statistics import score_evaluation
from agent2rl.bundles.packing import write_bundle
from agent2rl.bundles.secret_scan import SecretScanner
from agent2rl.core.grading_records import EvalResult, ExampleResult, Split, Submission
from agent2rl.core.records import RunResult
from agent2rl.core.self_reports import AgentToolCall, ToolObservation, Transcript, TranscriptStep
from agent2rl.record.files import write_record
from agent2rl.record.paths import SubmissionPaths
from agent2rl.record.recorder import Recorder
from benchmarks.recording import Disk, events, revisions, samples, spec

SUBMISSIONS, QUESTIONS, WORDS = 40, 660, 150
LINES, TURNS = 100_000, 1_500
VOCABULARY = 20_000


class TextSource:
    def __init__(self, file: Path | None) -> None:
        self._dice = random.Random(0)
        letters = "etaoinshrdlucmfwypvbgkqjxz"
        names = ["".join(self._dice.choices(letters, k=self._dice.randint(2, 10))) for _ in range(VOCABULARY)]
        self._names = names
        self._sums = list(accumulate(1 / (rank + 1) for rank in range(VOCABULARY)))
        self._words = file.read_text(encoding="utf-8").split() if file else []

    def write(self, count: int) -> str:
        if not self._words:
            return " ".join(self._dice.choices(self._names, cum_weights=self._sums, k=count))
        begin = self._dice.randrange(len(self._words) - count)
        return " ".join(self._words[begin : begin + count])

    def answers(self, split: Split) -> EvalResult:
        return EvalResult(
            results=tuple(
                ExampleResult(
                    id=f"gsm8k-{split}-{number:04}",
                    output=self.write(WORDS),
                    score=float(self._dice.random() < 0.4),
                )
                for number in range(QUESTIONS)
            )
        )


def results(recorder: Recorder, texts: TextSource) -> None:
    places: list[tuple[SubmissionPaths, Split]] = [(recorder.paths.baseline, "feedback")]
    for number in range(1, SUBMISSIONS + 1):
        answers = texts.answers("feedback")
        where = recorder.paths.submission_paths(number)
        waiting = Submission(id=number, path=f"/workspace/output/{number}", accepted_at=time.time())
        recorder.record_submission(waiting, None)
        recorder.record_results(where, "feedback", answers)
        score = score_evaluation(answers, "feedback")
        recorder.record_verdict(
            waiting.model_copy(update={"verdict": "scored", "score": score, "lineage": "derived"})
        )
    places += [
        (recorder.paths.baseline, "heldout"),
        (recorder.paths.submission_paths(SUBMISSIONS), "heldout"),
    ]
    for where, split in places:
        recorder.record_results(where, split, texts.answers(split))


def account(recorder: Recorder, texts: TextSource) -> None:
    dice = random.Random(1)
    with recorder.paths.agent_log.open("w") as log:
        for step in range(LINES):
            log.write(
                f"{{'loss': {dice.random():.4f}, 'grad_norm': {dice.random():.6f}, 'learning_rate': "
                f"{dice.random():.3e}, 'reward': {dice.random():.4f}, 'epoch': {step / LINES:.4f}}}\n"
            )
    steps = [
        TranscriptStep(
            source="agent",
            text=texts.write(60),
            reasoning=texts.write(120),
            calls=(AgentToolCall(id=str(turn), name="Bash", arguments={"command": texts.write(40)}),),
            observations=(ToolObservation(call=str(turn), text=texts.write(200)),),
        )
        for turn in range(TURNS)
    ]
    write_record(recorder.paths.transcript, Transcript(agent="codex", version="1", steps=tuple(steps)))


def main(file: Path | None) -> None:
    texts = TextSource(file)
    with tempfile.TemporaryDirectory() as directory:
        runs = Path(directory) / "runs"
        began = time.time()
        with Recorder.create(runs, spec(), lambda _: None) as recorder:
            events(recorder)
            samples(recorder)
            revisions(recorder)
            results(recorder, texts)
            account(recorder, texts)
            paths = recorder.paths
            recorder.close(
                RunResult(
                    run_id=paths.run_id,
                    spec=spec(),
                    ending="deadline",
                    started_at=began,
                    ended_at=time.time(),
                )
            )
        for path in (
            paths.events,
            paths.usage,
            paths.revisions,
            paths.submissions,
            paths.agent_log,
            paths.transcript,
        ):
            print(f"{path.name:20} {Disk.of(path)}")
        print(f"{'the record':20} {Disk.of(paths.root)}")
        spent = time.process_time()
        written = write_bundle(paths, Path(directory) / "bundle", SecretScanner({}))
        total = sum(each.size for each in written.record.files)
        print(f"the bundle           {written.size / 1e6:6.2f} MB, unpacked {total / 1e6:.2f} MB", flush=True)
        print(f"                     {time.process_time() - spent:6.1f} s of CPU, with the report")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else None)
