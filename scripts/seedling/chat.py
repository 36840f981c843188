"""How the seedling writes a conversation: the same in its text and in its chat template.

A message costs one token beside its text. On two CPU cores every token of an episode counts.
"""

END = "<|end|>"
"""Ends a document, and a turn of the assistant."""
REPLY = "<|reply|>"
"""Begins a turn of the assistant."""
TEMPLATE = (
    "{% for message in messages %}{% if message['role'] == 'assistant' %}"
    "{{ '" + REPLY + "' + message['content'] + '" + END + "' }}"
    "{% else %}{% if not loop.first and loop.previtem['role'] != 'assistant' %}{{ '\\n' }}{% endif %}"
    "{{ message['content'] }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '" + REPLY + "' }}{% endif %}"
)


def write_conversation(turns: list[tuple[str, str]]) -> str:
    """Questions and answers as one document, without the end of the last answer."""
    return END.join(f"{asked}{REPLY}{said}" for asked, said in turns)
