"""What the programs of an attempt were seen to do: trainings, weights loaded and saved, files written."""

import posixpath
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from pydantic import JsonValue

from agent2rl.analysis.findings import Route
from agent2rl.analysis.programs import marks as m
from agent2rl.analysis.programs.abstract_values import HOLE, NOTHING, AbstractValue, CodeLocation, join_values
from agent2rl.analysis.programs.marks import Marks

MOST_STAGES, MOST_NOTED = 12, 500
WORKSPACE = "/workspace"
FOLDERS = ("output", "models", "code", "data")


@dataclass(frozen=True)
class DetectedStage:
    """A training."""

    route: Route
    confidence: float
    places: tuple[CodeLocation, ...]
    """Where it is done, then what makes it what it is."""
    world: bool = False
    """Whether the world is played in what it learns from."""
    launch: int = 0
    """Number of the launch that did it."""


@dataclass(frozen=True)
class WeightsHistory:
    """How some weights came about."""

    stages: tuple[DetectedStage, ...] = ()
    origins: tuple[str, ...] = ()
    """Paths of weights that they go on from and that no program here made."""
    launch: int = 0


@dataclass(frozen=True)
class NotedSetting:
    """A hyperparameter or data."""

    name: str
    value: JsonValue
    place: CodeLocation | None
    launch: int
    weight: int = 1
    """Which counts where a program says two things."""
    on_command_line: bool = False


@dataclass
class ProgramTrace:
    """Shared by the programs of an attempt, which see each other's files."""

    stages: list[DetectedStage] = field(default_factory=list)
    weights: dict[str, WeightsHistory] = field(default_factory=dict)
    """By path, with holes; the last to be saved last."""
    files: dict[str, AbstractValue] = field(default_factory=dict)
    """What was written into files of data."""
    models: dict[str, WeightsHistory] = field(default_factory=dict)
    """By mark."""
    noted: dict[tuple[str, str, int], NotedSetting] = field(default_factory=dict)
    loads: list[str] = field(default_factory=list)
    launch: int = 0
    steps: int = 0
    """That were taken so far."""
    cut: bool = False
    """Some program was too long to be stepped through."""

    def load_weights(self, paths: Iterable[str]) -> str:
        """The mark of a model that is loaded from here."""
        found = [self.find_weights(path) or WeightsHistory(origins=(path,)) for path in dict.fromkeys(paths)]
        self.loads += [path for made in found for path in made.origins]
        mark = f"{m.MODEL}{len(self.models)}"
        self.models[mark] = merge_histories(found)
        return mark

    def add_stage(self, stage: DetectedStage, models: Marks) -> None:
        """The same line trains once, however often it is passed."""
        stage = replace(stage, launch=self.launch)
        before = [each for each in self.stages if _is_same_stage(each, stage)]
        if before and before[0].confidence >= stage.confidence:
            stage = before[0]
        self.stages = _replace_stage(self.stages, stage)
        for mark in models or frozenset(self.models):
            made = self.models.get(mark, WeightsHistory())
            self.models[mark] = WeightsHistory(
                tuple(_replace_stage(made.stages, stage)), made.origins, self.launch
            )

    def save_weights(self, path: str | None, models: Marks, stage: DetectedStage | None = None) -> None:
        """Weights are written; a stage is what was done to them outside of any training."""
        sought = [self.models[mark] for mark in sorted(models) if mark in self.models]
        if not sought:
            sought = [WeightsHistory(tuple(self.stages[-MOST_STAGES:]), ())] if self.stages else []
        made = merge_histories(sought)
        if stage:
            self.stages.append(replace(stage, launch=self.launch))
            made = WeightsHistory((*made.stages, self.stages[-1]), made.origins)
        key = normalise_path(path) if path else HOLE
        self.weights.pop(key, None)
        self.weights[key] = WeightsHistory(made.stages, made.origins, self.launch)

    def find_weights(self, path: str) -> WeightsHistory | None:
        """The newest weights at a path, or of a folder that holds it."""
        found = [key for key in self.weights if path_covers(key, normalise_path(path))]
        exact = [key for key in found if key == normalise_path(path)]
        return self.weights[(exact or found)[-1]] if found else None

    def copy_weights(self, source: str, target: str) -> None:
        made = self.find_weights(source) or WeightsHistory(origins=(source,))
        if HOLE not in target or made.stages:
            self.weights.pop(normalise_path(target), None)
            self.weights[normalise_path(target)] = WeightsHistory(made.stages, made.origins, self.launch)

    def write_file(self, path: str | None, value: AbstractValue) -> None:
        key = normalise_path(path) if path else HOLE
        self.files[key] = join_values([self.files.get(key, NOTHING), value])

    def read_file(self, path: str | None) -> AbstractValue:
        """What programs here wrote to a path; a path that is not known may be any of them."""
        if path is None:
            return NOTHING
        wanted = normalise_path(path)
        if wanted in self.files:
            return self.files[wanted]
        if HOLE not in wanted:
            found = [value for key, value in self.files.items() if HOLE in key and path_covers(key, wanted)]
            return join_values(found)
        return join_values(value for key, value in self.files.items() if path_covers(wanted, key))

    def note_setting(
        self,
        name: str,
        value: JsonValue,
        place: CodeLocation | None,
        weight: int = 1,
        on_command_line: bool = False,
    ) -> None:
        found = NotedSetting(name, value, place, self.launch, weight, on_command_line)
        if len(self.noted) < MOST_NOTED:
            self.noted[name, str(place), self.launch] = found


def _is_same_stage(one: DetectedStage, other: DetectedStage) -> bool:
    return one.places[:1] == other.places[:1] and one.launch == other.launch


def _replace_stage(stages: Sequence[DetectedStage], new: DetectedStage) -> list[DetectedStage]:
    """In the place of what it is the same as, else at the end."""
    if any(_is_same_stage(each, new) for each in stages):
        return [new if _is_same_stage(each, new) else each for each in stages]
    return [*stages, new][:MOST_STAGES]


def merge_histories(found: Iterable[WeightsHistory]) -> WeightsHistory:
    known = list(found)
    stages = tuple(dict.fromkeys(stage for made in known for stage in made.stages))
    origins = tuple(dict.fromkeys(path for made in known for path in made.origins))
    return WeightsHistory(stages[-MOST_STAGES:], origins, max((made.launch for made in known), default=0))


def normalise_path(path: str) -> str:
    """Below the workspace, as far as that can be told."""
    path = posixpath.normpath(path.strip().removeprefix("file://") or ".")
    path = path.removeprefix(f"{WORKSPACE}/")
    if path.startswith("/"):
        parts = path.split("/")
        place = next((n for n, part in enumerate(parts) if part in FOLDERS), None)
        path = "/".join(parts[place:]) if place is not None else path
    while path.startswith("../"):
        path = path[3:]
    return path


def path_covers(pattern: str, path: str) -> bool:
    """Whether weights saved as the one are at the other: the same, with holes, or in a folder of it."""
    if pattern == HOLE:
        return False
    wanted, parts = pattern.split("/"), path.split("/")
    if len(wanted) > len(parts) or pattern == ".":
        return False
    return all(_part_matches(each, part) for each, part in zip(wanted, parts, strict=False))


def _part_matches(pattern: str, part: str) -> bool:
    if HOLE not in pattern and HOLE not in part:
        return pattern == part
    if HOLE in part:  # neither is whole: what is known of both must agree
        first, second = pattern.partition(HOLE)[0], part.partition(HOLE)[0]
        return first.startswith(second) or second.startswith(first)
    first, *middle, last = pattern.split(HOLE)
    if not (part.startswith(first) and part.endswith(last) and len(part) >= len(first) + len(last)):
        return False
    at = len(first)
    for piece in middle:
        at = part.find(piece, at)
        if at < 0:
            return False
        at += len(piece)
    return True
