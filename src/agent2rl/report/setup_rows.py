"""How a run was set up, in rows."""

from agent2rl.report import formatting, tables
from agent2rl.report.report_data import ReportData

Rows = list[tuple[str, str]]


def build_setup_rows(shown: ReportData) -> Rows:
    """What decides a run. Of paths of the machine only the last part is told."""
    spec, budget = shown.view.spec, shown.view.spec.budget
    rows: Rows = [
        ("task", formatting.shorten_name(spec.task)),
        ("agent", formatting.shorten_name(spec.agent)),
        ("driver", formatting.shorten_name(spec.driver or "none")),
        ("model", formatting.shorten_name(spec.model)),
        ("engine", spec.engine.partition(":")[0]),
        ("sandbox", spec.sandbox),
        ("mode", spec.mode),
        ("protocol", spec.protocol),
        ("time", formatting.format_duration(budget.wall_seconds)),
    ]
    limits = {
        "submissions": budget.submissions,
        "environment steps": budget.environment_steps,
        "tokens": budget.tokens,
        "dollars": budget.usd,
    }
    rows += [
        (f"{name}, at most", formatting.format_number(limit))
        for name, limit in limits.items()
        if limit is not None
    ]
    rows += [("seed", str(spec.seed)), ("answers per example", str(spec.samples))]
    optional = {
        "temperature": spec.temperature,
        "prompts": spec.prompts.name if spec.prompts else None,
        "search": spec.search,
        "judge": spec.judge,
        "training judge": spec.train_judge,
        "expert": None if spec.expert else "withheld",
    }
    if versions := shown.view.instructions_versions:
        rows.append(("instructions", f"version {', then '.join(map(str, versions))}"))
    rows += [
        (name, formatting.shorten_name(str(value))) for name, value in optional.items() if value is not None
    ]
    result = shown.view.result
    if result and result.resumed:
        dead = f"{formatting.format_duration(result.dead_seconds)} of dead time left out"
        rows.append(("resumed after its harness died", f"{tables.pluralize(result.resumed, 'time')}, {dead}"))
    if result:
        rows += [(f"sha256 of {each.name}", each.sha256) for each in result.assets]
    return rows
