"""The miniature of DeepSearchQA: a closed world whose questions have exact answers."""

import hashlib
import json
import random
from contextlib import closing
from functools import cache
from itertools import chain, combinations
from pathlib import Path

import pytest

from agent2rl.core.grading_records import EvalResult, EvalSettings
from agent2rl.engines.replay import ReplayEngine as Outputs
from agent2rl.environments.search import Backend, RecordingBackend, ReplayBackend
from agent2rl.environments.search.answer_matching import normalize_text
from agent2rl.environments.search.backends import LocalCorpus, SearchResult
from agent2rl.environments.search.environment import NOT_FOUND, SearchEnvironment
from agent2rl.evaluators.episode_prompts import EpisodePrompt
from agent2rl.evaluators.episodes import Episodes
from agent2rl.tasks.deepsearchqa.library import (
    CAT_WORDS,
    KINDS,
    PARTS,
    PLACE_WORDS,
    QUESTION_KINDS,
    Part,
    generate_facts,
    is_answered_at_once,
    list_names,
    list_paths,
)
from agent2rl.tasks.deepsearchqa.mini import MiniLibrary, build_library

COUNTS: dict[Part, int] = {"train": 300, "feedback": 99, "heldout": 99}


@cache
def made(split: Part) -> MiniLibrary:
    return build_library(split, COUNTS[split])


@pytest.fixture(params=COUNTS)
def part(request: pytest.FixtureRequest) -> MiniLibrary:
    split: Part = request.param
    return made(split)


def test_it_is_the_same_each_time() -> None:
    random.seed(7)
    again = build_library("feedback", 99)
    assert again.questions == made("feedback").questions
    assert again.documents == made("feedback").documents


def test_it_is_the_same_on_every_machine() -> None:
    content = hashlib.sha256()
    for split in COUNTS:
        for document in made(split).documents:
            content.update(f"{document.id}\t{document.title}\t{document.text}\n".encode())
        for question in made(split).questions:
            content.update(json.dumps([question.problem, question.items, question.walkthrough]).encode())
    assert content.hexdigest() == "f490e90d2f72fb8e12eab0df524abf6501aee1e6204f7b1c3903023579aefd98"


def test_answers_are_those_of_the_pages(part: MiniLibrary) -> None:
    """Looked up the slow way, in the pages' titles."""
    pages = {document.title: document.text for document in part.documents}
    for question in part.questions:
        start, *links = question.problem.partition(" ")[2].partition(" ")[2][:-1].split("'s ")
        for link in links:
            start = pages[f"{start}'s {link}"]
        assert start.split(", ") == list(question.items)
        assert tuple(links) == question.path[1:]


def test_more_questions_begin_with_the_same_ones() -> None:
    assert build_library("heldout", 20).questions == made("heldout").questions[:20]


def test_a_question_is_found_within_two_searches_on_average(monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches are most of the work: all three splits together take four seconds of CPU time."""
    queries: list[str] = []
    search = LocalCorpus.search

    def count_search(self: LocalCorpus, query: str) -> tuple[SearchResult, ...]:
        queries.append(query)
        return search(self, query)

    monkeypatch.setattr(LocalCorpus, "search", count_search)
    assert len(build_library("heldout", 50).questions) == 50
    assert 50 <= len(queries) <= 2 * 50


def test_there_are_thousands_of_documents_and_every_kind_of_question(part: MiniLibrary) -> None:
    assert len(part.documents) > 4000
    assert len({document.id for document in part.documents}) == len(part.documents)
    kinds = [question.kind for question in part.questions]
    assert {kind: kinds.count(kind) for kind in QUESTION_KINDS} == dict.fromkeys(
        QUESTION_KINDS, len(kinds) // 3
    )
    assert len({question.problem for question in part.questions}) == len(part.questions)


def test_splits_share_no_name_and_no_path() -> None:
    for one, two in combinations(COUNTS, 2):
        for words in (PLACE_WORDS, CAT_WORDS):
            assert set(list_names(one, words)).isdisjoint(list_names(two, words))
        ways = [{question.path for question in made(split).questions} for split in (one, two)]
        assert ways[0].isdisjoint(ways[1])
        for kind in QUESTION_KINDS:
            assert set(list_paths(one, kind)).isdisjoint(list_paths(two, kind))
        texts = [{question.problem for question in made(split).questions} for split in (one, two)]
        assert texts[0].isdisjoint(texts[1])


def test_every_word_and_every_number_is_in_each_split() -> None:
    names = [list_names(split, PLACE_WORDS) for split in PARTS]
    assert len({frozenset(name.split()[0] for name in listed) for listed in names}) == 1
    assert len({frozenset(name.split()[1] for name in listed) for listed in names}) == 1


def test_no_two_things_have_one_name() -> None:
    for split in COUNTS:
        facts = generate_facts(split)
        cats = [cat for (_, link), found in facts.links.items() if link == "cats" for cat in found]
        names = [normalize_text(thing.partition(" ")[2]) for thing in (*chain(*facts.places.values()), *cats)]
        assert len(set(names)) == len(names)


def test_links_lead_where_they_should() -> None:
    facts = generate_facts("train")
    for (place, link), found in facts.links.items():
        assert place.split()[0] in KINDS
        assert {thing.split()[0] for thing in found} == {link.removesuffix("s") if link == "cats" else link}
        assert all((thing, "cats") in facts.links for thing in found) or link == "cats"


def test_the_supporting_documents_tell_the_answer(part: MiniLibrary) -> None:
    texts = {document.id: document.text for document in part.documents}
    for question in part.questions:
        assert all(item in texts[question.documents[-1]] for item in question.items), question
        assert len(question.documents) == len(question.path) - 1


def test_a_document_is_found_by_its_title(part: MiniLibrary) -> None:
    needed = {document for question in part.questions for document in question.documents}
    titles = {document.id: document.title for document in part.documents}
    found = [name in [one.id for one in part.search.search(titles[name])] for name in needed]
    assert sum(found) >= 0.99 * len(found)


def test_one_search_does_not_tell_it(part: MiniLibrary) -> None:
    """Neither with the question's words nor with the name that it begins from."""
    assert not any(is_answered_at_once(question, part.search) for question in part.questions)
    listed = 0
    for question in part.questions:
        results = part.search.search(question.walkthrough[0].removeprefix("search[").partition("'s ")[0])
        seen = " ".join(f"{one.title} {one.snippet}" for one in results)
        listed += all(item in seen for item in question.items)
    assert listed <= 0.05 * len(part.questions)


def test_somebody_who_knows_what_to_look_for_wins_in_six_steps(part: MiniLibrary) -> None:
    play = SearchEnvironment(lambda _: part.search)
    for question, example in zip(part.questions, part.examples, strict=True):
        play.reset(example)
        steps = [play.step(action) for action in question.walkthrough]
        assert len(steps) <= 6
        assert steps[-1].won
        seen = " ".join(step.observation for step in steps)
        assert all(item in seen for item in question.items), question
        assert not any(step.observation == NOT_FOUND for step in steps)


def test_the_right_answer_wins_and_the_questions_words_do_not(part: MiniLibrary) -> None:
    play = SearchEnvironment(lambda _: part.search)
    for question, example in zip(part.questions, part.examples, strict=True):
        play.reset(example)
        assert play.step(f"answer[{'; '.join(reversed(question.items))}]").won
        play.reset(example)
        assert not play.step(f"answer[{question.problem}]").won


def test_another_place_of_the_same_kind_is_never_right(part: MiniLibrary) -> None:
    """Names that differ in one digit are different names to the matcher."""
    play = SearchEnvironment(lambda _: part.search)
    for question, example in zip(part.questions, part.examples, strict=True):
        *most, last = question.items
        other = f"{last[:-1]}{(int(last[-1]) + 1) % 10}"
        play.reset(example)
        assert not play.step(f"answer[{'; '.join([*most, other])}]").won


def evaluated(backend: Backend) -> str:
    """The walkthroughs of the held-out questions, played by the evaluator."""
    part = made("heldout")
    outputs = {
        example.id: ["\n".join(question.walkthrough)]
        for question, example in zip(part.questions, part.examples, strict=True)
    }
    evaluator = Episodes(
        "search-1", lambda: SearchEnvironment(lambda _: backend), EpisodePrompt(chat=""), "kind"
    )
    return evaluator.evaluate(Outputs(outputs), part.examples, EvalSettings()).model_dump_json()


def test_recorded_episodes_are_replayed_to_the_byte(tmp_path: Path) -> None:
    record = tmp_path / "record.jsonl"
    with closing(RecordingBackend(made("heldout").search, "local", record)) as recording:
        live = evaluated(recording)
    replay = ReplayBackend(record)
    assert evaluated(replay) == live
    assert replay.missing == 0
    found = EvalResult.model_validate_json(live)
    assert [result.score for result in found.results] == [1.0] * 99
    assert {result.group for result in found.results} == set(QUESTION_KINDS)
    kept = record.read_text().splitlines(keepends=True)
    record.write_text("".join(kept[1:]))
    poorer = ReplayBackend(record)
    assert evaluated(poorer) != live
    assert poorer.missing >= 1
