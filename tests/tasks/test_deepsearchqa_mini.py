"""The miniature of DeepSearchQA: a closed world whose questions have exact answers."""

import hashlib
import json
import random
from contextlib import closing
from functools import cache
from itertools import combinations
from pathlib import Path

import pytest

from agent2rl.core.grading_records import EvalResult, EvalSettings
from agent2rl.engines.replay import ReplayEngine as Outputs
from agent2rl.environments.search import Backend, RecordingBackend, ReplayBackend
from agent2rl.environments.search.answer_matching import mark_answer, normalize_text, parse_gold_answer
from agent2rl.environments.search.backends import LocalCorpus, SearchResult
from agent2rl.environments.search.environment import NOT_FOUND, SearchEnvironment
from agent2rl.evaluators.episode_prompts import EpisodePrompt
from agent2rl.evaluators.episodes import Episodes
from agent2rl.tasks.deepsearchqa.facts import (
    LINKS,
    FactWorld,
    Part,
    generate_facts,
    list_backward_paths,
    list_forward_paths,
)
from agent2rl.tasks.deepsearchqa.mini import MiniLibrary, build_library
from agent2rl.tasks.deepsearchqa.questions import is_answered_at_once

COUNTS: dict[Part, int] = {"train": 300, "feedback": 100, "heldout": 100}
KINDS = {"chain", "set", "intersection", "count", "comparison"}


@cache
def made(split: Part) -> MiniLibrary:
    return build_library(split, COUNTS[split])


@pytest.fixture(params=COUNTS)
def part(request: pytest.FixtureRequest) -> MiniLibrary:
    split: Part = request.param
    return made(split)


def test_it_is_the_same_each_time() -> None:
    random.seed(7)
    again = build_library("feedback", 100)
    assert again.questions == made("feedback").questions
    assert again.documents == made("feedback").documents


def test_it_is_the_same_on_every_machine() -> None:
    content = hashlib.sha256()
    for split in COUNTS:
        for document in made(split).documents:
            content.update(f"{document.id}\t{document.title}\t{document.text}\n".encode())
        for question in made(split).questions:
            content.update(json.dumps([question.record, question.items, question.walkthrough]).encode())
    assert content.hexdigest() == "a6cde0ee26001a8b86479f6ef412b96c8171cf454df3b1c82f0ec15d3c51fb0f"


def test_answers_are_those_of_the_facts(part: MiniLibrary) -> None:
    """Looked up the slow way: of all things, those that lead back to where the question begins."""
    world = generate_facts(part.split)
    ids = {thing.name: thing.id for thing in world.things.values()}
    checked = 0
    for question in part.questions:
        if question.kind not in ("set", "count"):
            continue
        forwards = [link for link in question.path if not link.startswith("~")]
        backwards = [link[1:] for link in question.path if link.startswith("~")]
        goal = question.named[0]
        for link in forwards:
            goal = world.things[goal].links[link]
        found = {thing for thing in world.things if _led(world, thing, backwards[::-1]) == goal}
        assert {ids[names[0]] for names in question.needed} == found
        assert question.record["answer"] == str(len(found)) or question.kind == "set"
        checked += 1
    assert checked == 2 * len(part.questions) // 5


def _led(world: FactWorld, thing: str, links: list[str]) -> str | None:
    for link in links:
        if link not in world.things[thing].links:
            return None
        thing = world.things[thing].links[link]
    return thing


def test_more_questions_begin_with_the_same_ones() -> None:
    assert build_library("heldout", 20).questions == made("heldout").questions[:20]


def test_a_question_is_found_within_twenty_searches_on_average(monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches are most of the work: all three splits together take two seconds of CPU time."""
    queries: list[str] = []
    search = LocalCorpus.search

    def count_search(self: LocalCorpus, query: str) -> tuple[SearchResult, ...]:
        queries.append(query)
        return search(self, query)

    monkeypatch.setattr(LocalCorpus, "search", count_search)
    assert len(build_library("heldout", 50).questions) == 50
    assert 50 <= len(queries) <= 20 * 50


def test_there_are_thousands_of_documents_and_every_kind_of_question(part: MiniLibrary) -> None:
    assert len(part.documents) > 1500
    assert len({document.id for document in part.documents}) == len(part.documents)
    kinds = [question.kind for question in part.questions]
    assert {kind: kinds.count(kind) for kind in KINDS} == dict.fromkeys(KINDS, len(kinds) // 5)
    assert len({question.problem for question in part.questions}) == len(part.questions)


def test_splits_share_no_thing_and_no_way() -> None:
    for one, two in combinations(COUNTS, 2):
        names = [
            {normalize_text(name) for thing in generate_facts(split).things.values() for name in thing.names}
            for split in (one, two)
        ]
        assert names[0].isdisjoint(names[1])
        ways = [{question.path for question in made(split).questions} for split in (one, two)]
        assert ways[0].isdisjoint(ways[1])
        assert set(list_forward_paths(one)).isdisjoint(list_forward_paths(two))
        assert set(list_backward_paths(one)).isdisjoint(list_backward_paths(two))
        texts = [{question.problem for question in made(split).questions} for split in (one, two)]
        assert texts[0].isdisjoint(texts[1])


def test_no_two_things_have_one_name() -> None:
    for split in COUNTS:
        names = [
            normalize_text(name) for thing in generate_facts(split).things.values() for name in thing.names
        ]
        assert len(set(names)) == len(names)


def test_links_lead_where_they_should() -> None:
    world = generate_facts("train")
    for thing in world.things.values():
        assert {link: world.things[target].kind for link, target in thing.links.items()} == LINKS[thing.kind]
    for country in world.kinds["country"]:
        assert world.things[country.links["capital"]].links["country"] == country.id


def test_records_are_in_the_official_format(part: MiniLibrary) -> None:
    for question in part.questions:
        record = question.record
        assert list(record) == ["problem", "problem_category", "answer", "answer_type"]
        assert record["answer_type"] in ("Set Answer", "Single Answer")
        assert mark_answer(
            record["answer"], parse_gold_answer(record["answer"], record["answer_type"])
        ).correct


def test_the_supporting_documents_tell_the_answer(part: MiniLibrary) -> None:
    texts = {document.id: f"{document.title} {document.text}" for document in part.documents}
    for question in part.questions:
        told = " ".join(texts[document] for document in question.documents)
        assert all(any(name in told for name in names) for names in question.needed), question
        assert 2 <= len(question.documents) <= 20


def test_a_document_is_found_by_its_title(part: MiniLibrary) -> None:
    needed = {document for question in part.questions for document in question.documents}
    titles = {document.id: document.title for document in part.documents}
    found = [name in [one.id for one in part.search.search(titles[name])] for name in needed]
    assert sum(found) >= 0.99 * len(found)


def test_one_search_does_not_tell_it(part: MiniLibrary) -> None:
    """Neither with the question's words nor with the name that it begins from."""
    assert not any(is_answered_at_once(question, part.search) for question in part.questions)
    world = generate_facts(part.split)
    listed = 0
    for question in part.questions:
        results = part.search.search(world.things[question.named[0]].name)
        seen = " ".join(f"{one.title} {one.snippet}" for one in results)
        listed += all(any(name in seen for name in names) for names in question.needed)
    assert listed <= 0.05 * len(part.questions)


def test_somebody_who_knows_what_to_look_for_wins_in_six_steps(part: MiniLibrary) -> None:
    play = SearchEnvironment(lambda _: part.search)
    for question, example in zip(part.questions, part.examples, strict=True):
        play.reset(example)
        steps = [play.step(action) for action in question.walkthrough]
        assert len(steps) <= 6
        assert steps[-1].won
        seen = " ".join(step.observation for step in steps)
        assert all(any(name in seen for name in names) for names in question.needed), question
        assert not any(step.observation == NOT_FOUND for step in steps)


def test_what_the_record_answers_wins_and_the_questions_words_do_not(part: MiniLibrary) -> None:
    play = SearchEnvironment(lambda _: part.search)
    for question, example in zip(part.questions, part.examples, strict=True):
        play.reset(example)
        assert play.step(f"answer[{'; '.join(names[-1] for names in question.items)}]").won
        play.reset(example)
        assert not play.step(f"answer[{question.problem}]").won


def test_guessing_a_number_is_not_worth_much(part: MiniLibrary) -> None:
    numbers = [question.items[0][0] for question in part.questions if question.kind == "count"]
    assert max(map(numbers.count, numbers)) <= len(numbers) / 3 + 1


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
    assert [result.score for result in found.results] == [1.0] * 100
    assert {result.group for result in found.results} == KINDS
    kept = record.read_text().splitlines(keepends=True)
    record.write_text("".join(kept[1:]))
    poorer = ReplayBackend(record)
    assert evaluated(poorer) != live
    assert poorer.missing >= 1
