"""A table of cells, such as mode × task or driver × task. A star says: this gain is not 0."""

from collections.abc import Mapping, Sequence

from agent2rl.analysis.campaigns.cell_statistics import Cell, compute_cells
from agent2rl.analysis.campaigns.comparisons import correct_holm
from agent2rl.analysis.campaigns.run_digest import RunDigest
from agent2rl.core.record import Record

ALPHA = 0.05


class HeatmapCell(Record):
    row: str
    column: str
    cell: Cell
    p_holm: float | None
    """Its p-value as one of the table's; None where it has too few runs, which are no part of the family."""
    star: bool
    """Its interval excludes 0, and so it does after Holm's correction for the whole table."""


class Heatmap(Record):
    row_axis: str
    column_axis: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    cells: tuple[HeatmapCell, ...]
    """Those that have runs, counted or not; the others were never run."""
    tested: int
    """Cells with enough runs: so many are corrected for."""


def build_heatmap(digests: Sequence[RunDigest], row: str, column: str) -> Heatmap:
    found = compute_cells(digests, (row, column))
    tested = [key for key, each in found.items() if each.p_value is not None]
    corrected = dict(zip(tested, correct_holm([found[key].p_value or 0.0 for key in tested]), strict=True))
    return Heatmap(
        row_axis=row,
        column_axis=column,
        rows=_collect_axis_values(found, 0),
        columns=_collect_axis_values(found, 1),
        cells=tuple(_star_cell(key, each, corrected.get(key)) for key, each in found.items()),
        tested=len(tested),
    )


def _star_cell(key: tuple[str, ...], each: Cell, p_holm: float | None) -> HeatmapCell:
    clear = each.mean is not None and each.mean.excludes_zero and p_holm is not None and p_holm <= ALPHA
    return HeatmapCell(row=key[0], column=key[1], cell=each, p_holm=p_holm, star=clear)


def _collect_axis_values(found: Mapping[tuple[str, ...], Cell], place: int) -> tuple[str, ...]:
    return tuple(sorted({key[place] for key in found}))
