"""Conversations as training sequences: the same tokens, whoever played."""

from pathlib import Path

import pytest

from agent2rl.core.engine import ChatMessage, Sampling
from agent2rl.core.errors import UserError
from agent2rl.environments.adapters import play_expert_episodes
from agent2rl.evaluators.episode_prompts import extract_action
from agent2rl.training import models
from agent2rl.training.conversations import build_chat, encode_conversations
from agent2rl.training.progress import TrainingProgress
from agent2rl.training.rollouts import WorldSetup, encode_expert_games
from agent2rl.training.sft import SftSettings, imitate
from tests.helpers.small_worlds import STAIRS_WORLD
from tests.helpers.stairs_environment import STAIRS_EXAMPLES, STAIRS_PROMPT, StairsEnvironment, StairsExpert
from tests.helpers.tiny_models import write_tiny_llama

GAMES = STAIRS_EXAMPLES[:4]


@pytest.fixture(scope="module", params=["templated", "plain"])
def base(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(
        tmp_path_factory.mktemp(request.param), chat_template=request.param == "templated"
    )


def test_played_episodes_become_the_rows_that_the_experts_own_games_become(base: Path) -> None:
    model, tokenizer = models.load(base)
    episodes = play_expert_episodes(4, world=STAIRS_WORLD, games=[game.id for game in GAMES])
    chats = [build_chat(tokenizer, STAIRS_PROMPT, episode.exchanges) for episode in episodes]
    rows = encode_conversations(model, tokenizer, chats)
    setup = WorldSetup(StairsEnvironment, STAIRS_PROMPT, extract_action, Sampling(max_tokens=8))
    shown = encode_expert_games(model, tokenizer, setup, StairsExpert, GAMES)
    assert rows == [row for sequences in shown for row in sequences]
    assert imitate(model, rows, SftSettings(epochs=1), TrainingProgress("sft")).steps == 1


def test_any_chat_is_encoded_and_only_the_assistant_is_learnt(base: Path) -> None:
    model, tokenizer = models.load(base)
    chat = [
        ChatMessage("system", "Climb."),
        ChatMessage("user", "You stand."),
        ChatMessage("assistant", "up"),
    ]
    (row,) = encode_conversations(model, tokenizer, [chat])
    assert row.tokens == [*tokenizer.encode("up", add_special_tokens=False), tokenizer.eos_token_id]
    assert all(row.generated)
    with pytest.raises(UserError, match="no assistant message"):
        encode_conversations(model, tokenizer, [chat, chat[:2]])


def test_plain_text_is_encoded_although_there_is_a_template(base: Path) -> None:
    model, tokenizer = models.load(base)
    chat = [ChatMessage("user", "You stand.\n>"), ChatMessage("assistant", " up")]
    (row,) = encode_conversations(model, tokenizer, [chat], plain=True)
    assert list(row.prompt) == tokenizer.encode("You stand.\n>")
    setup = WorldSetup(StairsEnvironment, STAIRS_PROMPT, extract_action, Sampling(max_tokens=8, plain=True))
    (first, *_) = next(iter(encode_expert_games(model, tokenizer, setup, StairsExpert, GAMES)))
    assert "<|user|>" not in tokenizer.decode(list(first.prompt))


def test_long_work_shows_its_progress(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, tokenizer = models.load(base)
    chat = (ChatMessage("user", "You stand."), ChatMessage("assistant", "up"))
    encode_conversations(model, tokenizer, [chat] * 40, report_seconds=0)
    assert capsys.readouterr().out.splitlines() == [
        "encoded 32 of 40 conversations: 32 training sequences",
        "encoded 40 of 40 conversations: 40 training sequences",
    ]
