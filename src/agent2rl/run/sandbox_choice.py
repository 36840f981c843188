"""Choose the sandbox for `--sandbox auto`: the first that works on this machine, the best first.

`local` is never chosen, because it isolates nothing. A sandbox that is named is used as it is.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from agent2rl import registry
from agent2rl.core.errors import MachineError
from agent2rl.core.records import Isolation
from agent2rl.core.sandbox import AUTO_SANDBOX
from agent2rl.run.private_places import PrivatePlaces, PrivateSandbox

CANDIDATES = ("bubblewrap", "docker", "podman", "apptainer", "confined")
"""The best first. Those that this version does not have are skipped."""
NONE_WORKS = "No sandbox works on this machine."
LOCAL_HINT = "`--sandbox local` runs without any isolation: use it only for code that you trust."
NONE_HINT = f"`agent2rl check` says what each of them lacks. {LOCAL_HINT}"
REASON_CHARACTERS = 120


@dataclass(frozen=True)
class TriedSandbox:
    sandbox: PrivateSandbox
    isolation: Isolation

    @property
    def works(self) -> bool:
        return not self.isolation.broken

    @property
    def description(self) -> str:
        """One line for a person: its name, and what it does not promise."""
        line = f"sandbox: {self.isolation.sandbox}"
        if not self.isolation.isolates:
            return f"{line}, which isolates nothing"
        missing = "; ".join(promise.name for promise in self.isolation.not_kept)
        return f"{line}, which isolates in part. It does not promise: {missing}" if missing else line


def list_candidates() -> list[str]:
    known = registry.list_names("sandboxes")
    return [name for name in CANDIDATES if name in known]


def try_sandbox(name: str, places: PrivatePlaces, reason: str = "", remedy: str = "") -> TriedSandbox:
    """Test every promise of a sandbox."""
    sandbox = PrivateSandbox(registry.find_sandbox(name), places)
    return TriedSandbox(sandbox, sandbox.check().model_copy(update={"reason": reason, "remedy": remedy}))


def try_sandboxes(places: PrivatePlaces, names: Sequence[str] | None = None) -> Iterator[TriedSandbox]:
    """Test the candidates, or those that are named, one after the other until one works.

    It comes last, with the reason for it and with what would get the best of those that failed.
    """
    failed: list[Isolation] = []
    for name in list_candidates() if names is None else names:
        reason = "; ".join(f"{each.sandbox}: {describe_failure(each)}" for each in failed)
        tried = try_sandbox(name, places, reason, describe_remedy(failed))
        yield tried
        if tried.works:
            return
        failed.append(tried.isolation)


def try_better_sandboxes(name: str, places: PrivatePlaces) -> Iterator[TriedSandbox]:
    """Test the candidates that are better than a named one, until one works."""
    plugin, candidates = name.partition(":")[0], list_candidates()
    if plugin in candidates:
        yield from try_sandboxes(places, candidates[: candidates.index(plugin)])


def try_other_sandboxes(name: str, places: PrivatePlaces) -> Iterator[TriedSandbox]:
    """Test the candidates in place of a named one that does not work, until one works."""
    plugin = name.partition(":")[0]
    yield from try_sandboxes(places, [each for each in list_candidates() if each != plugin])


def describe_remedy(failed: Sequence[Isolation]) -> str:
    """Return what would get the first of the sandboxes that do not work; empty if nothing is known.

    One whose cause is unknown has no remedy, and nobody can act on that: the next one is named.
    """
    remedies = ((each.sandbox, each.broken[0].remedy) for each in failed)
    return next((f"To get {name}: {remedy}" for name, remedy in remedies if remedy), "")


def describe_failure(isolation: Isolation) -> str:
    """Return in a few words why a sandbox cannot be used."""
    promise = isolation.broken[0]
    if promise.name != "the sandbox starts":
        return f"a promise does not hold ({promise.name})"
    text = " ".join(promise.hint.removeprefix("The sandbox did not start: ").split())
    sentence = text.partition(". ")[0].rstrip(".")
    return sentence if len(sentence) <= REASON_CHARACTERS else f"{sentence[: REASON_CHARACTERS - 1]}…"


def choose_sandbox(places: PrivatePlaces) -> TriedSandbox:
    """Return the first sandbox that keeps its promises; raise MachineError if none does."""
    failed = []
    for tried in try_sandboxes(places):
        if tried.works:
            return tried
        failed.append(tried.isolation)
    failures = "; ".join(f"{each.sandbox}: {describe_failure(each)}" for each in failed)
    raise MachineError(f"{NONE_WORKS} {failures}.", f"{describe_remedy(failed)}\n{NONE_HINT}".lstrip())


def open_sandbox(name: str, places: PrivatePlaces) -> TriedSandbox:
    """Return the named sandbox or, for `auto`, the first that works; raise MachineError if none does."""
    if name == AUTO_SANDBOX:
        return choose_sandbox(places)
    tried = try_sandbox(name, places)
    if not tried.works:
        raise MachineError(f"The sandbox {name} cannot be used.", tried.isolation.broken[0].hint)
    return tried
