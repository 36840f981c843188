"""The actions of a search as functions, for models that call tools. A model reads their docstrings."""


def search(query: str) -> str:
    """Search for documents. Gives a numbered list of titles, each with the beginning of its text.

    Args:
        query: What to search for, in a few words.
    """
    return f"search[{query}]"


def open_document(which: str) -> str:
    """Read a document that a search has found.

    Args:
        which: Its number in the last list, or its title.
    """
    return f"open[{which}]"


def answer(text: str) -> str:
    """Answer the question. This ends it.

    Args:
        text: The answer alone; several items with semicolons between them.
    """
    return f"answer[{text}]"


TOOLS = (search, open_document, answer)
