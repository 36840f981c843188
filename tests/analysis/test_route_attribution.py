"""Which training produced a submission: from code that is read and never run, and from what was seen."""

import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent2rl.analysis import attempt_training
from agent2rl.analysis.attempts import AgentSourceFile, AttemptSpan, PrintedText, SavedWeights
from agent2rl.analysis.findings import EvidenceBook, RouteVerdict
from tests.analysis.labelled_scripts import (
    ROUTES_PAGE,
    SCRIPTS,
    load_cases,
    make_span,
    read_sources,
    read_verdicts_before_tuning,
    update_page,
)

SFT = """
from trl import SFTConfig, SFTTrainer
trainer = SFTTrainer(model="{start}", train_dataset=rows, args=SFTConfig(output_dir="{target}"))
trainer.train()
"""
GRPO = """
from trl import GRPOConfig, GRPOTrainer
trainer = GRPOTrainer(model="{start}", reward_funcs=right, args=GRPOConfig(output_dir="{target}"))
trainer.train()
"""
WORLD = """
from agent2rl.environments.adapters.trl import environment_factory
from trl import GRPOConfig, GRPOTrainer
trainer = GRPOTrainer("models/base", args=GRPOConfig("output/w"), environment_factory=environment_factory())
trainer.train()
"""


def sft(target: str = "output/a", start: str = "models/base", path: str = "code/sft.py") -> AgentSourceFile:
    return AgentSourceFile(3, path, SFT.format(start=start, target=target))


def grpo(target: str = "output/b", start: str = "models/base", path: str = "code/grpo.py") -> AgentSourceFile:
    return AgentSourceFile(3, path, GRPO.format(start=start, target=target))


def verdict(span: AttemptSpan, **known: RouteVerdict) -> RouteVerdict:
    paths = {name.replace("_", "/"): one for name, one in known.items()}
    return attempt_training.attribute_route(span, {}, EvidenceBook(), known=paths)


def by(*names: str, confidence: float = 0.9) -> RouteVerdict:
    return RouteVerdict.model_validate({"routes": names, "confidence": confidence})


def test_the_labelled_scripts_are_attributed_as_labelled() -> None:
    wrong = [f"{case.name}: {found}" for case in load_cases() if (found := case.verdict().name) != case.label]
    assert not wrong


def test_there_are_enough_of_them_and_enough_decoys() -> None:
    assert len(load_cases()) >= 48
    assert sum(case.decoy for case in load_cases()) >= 12
    measured = {name for found in read_verdicts_before_tuning().values() for name in found}
    assert measured == {case.name for case in load_cases() if case.half != "tuned"}


def test_the_page_tells_what_is_measured_now() -> None:
    told = ROUTES_PAGE.read_text(encoding="utf-8")
    assert update_page(told) == told, "python -m tests.analysis.labelled_scripts writes it anew"


def test_a_verdict_cites_the_line_and_the_process() -> None:
    book = EvidenceBook()
    found = attempt_training.attribute_route(make_span([sft()], ["python code/sft.py"], "output/a"), {}, book)
    cited = {piece.id: piece for piece in book.pieces}
    assert [(cited[name].where, cited[name].text) for name in found.evidence] == [
        ("revision 3, code/sft.py:4", "trainer.train()"),
        ("process 100", "python code/sft.py"),
    ]


def test_a_copy_is_no_training_whatever_the_code_says() -> None:
    found = verdict(make_span([grpo()], ["python code/grpo.py"], "output/b", lineage="copied"))
    assert (found.routes, found.confidence) == (("none",), 1.0)
    assert found.evidence


def test_the_same_weights_again_came_about_as_before() -> None:
    span = make_span([sft()], ["python code/sft.py"], "output/again", same_as=1)
    assert attempt_training.attribute_route(span, {1: by("online-rl")}, EvidenceBook()).routes == (
        "online-rl",
    )


def test_a_script_that_was_not_run_does_not_count_beside_one_that_was() -> None:
    both = [sft(), grpo()]
    assert verdict(make_span(both, ["python code/grpo.py"], "output/b")).routes == ("policy-gradient",)
    evaluated = [sft(), AgentSourceFile(3, "code/look.py", "print(open('x').read())")]
    assert verdict(make_span(evaluated, ["python code/look.py"], "output/a")).routes == ("unknown",)


def test_without_processes_it_is_less_sure() -> None:
    seen = verdict(make_span([sft()], ["python code/sft.py"], "output/a"))
    unseen = verdict(make_span([sft()], [], "output/a"))
    elsewhere = verdict(make_span([sft()], ["node agent.js"], "output/a"))
    assert seen.routes == unseen.routes == elsewhere.routes == ("sft",)
    assert seen.confidence > unseen.confidence > elsewhere.confidence


def test_of_two_models_each_has_its_own_route() -> None:
    both, commands = [sft(), grpo()], ["python code/sft.py", "python code/grpo.py"]
    assert verdict(make_span(both, commands, "output/a")).routes == ("sft",)
    assert verdict(make_span(both, commands, "/workspace/output/b")).routes == ("policy-gradient",)


def test_what_was_trained_where_nothing_was_submitted() -> None:
    both = [sft(), grpo()]
    assert verdict(make_span(both, ["python code/sft.py", "python code/grpo.py"])).routes == (
        "sft",
        "policy-gradient",
    )
    assert verdict(make_span([], [])).routes == ("none",)


def test_stages_come_in_the_order_in_which_they_ran() -> None:
    span = make_span(
        [grpo("output/rl", "output/sft"), sft("output/sft")],
        ["python code/sft.py", "python code/grpo.py"],
        "output/rl",
    )
    assert verdict(span).routes == ("sft", "policy-gradient")


def test_a_training_goes_on_from_an_earlier_submission() -> None:
    span = make_span([grpo("output/next", "output/first")], ["python code/grpo.py"], "output/next")
    assert verdict(span, output_first=by("sft")).routes == ("sft", "policy-gradient")
    assert verdict(span, output_first=by("policy-gradient")).routes == ("policy-gradient",)
    assert verdict(span, output_first=by("none")).routes == ("policy-gradient",)
    assert verdict(span, output_second=by("sft")).routes == ("policy-gradient",)


def test_where_the_start_is_not_known_the_newest_is_taken_with_less_confidence() -> None:
    text = "import sys\n" + GRPO.format(start="X", target="output/next").replace('"X"', 'f"output/{pick()}"')
    span = make_span([AgentSourceFile(1, "code/go.py", text)], ["python code/go.py"], "output/next")
    alike = verdict(span, output_a=by("sft"), output_b=by("sft"))
    unlike = verdict(span, output_a=by("sft"), output_b=by("rejection"))
    assert alike.routes == ("sft", "policy-gradient")
    assert unlike.routes == ("rejection", "policy-gradient")
    assert unlike.confidence < alike.confidence


def test_weights_that_were_written_before_a_training_began_are_not_its() -> None:
    again = grpo("output/sft", "output/sft")
    commands = ["python code/sft.py", "python code/grpo.py"]
    written = SavedWeights("output/sft", 9.0, 1000)
    span = make_span([sft("output/sft"), again], commands, "output/sft", weights=[written])
    assert verdict(span).routes == ("sft",)
    later = make_span(
        [sft("output/sft"), again], commands, "output/sft", weights=[SavedWeights("output/sft", 18.0, 1)]
    )
    assert verdict(later).routes == ("sft", "policy-gradient")


def test_it_is_online_where_the_world_was_played() -> None:
    played = verdict(
        make_span([AgentSourceFile(1, "code/w.py", WORLD)], ["python code/w.py"], "output/w", rollouts=9)
    )
    silent = verdict(make_span([AgentSourceFile(1, "code/w.py", WORLD)], ["python code/w.py"], "output/w"))
    assert played.routes == ("online-rl",)
    assert silent.routes == ("policy-gradient",)
    assert silent.confidence <= 0.5 < played.confidence
    hidden = verdict(make_span([grpo()], ["python code/grpo.py"], "output/b", rollouts=9))
    assert (hidden.routes, hidden.confidence) == (("online-rl",), 0.7)


def test_an_experts_games_make_it_no_reinforcement() -> None:
    assert verdict(make_span([sft()], ["python code/sft.py"], "output/a", rollouts=200)).routes == ("sft",)


def test_the_recipe_tells_by_its_command_and_its_log() -> None:
    log = "round 1: sft from seedling, 30 s, rate x 1\nround 2: grpo from 1-sft, 60 s, rate x 1\n"
    printed = [PrintedText("agent.log", log, first_line=7)]
    command = ["python -m agent2rl.agents.recipe.train sft grpo"]
    book = EvidenceBook()
    first = attempt_training.attribute_route(
        make_span([], command, "output/1-sft", printed=printed), {}, book
    )
    assert first.routes == ("sft",)
    half = make_span([], command, "output/2-grpo-half", printed=printed)
    assert attempt_training.attribute_route(half, {}, book, known={"output/1-sft": first}).routes == (
        "sft",
        "policy-gradient",
    )
    world = make_span([], command, "output/2-grpo", printed=printed, rollouts=50)
    assert attempt_training.attribute_route(world, {}, book, known={"output/1-sft": first}).routes == (
        "sft",
        "online-rl",
    )
    assert "agent.log:8" in {piece.where for piece in book.pieces}
    later = make_span([], command, "output/2-grpo", rollouts=50)
    known = {
        "output/1-sft": first,
        "output/2-grpo-half": attempt_training.attribute_route(half, {}, book, known={}),
    }
    assert attempt_training.attribute_route(later, {}, book, known=known).routes[-1] == "online-rl"


def test_a_warm_up_that_the_recipe_did_not_submit_is_read_in_its_log() -> None:
    log = (
        "round 1: sft from seedling, 30 s, rate x 1\n"
        "round 2: grpo from 1-sft, 60 s, rate x 1\n"
        "round 3: grpo from 2-grpo-half, 60 s, rate x 1\n"
    )
    printed = [PrintedText("agent.log", log, first_line=7)]
    command = ["python -m agent2rl.agents.recipe.train sft grpo"]
    book = EvidenceBook()
    for path in ("output/2-grpo", "output/3-grpo"):
        span = make_span([], command, path, printed=printed)
        found = attempt_training.attribute_route(span, {}, book)
        assert found.routes == ("sft", "policy-gradient")
        cited = {piece.where for piece in book.pieces if piece.id in found.evidence}
        assert {"process 100", "agent.log:7", "agent.log:8"} <= cited


def test_a_log_whose_rounds_name_each_other_ends() -> None:
    log = "round 1: sft from 2-grpo, 30 s, rate x 1\nround 2: grpo from 1-sft, 60 s, rate x 1\n"
    command = ["python -m agent2rl.agents.recipe.train sft grpo"]
    span = make_span([], command, "output/2-grpo", printed=[PrintedText("agent.log", log, first_line=1)])
    assert verdict(span).routes[-1] == "policy-gradient"


def test_a_long_history_keeps_its_first_and_its_last_stages() -> None:
    span = make_span([sft("output/next", "output/first")], ["python code/sft.py"], "output/next")
    before = by("sft", "policy-gradient", "sft", "policy-gradient", "sft", "policy-gradient")
    assert verdict(span, output_first=before).routes == (*before.routes[:5], "sft")


def test_each_of_the_weights_that_an_attempt_wrote_has_a_route_of_its_own() -> None:
    """An agent may submit its warm-up later, after the model that was trained further."""
    saved = [SavedWeights("output/sft", 9.0, 1), SavedWeights("output/rl", 19.0, 1)]
    span = make_span(
        [sft("output/sft"), grpo("output/rl", "output/sft")],
        ["python code/sft.py", "python code/grpo.py"],
        "output/rl",
        weights=[*saved, SavedWeights("output/by-hand", 19.0, 1)],
    )
    book = EvidenceBook()
    route = attempt_training.attribute_route(span, {}, book)
    weights = attempt_training.attribute_weights(span, route, book)
    assert {path: found.routes for path, found in weights.items()} == {
        "output/sft": ("sft",),
        "output/rl": ("sft", "policy-gradient"),
        "output/by-hand": ("sft", "policy-gradient"),
    }
    later = attempt_training.attribute_route(make_span([], [], "output/sft"), {}, book, known=weights)
    assert later.routes == ("sft",)


@pytest.mark.parametrize(
    ("command", "route"),
    [
        ("trl sft --model_name_or_path models/base --output_dir output/x", "sft"),
        ("/venv/bin/python /venv/bin/trl grpo --output_dir output/x", "policy-gradient"),
        ("python -m trl.scripts.dpo --output_dir output/x", "preference"),
        ("torchrun --nproc_per_node 2 code/grpo.py", "policy-gradient"),
        ("accelerate launch --config_file a.yaml code/sft.py --x 1", "sft"),
        ("nohup python -u code/sft.py", "sft"),
        ("timeout 600 env A=1 python3.11 /workspace/code/grpo.py", "policy-gradient"),
        ("bash -c 'cd /workspace && python code/sft.py > log 2>&1'", "sft"),
        ("tune run lora_dpo_single_device --config x output_dir=output/x", "preference"),
        ("llamafactory-cli train --stage ppo --output_dir output/x", "policy-gradient"),
        ("mergekit-yaml merge.yml output/x", "other"),
        ("python -c 'import torch'", "unknown"),
        ("ls -la output", "unknown"),
    ],
)
def test_command_lines_tell_what_was_started(command: str, route: str) -> None:
    given = [] if "code/" not in command else [sft("output/x"), grpo("output/x")]
    assert verdict(make_span(given, [command], "output/x")).name == route


REJECTION = """
from agent2rl.training import models
from agent2rl.training.{module} import right_answers
from agent2rl.training.sft import SftSettings, sft
model, tokenizer = models.load("models/base")
pairs = right_answers(model, tokenizer, prompts, right, settings)
sft(model, tokenizer, pairs, SftSettings(), progress)
models.save(model, tokenizer, "output/x")
"""
SELF_IMITATION = """
from agent2rl.training import models, sampling
from agent2rl.training.sft import SftSettings, sft
model, tokenizer = models.load("models/base")
answers = sampling.{name}(model, tokenizer).sample(prompts, settings)
pairs = [("", answer.text) for group in answers for answer in group if check(answer.text)]
sft(model, tokenizer, pairs, SftSettings(), progress)
models.save(model, tokenizer, "output/x")
"""
EXPERT_GAMES = """
from agent2rl.training import models
from agent2rl.training.{module} import {name}
from agent2rl.training.sft import SftSettings, imitate
model, tokenizer = models.load("models/base")
rows = [row for game in {name}(model, tokenizer, arena, expert, games) for row in game]
imitate(model, rows, SftSettings(), progress)
models.save(model, tokenizer, "output/x")
"""
FILED_GAMES = """
from agent2rl.training import models
from agent2rl.training.conversations import encode_demonstrations
from agent2rl.training.demonstrations import read_demonstrations
from agent2rl.training.sft import SftSettings, imitate
model, tokenizer = models.load("models/base")
rows = encode_demonstrations(model, tokenizer, prompt, read_demonstrations("data"))
imitate(model, rows, SftSettings(), progress)
models.save(model, tokenizer, "output/x")
"""
PLAYED_GAMES = """
from agent2rl.environments.adapters import play_expert_episodes, rollout
from agent2rl.training import models
from agent2rl.training.conversations import build_chat, encode_conversations
from agent2rl.training.sft import SftSettings, imitate
model, tokenizer = models.load("models/base")
def policy(conversations):
    return [model.generate(conversation.messages()) for conversation in conversations]
chats = [build_chat(tokenizer, prompt, episode.exchanges) for episode in {episodes}]
imitate(model, encode_conversations(model, tokenizer, chats), SftSettings(), progress)
models.save(model, tokenizer, "output/x")
"""


@pytest.mark.parametrize(
    ("text", "route"),
    [
        (REJECTION.format(module="sampling"), "rejection"),
        (REJECTION.format(module="rejection"), "rejection"),
        (SELF_IMITATION.format(name="PolicySampler"), "rejection"),
        (SELF_IMITATION.format(name="Sampler"), "rejection"),
        (EXPERT_GAMES.format(module="rollouts", name="encode_expert_games"), "sft"),
        (EXPERT_GAMES.format(module="rollouts", name="demonstrations"), "sft"),
        (EXPERT_GAMES.format(module="demonstrations", name="demonstrations"), "sft"),
        (FILED_GAMES, "sft"),
        (PLAYED_GAMES.format(episodes="play_expert_episodes(8)"), "sft"),
        (PLAYED_GAMES.format(episodes="[one for one in rollout(policy, 8) if one.won]"), "rejection"),
    ],
)
def test_recipes_are_known_by_their_present_and_former_names(text: str, route: str) -> None:
    span = make_span([AgentSourceFile(1, "code/x.py", text)], ["python code/x.py"], "output/x")
    assert verdict(span).name == route


HOSTILE = {
    "a syntax error": "def f(:\n",
    "deep nesting": "(" * 190 + ")" * 190,
    "a long chain": "x" + ".y" * 3000,
    "a megabyte in a line": "x = '" + "a" * 1_000_000 + "'",
    "a long sum": "x = " + "+".join(["1"] * 20_000),
    "calls that double": "\n".join(
        [
            "def f0(): return [1]",
            *(f"def f{n}(): return f{n - 1}() + f{n - 1}()" for n in range(1, 30)),
            "f29()",
        ]
    ),
    "a list of itself": "x = []\nfor i in y:\n x.append(x)\n for a in x:\n  for b in a:\n   x.append([a, b])",
    "a class of itself": "class A(A): pass\nA().b.c()\n",
    "an import of itself": "import x\nfrom x import *\nx.x.x()\n",
    "endless recursion": "def f(x): return g(f, x)\ndef g(h, x): return h(h(x))\nf(f)\n",
    "huge numbers": "x = 10\n" + "x = x ** x\n" * 50 + "z = 'a' * 10 ** 9\nz = [0] * 10 ** 9\n",
    "a nul": "\0x = 1",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_code_is_read_as_far_as_it_goes(text: str) -> None:
    both = [AgentSourceFile(1, "code/x.py", text), sft()]
    assert verdict(make_span(both[:1], ["python code/x.py"], "output/x")).routes == ("unknown",)
    commands = ["python code/x.py", "python code/sft.py"]
    assert verdict(make_span(both, commands, "output/a")).routes == ("sft",)


def test_a_shell_script_that_starts_itself_ends() -> None:
    text = "for i in 1 2 3 4 5 6 7 8; do\n bash code/x.sh $i\n python code/sft.py\ndone\n" * 20
    both = [AgentSourceFile(1, "code/x.sh", text), sft()]
    assert verdict(make_span(both, ["bash code/x.sh"], "output/a")).routes == ("sft",)


SUFFIXES = st.sampled_from([".py", ".sh", ".ipynb", ".yaml", ".json", ".toml"])
STARTERS = {".py": "python", ".sh": "bash", ".ipynb": "papermill"}


@st.composite
def shuffled_code(draw: st.DrawFn) -> str:
    """Lines of real programs, in no order that makes sense."""
    texts = [source.text for case in load_cases()[:20] for source in read_sources(SCRIPTS / case.name)]
    lines = draw(st.sampled_from(texts)).splitlines(keepends=True)
    dice = random.Random(draw(st.integers(0, 2**32)))
    cut = sorted(dice.sample(range(len(lines) + 1), k=min(4, len(lines) + 1)))
    parts = [lines[a:b] for a, b in pairwise([0, *cut, len(lines)])]
    dice.shuffle(parts)
    return "".join(line for part in parts for line in part)


@settings(max_examples=40, deadline=None)
@given(text=st.one_of(st.text(max_size=300), shuffled_code()), suffix=SUFFIXES, command=st.text(max_size=60))
def test_any_text_is_read_without_an_error_and_twice_alike(text: str, suffix: str, command: str) -> None:
    path = f"code/x{suffix}"
    starting = f"{STARTERS.get(suffix, 'llamafactory-cli train')} {path}"
    span = make_span([AgentSourceFile(1, path, text)], [starting, command], "output/x")
    books = EvidenceBook(), EvidenceBook()
    found = [
        (attempt_training.attribute_route(span, {}, book), attempt_training.find_settings(span, book))
        for book in books
    ]
    assert found[0] == found[1]
    assert books[0].pieces == books[1].pieces
