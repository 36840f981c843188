"""How the seedling writes a conversation: the same in its text and in its chat template."""

END = "<|end|>"
"""Ends a document, and a turn of the assistant."""
TEMPLATE = (
    "{% for message in messages %}{{ message['role'] + ':\\n' + message['content'] }}"
    "{{ '" + END + "\\n' if message['role'] == 'assistant' else '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant:\\n' }}{% endif %}"
)


def write_conversation(turns: list[tuple[str, str]]) -> str:
    """Questions and answers as one document, without the end of the last answer."""
    return f"{END}\n".join(f"user:\n{asked}\nassistant:\n{said}" for asked, said in turns)
