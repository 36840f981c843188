"""Lets people play a task's training games, with the actions, texts and rewards that a model meets.

    game       one person's game: turns, reward, what can be done, what an expert would do
    terminal   the same as lines of text
    app        the same as web pages; a shop looks like one (`shop_page`)
    server     serves them on this computer alone

It is given a `World` and knows no tasks. It stands apart from `dashboard`, which only reads what runs left,
and beside `run`, whose runs it takes no part in: the command line brings the two together.
"""
