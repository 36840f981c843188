"""The RUN argument of commands that read a run: a run directory, an id, or a bundle.

A bundle is unpacked into a temporary folder, which is deleted when the command ends.
"""

from pathlib import Path

import click

from agent2rl.bundles.unpacking import (
    OpenedBundle,
    SelectFile,
    is_bundle,
    open_bundle,
    select_without_report_and_weights,
)
from agent2rl.cli.options import resolve_run
from agent2rl.record.paths import RunPaths


def open_run(name: str, runs: Path | None) -> RunPaths:
    """Return the run that an argument refers to, whether a directory or a bundle."""
    return unpack_bundle(name).paths if is_bundle(name) else resolve_run(name, runs)


def unpack_bundle(name: str, select: SelectFile = select_without_report_and_weights) -> OpenedBundle:
    """Open a bundle until the command ends."""
    return click.get_current_context().with_resource(open_bundle(Path(name), select))
