"""Questions as a world: what a step does, what is searched, and what a record of it is good for."""

import json
from contextlib import closing, suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from agent2rl.core.environment import Environment, EnvironmentStep
from agent2rl.core.errors import ExternalServiceError, UserError
from agent2rl.core.task import Example
from agent2rl.environments.search import (
    WORLD,
    Backend,
    LocalCorpus,
    RecordingBackend,
    ReplayBackend,
    SearchDocument,
    SearchEnvironment,
    SearchResult,
)
from agent2rl.environments.search.backends import NotRecorded, read_corpus, write_corpus
from agent2rl.environments.search.environment import NO_ACTION, NOT_FOUND, OVER

DOCUMENTS = (
    SearchDocument("orin", "Orin Foods", "Orin Foods is a company. It was founded by Ada Lorn and Bo Marr."),
    SearchDocument("ada", "Ada Lorn", "Ada Lorn was born in Lódz."),
    SearchDocument("bo", "Bo Marr", "Bo Marr was born in Talva. " + "And more. " * 40),
    SearchDocument("noise", "Notes", "A storm delayed the fair in Talva."),
)
MARKS = ("precision", "recall", "f1")
EXAMPLE = Example("one", "Who founded Orin Foods?", "Ada Lorn, Bo Marr", {"answer_type": "Set Answer"})


class Broken:
    """A backend that fails every other time."""

    def __init__(self) -> None:
        self.asked = 0

    def search(self, query: str) -> tuple[SearchResult, ...]:
        self.asked += 1
        if self.asked % 2:
            raise ExternalServiceError("the engine is busy", "Try again.")
        return LocalCorpus(DOCUMENTS).search(query)

    def open(self, id: str) -> str:  # noqa: A002
        raise ExternalServiceError(f"the page {id!r} is gone")


def played(
    backend: Backend, actions: list[str], example: Example = EXAMPLE, partial: bool = False
) -> list[EnvironmentStep]:
    play: Environment = SearchEnvironment(lambda _: backend, partial)
    steps = [play.reset(example), *map(play.step, actions)]
    play.close()
    return steps


def test_a_question_is_searched_read_and_answered() -> None:
    first, found, page, last = played(
        LocalCorpus(DOCUMENTS), ["search[founder of Orin Foods]", "open[1]", "answer[Bo Marr; Ada Lorn]"]
    )
    assert first.observation == "Question: Who founded Orin Foods?"
    assert found.observation.startswith("1. Orin Foods: Orin Foods is a company.")
    assert page.observation == f"Orin Foods\n{DOCUMENTS[0].text}"
    marks = dict.fromkeys(MARKS, 1.0)
    assert last == EnvironmentStep(OVER, reward=1.0, done=True, won=True, marks=marks, invalid=False)


def test_what_cannot_be_done_is_told_apart_from_what_finds_nothing() -> None:
    actions = ["hm", "open[7]", "search[xyzzy]", "search[Orin]", "search[Orin]", "answer[nobody]"]
    steps = played(LocalCorpus(DOCUMENTS), actions)
    assert [step.invalid for step in steps] == [None, True, True, False, False, False, False]


def test_a_whole_reply_is_an_action() -> None:
    steps = played(
        LocalCorpus(DOCUMENTS), ["Thought: who was it?\nAction 1: search[Bo Marr]", "**open[bo marr]**"]
    )
    assert steps[1].observation.startswith("1. Bo Marr: ")
    assert steps[2].observation.startswith("Bo Marr\nBo Marr was born in Talva.")


@pytest.mark.parametrize(
    ("answer", "strict", "partial"),
    [("Bo Marr and Ada Lorn", 1, 1), ("Bo Marr", 0, 2 / 3), ("Cy Orr", 0, 0), ("", 0, 0)],
)
def test_the_answer_is_rewarded(answer: str, strict: float, partial: float) -> None:
    assert played(LocalCorpus(DOCUMENTS), [f"answer[{answer}]"])[-1].reward == strict
    last = played(LocalCorpus(DOCUMENTS), [f"answer[{answer}]"], partial=True)[-1]
    assert last.reward == pytest.approx(partial)
    assert last.done
    assert last.won == (strict == 1)
    assert not last.cut


def test_names_given_with_the_example_are_right() -> None:
    example = Example("two", "Who?", "Ada Lorn", {"items": [["Ada Lorn", "Ada of Orin, the Elder"]]})
    assert played(LocalCorpus(DOCUMENTS), ["answer[Ada of Orin, the Elder]"], example)[-1].won


def test_six_steps_are_the_end_of_it_and_so_is_an_answer() -> None:
    steps = played(LocalCorpus(DOCUMENTS), ["search[Orin]"] * 5 + ["hm", "answer[Ada Lorn, Bo Marr]"])
    assert [step.done for step in steps] == [False] * 6 + [True] * 2
    assert [step.cut for step in steps[-2:]] == [True, True]
    assert steps[-1].reward == 0
    again = played(LocalCorpus(DOCUMENTS), ["answer[Bo Marr]", "answer[Ada Lorn, Bo Marr]"])
    assert again[-1] == EnvironmentStep(OVER, done=True, marks={"precision": 1.0, "recall": 0.5, "f1": 2 / 3})


def test_an_example_may_allow_other_steps() -> None:
    example = Example("one", "Who?", "Ada Lorn", {"steps": 1})
    assert played(LocalCorpus(DOCUMENTS), ["search[Orin]"], example)[-1].cut
    for steps in (0, "6", True):
        with pytest.raises(UserError, match="steps"):
            played(LocalCorpus(DOCUMENTS), [], Example("one", "Who?", "Ada Lorn", {"steps": steps}))


def test_an_example_without_an_answer_is_an_error() -> None:
    wrong: list[list[JsonValue]] = [[], [["", "x"]], ["x"], [[]]]
    for meta in ({}, *({"items": items} for items in wrong)):
        with pytest.raises(UserError, match="no answer"):
            played(LocalCorpus(DOCUMENTS), [], Example("one", "Who?", "", meta))


def test_nonsense_is_answered_and_costs_a_step() -> None:
    steps = played(
        LocalCorpus(DOCUMENTS), ["I do not know", "search[]", "open[7]", "open[orin]", "search[zzz]"]
    )
    told = [step.observation for step in steps[1:]]
    assert told == [NO_ACTION, NO_ACTION, NOT_FOUND, NOT_FOUND, "Nothing was found."]


def test_a_failed_search_is_seen_and_counted() -> None:
    backend = Broken()
    play = SearchEnvironment(lambda _: backend)
    play.reset(EXAMPLE)
    told = [play.step(action).observation for action in ("search[Orin]", "search[Orin]", "open[1]")]
    assert told[0] == "The search failed: the engine is busy"
    assert told[1].startswith("1. Orin Foods")
    assert told[2] == "The open failed: the page 'orin' is gone"
    assert +play.counts == {"searches": 2, "failed": 1, "opened": 1, "unopened": 1}


def test_pages_of_the_benchmark_itself_are_as_if_they_were_not_found() -> None:
    own = (
        SearchDocument("https://hub/datasets/google/deepsearchqa/viewer", "Rows", "Orin rows"),
        SearchDocument("https://hub/a", "The Deep Search QA benchmark", "Orin"),
        SearchDocument("https://hub/b", "Notes", "Orin, a question of DeepSearchQA"),
        SearchDocument("https://hub/deep%2Dsearch%2Dqa", "Notes", "Orin"),
    )
    play = SearchEnvironment(lambda _: LocalCorpus((*own, *DOCUMENTS[:1]), shown=9))
    play.reset(EXAMPLE)
    assert play.step("search[Orin]").observation.startswith("1. Orin Foods")
    assert play.commands() == ("open[1]",)
    assert play.step(f"open[{own[0].id}]").observation == NOT_FOUND
    assert play.step("search[rows]").observation == "Nothing was found."
    assert +play.counts == {"searches": 2, "withheld": 5}


def test_an_episode_begins_with_reset() -> None:
    with pytest.raises(RuntimeError, match="reset"):
        SearchEnvironment(lambda _: LocalCorpus(DOCUMENTS)).step("search[Orin]")


@given(st.lists(st.text(max_size=60), max_size=8))
def test_any_text_is_a_step(actions: list[str]) -> None:
    steps = played(LocalCorpus(DOCUMENTS), actions)
    assert all(0 <= step.reward <= 1 for step in steps)
    assert steps[-1].done or len(actions) < 6


def test_a_search_knows_no_case_accents_or_plurals() -> None:
    assert [result.id for result in LocalCorpus(DOCUMENTS).search("companies of foods")] == ["orin"]
    found = LocalCorpus(DOCUMENTS).search("LODZ")
    assert [result.id for result in found] == ["ada"]


def test_the_beginning_of_a_document_is_its_snippet() -> None:
    (found,) = LocalCorpus(DOCUMENTS).search("Marr, born in Talva, and more")[:1]
    assert found.snippet.startswith("Bo Marr was born in Talva. And more.")
    assert found.snippet.endswith(" …")


def test_of_equal_documents_the_first_comes_first() -> None:
    twins = [SearchDocument(str(number), "Twin", "the same words") for number in range(9)]
    assert [result.id for result in LocalCorpus(twins).search("same words")] == ["0", "1", "2", "3", "4"]
    assert LocalCorpus([]).search("anything") == ()


@given(st.text(max_size=100))
def test_any_query_has_an_answer(query: str) -> None:
    found = LocalCorpus(DOCUMENTS).search(query)
    assert len(found) <= 5
    assert found == LocalCorpus(DOCUMENTS).search(query)


ACTIONS = ["search[Orin]", "open[1]", "search[Talva]", "open[2]", "search[Orin]", "answer[Ada Lorn]"]


def test_a_replay_is_the_same_to_the_byte(tmp_path: Path) -> None:
    record = tmp_path / "record.jsonl"
    with closing(RecordingBackend(LocalCorpus(DOCUMENTS), "local", record, clock=lambda: 12.5)) as recording:
        recorded = played(recording, ACTIONS)
    assert played(ReplayBackend(record), ACTIONS) == recorded
    rows = [json.loads(line) for line in record.read_text().splitlines()]
    assert [(row["kind"], row["text"]) for row in rows] == [
        ("search", "Orin"),
        ("open", "orin"),
        ("search", "Talva"),
        ("open", "bo"),
    ]
    assert {(row["backend"], row["time"]) for row in rows} == {("local", 12.5)}


def test_failures_are_recorded_too(tmp_path: Path) -> None:
    record = tmp_path / "record.jsonl"
    actions = ["search[Orin]", "search[Talva]", "open[1]", "search[Orin]"]
    with closing(RecordingBackend(Broken(), "broken", record)) as recording:
        recorded = played(recording, actions)
    assert [step.observation.partition(":")[0] for step in recorded[1:]] == [
        "The search failed",
        "1. Notes",
        "The open failed",
        "The search failed",
    ]
    assert played(ReplayBackend(record), actions) == recorded


def test_what_failed_and_then_worked_is_replayed_as_what_worked(tmp_path: Path) -> None:
    record = tmp_path / "record.jsonl"
    for backend in (Broken(), LocalCorpus(DOCUMENTS)):
        with closing(RecordingBackend(backend, "some", record)) as recording, suppress(ExternalServiceError):
            recording.search("Orin")
    assert ReplayBackend(record).search("Orin") == LocalCorpus(DOCUMENTS).search("Orin")


def test_a_record_is_of_one_backend_and_one_at_a_time_writes_it(tmp_path: Path) -> None:
    record = tmp_path / "record.jsonl"
    with closing(RecordingBackend(LocalCorpus(DOCUMENTS), "tavily", record)) as recording:
        recording.search("Orin")
        with pytest.raises(UserError, match="Another run is recording"):
            RecordingBackend(LocalCorpus(DOCUMENTS), "tavily", record)
    with pytest.raises(UserError, match="recorded from tavily, not brave"):
        RecordingBackend(LocalCorpus(DOCUMENTS), "brave", record)
    with pytest.raises(UserError, match="Cannot record"):
        RecordingBackend(LocalCorpus(DOCUMENTS), "brave", tmp_path)
    RecordingBackend(LocalCorpus(DOCUMENTS), "tavily", record).close()


def test_what_a_replay_does_not_hold_is_an_error_that_is_counted(tmp_path: Path) -> None:
    record = tmp_path / "record.jsonl"
    with closing(RecordingBackend(LocalCorpus(DOCUMENTS), "local", record)) as recording:
        played(recording, ACTIONS)
    replay = ReplayBackend(record)
    with pytest.raises(NotRecorded, match="Marr"):
        replay.search("Marr")
    told = played(replay, ["search[Lorn]", "search[Orin]"])
    assert told[1].observation == "The search failed: The record has no answer to search[Lorn]."
    assert replay.missing == 2


def test_a_record_is_continued_and_survives_a_line_that_was_cut_off(tmp_path: Path) -> None:
    record = tmp_path / "record.jsonl"
    with closing(RecordingBackend(LocalCorpus(DOCUMENTS), "local", record)) as recording:
        recording.search("Orin")
    whole = record.read_bytes()
    record.write_bytes(whole + whole[:20])
    assert ReplayBackend(record).search("Orin") == LocalCorpus(DOCUMENTS).search("Orin")
    with closing(RecordingBackend(LocalCorpus(DOCUMENTS), "local", record)) as recording:
        recording.search("Talva")
    assert ReplayBackend(record).search("Talva") == LocalCorpus(DOCUMENTS).search("Talva")
    record.write_text("nonsense\n")
    with pytest.raises(UserError, match="not a search recording"):
        ReplayBackend(record)


def test_a_data_directory_is_a_world(tmp_path: Path) -> None:
    (tmp_path / "corpus").mkdir()
    write_corpus(tmp_path / "corpus", LocalCorpus(DOCUMENTS, shown=2, snippet_words=3))
    row = {"id": "one", "question": EXAMPLE.prompt, "answer": EXAMPLE.target, "answer_type": "Set Answer"}
    (tmp_path / "train.jsonl").write_text(json.dumps(row) + "\n")
    world = WORLD(tmp_path)
    assert world.games == (EXAMPLE,)
    play = world.environment()
    play.reset(world.games[0])
    assert [tool("x") for tool in world.tools] == ["search[x]", "open[x]", "answer[x]"]
    assert play.step(world.tools[0]("Orin Foods")).observation.startswith("1. Orin Foods")
    assert world.expert is None
    corpus = read_corpus(tmp_path / "corpus")
    assert corpus.documents == DOCUMENTS
    assert [result.snippet for result in corpus.search("Marr Talva")] == [
        "Bo Marr was …",
        "A storm delayed …",
    ]


def test_a_folder_of_texts_is_searched_too(tmp_path: Path) -> None:
    (tmp_path / "towns").mkdir()
    (tmp_path / "towns" / "Talva.md").write_text("A town on the Ore.")
    (tmp_path / "Orin.txt").write_text("A company in Talva.")
    (tmp_path / "notes.pdf").write_text("Talva")
    found = read_corpus(tmp_path).search("Talva")
    assert {(result.id, result.title) for result in found} == {
        ("towns/Talva.md", "towns/Talva"),
        ("Orin.txt", "Orin"),
    }


def test_documents_that_cannot_be_searched_are_the_users_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nothing to search"):
        read_corpus(tmp_path)
    twice = '{"id": "a", "title": "", "text": ""}\n'
    for number, text in enumerate((twice * 2, '{"id": 1, "title": "", "text": ""}', "{}", "[")):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "documents.jsonl").write_text(text)
        with pytest.raises(UserError, match=r"Cannot read|same id"):
            read_corpus(folder)


def test_steps_say_how_many_of_the_documents_that_tell_it_were_found() -> None:
    example = Example("one", "Who?", "Ada Lorn", {"documents": ["orin", "ada"]})
    steps = played(LocalCorpus(DOCUMENTS), ["search[company]", "search[zzz]", "search[Lorn]"], example)
    assert [step.marks["search_recall"] for step in steps] == [0, 0.5, 0.5, 1]


def test_a_world_without_its_files_is_the_users_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="Cannot read"):
        WORLD(tmp_path)
