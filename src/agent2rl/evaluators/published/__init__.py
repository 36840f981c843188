"""Run published task folders: the contract's names, the folder formats, and the evaluator that calls them.

The folders' code is the user's. It runs in sandboxes only: `download.py` writes the training data, and
`model_evaluator.py` and `answer_scorer.py` score in the grading child. `folder_files.py` reads folders on the
host, without running anything in them.
"""
