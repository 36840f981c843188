"""The command line: what it accepts, what it says, how it exits."""

import contextlib
import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent2rl.cli.options import DurationParam, SizeParam
from agent2rl.cli.terminal_output import TerminalProgress, print_episode, print_examples, print_run
from agent2rl.core.grading_records import ExampleResult, Submission, TrajectoryTurn
from agent2rl.core.records import Budget, RunSpec
from agent2rl.grading.api import HealthAnswer, SubmissionAnswer, TimeAnswer
from agent2rl.record.files import canonical_json, sha256_text, write_record
from agent2rl.record.paths import RunPaths
from agent2rl.record.reader import read_run
from agent2rl.record.recorder import Recorder
from tests.helpers.run_launcher import FinishedRun, RunLauncher


@dataclass(frozen=True)
class CommandedRun:
    """A run that several tests look at."""

    launcher: RunLauncher
    done: "subprocess.CompletedProcess[str]"
    root: Path

    @classmethod
    def start(cls, launcher: RunLauncher, *options: str, flags: tuple[str, ...] = ()) -> Self:
        before = set(launcher.runs.glob("*/"))
        done = launcher.cli(*flags, "run", "--task", "gsm8k-mini", *options)
        assert done.returncode == 0, done.stderr
        (root,) = set(launcher.runs.glob("*/")) - before
        return cls(launcher, done, root)


@pytest.fixture(scope="module")
def shipped_run(shared_launcher: RunLauncher) -> CommandedRun:
    """A run with nothing but a task: of the script that comes along. It logs its main steps."""
    return CommandedRun.start(shared_launcher, flags=("-v",))


@pytest.fixture(scope="module")
def runs_of_nothing(shared_launcher: RunLauncher) -> tuple[CommandedRun, CommandedRun]:
    """The same command twice."""
    arguments = ("--agent", "nop", "--no-report")
    first, second = (CommandedRun.start(shared_launcher, *arguments) for _ in range(2))
    return first, second


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("10m", 600), ("12h", 43200), ("1h30m", 5400), ("0.5h", 1800), ("2d", 172800)],
)
def test_a_budget_reads_as_people_write_it(text: str, seconds: float) -> None:
    assert DurationParam().convert(text, None, None) == seconds


@given(st.text())
def test_any_text_is_a_duration_or_a_clear_error(text: str) -> None:
    for kind in (DurationParam(), SizeParam()):
        with contextlib.suppress(click.BadParameter):
            assert kind.convert(text, None, None) > 0


@pytest.mark.parametrize("text", ["", "10", "m", "-5m", "10 m", "ten minutes", "0s", "1e9s"])
def test_a_budget_that_is_none_says_how_to_write_one(launcher: RunLauncher, text: str) -> None:
    with pytest.raises(click.BadParameter):
        DurationParam().convert(text, None, None)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--task", "gsm9k", "--agent", "nop"], "Did you mean 'gsm8k'"),
        (["--task", "gsm8k-mini", "--agent", "nope"], "Known agents"),
        (["--task", "gsm8k-mini", "--agent", "script:missing.py"], "There is no script"),
        (["--task", "gsm8k-mini", "--agent", "nop", "--model", "gpt-9"], "There is no model"),
        (["--task", "gsm8k-mini", "--agent", "nop", "--model", "./nowhere"], "no model directory"),
        (["--task", "gsm8k-mini", "--agent", "nop", "--sandbox", "cardboard"], "Known sandboxes"),
        (["--task", "gsm8k-mini", "--agent", "nop", "--engine", "steam"], "Known engines"),
        (
            ["--task", "gsm8k-mini", "--agent", "nop", "--engine", "openai-api:m@http://127.0.0.1:1/v1"],
            "cannot load what agents submit",
        ),
        (["--task", "gsm8k-mini", "--agent", "nop", "--budget", "soon"], "not a duration"),
        (["--task", "gsm8k-mini", "--agent", "nop", "--temperature", "nan"], "not a valid temperature"),
        (["--task", "gsm8k-mini", "--agent", "nop", "--temperature", "-1"], "--temperature"),
        (["--task", "gsm8k-mini", "--agent", "nop", "--samples", "0"], "--samples"),
        (
            ["--task", "gsm8k-mini", "--agent", "nop", "--samples", "4", "--temperature", "0"],
            "all samples are identical",
        ),
    ],
)
def test_a_wrong_command_line_exits_2_says_why_and_leaves_nothing(
    launcher: RunLauncher, arguments: list[str], says: str
) -> None:
    done = launcher.cli("run", *arguments)
    assert done.returncode == 2, done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert not launcher.runs.exists()


def test_a_run_of_nothing_has_a_baseline_and_no_score(
    runs_of_nothing: tuple[CommandedRun, CommandedRun],
) -> None:
    done, root = runs_of_nothing[0].done, runs_of_nothing[0].root
    assert done.stderr.startswith("watch:  ")  # from its first line on one knows how to look at it
    result = json.loads((root / "result.json").read_text())
    assert result["ending"] == "completed"
    assert result["baseline"]["value"] >= 0
    assert result["score"] is None
    assert result["improvement"] is None


def test_a_run_with_nothing_but_a_task_explains_its_choices_in_three_lines(shipped_run: CommandedRun) -> None:
    done, root = shipped_run.done, shipped_run.root
    named = json.loads((root / "spec.json").read_text())["sandbox"]
    sandbox = "the best sandbox that works here" if named == "auto" else f"the sandbox {named}"
    printed = [line for line in done.stderr.splitlines() if " INFO " not in line]
    assert printed[:4] == [
        "agent:  script (no LLM needed). To change it: --agent NAME (agent2rl list agents)",
        "model:  abacus. To change it: --model NAME (agent2rl list models)",
        f"limits: 10 min for the agent, in {sandbox}. To change them: --budget, --sandbox",
        f"watch:  agent2rl view {root.parent}",
    ]


def test_the_shipped_script_rises_and_its_gain_is_real(shipped_run: CommandedRun) -> None:
    done, root = shipped_run.done, shipped_run.root
    assert "submission 3 scored" in done.stderr
    assert "report: " in done.stdout
    assert f"view {root.parent}" in done.stdout
    page = (root / "report" / "report.md").read_text()
    assert "figures/scores.svg" in page
    assert re.search(r"\| flexible \| [\d.]+ → [\d.]+ \(heldout; does not affect the ranking\) \|", page)
    assert "held out" in (root / "report" / "figures" / "scores.svg").read_text()
    result = json.loads((root / "result.json").read_text())
    assert result["submissions"] == 3
    assert result["heldout"]["ci"]["low"] > 0
    assert result["best_heldout"]["ci"]["low"] > result["baseline_heldout"]["ci"]["high"]
    assert result["optimism_gap"] == pytest.approx(result["best"]["improvement"] - result["improvement"])
    assert not (root / "scratch").exists()
    report = json.loads((root / "report" / "report.json").read_text())
    assert [s["verdict"] for s in report["submissions"]] == ["scored"] * 3


@pytest.mark.thorough
def test_the_papers_protocol_ranks_on_the_whole_test_set(launcher: RunLauncher) -> None:
    done = launcher.cli("run", "--task", "gsm8k-mini", "--agent", "script", "--protocol", "paper", "--json")
    result = json.loads(done.stdout)
    assert result["best_heldout"] is None
    assert result["score"] == result["best"]["score"]["value"]
    assert result["baseline"]["n"] == 300
    assert (result["spec"]["protocol"], result["spec"]["profile"]) == ("paper", "paper-gsm8k-2")
    assert result["baseline"]["how"]["evaluator"].startswith("paper-gsm8k-2+")
    (root,) = launcher.runs.glob("*/")
    assert json.loads((root / "spec.json").read_text())["profile"] == "paper-gsm8k-2"
    assert "The answer is N" in (root / "workspace" / "description.md").read_text()
    assert "paper, profile paper-gsm8k-2" in launcher.cli("show", "latest").stdout
    assert "paper, profile paper-gsm8k-2" in (root / "report" / "report.md").read_text()
    (exported,) = launcher.cli("export", "jsonl").stdout.splitlines()
    assert json.loads(exported)["profile"] == "paper-gsm8k-2"
    board = json.loads(launcher.cli("leaderboard", "--protocol", "paper", "--format", "json").stdout)
    assert board["tasks"] == ["gsm8k-mini (paper-gsm8k-2)"]
    assert "No run" in launcher.cli("leaderboard").stderr


FAILING = """
import traceback
try:
    raise ValueError("unknown model type." + " why" * 200 + "\\n\\nUpgrade it.")
except ValueError:
    traceback.print_exc()
    sys.exit(3)
"""


def test_an_agent_that_fails_makes_the_run_exit_1_with_its_exit_code_and_the_start_of_its_exception(
    launcher: RunLauncher,
) -> None:
    run = launcher.run(FAILING, "--budget", "20m")
    assert run.code == 1
    assert run.result.ending == "agent-failed"
    assert "exit code 3" in run.result.reason
    _, _, quoted = run.result.reason.partition("One of its last lines: ")
    assert quoted.startswith("ValueError: unknown model type. why why")
    assert quoted.endswith(" why …")
    assert len(quoted) <= 302


def test_a_baseline_that_fails_ends_the_run_with_a_reason(launcher: RunLauncher, tmp_path: Path) -> None:
    plugins = tmp_path / "plugins"
    plugins.mkdir()
    (plugins / "broken_engine.py").write_text(
        "def open_model(directory):\n    raise RuntimeError('no such thing')\n"
    )
    run = launcher.run(
        "say(started=True)", "--engine", "scripted:broken_engine:open_model", PYTHONPATH=str(plugins)
    )
    assert run.code == 1
    assert run.result.ending == "failed"
    assert "untouched model could not be graded" in run.result.reason
    assert "no such thing" in run.result.reason
    assert run.result.baseline is None
    assert run.said == {}


def test_a_second_run_takes_the_baseline_from_the_cache(
    runs_of_nothing: tuple[CommandedRun, CommandedRun],
) -> None:
    _, second = runs_of_nothing
    assert "baseline" in second.done.stderr
    assert "cached" in second.done.stderr


def test_equal_commands_give_equal_specifications(
    runs_of_nothing: tuple[CommandedRun, CommandedRun],
) -> None:
    first, second = ((run.root / "spec.json").read_text() for run in runs_of_nothing)
    assert first == second


def test_show_finds_a_run_by_the_start_of_its_id(
    runs_of_nothing: tuple[CommandedRun, CommandedRun],
) -> None:
    run = runs_of_nothing[0]
    assert run.root.name in run.launcher.cli("show", run.root.name[:-1]).stdout
    missing = run.launcher.cli("show", "yesterday")
    assert missing.returncode == 2
    assert "There is no run" in missing.stderr


@pytest.mark.thorough
def test_submissions_are_limited_where_the_budget_says_so(launcher: RunLauncher) -> None:
    run = launcher.run(
        "m = trained('m')\nsay(first=submit(m), second=submit(m))",
        "--max-submissions",
        "1",
        "--budget",
        "20m",
    )
    assert run.said["first"]["verdict"] == "scored"
    assert run.said["second"]["http"] == 403
    assert "used up" in run.said["second"]["detail"]


@pytest.fixture(scope="module")
def asking_run(shared_launcher: RunLauncher) -> FinishedRun:
    """An agent that asks the service and its environment."""
    return shared_launcher.run(
        """
say(
    gpus=os.environ.get("CUDA_VISIBLE_DEVICES", "all"),
    openapi=call("GET", "/openapi.json"),
    health=call("GET", "/health"),
    time=call("GET", "/time"),
    accepted=call("POST", "/submissions", {"model_path": str(trained("m"))}),
    waited=call("GET", "/submissions/1?wait=60"),
)
""",
        "--budget",
        "20m",
    )


def test_the_openapi_page_is_true(asking_run: FinishedRun) -> None:
    said = asking_run.said
    paths = said["openapi"]["paths"]
    assert {path: set(methods) for path, methods in paths.items()} == {
        "/submit": {"post"},
        "/submissions": {"post", "get"},
        "/submissions/{number}": {"get"},
        "/time": {"get"},
        "/rollouts": {"post"},
        "/rollouts/episodes": {"post"},
        "/health": {"get"},
    }
    answers = paths["/submit"]["post"]["responses"]
    assert set(answers) == {"200", "400", "403", "413", "429", "500", "default"}
    assert all(
        set(answers[code]["content"]) == {"application/problem+json"} for code in answers if code != "200"
    )
    for name, kind, status in (
        ("health", HealthAnswer, 200),
        ("time", TimeAnswer, 200),
        ("accepted", SubmissionAnswer, 202),
        ("waited", SubmissionAnswer, 200),
    ):
        answer = dict(said[name])
        assert answer.pop("http") == status
        kind.model_validate(answer)
    assert said["accepted"]["verdict"] is None
    assert said["waited"]["verdict"] == "scored"
    assert said["time"]["remaining"] <= 20 * 60


def test_verify_names_the_first_thing_that_does_not_hold(
    shipped_run: CommandedRun, launcher: RunLauncher
) -> None:
    root = launcher.runs / shipped_run.root.name
    shutil.copytree(shipped_run.root, root, symlinks=True)
    head = json.loads((root / "ledger.head").read_text())["hash"]
    assert launcher.cli("verify", root.name, "--head", head).returncode == 0
    assert launcher.cli("verify", root.name, "--head", "0" * 64).returncode == 1
    for name in (
        "spec.json",
        "result.json",
        "submissions/3/model/config.json",
        "submissions/2/feedback.jsonl",
        "submissions/3/submission.json",
        "baseline/heldout.jsonl",
    ):
        whole = (root / name).read_bytes()
        (root / name).write_bytes(whole.replace(b'"', b"'", 1))
        found = launcher.cli("verify", root.name)
        assert found.returncode == 1
        assert f"DOES NOT HOLD: {name}" in found.stdout
        (root / name).write_bytes(whole)
    (root / "submissions/3/model/more.txt").write_text("x")
    assert "more.txt was added" in launcher.cli("verify", root.name).stdout
    (root / "submissions/3/model/more.txt").unlink()
    (root / "submissions/4").mkdir()
    (root / "submissions/4/submission.json").write_text("{}")
    assert "submissions/4 is not in the ledger, so it was added" in launcher.cli("verify", root.name).stdout


def test_a_result_that_was_forged_with_its_ledger_record_does_not_fit_the_published_head(
    shipped_run: CommandedRun, launcher: RunLauncher
) -> None:
    root = launcher.runs / shipped_run.root.name
    shutil.copytree(shipped_run.root, root, symlinks=True)
    published = json.loads((root / "ledger.head").read_text())["hash"]
    forged = (root / "result.json").read_text().replace('"ending": "completed"', '"ending": "deadline"')
    (root / "result.json").write_text(forged)
    lines = (root / "ledger.jsonl").read_text().splitlines()
    last = json.loads(lines[-1])
    last["data"]["result_sha256"] = sha256_text(forged)
    del last["hash"]
    last["hash"] = sha256_text(canonical_json(last))
    (root / "ledger.jsonl").write_text("\n".join([*lines[:-1], canonical_json(last)]) + "\n")
    (root / "ledger.head").write_text(json.dumps({"index": last["index"], "hash": last["hash"]}))
    assert "events.jsonl was changed" in launcher.cli("verify", root.name).stdout
    told = (root / "events.jsonl").read_text().splitlines()
    told[-1] = canonical_json({key: last[key] for key in ("time", "kind", "data")})
    (root / "events.jsonl").write_text("\n".join(told) + "\n")
    assert launcher.cli("verify", root.name).returncode == 0
    assert launcher.cli("verify", root.name, "--head", published).returncode == 1


@pytest.mark.thorough
def test_a_damaged_cache_is_not_believed(launcher: RunLauncher, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    launcher.cli("run", "--task", "gsm8k-mini", "--agent", "nop", AGENT2RL_CACHE=str(cache))
    for path in cache.rglob("*"):
        if path.is_file():
            path.write_bytes(path.read_bytes().replace(b"#### ", b"#### 9")[:-3] or b"{}")
    done = launcher.cli("run", "--task", "gsm8k-mini", "--agent", "nop", "--json", AGENT2RL_CACHE=str(cache))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["baseline"]["value"] == pytest.approx(12.0)


def test_a_fault_of_a_plugin_closes_the_record_with_a_reason(launcher: RunLauncher, tmp_path: Path) -> None:
    plugins = tmp_path / "plugins"
    plugins.mkdir()
    (plugins / "odd.py").write_text(
        "from dataclasses import replace\n"
        "from agent2rl.tasks.gsm8k.mini import TASK\n"
        "def load(data_dir):\n    raise KeyError('answer')\n"
        "ODD = replace(TASK, load=load)\n"
    )
    options = ("--agent", "nop", "--json", "--no-report")
    done = launcher.cli("run", "--task", "odd:ODD", *options, PYTHONPATH=str(plugins))
    assert done.returncode == 1
    assert "KeyError" in json.loads(done.stdout)["reason"]


def test_an_agent_gets_the_secrets_that_it_names_and_no_others(launcher: RunLauncher) -> None:
    agent = launcher.home / "agents" / "keyed"
    agent.mkdir(parents=True)
    (agent / "config.yaml").write_text("name: keyed\nsecrets: [WANTED_KEY, MISSING_KEY]\n")
    (agent / "start.sh").write_text('echo "wanted $WANTED_KEY other ${OTHER_KEY:-none}"\n')
    arguments = ("run", "--task", "gsm8k-mini", "--agent", "keyed", "--agents-dir", str(agent.parent))
    done = launcher.cli(*arguments, "--no-report", WANTED_KEY="abc", OTHER_KEY="def")
    assert done.returncode == 0, done.stderr
    (root,) = launcher.runs.glob("*/")
    assert (root / "agent.log").read_text() == "wanted abc other none\n"
    assert "environment variable MISSING_KEY" in done.stderr


def test_what_an_agent_names_cannot_steer_the_terminal_or_the_report(launcher: RunLauncher) -> None:
    name = "x\\x1b[31m|<script>alert(1)</script>`[a](b)"
    agent = launcher.script(f"say(answer=call('POST', '/submit', {{'model_path': 'output/{name}'}}))")
    run = CommandedRun.start(launcher, "--agent", f"script:{agent}", "--budget", "20m")
    assert "submission 1 accepted" in run.done.stderr
    assert "\x1b" not in run.done.stderr
    assert "\x1b" not in launcher.cli("show", run.root.name).stdout
    report = (run.root / "report" / "report.md").read_text()
    assert "<script>" not in report
    assert "\x1b" not in report


def test_a_name_of_somebody_else_cannot_steer_the_terminal(launcher: RunLauncher, tmp_path: Path) -> None:
    hostile = tmp_path / "run\x1b[2J"
    hostile.mkdir()
    (hostile / "spec.json").touch()
    done = launcher.cli("site", str(tmp_path), "-o", str(tmp_path / "site"))
    assert "run�[2J is not shown" in done.stderr
    missing = launcher.cli("site", str(hostile / "none"))
    assert "There is no run directory or bundle" in missing.stderr
    assert "\x1b" not in done.stderr + missing.stderr
    spec = RunSpec(
        task="gsm8k-mini", agent="\x1b[2Jme", model="abacus", engine="x", budget=Budget(wall_seconds=1)
    )
    RunPaths(tmp_path / "runs" / "crashed").root.mkdir(parents=True)
    write_record(RunPaths(tmp_path / "runs" / "crashed").spec, spec)
    ranked = launcher.cli("leaderboard", str(tmp_path / "runs"))
    assert "[2Jme" in ranked.stdout, ranked.stderr
    assert "\x1b" not in ranked.stdout


def test_a_place_where_nothing_can_be_written_is_said_before_an_export(
    launcher: RunLauncher, tmp_path: Path
) -> None:
    paths = RunPaths(tmp_path / "runs" / "crashed")
    paths.root.mkdir(parents=True)
    spec = RunSpec(task="a", agent="nop", model="abacus", engine="x", budget=Budget(wall_seconds=1))
    write_record(paths.spec, spec)
    for place, reason in (("none/rows.csv", "there is no folder"), ("runs", "it is a folder")):
        done = launcher.cli("export", "csv", str(paths.root), "-o", str(tmp_path / place))
        assert done.returncode == 2
        assert done.stderr.startswith("error: Cannot write"), done.stderr
        assert reason in done.stderr


def test_an_agent_is_told_which_gpus_are_its_own(launcher: RunLauncher, asking_run: FinishedRun) -> None:
    saying = "say(gpus=os.environ['CUDA_VISIBLE_DEVICES'])"
    assert launcher.run(saying, "--budget", "20m", CUDA_VISIBLE_DEVICES="0").said["gpus"] == "0"
    assert asking_run.said["gpus"] == "", "the tests have none"


def test_check_says_what_this_machine_can_do(launcher: RunLauncher) -> None:
    done = launcher.cli("check", "--json")
    assert done.returncode == 0, done.stdout
    findings = json.loads(done.stdout)
    assert {"gpu", "keys", "disk", "data", "cache"} <= {finding["name"] for finding in findings}
    assert all(finding["hint"] for finding in findings if finding["state"] != "ok")


def test_check_of_a_task_grades_gold_and_wrong_answers(launcher: RunLauncher) -> None:
    done = launcher.cli("check", "gsm8k-mini")
    assert done.returncode == 0, done.stdout
    assert "150 of 150 score 100" in done.stdout
    assert "150 of 150 score 0" in done.stdout


def test_check_of_the_official_task_holds(launcher: RunLauncher, shared_data: Path) -> None:
    done = launcher.cli("check", "gsm8k", "--data-dir", str(shared_data / "gsm8k"))
    assert done.returncode == 0, done.stdout
    assert "7473 train, 659 feedback, 660 held-out" in done.stdout or "660 feedback, 659" in done.stdout


def test_the_local_sandbox_works_and_the_result_says_that_it_isolates_nothing(launcher: RunLauncher) -> None:
    run = launcher.run("say(answer=submit(trained('m')))", "--sandbox", "local", "--budget", "20m")
    assert run.result.ending == "completed", run.log
    assert run.said["answer"]["verdict"] == "scored"
    assert run.result.isolation is not None
    assert run.result.isolation.isolates is False
    assert "isolates nothing" in launcher.cli("show", run.result.run_id).stdout


def test_what_a_model_said_is_shown_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    said = "[/a\n] :warning: [bold\nred]"
    one = ExampleResult(id="one", output=said, score=0)
    turns = (
        TrajectoryTurn(action="", observation="a room"),
        TrajectoryTurn(action="go\\\\\\", observation="[/b]", reply="I [b]go[/b]"),
    )
    print_episode(1, one)
    print_episode(2, one.model_copy(update={"trajectory": turns}))
    print_examples([one])
    print_examples([])
    shown = capsys.readouterr().out
    assert said in shown
    assert "I [b]go[/b]\n> go\\\\\\\n[/b]\n" in shown
    assert "[/a ] :warning: [bold red]" in shown


def test_a_message_of_several_lines_is_shown_indented_and_as_one_line_of_progress(
    launcher: RunLauncher, capsys: pytest.CaptureFixture[str]
) -> None:
    message = "It is refused.\n    model.save_pretrained(path)\x1b[2J"
    spec = RunSpec(task="t", agent="a", model="m", engine="e", budget=Budget(wall_seconds=60))
    submission = Submission(id=1, path="m", accepted_at=0.0)
    with (
        TerminalProgress(False, launcher.runs) as progress,
        Recorder.create(launcher.runs, spec, progress.handle_event) as recorder,
    ):
        recorder.record_submission(submission, None)
        recorder.record_verdict(submission.model_copy(update={"verdict": "rejected", "message": message}))
    line = "submission 1 rejected: It is refused.     model.save_pretrained(path)�[2J"
    assert line in capsys.readouterr().err
    print_run(read_run(recorder.paths))
    shown = capsys.readouterr().out
    assert "1: It is refused.\n       model.save_pretrained(path)�[2J\n" in shown


def test_verbose_logs_to_stderr_with_level_and_logger_name(launcher: RunLauncher) -> None:
    quiet, info, debug = (launcher.cli(*flags, "show", "nowhere") for flags in ((), ("-v",), ("-vv",)))
    assert quiet.stderr.startswith("error: ")
    assert re.match(r"\d\d:\d\d:\d\d  INFO agent2rl.cli.main: agent2rl ", info.stderr)
    assert "DEBUG" not in info.stderr
    assert " DEBUG agent2rl.cli.main: The command failed\nTraceback" in debug.stderr
    assert quiet.stdout == info.stdout == debug.stdout == ""


def test_verbose_tells_the_story_of_a_run_in_a_few_lines(shipped_run: CommandedRun) -> None:
    logged = [
        line.partition(" INFO ")[2] for line in shipped_run.done.stderr.splitlines() if " INFO " in line
    ]
    story = (
        r"record.recorder: Created the run",
        r"run.run_steps: Sandbox \w+: self-test passed in [\d.]+ s",
        r"run.assets: Loaded abacus .* in [\d.]+ s",
        r"run.run_steps: Baseline \(feedback\): [\d.]+, (graded in [\d.]+ s|from the cache)",
        r"run.execution: Agent 'script' starts with \d+ s left",
        r"grading.service: Submission 1 \('/workspace/output/v1'\): frozen in [\d.]+ s",
        r"grading.service: Submission 1: scored [\d.]+, \w+ after [\d.]+ s",
        r"run.agent_session: Round 1 of the agent: exited after [\d.]+ s, exit code 0",
        r"run.execution: The agent ended after [\d.]+ s: completed",
        r"run.run_steps: Searched the agent's files for evaluation data in [\d.]+ s",
        r"run.run_steps: Submission 3 \(held-out\): [\d.]+ after [\d.]+ s",
        r"record.recorder: Closed the run \S+: completed",
    )
    told = iter(logged)
    for step in story:
        assert any(re.match(rf"agent2rl\.{step}", line) for line in told), f"{step} is not in {logged}"
    assert len(logged) <= 20


def test_verbose_logs_the_same_lines_when_python_runs_the_module(launcher: RunLauncher) -> None:
    done = subprocess.run(
        launcher.command("-v", "show", "nowhere"), env=launcher.environment(), capture_output=True, text=True
    )
    assert " INFO agent2rl.cli.main: agent2rl " in done.stderr
