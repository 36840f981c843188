"""Mirrors of runs in W&B, MLflow, Trackio or a folder.

`jsonl`, `mlflow`, `trackio` and `wandb` are plugins, named as `--track` names them. `mirror` says what they
are sent, and `follow` sends it in a process of its own while a run goes on.
"""
