"""Mirrors of runs in W&B, MLflow, Trackio or a folder.

`jsonl`, `mlflow`, `trackio` and `wandb` are plugins, named as in `--track`. `mirror` builds what they are
sent, and `follow` sends it from a separate process while a run is in progress.
"""
