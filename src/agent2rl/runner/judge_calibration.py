"""Measures a judge by the preferences that a task's benchmark has published."""

from pathlib import Path

from agent2rl import registry
from agent2rl.core.errors import UserError
from agent2rl.core.records import Calibration
from agent2rl.evaluators.calibration import calibrate, select_preferences
from agent2rl.evaluators.referees import JudgeReferee
from agent2rl.grading.grading_proxy import ProxyServices, serve_grading_proxy
from agent2rl.net.grading_proxy_client import GradingProxyClient
from agent2rl.runner import judges
from agent2rl.runner.settings import Settings


def measure_judge(task: str, judge: str, data_dir: Path | None, most: int, settings: Settings) -> Calibration:
    """On `most` comparisons at most; what the judge has said before is not asked again."""
    published = registry.find_task(task).published
    if published is None:
        raise UserError(f"The task {task!r} has no published preferences.", "Try --task alpacaeval.")
    known = select_preferences(published.preferences(data_dir), most)
    with (
        judges.open_judge(judge, settings) as judging,
        serve_grading_proxy(ProxyServices(judging=judging)) as socket,
    ):
        assert socket
        return calibrate(JudgeReferee(GradingProxyClient(socket)), known)
