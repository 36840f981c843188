"""An expert's games as rows to imitate: the tokens that the model would read in grading, and what it should
say to them.

Only games that the expert wins are shown. One that outgrows the model's context is shown as far as it fits.
Not covered: games in which the expert is wrong at first, or takes over from the model.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import cast

from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from agent2rl.core.engine import Chat, ChatMessage
from agent2rl.core.environment import Environment, ExpertPolicy
from agent2rl.core.errors import UserError
from agent2rl.core.task import Example
from agent2rl.engines.prompts import PromptEncoder
from agent2rl.training.arena import Arena
from agent2rl.training.sequences import TrainingSequence, build_sequences


def demonstrations(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    arena: Arena,
    expert: Callable[[], ExpertPolicy],
    games: Sequence[Example],
) -> Iterator[tuple[TrainingSequence, ...]]:
    """What is said in each game that the expert wins, as the games are played."""
    context = getattr(model.config.get_text_config(), "max_position_embeddings", None) or 1 << 30
    known = cast(Tensor, model.get_input_embeddings().weight).shape[0]
    reader = PromptEncoder(tokenizer, known, context)
    place = arena.world()
    try:
        for game in games:
            if chat := _play_expert_game(place, expert(), game, arena, reader.templated):
                yield _encode_game(reader, chat, _require_end_token(tokenizer))
    finally:
        place.close()
        reader.close()


def _play_expert_game(
    place: Environment, expert: ExpertPolicy, game: Example, arena: Arena, as_chat: bool
) -> Chat:
    """The conversation of a game that is won, from the first observation to the last action; else none."""
    step = place.reset(game)
    chat: Chat = ()
    won: Chat = ()
    told = arena.telling.build_first_message(step.observation, as_chat, arena.kind(game))
    while not step.done:
        action = expert.act(step.observation)
        chat = (*chat, *told, ChatMessage("assistant", action))
        step = place.step(action)
        told = arena.telling.build_next_message(step.observation, as_chat)
        if step.won:
            won = chat
    return won


def _encode_game(reader: PromptEncoder, chat: Chat, end: int) -> tuple[TrainingSequence, ...]:
    replies = [place for place, message in enumerate(chat) if message.role == "assistant"]
    read = reader.encode_chats_unbounded([chat[:place] for place in replies])
    said = [[*reader.encode_text(chat[place].content), end] for place in replies]
    turns = zip(read, said, strict=True)
    return build_sequences(
        (before, reply) for before, reply in turns if len(before) + len(reply) <= reader.context
    )


def _require_end_token(tokenizer: PreTrainedTokenizerBase) -> int:
    if tokenizer.eos_token_id is None:
        raise UserError("The tokenizer has no end-of-sequence token.", "Set tokenizer.eos_token.")
    return int(tokenizer.eos_token_id)
