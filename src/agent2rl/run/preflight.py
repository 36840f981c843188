"""Check whether this machine is ready and whether a task is sound. Each finding is one line with a hint."""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from agent2rl import registry
from agent2rl.core.errors import Agent2RLError, UserError
from agent2rl.core.grading_records import Split
from agent2rl.core.records import Isolation
from agent2rl.core.sandbox import AUTO_SANDBOX
from agent2rl.core.task import Example, JointEvaluator, ModelEvaluator, Task
from agent2rl.environments.search.search_engines import KEYS as SEARCH_KEYS
from agent2rl.environments.search.search_engines import KNOWN, open_backend
from agent2rl.grading.grading_child import GradingChild
from agent2rl.run import grading_proxy_setup, machine, output_scoring
from agent2rl.run.agent_python import find_agent_python, require_start_in_sandbox
from agent2rl.run.assets import prepare_model_directory
from agent2rl.run.gpu_check import CUDA_HINT, find_gpu_failure
from agent2rl.run.private_places import PrivatePlaces, find_private_places
from agent2rl.run.sandbox_choice import (
    LOCAL_HINT,
    TriedSandbox,
    describe_remedy,
    open_sandbox,
    try_better_sandboxes,
    try_other_sandboxes,
    try_sandbox,
    try_sandboxes,
)
from agent2rl.run.settings import Settings, read_secrets
from agent2rl.run.task_data import load_task_data
from agent2rl.system.unix import SYSTEM_NAMES

KEYS = ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY")
DISK_BYTES = 5 << 30
SECONDS = 600
WRONG = "I do not know."
PROBE = "capital of France"
COMPARISONS, MOST_WON = 20, 10.0
"""Comparisons to try a judge with, and the percentage of them that a wrong answer may win at most."""
READING = (
    "show, report, view, leaderboard, verify, transcript, revisions and export work here, on runs from Linux"
)
LINUX_ELSEWHERE = "Install agent2rl in a Linux container or virtual machine, or on a Linux server."
LINUX_ON = {
    "Windows": "Install agent2rl in WSL 2 (`wsl --install`), in a Linux container, or on a Linux server."
}
CLONE_COMMAND = "git clone REPOSITORY agent2rl && cd agent2rl"
DOCKER_COMMANDS = (
    "docker build -t agent2rl:cpu .",
    (
        "docker run --rm -it --security-opt seccomp=unconfined --security-opt apparmor=unconfined "
        '--security-opt systempaths=unconfined -v "$PWD/runs:/runs" -e AGENT2RL_RUNS=/runs agent2rl:cpu '
        "agent2rl demo"
    ),
)
"""Builds the image in a clone, and starts the demo in it; for a shell of macOS and for PowerShell."""
NO_PROXY = grading_proxy_setup.GradingProxyOptions()


@dataclass(frozen=True)
class PreflightFinding:
    name: str
    state: Literal["ok", "missing", "not kept", "broken"]
    """`missing`: some runs need it. `not kept`: the sandbox does not promise it. `broken`: all need it."""
    detail: str
    hint: str = ""


def check_machine(
    settings: Settings, sandbox: str, more: Iterable[PreflightFinding] = ()
) -> Iterator[PreflightFinding]:
    """Check what runs need, with `more` findings before the verdict."""
    tried: list[TriedSandbox] = []
    yield from _check_sandboxes(sandbox, settings, tried)
    gpus = machine.list_visible_gpus(settings.gpus)
    hint = "" if gpus else "The miniature tasks need none."
    yield PreflightFinding("gpu", "ok" if gpus else "missing", f"{len(gpus)} visible", hint)
    yield from _check_cuda(gpus, tried)
    keys = sorted(read_secrets(KEYS))
    hint = "" if keys else f"Agents driven by an LLM need one of {', '.join(KEYS)}."
    yield PreflightFinding("keys", "ok" if keys else "missing", ", ".join(keys) or "none set", hint)
    yield _check_disk(settings.runs)
    yield _check_cache(settings.cache)
    yield _check_embedded_data(settings.cache)
    yield from more
    if sandbox == AUTO_SANDBOX:
        yield make_verdict([each.isolation for each in tried])
    else:
        others = _try_alternatives(sandbox, tried, find_private_places(settings))
        yield make_verdict([each.isolation for each in tried], others, sandbox)


def _try_alternatives(name: str, tried: Sequence[TriedSandbox], places: PrivatePlaces) -> list[Isolation]:
    """Test what could replace a named sandbox that does not work, or isolates in part, until one works."""
    with suppress(UserError):  # they cannot hide the harness's directories either; the finding is above
        if not any(each.works for each in tried):
            return [each.isolation for each in try_other_sandboxes(name, places)]
        if any(each.isolation.level == "partial" for each in tried):
            return [each.isolation for each in try_better_sandboxes(name, places)]
    return []


def _check_cuda(gpus: tuple[str, ...], tried: Sequence[TriedSandbox]) -> Iterator[PreflightFinding]:
    """Start CUDA in the sandbox that runs use."""
    working = next((each for each in tried if each.works), None)
    if not gpus or not working:
        return
    name = f"CUDA in {working.isolation.sandbox}"
    if failure := find_gpu_failure(working.sandbox, gpus):
        yield PreflightFinding(name, "broken", f"does not start: {failure}", CUDA_HINT)
    else:
        yield PreflightFinding(name, "ok", "starts")


def check_other_system(system: str, settings: Settings) -> Iterator[PreflightFinding]:
    """Say what works on a system that is not Linux: whatever only reads runs."""
    yield PreflightFinding("reading runs", "ok", READING)
    sandboxes = [name for name in registry.list_names("sandboxes") if name not in ("auto", "local")]
    build, start = DOCKER_COMMANDS
    hint = (
        f"{LINUX_ON.get(system, LINUX_ELSEWHERE)} There, `pip install 'agent2rl[train]' && agent2rl demo` "
        f"works, and agents are isolated by {' or '.join(sandboxes)}. With Docker here: the repository has a "
        f"Dockerfile, the package has not. `{CLONE_COMMAND}`, then `{build}`, then `{start}`"
    )
    yield PreflightFinding(
        "runs", "broken", f"need Linux, and this is {SYSTEM_NAMES.get(system, system)}", hint
    )
    yield _check_cache(settings.cache)


def check_agent_python(path: Path, settings: Settings, sandbox: str) -> PreflightFinding:
    """Check that an agent can use a Python environment, and start it in the sandbox."""
    try:
        python = find_agent_python(path)
        require_start_in_sandbox(python, open_sandbox(sandbox, find_private_places(settings)).sandbox)
    except Agent2RLError as error:
        return PreflightFinding("agent's python", "broken", error.message, error.hint)
    packages = [f"{name} {version}" for name, version in python.lock.training_packages.items()]
    counted = [f"{len(python.lock.packages)} installed packages", *packages]
    detail = f"Python {python.lock.version} in {python.prefix}: {', '.join(counted)}"
    hint = "" if python.has_agent2rl else "Without agent2rl, eval.py and the recipes need $AGENT2RL_PYTHON."
    return PreflightFinding("agent's python", "ok", detail, hint)


def check_task(
    name: str,
    data_dir: Path | None,
    settings: Settings,
    sandbox: str,
    proxy_options: grading_proxy_setup.GradingProxyOptions = NO_PROXY,
) -> Iterator[PreflightFinding]:
    """Check in a real grading child that gold answers score 100 and wrong ones 0."""
    task = registry.find_task(name)
    opened = open_sandbox(sandbox, find_private_places(settings))
    state: Literal["ok", "not kept"] = "ok" if opened.isolation.level == "full" else "not kept"
    yield PreflightFinding("sandbox", state, opened.description.removeprefix("sandbox: "))
    private_sandbox = opened.sandbox
    loaded = load_task_data(task, data_dir, settings.cache, private_sandbox)
    sizes = f"{len(loaded.train)} train, {len(loaded.feedback)} feedback, {len(loaded.heldout)} held-out"
    hint = "" if loaded.train else "There is no training data."
    yield PreflightFinding("data", "ok" if loaded.train else "broken", sizes, hint)
    if isinstance(task.evaluator, ModelEvaluator):
        detail = "loads the model itself, so gold answers cannot be tried"
        yield PreflightFinding("evaluator", "ok", detail, "Grade the untouched model: run with --agent nop.")
        return
    yield _check_overlap("train and test", loaded.train, (*loaded.feedback, *loaded.heldout))
    yield _check_overlap("feedback and held-out", loaded.feedback, loaded.heldout)
    splits: dict[Split, Sequence[Example]] = {"feedback": loaded.feedback, "heldout": loaded.heldout}
    if "search" in task.proxy_services:
        yield _check_search(proxy_options)
    if task.judged and not proxy_options.judge:
        hint = "Then measure it: agent2rl judge calibrate."
        yield PreflightFinding("judge", "missing", "a run must name one with --judge", hint)
        return
    with grading_proxy_setup.open_grading_proxy(proxy_options, task, settings, needed=False) as proxy:
        child = output_scoring.make_replay_child(
            task, name, loaded, settings, private_sandbox, SECONDS, proxy
        )
        if proxy_options.judge and isinstance(task.evaluator, JointEvaluator):
            yield _check_judge(child, task.evaluator, loaded.feedback[:COMPARISONS])
            return
        for split, examples in splits.items():
            gold = [example.target for example in examples]
            yield _check_answers(task, child, split, examples, "gold answers", gold, 1.0)
            yield _check_answers(task, child, split, examples, "wrong answers", [WRONG] * len(gold), 0.0)


def _check_judge(
    child: GradingChild, evaluator: JointEvaluator, examples: Sequence[Example]
) -> PreflightFinding:
    """Check that a comparing judge prefers the reference to a wrong answer in most cases."""
    try:
        results = output_scoring.grade_outputs(child, examples, {one.id: [WRONG] for one in examples}).results
    except Agent2RLError as error:
        return PreflightFinding("judge", "broken", error.message, error.hint)
    won = 100 * sum(evaluator.score_alone(result) for result in results) / len(results)
    hint = "Measure it: agent2rl judge calibrate." if won > MOST_WON else ""
    detail = f"{WRONG!r} wins {won:.2f} % of {len(results)} comparisons with the reference"
    return PreflightFinding("judge", "broken" if won > MOST_WON else "ok", detail, hint)


def _check_search(proxy_options: grading_proxy_setup.GradingProxyOptions) -> PreflightFinding:
    """Do one real search if a backend is named; a run needs one."""
    if not proxy_options.search:
        return PreflightFinding("search", "missing", "a run must name a search backend", f"--search. {KNOWN}")
    if proxy_options.search.startswith("replay:"):
        return PreflightFinding("search", "ok", proxy_options.search)
    try:
        pages = open_backend(proxy_options.search, read_secrets(SEARCH_KEYS)).search(PROBE)
    except Agent2RLError as error:
        return PreflightFinding("search", "broken", error.message, error.hint)
    return PreflightFinding("search", "ok", f"{proxy_options.search} finds {len(pages)} pages for {PROBE!r}")


def _check_overlap(what: str, first: Sequence[Example], second: Sequence[Example]) -> PreflightFinding:
    seen = {_get_content_key(example) for example in first}
    shared = [example.id for example in second if _get_content_key(example) in seen]
    hint = f"Remove them from one side: {', '.join(shared[:3])}" if shared else ""
    return PreflightFinding(
        f"overlap of {what}", "broken" if shared else "ok", f"{len(shared)} examples in both", hint
    )


def _get_content_key(example: Example) -> str:
    """Return what identifies an example's content: its prompt, or in a world the hash of its game."""
    return str(example.meta.get("sha256", example.prompt))


def _check_sandboxes(name: str, settings: Settings, tried: list[TriedSandbox]) -> Iterator[PreflightFinding]:
    """Test the named sandbox, or all until one works, and add them to `tried`."""
    places = find_private_places(settings)
    try:
        for each in try_sandboxes(places) if name == AUTO_SANDBOX else [try_sandbox(name, places)]:
            tried.append(each)
            yield from _list_promises(each.isolation, name == AUTO_SANDBOX)
    except UserError as error:
        yield PreflightFinding(f"sandbox {name}", "broken", error.message, error.hint)


def _list_promises(isolation: Isolation, others_follow: bool) -> Iterator[PreflightFinding]:
    name = f"sandbox {isolation.sandbox}"
    if not isolation.isolates:
        yield PreflightFinding(name, "broken", "isolates nothing", "Use --sandbox auto.")
    for promise in isolation.promises:
        if not promise.promised:
            yield PreflightFinding(name, "not kept", promise.name, promise.hint)
        elif promise.holds:
            yield PreflightFinding(name, "ok", promise.name)
        else:
            state: Literal["missing", "broken"] = "missing" if others_follow else "broken"
            yield PreflightFinding(name, state, f"does not hold: {promise.name}", promise.hint)


def make_verdict(
    tried: Sequence[Isolation], others: Sequence[Isolation] = (), named: str = ""
) -> PreflightFinding:
    """Say which sandbox runs use, what it does not promise, and what would get a better one.

    `named` is the sandbox that was asked for, and `others` are those that were tried in its place: the last
    one may work.
    """
    if tried and not tried[0].isolates:
        return PreflightFinding(
            "verdict", "broken", f"the sandbox {tried[0].sandbox} isolates nothing", "Use --sandbox auto."
        )
    other = others[-1].sandbox if others and not others[-1].broken else ""
    used = next((each for each in tried if each.isolates and not each.broken), None)
    if not used:
        detail = "no sandbox works here, so no run can start"
        if named:
            end = ", and no other one does" if others and not other else ""
            detail = f"the sandbox {named} does not work here{end}"
        hint = f"{other} works here: --sandbox {other}" if other else describe_remedy([*tried, *others])
        return PreflightFinding("verdict", "broken", detail, hint or LOCAL_HINT)
    detail = f"runs use the sandbox {used.sandbox}, which keeps all {len(used.promises)} promises"
    if used.level == "partial":
        missing = "; ".join(promise.name for promise in used.not_kept)
        detail = (
            f"runs use the sandbox {used.sandbox}, which isolates in part. It does not promise: {missing}"
        )
    if other:
        hint = f"{other} works here, and is better: --sandbox {other}"
    else:
        hint = describe_remedy([each for each in (*others, *tried) if each.broken])
    return PreflightFinding("verdict", "ok", detail, hint)


def _check_disk(runs: Path) -> PreflightFinding:
    free = machine.read_free_disk_bytes(runs)
    enough = free >= DISK_BYTES
    hint = "" if enough else "Free some space, or keep runs elsewhere with --runs-dir."
    return PreflightFinding("disk", "ok" if enough else "broken", f"{free >> 30} GiB free for runs", hint)


def _check_cache(cache: Path) -> PreflightFinding:
    parent = cache
    while not os.path.exists(parent):  # noqa: PTH110 (a path without permission counts as missing)
        parent = parent.parent
    writable = parent.is_dir() and os.access(parent, os.W_OK)
    hint = "" if writable else "Name another directory in AGENT2RL_CACHE."
    return PreflightFinding("cache", "ok" if writable else "broken", str(cache), hint)


def _check_embedded_data(cache: Path) -> PreflightFinding:
    """Check the shipped model and the embedded miniature task, which are all that a first run needs."""
    try:
        prepare_model_directory("abacus", cache)
        n = len(registry.find_task("gsm8k-mini").load(None).train)
    except (Agent2RLError, OSError) as error:
        return PreflightFinding("data", "broken", f"the embedded model or data cannot be prepared: {error}")
    return PreflightFinding("data", "ok", f"abacus and gsm8k-mini ({n} training problems) are embedded")


def _check_answers(
    task: Task,
    child: GradingChild,
    split: Split,
    examples: Sequence[Example],
    what: str,
    answers: list[str],
    expected: float,
) -> PreflightFinding:
    outputs = {example.id: [answer] for example, answer in zip(examples, answers, strict=True)}
    try:
        results = output_scoring.grade_outputs(child, examples, outputs).results
    except Agent2RLError as error:
        return PreflightFinding(f"{what}, {split}", "broken", error.message, error.hint)
    alone = (
        task.evaluator.score_alone
        if isinstance(task.evaluator, JointEvaluator)
        else lambda result: result.score
    )
    wrong = [result.id for result in results if alone(result) != expected]
    hint = f"Wrong: {', '.join(wrong[:5])}" if wrong else ""
    share = f"{len(results) - len(wrong)} of {len(results)} score {100 * expected:g}"
    return PreflightFinding(f"{what}, {split}", "broken" if wrong else "ok", share, hint)
