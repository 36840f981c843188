"""TRL's own GRPOTrainer plays a world: the pinned version, on CPU, with a tiny model that calls its tools."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from transformers import AutoTokenizer, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils.chat_template_utils import get_json_schema

from agent2rl.core.errors import UserError
from agent2rl.environments.adapters import open_world
from agent2rl.environments.adapters.openenv import BODY_BYTES, MAX_SESSIONS, application
from agent2rl.environments.adapters.trl import (
    OVER,
    TrlEnvironment,
    environment_factory,
    make_plain_reply_tokenizer,
    rows,
)
from agent2rl.environments.alfworld.environment import TOOLS
from agent2rl.evaluators.episode_prompts import extract_action
from agent2rl.grading.rollout_meter import RolloutMeter
from agent2rl.grading.server import serve_on_socket
from tests.helpers.recorded_meter import open_recorded_meter
from tests.helpers.small_worlds import STAIRS_WORLD, write_alfworld_data
from tests.helpers.tiny_models import make_tiny_tokenizer, write_tiny_llama

if TYPE_CHECKING:  # each test process collects this file, and TRL takes seconds to import
    from trl.trainer.grpo_trainer import GRPOTrainer

CALL = '<tool_call>\n{"name": "climb", "arguments": {"how": "HOW"}}\n</tool_call>'
CALLS = [CALL.replace("HOW", how) for how in ("up", "wait")]


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RolloutMeter]:
    """The stairs, served as in a run."""
    with open_recorded_meter(tmp_path / "record") as recorded:
        app = application(STAIRS_WORLD, "stairs", recorded.meter)
        with serve_on_socket(app, connections=MAX_SESSIONS, message_bytes=BODY_BYTES) as socket:
            monkeypatch.setenv("ENVIRONMENT_URL", f"unix:{socket}")
            yield recorded.meter


def test_a_row_names_its_game_and_the_prompt_ends_where_the_observation_goes() -> None:
    first = rows(STAIRS_WORLD, "Climb.")[0]
    assert first == {"prompt": [{"role": "user", "content": "Climb.\n\n"}], "game": "stairs-1"}


def test_tools_play_and_the_reward_is_the_episodes() -> None:
    player: Any = environment_factory(STAIRS_WORLD)()
    assert player.reset(game="stairs-2", prompt="not for us") == "You stand on step 0. Climb to step 2."
    assert player.climb(how="up") == "You stand on step 1."
    assert player.get_reward() == 0.0
    assert player.climb("up") == f"You stand on step 2.\n{OVER}"
    assert player.get_reward() == 1.0
    assert player.climb(how="up") == OVER
    assert player.get_reward() == 1.0
    player.reset(game="stairs-3")
    assert player.get_reward() == 0.0


def test_rollouts_of_a_group_must_be_told_their_game() -> None:
    with pytest.raises(UserError, match="rows"):
        environment_factory(STAIRS_WORLD)().reset()


def test_a_world_without_tools_takes_any_text() -> None:
    player: Any = environment_factory(replace(STAIRS_WORLD, tools=()))()
    player.reset(game="stairs-2")
    assert player.act(action="up") == "You stand on step 1."


def test_in_a_run_the_episodes_are_played_in_the_served_world(served: RolloutMeter) -> None:
    player: Any = environment_factory(STAIRS_WORLD)()
    assert player.reset(game="stairs-2") == "You stand on step 0. Climb to step 2."
    assert player.climb(how="up") == "You stand on step 1."
    assert player.climb(how="up") == f"You stand on step 2.\n{OVER}"
    assert player.get_reward() == 1.0
    own: Any = environment_factory(STAIRS_WORLD, served=False)()
    own.reset(game="stairs-2")
    assert own.climb(how="up") == "You stand on step 1."
    assert served.sum_totals().served.model_dump() == {"episodes": 1, "steps": 2, "successes": 1}


def test_a_whole_reply_can_be_the_only_tool_call() -> None:
    player: Any = environment_factory(STAIRS_WORLD, extract_action=extract_action)()
    player.reset(game="stairs-2")
    assert player.act(action="I think.\nAction: up") == "You stand on step 1."
    assert not hasattr(player, "climb")


def test_a_model_that_calls_act_reads_what_it_reads_in_grading() -> None:
    from trl.chat_template_utils import supports_tool_calling

    tokenizer = make_tiny_tokenizer()
    plain = make_plain_reply_tokenizer(tokenizer)
    assert supports_tool_calling(plain)
    assert not supports_tool_calling(tokenizer)
    call = {"type": "function", "function": {"name": "act", "arguments": {"action": "take mug 1"}}}
    played = [
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "name": "act", "content": "You have it."},
    ]
    graded = [
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": "take mug 1"},
        {"role": "user", "content": "You have it."},
    ]
    options: dict[str, Any] = {"tokenize": False, "add_generation_prompt": True}
    expected = tokenizer.apply_chat_template(graded, **options)
    assert plain.apply_chat_template(played, **options) == expected


@pytest.mark.parametrize("ending", ["", "</s>"])
def test_each_reply_is_a_call_until_the_episode_is_over(ending: str) -> None:
    from trl.chat_template_utils import parse_response

    plain = make_plain_reply_tokenizer(make_tiny_tokenizer())
    reply = plain.encode(f" take mug 1{ending}")
    before = plain.encode("<|user|>Look.</s><|assistant|>")
    (call,) = parse_response(plain, reply, prefix=before)["tool_calls"]
    assert call["function"] == {"name": "act", "arguments": {"action": "take mug 1"}}
    ended = plain.encode(f"<|user|>You won.\n{OVER}</s><|assistant|>")
    assert "tool_calls" not in parse_response(plain, reply, prefix=ended)


def test_a_tokenizer_without_a_chat_template_cannot_call() -> None:
    with pytest.raises(UserError, match="no chat template"):
        make_plain_reply_tokenizer(make_tiny_tokenizer(chat_template=False))


def test_the_tools_of_alfworld_are_described_and_do_what_they_say(tmp_path: Path) -> None:
    player: Any = environment_factory(open_world(write_alfworld_data(tmp_path / "data", 1)))()
    schemas = [get_json_schema(getattr(player, tool.__name__))["function"] for tool in TOOLS]
    assert [schema["name"] for schema in schemas] == [tool.__name__ for tool in TOOLS]
    assert schemas[3]["parameters"]["required"] == ["thing", "place"]
    seen = player.reset(game=open_world(tmp_path / "data").games[0].id)
    place = seen.split("You see a ", 1)[1].split(",")[0]
    assert place in player.go_to(place=place)


def test_trls_trainer_plays_learns_and_is_rewarded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")  # it warns that it may change; it is pinned here
    tokenizer = tool_calling_tokenizer()
    trainer = make_trainer(tmp_path, tokenizer, CALLS, environment_factory(STAIRS_WORLD))
    model: Any = trainer.model
    before = model.lm_head.weight.clone()
    trainer.train()
    logs = read_logs(trainer)
    assert all(entry["tools/call_frequency"] > 0 and entry["tools/failure_frequency"] == 0 for entry in logs)
    assert any(0 < entry["rewards/WorldPlayer/mean"] <= 1 for entry in logs)
    assert (model.lm_head.weight != before).any()


def test_trls_trainer_plays_in_plain_text_in_the_served_world(
    served: RolloutMeter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    tokenizer = make_tiny_tokenizer()
    tokenizer.add_tokens(["up", "wait"])
    factory = environment_factory(STAIRS_WORLD, extract_action=extract_action)
    plain = make_plain_reply_tokenizer(tokenizer)
    trainer = make_trainer(tmp_path, plain, ["up", "wait"], factory, {"max_new_tokens": 2})
    trainer.train()
    logs = read_logs(trainer)
    assert any(0 < entry["rewards/WorldPlayer/mean"] <= 1 for entry in logs)
    totals = served.sum_totals()
    assert totals.served.episodes == 2 * 4
    assert totals.served.successes == sum(4 * entry["rewards/WorldPlayer/mean"] for entry in logs)
    trainer.processing_class = tokenizer
    trainer.save_model(str(tmp_path / "submission"))
    assert AutoTokenizer.from_pretrained(tmp_path / "submission").chat_template == tokenizer.chat_template


def make_trainer(
    folder: Path,
    tokenizer: PreTrainedTokenizerFast,
    replies: list[str],
    factory: type[TrlEnvironment],
    generation: dict[str, Any] | None = None,
) -> "GRPOTrainer":
    """A trainer of two steps with four episodes each, whose model says nothing but these replies."""
    from datasets import Dataset
    from trl.trainer.grpo_config import GRPOConfig
    from trl.trainer.grpo_trainer import GRPOTrainer

    model = LlamaForCausalLM.from_pretrained(write_tiny_llama(folder / "model"))
    model.resize_token_embeddings(len(tokenizer))
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    said = {tokenizer.convert_tokens_to_ids(token) for token in (*replies, tokenizer.eos_token)}
    suppressed = [one for one in range(len(tokenizer)) if one not in said]
    return GRPOTrainer(
        model,
        args=GRPOConfig(
            output_dir=str(folder / "out"),
            max_steps=2,
            per_device_train_batch_size=4,
            num_generations=4,
            max_completion_length=512,
            max_tool_calling_iterations=8,
            generation_kwargs={"suppress_tokens": suppressed, **(generation or {})},
            learning_rate=1e-2,
            logging_steps=1,
            use_cpu=True,
            bf16=False,
            report_to="none",
            save_strategy="no",
            seed=1,
        ),
        train_dataset=Dataset.from_list(rows(STAIRS_WORLD, "Climb.")[:2]),
        environment_factory=factory,
        processing_class=tokenizer,
    )


def read_logs(trainer: "GRPOTrainer") -> list[dict[str, float]]:
    logs = [entry for entry in trainer.state.log_history if "rewards/WorldPlayer/mean" in entry]
    assert len(logs) == 2
    return logs


def tool_calling_tokenizer() -> PreTrainedTokenizerFast:
    """Whole calls are single tokens, so that a model of random weights makes some."""
    from trl.chat_template_utils import qwen3_chat_template

    tokenizer = make_tiny_tokenizer(chat_template=False)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    tokenizer.add_tokens(CALLS)
    tokenizer.eos_token = "<|im_end|>"
    tokenizer.chat_template = qwen3_chat_template
    return tokenizer
