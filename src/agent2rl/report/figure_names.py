"""Which figures a report has: each that there is something to draw in."""

from agent2rl.report.report_data import ReportData


def list_figure_names(shown: ReportData) -> list[str]:
    """In the order of the page; known without drawing any."""
    line, started = shown.timeline, shown.timeline.started is not None
    found = {
        "scores": started and any(one.score for one in shown.view.submissions),
        "curves": any(
            value is not None
            for attempt in shown.findings.attempts
            for curve in attempt.curves
            for _, value in curve.points
        ),
        "timeline": bool(line.spans),
        "rollouts": any(each.claimed.episodes or each.witnessed.episodes for each in line.played),
        "tokens": started and any(each.tokens for each in shown.usage),
        "resources": bool(line.samples),
    }
    return [name for name, there in found.items() if there]
