"""Describes facts of a run in one line each, for terminals and pages."""

from agent2rl.core.audit_records import FLAG_NAMES, Audit
from agent2rl.core.grading_records import (
    ContaminationSummary,
    HeldoutComparison,
    JudgeUsage,
    PanelResult,
    SiblingDistance,
)
from agent2rl.core.llm import LlmUsage
from agent2rl.core.network import NetworkUsage
from agent2rl.core.records import (
    Budget,
    Clock,
    ExpertHelp,
    Isolation,
    PythonLock,
    RolloutCounts,
    Rollouts,
    RunSpec,
)
from agent2rl.core.reproduction import Reproduction
from agent2rl.report.formatting import format_bytes, format_interval, format_score, pluralize

MOST_HOSTS = 5
"""How many hosts a description lists."""


def describe_protocol(spec: RunSpec) -> str:
    if spec.protocol == "paper":
        return f"paper, profile {spec.profile}" if spec.profile else "paper (its split alone)"
    return spec.protocol


def describe_expert_help(level: ExpertHelp) -> str:
    if level == "full":
        return "plays any training game"
    return "none" if level == "none" else f"{level:,} demonstrations"


def describe_python(python: PythonLock) -> str:
    packages = [f"{name} {version}" for name, version in python.training_packages.items()]
    parts = [python.version, *packages, pluralize(len(python.packages), "package")]
    return f"{', '.join(parts)}, lock {python.sha256[:12]}"


def describe_clock(clock: Clock) -> str:
    if clock == "training":
        return "training: the time of submissions does not count"
    return "all: wall time"


def describe_network_policy(policy: str) -> str:
    meanings = {
        "packages": "the registries of PyPI, npm, conda and Debian",
        "allow": "these hosts alone",
        "open": "public hosts, without model hubs that are not named",
    }
    meaning = meanings.get(policy.partition(":")[0])
    return f"{policy}: {meaning}" if meaning else policy


def describe_network_usage(usage: NetworkUsage) -> str:
    hosts = [f"{each.host} ({format_bytes(each.received_bytes)})" for each in usage.hosts[:MOST_HOSTS]]
    others = len(usage.hosts) - len(hosts) + usage.other_hosts
    hosts += [pluralize(others, "other host")] if others else []
    text = f"downloaded {format_bytes(usage.received_bytes)}{' from ' if hosts else ''}{', '.join(hosts)}"
    text += f"; sent {format_bytes(usage.sent_bytes)}; {pluralize(usage.requests, 'request')}"
    problems = {"refused": usage.refused, "failed": usage.failed, "not recorded": usage.unrecorded}
    text = ", ".join([text, *(f"{count:,} {name}" for name, count in problems.items() if count)])
    return f"{text}. THE RECORD IS NOT WHOLE: {usage.record_fault}" if usage.record_fault else text


def describe_isolation(isolation: Isolation) -> str:
    """Describe in one line what the sandbox of a run did and did not promise."""
    if isolation.level == "none":
        return f"NONE: the sandbox {isolation.sandbox!r} isolates nothing"
    kept = (
        f"{isolation.sandbox}: {pluralize(len(isolation.promises) - len(isolation.not_kept), 'promise')} kept"
    )
    if isolation.level == "full":
        return kept
    return f"PARTIAL: {kept}; not kept: {'; '.join(promise.name for promise in isolation.not_kept)}"


def describe_contamination(summary: ContaminationSummary) -> str:
    """Describe the search in one line. Files that were not searched are never called clean."""
    if not summary.done:
        return f"NOT CHECKED: {summary.reason}"
    examples = ", ".join(
        f"{pluralize(count, f'{split} example')}" for split, count in summary.flagged.items() if count
    )
    text = (
        f"FOUND: {examples} in {summary.flagged_files} of {pluralize(summary.files, 'file')}"
        if examples
        else f"none found in {pluralize(summary.files, 'file')}"
    )
    if not summary.left_out_files:
        return text
    unread = f"{pluralize(summary.left_out_files, 'file')}, {format_bytes(summary.left_out_bytes)}"
    return f"{text}; not read: {unread}"


def describe_sibling(distance: SiblingDistance) -> str:
    """Name a sibling of the base model with a submission's distances to it."""
    shares = (("matrices alike", distance.matched), ("of its change", distance.share))
    figures = [f"{value:.0%} {name}" for name, value in shares if value is not None]
    numbers = (("cosine", distance.cosine), ("norms", distance.norms), ("distance", distance.distance))
    figures += [f"{name} {value:.2f}" for name, value in numbers if value is not None]
    return f"{distance.name} ({', '.join(figures)})"


def describe_rollouts(counts: RolloutCounts) -> str:
    return (
        f"{pluralize(counts.episodes, 'episode')}, {pluralize(counts.steps, 'step')}, {counts.successes} won"
    )


def describe_step_budget(rollouts: Rollouts, budget: Budget) -> str:
    played, limit = rollouts.played.steps, budget.environment_steps
    left = rollouts.count_steps_left(limit)
    return f"{played:,} played, " + ("unlimited" if left is None else f"{left:,} left of {limit:,}")


def describe_usage(usage: LlmUsage) -> str:
    """Describe requests, tokens and cost of an LLM. An unknown price is never shown as free."""
    tokens = usage.tokens
    cost = "cost unknown" if usage.usd is None else f"{usage.usd:.2f} USD"
    text = f"{pluralize(usage.requests, 'request')}, {tokens.input:,} tokens in ({tokens.cached:,} cached), "
    text += f"{tokens.output:,} out ({tokens.reasoning:,} reasoning), {cost}"
    if usage.failed or usage.refused:
        text += f"; {usage.failed} failed, {usage.refused} refused, {usage.stalled_seconds:.0f} s stalled"
    return text


def describe_judge_use(use: JudgeUsage) -> str:
    counts = {"failed": use.failed, "refused": use.refused}
    problems = [f"{count:,} {outcome}" for outcome, count in counts.items() if count]
    return ", ".join([f"{use.questions:,} of {use.limit:,} questions to {use.judge}", *problems])


def describe_audit(audit: Audit) -> str:
    """Say what an audit raised, or why it was not done. It changes no score."""
    by_votes = [flag for flag in audit.flags if flag.votes]
    raised = [f"{FLAG_NAMES[flag.kind]} ({flag.votes} of {audit.votes} votes)" for flag in by_votes]
    raised += [f"{FLAG_NAMES[flag.kind]} (by rule)" for flag in audit.flags if not flag.votes]
    parts = [f"Raised: {', '.join(raised)}"] if raised else []
    if not audit.done:
        parts.insert(0, f"Not audited by {audit.judge}: {audit.reason.rstrip('.')}")
        return ". ".join(parts) + "."
    parts = parts or ["Nothing was raised by a majority"]
    minority = ", ".join(f"{FLAG_NAMES[flag.kind]} ({flag.votes})" for flag in audit.minority)
    parts += [f"By fewer votes: {minority}"] if minority else []
    unread = [each.name for each in audit.documents if each.read < each.characters]
    parts += [f"Not read in full: {', '.join(unread[:5])}"] if unread else []
    return f"{'. '.join(parts)}. {audit.valid_votes} of {audit.votes} votes of {audit.judge} are valid."


def describe_panel_result(each: PanelResult) -> str:
    """Return the scores on another task in one line."""
    known = [format_score(score) for score in (each.baseline, each.best) if score]
    change = [describe_change(each.change)] if each.change else []
    reason = [f"not graded: {each.reason}"] if each.reason else []
    return ", ".join(filter(None, (" → ".join(known), *change, *reason)))


def describe_change(change: HeldoutComparison) -> str:
    return f"{change.improvement:+.2f} {format_interval(change.ci)}"


def describe_reproduction(each: Reproduction) -> str:
    """Return the answer and both figures in one line."""
    figures = ""
    if each.original and each.retrained and each.difference:
        split = "held-out" if each.split == "heldout" else each.split
        difference = f"{each.difference.improvement:+.2f} {format_interval(each.difference.ci)}"
        figures = (
            f": {format_score(each.original)} originally, {format_score(each.retrained)} "
            f"retrained ({split}), difference {difference}"
        )
        figures += ", the same weights" if each.same_weights else ""
    reason = f" ({each.reason})" if each.reason and figures else f": {each.reason}" if each.reason else ""
    return f"{each.answer}{figures}{reason}"
