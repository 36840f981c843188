"""Freeze what an agent submits, or say why it is refused."""

import logging
import shutil
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path, PurePosixPath

from agent2rl.core.errors import Agent2RLError, Refusal
from agent2rl.core.grading_records import Manifest, Submission, Verdict
from agent2rl.core.units import format_size
from agent2rl.grading.freeze import (
    DELETE_HINT,
    FreezeLimits,
    FrozenSubmission,
    NoDiskSpace,
    freeze_submission,
)
from agent2rl.grading.lora_adapter import is_adapter
from agent2rl.grading.submission_grader import FAULT, shorten_error
from agent2rl.grading.verdict_maker import GradingSetup
from agent2rl.record.recorder import Recorder

logger = logging.getLogger(__name__)

ROOM_BYTES = 256 << 20
"""Allowed beyond twice the size of the base's weights."""
SPARE_BYTES = 512 << 20
"""Kept free on the disk by submissions: a sandbox is killed below 256 MiB, and gradings write results."""
MOST_DELETABLE = 5
"""Directories to delete that are named to the agent when the disk is full."""
MOST_NAMES = 20
"""Names of ignored files in a record."""


@dataclass(frozen=True)
class FreezeOutcome:
    """What freezing adds to a submission: a verdict if it was refused, else the hash of its content."""

    verdict: Verdict | None = None
    message: str = ""
    content_sha256: str | None = None
    left_out: tuple[str, ...] = ()
    kept: bool = False
    manifest: Manifest | None = None
    """Of the frozen copy; None if nothing was copied."""

    def apply_to(self, submission: Submission, freeze_seconds: float) -> Submission:
        """Return the submission with these fields."""
        replaced = {field.name for field in fields(self)} | {"freeze_seconds"}
        return Submission(
            **submission.model_dump(exclude=replaced),
            verdict=self.verdict,
            message=self.message,
            content_sha256=self.content_sha256,
            left_out=self.left_out,
            kept=self.kept,
            freeze_seconds=freeze_seconds,
        )


class SubmissionFreezer:
    """Freeze submissions into the run directory. `list_submissions` returns those that came before."""

    def __init__(
        self,
        setup: GradingSetup,
        recorder: Recorder,
        list_submissions: Callable[[], list[Submission]],
        record_fault: Callable[[str], None],
    ) -> None:
        self._setup = setup
        self._recorder = recorder
        self._list_submissions = list_submissions
        self._record_fault = record_fault

    def freeze(self, submission: Submission) -> FreezeOutcome:
        """Freeze the submission, or return the verdict that explains why not."""
        try:
            relative = self._resolve_path(submission.path)
            # The base model needs no copy: it cannot change, and the service has it already.
            if relative == self._setup.base_seen_at:
                return FreezeOutcome(content_sha256=self._setup.base.manifest.sha256)
            frozen = self._freeze_submission(submission.id, relative)
        except Refusal as refusal:
            logger.debug("Submission %d is refused: %.300r", submission.id, str(refusal))
            return FreezeOutcome("rejected", shorten_error(refusal))
        except (Agent2RLError, OSError) as error:
            logger.debug("Submission %d could not be frozen", submission.id, exc_info=True)
            self._record_fault("freezing")
            return FreezeOutcome("failed", FAULT.format(type(error).__name__))
        return FreezeOutcome(
            content_sha256=frozen.manifest.sha256,
            left_out=_shorten_names(frozen.left_out),
            kept=True,
            manifest=frozen.manifest,
        )

    def _freeze_submission(self, number: int, relative: PurePosixPath) -> FrozenSubmission:
        # Weights may have been trained in twice the base model's precision.
        limits = FreezeLimits(bytes=2 * self._setup.base.bytes + ROOM_BYTES, spare_bytes=SPARE_BYTES)
        target = self._recorder.paths.submission_paths(number)
        target.root.mkdir(parents=True)
        try:
            frozen = freeze_submission(self._recorder.paths.workspace, relative, target.model, limits)
            self._require_merge_space(target.model)
            return frozen
        except NoDiskSpace as error:
            raise NoDiskSpace(error.message, f"{error.hint}{self._name_deletable(relative)}") from error

    def _require_merge_space(self, copy: Path) -> None:
        """Refuse an adapter whose merged weights would not fit on the disk, and delete its copy."""
        size, free = self._setup.base.bytes, shutil.disk_usage(copy).free
        if is_adapter(copy) and free < size + SPARE_BYTES:
            shutil.rmtree(copy)
            raise NoDiskSpace(
                f"The adapter has to be merged, and the merged model does not fit on the disk: "
                f"{format_size(free)} are free, and {format_size(size + SPARE_BYTES)} are needed.",
                DELETE_HINT,
            )

    def _name_deletable(self, relative: PurePosixPath) -> str:
        """Name the agent's own copies of earlier submissions: the service does not need them any more."""
        submitted = {
            path: None
            for each in self._list_submissions()
            if each.content_sha256 and (path := self._resolve_path(each.path)) != relative
        }
        deletable = [str(path) for path in submitted if path != self._setup.base_seen_at][-MOST_DELETABLE:]
        return f" You submitted: {', '.join(deletable)}." if deletable else ""

    def _resolve_path(self, path: str) -> PurePosixPath:
        """Return the path relative to the workspace; the agent may name it as an absolute path."""
        model_path = PurePosixPath(path)
        if not model_path.is_absolute():
            return model_path
        if not model_path.is_relative_to(self._setup.seen_at):
            raise Refusal(f"{path[:80]!r} is not in the workspace.", f"Save it below {self._setup.seen_at}.")
        return model_path.relative_to(self._setup.seen_at)


def _shorten_names(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the first names and the number of the others."""
    if len(names) <= MOST_NAMES:
        return names
    return (*names[:MOST_NAMES], f"and {len(names) - MOST_NAMES} more")
