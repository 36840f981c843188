"""From a run directory to a tracker: what it does not have yet."""

from importlib.util import find_spec

from agent2rl import registry
from agent2rl.analysis.recorded_run import read_recorded_run
from agent2rl.core.errors import UserError
from agent2rl.core.tracker import RunMirror, Tracker
from agent2rl.store.paths import RunPaths
from agent2rl.store.reader import read_run
from agent2rl.tracking.metric_rows import make_rows
from agent2rl.tracking.run_metadata import describe_end, describe_run


def require_tracker(name: str) -> Tracker:
    """The tracker, if it can work here."""
    tracker = registry.find_tracker(name)
    if tracker.needs and find_spec(tracker.needs) is None:
        raise UserError(
            f"Tracking with {name} needs the package {tracker.needs}, which is not installed.",
            f"Install it: pip install 'agent2rl[{tracker.needs}]'.",
        )
    return tracker


def mirror_run(paths: RunPaths, tracker: Tracker, group: str | None = None) -> str:
    """All that there is to tell of a run by now; returns where it can be looked at."""
    with tracker.open(describe_run(read_run(paths), group)) as mirror:
        send_run_state(paths, mirror)
        return mirror.where


def send_run_state(paths: RunPaths, mirror: RunMirror) -> None:
    record = read_recorded_run(paths)
    mirror.send(make_rows(record))
    if record.view.state != "running":
        mirror.finish(describe_end(record.view))
