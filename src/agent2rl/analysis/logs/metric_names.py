"""The names under which trainings print how they go, brought to one each."""

import re
from functools import lru_cache

PARTS = re.compile(r"[/_.]+")
ALIASES = {
    "loss": "loss",
    "losses": "loss",
    "total_loss": "loss",
    "lm_loss": "loss",
    "sft_loss": "loss",
    "ce_loss": "loss",
    "nll_loss": "loss",
    "nll": "loss",
    "policy_loss": "policy_loss",
    "pg_loss": "policy_loss",
    "actor_loss": "policy_loss",
    "value_loss": "value_loss",
    "vf_loss": "value_loss",
    "critic_loss": "value_loss",
    "reward": "reward",
    "rewards": "reward",
    "return": "reward",
    "returns": "reward",
    "reward_std": "reward_std",
    "rewards_std": "reward_std",
    "reward_stdev": "reward_std",
    "std_reward": "reward_std",
    "score": "score",
    "scores": "score",
    "success": "success_rate",
    "success_rate": "success_rate",
    "successes": "success_rate",
    "win_rate": "success_rate",
    "solve_rate": "success_rate",
    "solved": "success_rate",
    "pass_rate": "success_rate",
    "acc": "accuracy",
    "accuracy": "accuracy",
    "accuracies": "accuracy",
    "token_accuracy": "accuracy",
    "kl": "kl",
    "kl_div": "kl",
    "kl_divergence": "kl",
    "approx_kl": "kl",
    "ppo_kl": "kl",
    "kl_loss": "kl",
    "entropy": "entropy",
    "policy_entropy": "entropy",
    "entropy_loss": "entropy",
    "grad_norm": "grad_norm",
    "gradient_norm": "grad_norm",
    "gnorm": "grad_norm",
    "lr": "learning_rate",
    "learning_rate": "learning_rate",
    "ppl": "perplexity",
    "perplexity": "perplexity",
    "adv": "advantage",
    "advantage": "advantage",
    "advantages": "advantage",
    "margin": "margin",
    "margins": "margin",
    "clip_ratio": "clip_ratio",
    "clipfrac": "clip_ratio",
    "clip_frac": "clip_ratio",
    "pg_clipfrac": "clip_ratio",
    "completion_length": "length",
    "completions_length": "length",
    "response_length": "length",
}
ORDER = tuple(dict.fromkeys(ALIASES.values()))
"""The best known first."""
FIRST = ("loss", "reward", "score", "success_rate", "accuracy", "kl", "entropy", "grad_norm", "learning_rate")
EVALUATED = {"eval", "evaluation", "val", "valid", "validation", "test", "dev"}
FILLER_WORDS = {
    *(
        "train",
        "training",
        "mean",
        "avg",
        "average",
        "actor",
        "critic",
        "batch",
        "running",
        "ema",
        "smoothed",
    ),
    *("objective", "episode", "episodic", "ep", "rollout", "rollouts", "current", "cur", "step", "epoch"),
    *("rank0", "the", "now", "last", "global"),
}
"""Words that say nothing of what is measured."""
TELLING = {
    *("loss", "reward", "rewards", "kl", "entropy", "acc", "accuracy", "accuracies", "ppl", "adv"),
    *("advantage", "advantages", "success", "return", "margin", "margins", "score", "logps", "clipfrac"),
}
STEPS = {
    *("step", "steps", "global_step", "training_step", "train_step", "optimizer_step", "_step", "it"),
    *("training/global_step", "train/global_step", "iter", "iteration", "update", "updates", "n_updates"),
    *("batch", "episode", "round", "total_timesteps"),
}
SHORTER = 3
"""Words of a name, at most."""


@lru_cache(4096)
def canonical_metric(name: str) -> str | None:
    """What a name stands for; itself where it only sounds like a measure, None where it does not."""
    name = name.lower().strip("_/.")
    if name in ALIASES:
        return ALIASES[name]
    parts = [part for part in PARTS.split(name) if part]
    evaluated = any(part in EVALUATED for part in parts[:-1])
    bare = "_".join(part for part in parts if part not in FILLER_WORDS and part not in EVALUATED)
    if bare in ALIASES:
        return f"eval_{ALIASES[bare]}" if evaluated else ALIASES[bare]
    return name if TELLING.intersection(parts) else None


@lru_cache(4096)
def match_metric(words: tuple[str, ...]) -> str | None:
    """What the words before a number name: the longest name that they end in. One word must stand alone or
    be well known, as in `mean reward`, so that prose is not read."""
    for count in range(min(SHORTER, len(words)), 0, -1):
        name = "_".join(words[-count:])
        if count == 1 or name.lower() in ALIASES or _strip_filler_words(words[-count:]) in ALIASES:
            return canonical_metric(name)
    return None


def _strip_filler_words(words: tuple[str, ...]) -> str:
    return "_".join(word for word in (one.lower() for one in words) if word not in FILLER_WORDS | EVALUATED)


def rank_metric(name: str) -> int:
    """Smaller is better known."""
    plain = name.removeprefix("eval_")
    place = FIRST.index(plain) if plain in FIRST else len(FIRST) + (plain not in ORDER)
    return 2 * place + (plain != name)
