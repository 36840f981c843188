"""A run in rows of text, for terminals and pages alike."""

from agent2rl.core.grading_records import ContaminationSummary, EvalScore, Interval, JudgeUsage, Submission
from agent2rl.core.llm import LlmUsage
from agent2rl.core.records import RolloutCounts, RunResult
from agent2rl.record.reader import RunView

Rows = list[tuple[str, ...]]

FINDING_COLUMNS = ("file", "example", "part", "words", "share", "the passage's words")
LEFT_OUT_COLUMNS = ("not read, because", "files", "bytes")
KIND_COLUMNS = ("kind", "untouched", "best")
SUBMISSION_COLUMNS = ("#", "model", "verdict", "score", "95% interval", "gain", "grading")


def build_headline_rows(view: RunView) -> Rows:
    """What was run and what came of it."""
    spec = view.spec
    rows: Rows = [
        ("run", view.paths.run_id),
        ("task", spec.task),
        ("agent", f"{spec.agent} ({spec.mode})"),
        *([("driver", spec.driver)] if spec.driver else []),
        ("model", f"{spec.model} on {spec.engine.partition(':')[0]}"),
        ("state", view.state),
    ]
    if view.state == "crashed" and not view.chain.fault:
        rows.append(("to go on", f"agent2rl resume {view.paths.run_id} goes on with it"))
    if spec.prompts:
        rows.append(("prompts", f"{spec.prompts.name}: the user's, not the task's"))
    if spec.search:
        kept = f", kept in {spec.record_searches}" if spec.record_searches else ""
        rows.append(("search", spec.search + kept))
    if spec.judge:
        rows.append(("judge", spec.judge))
    if not spec.expert:
        rows.append(("expert", "withheld"))
    if view.baseline:
        rows.append(("baseline", format_score(view.baseline)))
    if view.result:
        rows += _build_result_rows(view.result)
    rows += _build_sampling_rows(view)
    rows += _build_judging_rows(view)
    if view.chain.fault:
        rows.append(("record", f"DOES NOT HOLD: {view.chain.fault}"))
    rows += [("note", note) for note in view.notes]
    return rows


def _build_result_rows(result: RunResult) -> Rows:
    rows: Rows = [("ending", f"{result.ending}. {result.reason}" if result.reason else result.ending)]
    if result.best and result.best.score:
        rows.append(("best", f"submission {result.best.id}: {format_score(result.best.score)}"))
    if result.baseline_heldout and result.best_heldout and result.heldout:
        rows.append(
            ("held-out", f"{format_score(result.baseline_heldout)} → {format_score(result.best_heldout)}")
        )
        if result.ablated_heldout:
            rows.append(("base weights under its other files", format_score(result.ablated_heldout)))
        gain = f"{result.heldout.improvement:+.2f} {format_interval(result.heldout.ci)}"
        rows.append(("improvement", f"{gain}, optimism gap {result.optimism_gap:+.2f}"))
    elif result.score is not None and result.improvement is not None:
        rows.append(
            ("improvement", f"{result.improvement:+.2f} on the test set that chose it (paper protocol)")
        )
    elif result.best:
        rows.append(("score", "none: the best submission was not graded on the held-out split"))
    elif result.scored:
        rows.append(("score", "none: only the base model itself was submitted"))
    else:
        rows.append(("score", "none: no submission was scored"))
    if result.isolation and not result.isolation.isolates:
        rows.append(("isolation", f"NONE: the sandbox {result.isolation.sandbox!r} isolates nothing"))
    if result.contamination:
        rows.append(("contamination", describe_contamination(result.contamination)))
    if result.contaminated:
        rows.append(("contaminated", "YES: leaderboards and campaign statistics leave this run out"))
    if result.rollouts:
        rows.append(
            ("claimed", f"{describe_rollouts(result.rollouts.claimed)}, in the agent's own processes")
        )
        rows.append(("witnessed", f"{describe_rollouts(result.rollouts.witnessed)}, in the served world"))
    if result.train_judge:
        rows.append(("train judge", describe_judge_use(result.train_judge)))
    if result.usage:
        rows.append(("driver's work", describe_usage(result.usage)))
    if result.judge_usage:
        rows.append(("judge's work", describe_usage(result.judge_usage)))
    if result.rounds > 1:
        rows.append(("started", f"{result.rounds} times: it ended early and was told to go on"))
    if result.resumed:
        dead = f"{result.dead_seconds:.0f} s of dead time count as nobody's"
        rows.append(("resumed", f"{pluralize(result.resumed, 'time')}, after its harness died: {dead}"))
    if result.clock:
        clock = result.clock
        rows.append(
            (
                "time",
                f"agent {clock.agent:.1f} s, queue {clock.queue:.1f} s, grading {clock.grading:.1f} s",
            )
        )
    return rows


def _build_judging_rows(view: RunView) -> Rows:
    """How a win rate came about, and what answers win that say nothing: a judge can be fooled."""
    how = next((score.how for score in reversed(_find_before_and_after(view)) if score), {})
    won = how.get("constants")
    if not isinstance(won, dict):
        return []
    shares = [f"{name} {value}" for name, value in won.items() if name != "examples"]
    return [
        ("scored by", f"{how.get('score')}, {how.get('judge')}"),
        ("constants", f"{', '.join(shares)} (win rates on {won.get('examples')} examples)"),
    ]


def describe_judge_use(use: JudgeUsage) -> str:
    counts = {"failed": use.failed, "refused": use.refused}
    more = [f"{number:,} {what}" for what, number in counts.items() if number]
    return ", ".join([f"{use.questions:,} of {use.limit:,} questions to {use.judge}", *more])


def build_kind_rows(view: RunView) -> Rows:
    """The score of each kind of example, where a task has kinds: before and after."""
    before, after = _find_before_and_after(view)
    names = {name for score in (before, after) if score for name in score.groups}
    return [(name, _format_group(before, name), _format_group(after, name)) for name in sorted(names)]


def _format_group(score: EvalScore | None, name: str) -> str:
    return f"{score.groups[name]:.2f}" if score and name in score.groups else ""


def _find_before_and_after(view: RunView) -> tuple[EvalScore | None, EvalScore | None]:
    """The untouched model and the best submission, on the split that ranks where there is one."""
    if view.result and view.result.best_heldout:
        return view.result.baseline_heldout, view.result.best_heldout
    return view.baseline, view.result.best.score if view.result and view.result.best else None


def _build_sampling_rows(view: RunView) -> Rows:
    """How the model was asked, where that is not the usual way, and what else is known of its answers: what
    all samples are worth together, and what a task reports beside its score."""
    scores = [score for score in _find_before_and_after(view) if score]
    ways = list(dict.fromkeys(_describe_sampling(score) for score in scores))
    rows: Rows = [("asked", " → ".join(way or "as usual" for way in ways))] if any(ways) else []
    for name in scores[-1].metrics if scores else ():
        if "@" not in name or name.endswith(f"@{scores[-1].how.get('samples')}"):
            values = [f"{score.metrics[name]:.2f}" for score in scores if name in score.metrics]
            rows.append((name, f"{' → '.join(values)} ({scores[-1].split})"))
    return rows


def _describe_sampling(score: EvalScore) -> str:
    """Nothing for one greedy answer in a chat."""
    how, said = score.how, []
    if how.get("prompting") == "plain":
        said.append(f"as plain text after {how['shots']} shots" if how.get("shots") else "as plain text")
    if how.get("samples", 1) != 1:
        said.append(f"{how['samples']} samples at temperature {how.get('temperature')}")
    elif how.get("temperature"):
        said.append(f"one sample at temperature {how['temperature']}")
    return ", ".join(said)


def build_submission_rows(view: RunView) -> Rows:
    best = view.result.best.id if view.result and view.result.best else None
    return [_build_submission_row(submission, submission.id == best) for submission in view.submissions]


def _build_submission_row(submission: Submission, best: bool) -> tuple[str, ...]:
    score, gain, seconds = submission.score, submission.improvement, submission.grading_seconds
    return (
        f"{submission.id}{' *' if best else ''}",
        submission.path.removeprefix("/workspace/"),
        submission.verdict or "waiting",
        f"{score.value:.2f}" if score else "",
        format_interval(score.ci) if score else "",
        f"{gain:+.2f}" if gain is not None else "",
        f"{seconds:.1f} s" if seconds is not None else "",
    )


def describe_contamination(found: ContaminationSummary) -> str:
    """In one line. What was not looked at is never called clean."""
    if not found.done:
        return f"NOT CHECKED: {found.reason}"
    examples = ", ".join(
        f"{pluralize(count, f'{split} example')}" for split, count in found.flagged.items() if count
    )
    said = (
        f"FOUND: {examples} in {found.flagged_files} of {pluralize(found.files, 'file')}"
        if examples
        else f"none found in {pluralize(found.files, 'file')}"
    )
    if not found.left_out_files:
        return said
    return (
        f"{said}; not read: {pluralize(found.left_out_files, 'file')}, {format_bytes(found.left_out_bytes)}"
    )


def describe_rollouts(counts: RolloutCounts) -> str:
    return (
        f"{pluralize(counts.episodes, 'episode')}, {pluralize(counts.steps, 'step')}, {counts.successes} won"
    )


def describe_usage(usage: LlmUsage) -> str:
    """What the driver LLM was asked, read and wrote. What has no known price is not called free."""
    tokens = usage.tokens
    cost = "cost not known" if usage.usd is None else f"{usage.usd:.2f} USD"
    said = f"{pluralize(usage.requests, 'request')}, {tokens.input:,} tokens in ({tokens.cached:,} cached), "
    said += f"{tokens.output:,} out ({tokens.reasoning:,} thought), {cost}"
    if usage.failed or usage.refused:
        said += f"; {usage.failed} failed, {usage.refused} refused, {usage.stalled_seconds:.0f} s stalled"
    return said


def build_finding_rows(view: RunView) -> Rows:
    found = view.contamination.findings if view.contamination else ()
    return [
        (
            each.file,
            f"{each.example} ({each.split})",
            each.part,
            str(each.words),
            f"{each.share:.0%}",
            each.text,
        )
        for each in found
    ]


def build_left_out_rows(view: RunView) -> Rows:
    found = view.contamination.left_out if view.contamination else ()
    return [(each.reason, str(each.files), format_bytes(each.bytes)) for each in found]


def pluralize(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def format_bytes(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def list_messages(view: RunView) -> Rows:
    """What the agent was told beyond the score."""
    return [(str(submission.id), submission.message) for submission in view.submissions if submission.message]


def format_score(score: EvalScore) -> str:
    missing = f", {pluralize(score.missing, 'example')} missing" if score.missing else ""
    return f"{score.value:.2f} {format_interval(score.ci)}{missing}"


def format_interval(ci: Interval) -> str:
    return f"[{ci.low:.1f}, {ci.high:.1f}]"
