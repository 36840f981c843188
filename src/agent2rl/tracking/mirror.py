"""From a run directory to a tracker: what it does not have yet."""

from importlib.util import find_spec

from agent2rl import registry
from agent2rl.analysis.recorded import recorded
from agent2rl.core.errors import UserError
from agent2rl.core.tracker import Mirror, Tracker
from agent2rl.store.paths import RunPaths
from agent2rl.store.reader import read_run
from agent2rl.tracking.rows import rows
from agent2rl.tracking.told import last, tracked


def require(name: str) -> Tracker:
    """The tracker, if it can work here."""
    tracker = registry.tracker(name)
    if tracker.needs and find_spec(tracker.needs) is None:
        raise UserError(
            f"Tracking with {name} needs the package {tracker.needs}, which is not installed.",
            f"Install it: pip install 'agent2rl[{tracker.needs}]'.",
        )
    return tracker


def send(paths: RunPaths, tracker: Tracker, group: str | None = None) -> str:
    """All that there is to tell of a run by now; returns where it can be looked at."""
    with tracker.open(tracked(read_run(paths), group)) as mirror:
        tell(paths, mirror)
        return mirror.where


def tell(paths: RunPaths, mirror: Mirror) -> None:
    record = recorded(paths)
    mirror.send(rows(record))
    if record.view.state != "running":
        mirror.finish(last(record.view))
