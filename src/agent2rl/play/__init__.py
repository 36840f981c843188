"""Play a task's training games as a person, with the same actions, texts and rewards as a model.

    game       a game: turns, reward, possible actions, the expert's advice
    terminal   the game in a terminal
    web_app    the game as web pages, served on this computer only; a webshop looks like one

This package gets a `World` and knows no tasks. It is independent of `dashboard` (which only reads run
directories) and takes no part in runs; the command line connects it to `run`.
"""
