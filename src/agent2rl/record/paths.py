"""The paths of a run's files. Only this module defines their names.

<runs>/results.csv            one line a run, in the published columns
<runs>/.claims/<experiment>/  who is at work on it: one file a claim, the one with the highest number counts
<runs>/.campaigns/<name>/<session>/   one `agent2rl campaign run`
  session.json                who began it, where and when
  stop                        there when it was asked to stop
  ended                       there when it has ended
  logs/<experiment>.log       what the command of its run said on stderr; .json: its result
  jobs/                       what a cluster's scheduler is given, and what it gives back
<runs>/<run_id>/              0700, the harness's
  spec.json                   the specification: what was requested
  lock                        held while a harness works on the run, with the time it was last alive
  ledger.jsonl                hash-chained: each decision, written before the agent sees it
  ledger.head                 index and hash of the last ledger record
  events.jsonl                the timeline, for people and plots
  usage.jsonl                 each request to the driver LLM: time, tokens, cost, how it ended
  network.jsonl               each request of the agent to a host outside: time, host, bytes, how it ended
  revisions/                  a bare git repository: the agent's code at each change and each submission
  agent.log                   what the agent printed
  transcript.json             the same in one form for all agents: what it said and did, by its own account
  claims.json                 the agent's own notes on its attempts
  baseline/<split>.jsonl      the untouched model's answers, one example a line
  submissions/<n>/
    model/                    the frozen copy; `--keep` says which stay, by default that of the best
    manifest.json             sha256 of each of its files
    submission.json           verdict, score, interval, message
    lineage.json              where the weights come from, tensor by tensor
    <split>.jsonl             the model's answers, one example a line
    grading.log               what the grading child printed
  also/<n>/<model>/           the n-th task of `--also`: answers and log of the `baseline`, and of the `best`
  ablations/<key>/            base weights under a submission's chat format and tokens: answers, log
  contamination.json          evaluation data found in the agent's files: passages, and what was not read
  contamination.log           what the child that looked for it printed
  report/                     made from all of this, and nothing else
    digest.json               the part that statistics over many runs need
    trainings.json            training curves for figures of several runs
    report.html.signature.json  by this user's key: the dashboard shows the page without making it again
    summary.jsonl             of it, one line an attempt in the published schema
  files.json                  sha256 of every file that was final when the run was closed
  additions.jsonl             hash-chained: what was found out after the run was closed
  additions.head              index and hash of its last record
  reproductions/<run_id>/     a run of the recorded code alone, without an agent: `agent2rl reproduce`
  result.json                 written last; result.pending.json until the ledger has its hash
  scratch/                    HOME and /tmp of the sandboxes, gone after the run
  workspace/                  the agent's files: the only part that it sees

`files.json` leaves out what is pinned in another way: the ledger and its head by the chain, the result by the
record `closed`, kept copies of submissions (which may be gigabytes) by their manifests. What is added after
the run was closed has a chain of its own, which begins with the last hash of the run's ledger.
"""

import hashlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from agent2rl.core.errors import UserError
from agent2rl.core.grading_records import FileHash, Split
from agent2rl.core.records import RunFiles

LATEST = "latest"
"""Name of the newest run."""


@dataclass(frozen=True)
class SubmissionPaths:
    root: Path

    @property
    def model(self) -> Path:
        return self.root / "model"

    @property
    def manifest(self) -> Path:
        return self.root / "manifest.json"

    @property
    def record(self) -> Path:
        return self.root / "submission.json"

    @property
    def lineage(self) -> Path:
        return self.root / "lineage.json"

    @property
    def log(self) -> Path:
        return self.root / "grading.log"

    def results_file(self, split: Split) -> Path:
        return self.root / f"{split}.jsonl"


@dataclass(frozen=True)
class RunPaths:
    root: Path

    @property
    def run_id(self) -> str:
        return self.root.name

    @property
    def spec(self) -> Path:
        return self.root / "spec.json"

    @property
    def lock(self) -> Path:
        return self.root / "lock"

    @property
    def ledger(self) -> Path:
        return self.root / "ledger.jsonl"

    @property
    def ledger_head(self) -> Path:
        return self.root / "ledger.head"

    @property
    def events(self) -> Path:
        return self.root / "events.jsonl"

    @property
    def agent_log(self) -> Path:
        return self.root / "agent.log"

    @property
    def revisions(self) -> Path:
        return self.root / "revisions"

    @property
    def usage(self) -> Path:
        return self.root / "usage.jsonl"

    @property
    def network(self) -> Path:
        return self.root / "network.jsonl"

    @property
    def transcript(self) -> Path:
        return self.root / "transcript.json"

    @property
    def claims(self) -> Path:
        return self.root / "claims.json"

    @property
    def baseline(self) -> SubmissionPaths:
        return SubmissionPaths(self.root / "baseline")

    @property
    def submissions(self) -> Path:
        return self.root / "submissions"

    def submission_paths(self, number: int) -> SubmissionPaths:
        return SubmissionPaths(self.submissions / str(number))

    @property
    def ablations(self) -> Path:
        return self.root / "ablations"

    def ablation_paths(self, key: str) -> SubmissionPaths:
        return SubmissionPaths(self.ablations / key)

    def panel_paths(self, number: int, model: Literal["baseline", "best"]) -> SubmissionPaths:
        """Return the answers of a model to the examples of the n-th entry of the regression panel."""
        return SubmissionPaths(self.root / "also" / str(number) / model)

    @property
    def contamination(self) -> Path:
        return self.root / "contamination.json"

    @property
    def contamination_log(self) -> Path:
        return self.root / "contamination.log"

    @property
    def report(self) -> Path:
        return self.root / "report"

    @property
    def report_json(self) -> Path:
        return self.report / "report.json"

    @property
    def report_page(self) -> Path:
        return self.report / "report.html"

    @property
    def page_signature(self) -> Path:
        return self.report / "report.html.signature.json"

    @property
    def report_text(self) -> Path:
        return self.report / "report.md"

    @property
    def figures(self) -> Path:
        return self.report / "figures"

    @property
    def digest(self) -> Path:
        return self.report / "digest.json"

    @property
    def trainings(self) -> Path:
        return self.report / "trainings.json"

    @property
    def summary(self) -> Path:
        return self.report / "summary.jsonl"

    @property
    def files(self) -> Path:
        return self.root / "files.json"

    @property
    def additions(self) -> Path:
        return self.root / "additions.jsonl"

    @property
    def additions_head(self) -> Path:
        return self.root / "additions.head"

    @property
    def reproductions(self) -> Path:
        return self.root / "reproductions"

    def reproduction_paths(self, run_id: str) -> "RunPaths":
        return RunPaths(self.reproductions / run_id)

    @property
    def results_csv(self) -> Path:
        """The table of all runs of the runs directory."""
        return self.root.parent / "results.csv"

    @property
    def result(self) -> Path:
        return self.root / "result.json"

    @property
    def pending_result(self) -> Path:
        """The result until its hash is in the ledger."""
        return self.root / "result.pending.json"

    @property
    def scratch(self) -> Path:
        return self.root / "scratch"

    @property
    def agent_scratch(self) -> Path:
        """HOME and /tmp of the agent."""
        return self.scratch / "agent"

    @property
    def workspace(self) -> Path:
        return self.root / "workspace"

    def relative_name(self, path: Path) -> str:
        """Return a path relative to the run directory, as in records."""
        return path.relative_to(self.root).as_posix()


@dataclass(frozen=True)
class SessionPaths:
    """The files of one `agent2rl campaign run`."""

    root: Path

    @property
    def record(self) -> Path:
        return self.root / "session.json"

    @property
    def stop(self) -> Path:
        return self.root / "stop"

    @property
    def ended(self) -> Path:
        return self.root / "ended"

    @property
    def jobs(self) -> Path:
        return self.root / "jobs"

    def log_file(self, experiment: str) -> Path:
        return self.root / "logs" / f"{experiment[:16]}.log"

    def output_file(self, experiment: str) -> Path:
        return self.log_file(experiment).with_suffix(".json")


def claims_folder(runs: Path) -> Path:
    return runs / ".claims"


def sessions_folder(runs: Path, campaign: str) -> Path:
    return runs / ".campaigns" / campaign


def find_run(name: str, runs: Path) -> RunPaths:
    """Find a run by its directory, by its id or an unambiguous prefix of it below `runs`, or as `latest`."""
    if (Path(name) / "spec.json").is_file():
        return RunPaths(Path(name).resolve())
    # A run's name begins with the time of its start, so the last one is the newest.
    runs_by_name = [path.parent for path in sorted(runs.glob("*/spec.json"))]
    matches = [path for path in runs_by_name if path.name.startswith(name)]
    exact = runs_by_name[-1:] if name == LATEST else [path for path in matches if path.name == name]
    if len(exact or matches) == 1:
        return RunPaths((exact or matches)[0].resolve())
    if matches:
        raise UserError(
            f"{name!r} matches {len(matches)} runs.", f"One of: {', '.join(p.name for p in matches[:8])}."
        )
    raise UserError(
        f"There is no run {name!r}: neither a run directory nor an id below {runs}.",
        f"Name the directory, `{LATEST}`, or the runs directory with --runs-dir.",
    )


# Which files of a run directory are pinned when the run is closed, and why others are not.


def uncovered_reasons(paths: RunPaths) -> dict[Path, str]:
    """Return the files and folders that are not pinned, with the reason."""
    return {
        paths.workspace: "it belongs to the agent; what counts of it is frozen with each submission",
        paths.report: "it is made from the record, and `agent2rl report` makes it anew",
        paths.scratch: "temporary files of the sandboxes, removed when the run ends",
        paths.lock: "it is written after the run is closed, and only says when the harness was last alive",
    }


def list_run_files(paths: RunPaths) -> Iterator[Path]:
    """Yield every file that is pinned when the run is closed, and anything else that is not a folder."""
    elsewhere = {
        *uncovered_reasons(paths),
        *(paths.ledger, paths.ledger_head, paths.files, paths.result, paths.pending_result),
        *(paths.additions, paths.additions_head, paths.reproductions),
        *(folder / "model" for folder in paths.submissions.glob("*")),
    }
    folders = [paths.root]
    while folders:
        folder = folders.pop()
        try:
            with os.scandir(folder) as listing:
                entries = sorted(listing, key=lambda one: one.name)
        except FileNotFoundError:  # in an active run, git's folders come and go
            continue
        except OSError:
            yield folder
            continue
        for entry in entries:
            path = Path(entry.path)
            if path not in elsewhere and entry.is_dir(follow_symlinks=False):
                folders.append(path)
            elif path not in elsewhere:
                yield path


def hash_run_files(paths: RunPaths) -> RunFiles:
    """Hash the files and sync them to disk, so that a crash does not make an honest record look changed."""
    files = [_hash_durably(paths, path) for path in list_run_files(paths) if is_plain_file(path)]
    return RunFiles(files=tuple(sorted(files, key=lambda file: file.path)))


def is_plain_file(path: Path) -> bool:
    """Return whether the path is an existing regular file, not a link, a pipe or anything else."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except (OSError, ValueError):  # ValueError: no file can have this name
        return False


def _hash_durably(paths: RunPaths, path: Path) -> FileHash:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        os.fsync(file.fileno())
        return FileHash(path=paths.relative_name(path), size=os.fstat(file.fileno()).st_size, sha256=digest)
