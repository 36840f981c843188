"""WebShop's actions as functions, for models that call tools.

The docstrings are what a model reads: Google style, as transformers takes them apart.
"""


def search(words: str) -> str:
    """Search the shop. This works on every page.

    Args:
        words: What to look for, such as "red cotton shirt".
    """
    return f"search[{words}]"


def click(name: str) -> str:
    """Click a button, a product or an option that the page shows.

    Args:
        name: What is shown, such as "Next >", "B07FYPSNH8", "large" or "Buy Now".
    """
    return f"click[{name}]"


TOOLS = (search, click)
