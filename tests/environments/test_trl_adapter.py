"""TRL's own GRPOTrainer plays a world: the pinned version, on CPU, with a tiny model that calls its tools."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils.chat_template_utils import get_json_schema
from trl.chat_template_utils import qwen3_chat_template
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from agent2rl.core.errors import UserError
from agent2rl.environments.adapters import open_world
from agent2rl.environments.adapters.trl import OVER, environment_factory, rows
from agent2rl.environments.alfworld.environment import TOOLS
from tests.helpers.small_worlds import STAIRS_WORLD, write_alfworld_data
from tests.helpers.tiny_models import make_tiny_tokenizer, write_tiny_llama

CALL = '<tool_call>\n{"name": "climb", "arguments": {"how": "HOW"}}\n</tool_call>'
CALLS = [CALL.replace("HOW", how) for how in ("up", "wait")]


def test_a_row_names_its_game_and_the_prompt_ends_where_the_observation_goes() -> None:
    first = rows(STAIRS_WORLD, "Climb.")[0]
    assert first == {"prompt": [{"role": "user", "content": "Climb.\n\n"}], "game": "stairs-1"}


def test_tools_play_and_the_reward_is_the_episodes() -> None:
    player: Any = environment_factory(STAIRS_WORLD)()
    assert player.reset(game="stairs-2", prompt="not for us") == "You stand on step 0. Climb to step 2."
    assert player.climb(how="up") == "You stand on step 1."
    assert player.get_reward() == 0.0
    assert player.climb("up") == "You stand on step 2."
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
    player.reset(game="stairs-1")
    assert player.act(action="up") == "You stand on step 1."


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
    model = LlamaForCausalLM.from_pretrained(write_tiny_llama(tmp_path / "model"))
    model.resize_token_embeddings(len(tokenizer))
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    said = {tokenizer.convert_tokens_to_ids(token) for token in (*CALLS, tokenizer.eos_token)}
    trainer = GRPOTrainer(
        model,
        args=GRPOConfig(
            output_dir=str(tmp_path / "out"),
            max_steps=2,
            per_device_train_batch_size=4,
            num_generations=4,
            max_completion_length=512,
            max_tool_calling_iterations=4,
            generation_kwargs={"suppress_tokens": [one for one in range(len(tokenizer)) if one not in said]},
            learning_rate=1e-2,
            logging_steps=1,
            use_cpu=True,
            bf16=False,
            report_to="none",
            save_strategy="no",
            seed=1,
        ),
        train_dataset=Dataset.from_list(rows(STAIRS_WORLD, "Climb.")[:2]),
        environment_factory=environment_factory(STAIRS_WORLD),
        processing_class=tokenizer,
    )
    before = model.lm_head.weight.clone()
    trainer.train()
    logs = [entry for entry in trainer.state.log_history if "rewards/WorldPlayer/mean" in entry]
    assert len(logs) == 2
    assert all(entry["tools/call_frequency"] > 0 and entry["tools/failure_frequency"] == 0 for entry in logs)
    assert any(0 < entry["rewards/WorldPlayer/mean"] <= 1 for entry in logs)
    assert (model.lm_head.weight != before).any()


def tool_calling_tokenizer() -> PreTrainedTokenizerFast:
    """Whole calls are single tokens, so that a model of random weights makes some."""
    tokenizer = make_tiny_tokenizer(chat_template=False)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    tokenizer.add_tokens(CALLS)
    tokenizer.eos_token = "<|im_end|>"
    tokenizer.chat_template = qwen3_chat_template
    return tokenizer
