"""What the pages of docs/reference hold. Each is made of the code that it describes, so none can be stale."""

import inspect
import json
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import click

from agent2rl import notebook, registry
from agent2rl.agents import folder as agent_folder
from agent2rl.campaign import campaign_file as campaign
from agent2rl.cli.main import cli
from agent2rl.core import (
    agent,
    engine,
    environment,
    errors,
    events,
    grading_records,
    llm,
    model,
    records,
    reproduction,
    sandbox,
    self_reports,
    task,
    tracker,
)
from agent2rl.engines import openai_api
from agent2rl.environments.search.search_engines import KEYS as SEARCH_KEYS
from agent2rl.evaluators.published import folder_files
from agent2rl.gateway import drivers, prices
from agent2rl.grading import api
from agent2rl.grading.lineage import LineageReport
from agent2rl.grading.lineage_verdict import TensorLineage
from agent2rl.grading.rollout_meter import RolloutReport as RolloutsReport
from agent2rl.record import paths, reader, revisions
from agent2rl.report.report_data import RunReport
from agent2rl.run.settings import Settings
from agent2rl.tasks import benchmark as benchmark_folder
from agent2rl.tasks import folder as task_folder
from agent2rl.tasks import smith as smith_folder
from scripts.site import classes, variables

ROOT = Path(__file__).resolve().parents[2]
WIDTH = 88
ENGINE = (
    "ChatMessage Sampling Completion Engine ScoringEngine TemplateAwareEngine Conversations "
    "ConversationEngine ForkableEngine"
)
REGISTRY = (
    "find_task find_agent find_model find_engine find_sandbox find_world find_tracker list_names list_entries"
)
RESULT = "RunResult Isolation Promise Asset TimeBreakdown Rollouts RolloutCounts"
GRADED_RESULT = "HeldoutComparison PanelResult JudgeUsage ContaminationSummary"


def commands() -> str:
    """Every command's own --help, in the order of `agent2rl --help`."""
    return "\n\n".join(
        _help(cli, click.Context(cli, info_name="agent2rl", terminal_width=WIDTH, **cli.context_settings))
    )


def _help(command: click.Command, context: click.Context) -> list[str]:
    context.max_content_width = WIDTH
    told = [f"## {context.command_path}\n\n```text\n{command.get_help(context)}\n```"]
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            if (below := command.get_command(context, name)) is not None:
                told += _help(below, click.Context(below, parent=context, info_name=name))
    return told


def python() -> str:
    parts = ["## agent2rl.registry", classes.prose(inspect.getdoc(registry) or "")]
    parts += [classes.functions(*(getattr(registry, name) for name in REGISTRY.split()))]
    for module, names in (
        (task, "Example Splits Evaluator ChatEvaluator PromptableEvaluator ExportableEvaluator Task"),
        (engine, ENGINE),
        (environment, "EnvironmentStep Environment CommandLister ExpertPolicy World"),
        (agent, "Brief DriverLlm AgentPackage Agent DrivenAgent ProgramAgent"),
        (sandbox, "Command Mount ServiceSocket Enclosure Exit Sandbox"),
        (model, "ShippedModel"),
        (tracker, "TrackedRun MetricsRow FinalSummary RunMirror Tracker"),
    ):
        parts += [f"## {module.__name__}", classes.prose(inspect.getdoc(module) or "")]
        parts += [classes.record(kind) for kind in _kinds(module, names)]
    parts += ["## agent2rl.core.errors", f"```text\n{inspect.getdoc(errors)}\n```"]
    parts += ["## agent2rl.record.reader", classes.prose(inspect.getdoc(reader) or "")]
    parts += [classes.functions(reader.read_run, reader.read_results), classes.record(reader.RunView)]
    parts += ["## agent2rl.notebook", classes.prose(inspect.getdoc(notebook) or "")]
    parts += [classes.functions(notebook.load_runs, notebook.compare)]
    parts += [classes.record(kind) for kind in (notebook.RunCollection, notebook.LoadedRun)]
    return "\n\n".join(parts)


def grading_api() -> str:
    """From the application's OpenAPI; what its fields mean, from the records."""
    calls = []
    for path, ways in openapi()["paths"].items():
        for way, call in ways.items():
            calls.append(
                f"### {way.upper()} {path}\n\n{classes.prose(call['description'])}\n\n{_answers(call)}"
            )
    told = [
        api.SubmitRequest,
        api.SubmissionAnswer,
        api.BestSubmission,
        grading_records.Interval,
        api.TimeAnswer,
        api.EnvironmentSteps,
    ]
    told += [RolloutsReport, api.RolloutsAnswer, api.HealthAnswer, api.ProblemDetails]
    return "\n\n".join(["## Calls", *calls, "## Records", *map(classes.record, told)])


def _answers(call: dict[str, Any]) -> str:
    lines = ["| | |", "|---|---|"]
    for parameter in call.get("parameters", ()):
        lines.append(f"| `{parameter['name']}` | {_shape(parameter['schema'])}, in the {parameter['in']} |")
    if "requestBody" in call:
        lines.append(f"| takes | {_shape(call['requestBody']['content']['application/json']['schema'])} |")
    good = next(status for status in call["responses"] if status.startswith("2"))
    answer = call["responses"][good]["content"]["application/json"]["schema"]
    lines.append(f"| answers | {good}: {_shape(answer)} |")
    problems = ", ".join(status for status in call["responses"] if status not in (good, "default"))
    return "\n".join([*lines, f"| refuses | {problems}: `ProblemDetails` |"])


def _shape(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        return f"`{schema['$ref'].rpartition('/')[2]}`"
    if schema.get("type") == "array":
        return f"list of {_shape(schema['items'])}"
    return f"`{schema.get('type', 'any')}`"


def openapi() -> dict[str, Any]:
    return api.create_grading_app(
        cast(Any, None), "TASK"
    ).openapi()  # no call is made, so no service is needed


def run_directory() -> str:
    run = paths.RunPaths(Path("RUN"))
    submission = run.submission_paths(1)
    files: dict[Path, list[type]] = {
        run.spec: _kinds(records, "RunSpec Budget RequestedLimits PromptTemplates"),
        run.ledger: [records.LedgerEntry],
        run.events: [
            *_kinds(
                events,
                "TimelineEvent ProcessStart ProcessEnd ResourceSample GpuSample FileSeen DriverRequest "
                "ClaimedToolCall",
            ),
            revisions.Revision,
        ],
        run.usage: [llm.LlmExchange, llm.TokenCounts],
        run.transcript: _kinds(self_reports, "Transcript TranscriptStep AgentToolCall ToolObservation"),
        run.claims: [self_reports.AttemptClaims, self_reports.AttemptClaim],
        submission.record: _kinds(grading_records, "Submission EvalScore Interval"),
        submission.manifest: [grading_records.Manifest, grading_records.FileHash],
        run.files: [records.RunFiles],
        run.additions: [records.LedgerEntry, reproduction.Reproduction, reproduction.RecordedStep],
        submission.lineage: [LineageReport, TensorLineage],
        submission.results_file("feedback"): _kinds(
            grading_records, "ExampleResult SampledAnswer TrajectoryTurn"
        ),
        run.contamination: _kinds(grading_records, "Contamination SkippedFiles ContaminationFinding"),
        run.result: [*_kinds(records, RESULT), *_kinds(grading_records, GRADED_RESULT), llm.LlmUsage],
    }
    parts = [
        f"```text\n{inspect.getdoc(paths)}\n```",
        "## Words",
        classes.choices(records, grading_records, llm),
    ]
    for file, kinds in files.items():
        many = "JSON lines." if file.suffix == ".jsonl" else "One record."
        parts += [f"## {file.relative_to(run.root).as_posix()}", many, *map(classes.record, kinds)]
    return "\n\n".join(parts)


def _kinds(module: ModuleType, names: str) -> list[type]:
    return [getattr(module, name) for name in names.split()]


def report() -> str:
    """The records of docs/report.schema.json: the schema says which, the code what they mean."""
    schema = json.loads((ROOT / "docs" / "report.schema.json").read_text(encoding="utf-8"))
    known = _reachable(RunReport)
    names = ["RunReport", *(name for name in schema["$defs"] if name != "JsonValue")]
    modules = sorted({kind.__module__ for kind in known.values()} | {reader.__name__})
    words = ["## Words", classes.choices(*(sys.modules[name] for name in modules))]
    return "\n\n".join([*(classes.record(known[name], level=2) for name in names), *words])


def _reachable(kind: type) -> dict[str, type]:
    """Every record that is in a record."""
    found: dict[str, type] = {}

    def walk(one: Any) -> None:
        if hasattr(one, "model_fields") and one.__name__ not in found:
            found[one.__name__] = one
            for each in one.model_fields.values():
                walk(each.annotation)
        for part in getattr(one, "__args__", ()):
            walk(part)

    walk(kind)
    return found


def configuration() -> str:
    starting = ROOT / "src" / "agent2rl" / "cli" / "starting" / "campaign.toml"
    kinds = [
        campaign.CampaignSpec,
        campaign.CampaignAxes,
        campaign.RunResources,
        campaign.CellFilter,
        campaign.SettingOverride,
    ]
    parts = ["## Campaigns", "What `agent2rl init` writes:", f"```toml\n{starting.read_text()}```"]
    parts += [*map(classes.record, kinds)]
    parts += [
        "## Task folders",
        f"```text\n{inspect.getdoc(task_folder)}\n```",
        f"```text\n{inspect.getdoc(smith_folder)}\n```",
        f"```text\n{inspect.getdoc(benchmark_folder)}\n```",
        classes.record(folder_files.TaskFolderConfig),
    ]
    parts += ["## Agent folders", classes.prose(inspect.getdoc(agent_folder) or "")]
    parts += ["## Prompts", "The file that `--prompts` names.", classes.record(records.PromptTemplates)]
    parts += ["## Prices", classes.prose(inspect.getdoc(prices) or ""), classes.record(prices.Rates)]
    parts += ["## Environment variables", "### Of the harness", _settings(), "### Keys", _keys()]
    parts += [
        "### Others that the code reads",
        "Programs in a sandbox are told theirs by the harness.",
        _others(),
    ]
    return "\n\n".join([*parts, "## Extras", _extras()])


def _settings() -> str:
    """`Settings` says of each field first which variable it is."""
    rows = [field.meaning.partition(": ") for field in classes.fields(Settings)]
    return _two("variable", [(f"`{name}`", classes.cell(said)) for name, _, said in rows])


def _keys() -> str:
    rows = [
        (", ".join(maker.key_names), f"a driver or judge of {maker.name}")
        for maker in drivers.PROVIDER_PRESETS
    ]
    rows += [(drivers.OWN_KEY, "a driver or judge that is named `MODEL@URL`")]
    rows += [
        (", ".join(openai_api.API_KEY_VARIABLES), "the engine `openai-api`; the first that is set counts")
    ]
    rows += [(key, "a search engine of `--search`") for key in SEARCH_KEYS]
    return _two("variable", [(f"`{name}`", what) for name, what in rows])


def _others() -> str:
    known = " ".join(field.meaning for field in classes.fields(Settings))
    found = {name: where for name, where in variables.read(ROOT / "src").items() if name not in known}
    return _two(
        "variable", [(f"`{name}`", ", ".join(f"`{one}`" for one in where)) for name, where in found.items()]
    )


def _extras() -> str:
    """With the comments that stand in pyproject.toml behind them, or above them and those that follow."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    brought = tomllib.loads(text)["project"]["optional-dependencies"]
    above, lines = "", ["| extra | brings | |", "|---|---|---|"]
    for line in text.partition("[project.optional-dependencies]\n")[2].partition("\n[")[0].splitlines():
        name, _, rest = line.partition(" = ")
        if line.startswith("#"):
            above = line.lstrip("# ")
        elif name in brought:
            said = classes.cell(rest.partition("#")[2] or above)
            lines.append(f"| `{name}` | {', '.join(f'`{each}`' for each in brought[name])} | {said} |")
    return "\n".join(lines)


def _two(heading: str, rows: list[tuple[str, str]]) -> str:
    return "\n".join([f"| {heading} | |", "|---|---|", *(f"| {left} | {right} |" for left, right in rows)])


PAGES: dict[str, Callable[[], str]] = {
    "commands": commands,
    "python": python,
    "grading-api": grading_api,
    "run-directory": run_directory,
    "report": report,
    "configuration": configuration,
}
