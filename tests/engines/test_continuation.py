"""A turn that is encoded by what it adds has the tokens of the whole chat."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerBase

from agent2rl.core.engine import Chat, ChatMessage
from agent2rl.engines.prompts import PromptEncoder
from agent2rl.engines.prompts.continuation import EncodedChat, find_continuation_format
from tests.helpers.tiny_models import make_tiny_tokenizer

TEXTS = st.text(st.sampled_from("ab é\n<|end|>:"), max_size=12)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=6))
@pytest.mark.thorough
def test_a_conversation_has_the_same_tokens_turn_by_turn_and_as_a_whole(turns: list[tuple[str, str]]) -> None:
    encoder = encoder_of(make_tiny_tokenizer())
    chat: Chat = ()
    earlier: EncodedChat | None = None
    for message, reply in turns:
        chat = (*chat, ChatMessage("user", message))
        [earlier] = encoder.continue_chats([chat], [earlier])
        assert earlier.ids == encoder.encode_chats_unbounded([chat])[0]
        chat = (*chat, ChatMessage("assistant", reply))
    encoder.close()


def test_a_template_that_appends_is_rendered_once_and_not_for_every_turn() -> None:
    encoder = encoder_of(make_tiny_tokenizer())
    rendered = count_rendered(encoder)
    chat: Chat = (ChatMessage("user", "Hello"),)
    [earlier] = encoder.continue_chats([chat], [None])
    for _ in range(60):
        chat = (*chat, ChatMessage("assistant", "Yes."), ChatMessage("user", "And?"))
        [earlier] = encoder.continue_chats([chat], [earlier])
    encoder.close()
    assert len(rendered) < 30


@pytest.mark.parametrize(
    "template",
    [
        "{% for m in messages %}{{ loop.length }}{{ m['content'] }}{% endfor %}",  # counts the turns
        "{{ messages[-1]['content'] }}",  # forgets what was before
        "{% for m in messages %}{{ m['content'] | trim }};{% endfor %}",  # changes the text
        "{% for m in messages %}{{ m['role'] + m['content'] }}{% endfor %}{{ 'reply' }}",
        "{{ raise_exception('no') if messages | length > 1 else messages[0]['content'] }}",
    ],
)
def test_a_template_that_does_more_is_rendered_as_a_whole(template: str) -> None:
    tokenizer = make_tiny_tokenizer()
    tokenizer.chat_template = template
    encoder = encoder_of(tokenizer)
    assert find_continuation_format(encoder.render) is None
    encoder.close()


def encoder_of(tokenizer: PreTrainedTokenizerBase) -> PromptEncoder:
    return PromptEncoder(tokenizer, 1 << 20, 1 << 20)


def count_rendered(encoder: PromptEncoder) -> list[Chat]:
    rendered: list[Chat] = []
    render = encoder._continuation._render

    def counted(chats: Sequence[Chat]) -> list[str]:
        rendered.extend(chats)
        return render(chats)

    encoder._continuation._render = counted
    return rendered
