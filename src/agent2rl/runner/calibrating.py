"""Measures a judge by the preferences that a task's benchmark has published."""

from pathlib import Path

from agent2rl import registry
from agent2rl.core.desk import Desk
from agent2rl.core.errors import UserError
from agent2rl.core.records import Calibration
from agent2rl.evaluators.calibration import calibrate, some
from agent2rl.evaluators.referees import Judge
from agent2rl.grading.desk import Offer, served
from agent2rl.runner import judges
from agent2rl.runner.settings import Settings


def measured(task: str, judge: str, data_dir: Path | None, most: int, settings: Settings) -> Calibration:
    """On `most` comparisons at most; what the judge has said before is not asked again."""
    published = registry.task(task).published
    if published is None:
        raise UserError(f"The task {task!r} has no published preferences.", "Try --task alpacaeval.")
    known = some(published.preferences(data_dir), most)
    with judges.judge(judge, settings) as judging, served(Offer(judging=judging)) as socket:
        assert socket
        return calibrate(Judge(Desk(socket)), known)
