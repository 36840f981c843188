"""agent2rl fingerprint"""

import re
import sys
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from agent2rl.cli.options import as_json, complete_names
from agent2rl.core.errors import UserError
from agent2rl.core.grading_records import SiblingDistance
from agent2rl.grading.base_model import read_base_model
from agent2rl.grading.fingerprint import SUFFIX, make_fingerprint, read_fingerprint, write_fingerprint
from agent2rl.grading.siblings import compare_with_siblings
from agent2rl.run.assets import get_hash_cache, pin_model_name, prepare_model_directory, siblings_folder
from agent2rl.run.settings import Settings, read_settings

FILE = click.Path(path_type=Path, dir_okay=False)


@click.command("fingerprint")
@click.argument("model", shell_complete=complete_names("models"))
@click.option("-o", "--output", type=FILE, help="The file to write.  [default: NAME.fingerprint]")
@click.option("--name", help="What reports call the model.  [default: MODEL]")
@click.option("--keep", is_flag=True, help="Write it into the cache, where every later run compares with it.")
@click.option(
    "--compare",
    type=FILE,
    multiple=True,
    help="Write nothing. Compare MODEL, as a submission would be, with this fingerprint. Can be repeated.",
)
@click.option("--base", help="The base model, for --compare.")
@as_json
def fingerprint_command(
    model: str,
    output: Path | None,
    name: str | None,
    keep: bool,
    compare: tuple[Path, ...],
    base: str | None,
    as_json: bool,
) -> None:
    """Write the fingerprint of MODEL: a file of less than 5 MB that allows it to be recognised later.

    MODEL is a shipped model, a hub model (org/name or org/name@revision) or a directory. The file has random
    projections and sorted norms of its matrices, and no weights.

    A run compares every submission with the fingerprints that --siblings names and with those in the cache
    (--keep). One that looks like such a model, whole or in part, is foreign: scored, but never the best. Make
    fingerprints of models that an agent could get hold of and should not submit, such as the base model's
    Instruct version.

    \b
    agent2rl fingerprint Qwen/Qwen2.5-7B-Instruct
    agent2rl run --task gsm8k --model Qwen/Qwen2.5-7B --siblings Qwen2.5-7B-Instruct.fingerprint
    agent2rl fingerprint Qwen/Qwen2.5-7B-Instruct --keep
    agent2rl fingerprint ./trained --base Qwen/Qwen2.5-7B --compare Qwen2.5-7B-Instruct.fingerprint
    """
    settings = read_settings()
    if compare:
        if base is None or output or name or keep:
            raise UserError("--compare needs --base, and no other option.", "Add --base MODEL.")
        _print_comparison(model, base, compare, settings, as_json)
        return
    if base is not None or (keep and output):
        why = "--base is only for --compare." if base else "--keep and --output cannot be combined."
        raise UserError(why, "Leave one of them out.")
    directory = prepare_model_directory(pin_model_name(model), settings.cache, _print_step)
    name = name or _choose_name(model)
    made = make_fingerprint(directory, name, _ignore_progress if as_json else _print_progress)
    file_name = name.replace(" ", "_") + SUFFIX
    path = output or (siblings_folder(settings.cache) / file_name if keep else Path(file_name))
    size = write_fingerprint(made, path)
    if as_json:
        click.echo(made.header.model_dump_json())
    else:
        matrices = len(made.header.matrices)
        click.echo(f"{path}: {size:,} bytes, {matrices} matrices, {made.header.sketch_length} sums each")


def _choose_name(model: str) -> str:
    """Return the last part of a model's name or path, without its revision."""
    last = Path(model).resolve().name if Path(model).is_dir() else model.rpartition("/")[2].partition("@")[0]
    return re.sub(r"[^A-Za-z0-9._+-]+", "-", last).lstrip("._+-")[:80] or "model"


def _print_comparison(
    model: str, base: str, files: tuple[Path, ...], settings: Settings, as_json: bool
) -> None:
    directory = prepare_model_directory(pin_model_name(model), settings.cache, _print_step)
    base_directory = prepare_model_directory(pin_model_name(base), settings.cache, _print_step)
    siblings = [read_fingerprint(path) for path in files]
    distances = compare_with_siblings(
        directory, read_base_model(base_directory, get_hash_cache(settings.cache)), siblings
    )
    if as_json:
        click.echo("[" + ",".join(each.model_dump_json() for each in distances) + "]")
        return
    table = Table(
        "sibling", "looks like it", "matrices", "matched", "cosine", "share", "spread", "norms", "distance"
    )
    for each in distances:
        table.add_row(each.name, each.resemblance or "no", str(each.matrices), *_format_figures(each))
    Console(highlight=False, soft_wrap=True).print(table)


def _format_figures(each: SiblingDistance) -> list[str]:
    figures = (each.matched, each.cosine, each.share, each.spread, each.norms, each.distance)
    return ["?" if figure is None else f"{figure:.3f}" for figure in figures]


def _print_progress(text: str) -> None:
    """Overwrite one line on a terminal; elsewhere say nothing."""
    if sys.stderr.isatty():
        end = "\n" if text.startswith("100%") else ""
        click.echo(f"\rsketched {text}  {end}", err=True, nl=False)


def _ignore_progress(_: str) -> None:
    pass


def _print_step(text: str) -> None:
    click.echo(text, err=True)
