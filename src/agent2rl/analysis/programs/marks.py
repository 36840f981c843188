"""Marks on values: where they come from, as far as it matters for the route of a training."""

DATA = "data"  # read from a file or a data set
TOKENS = "tokens"  # sampled from a model, as tokens or choices
SAID = "said"  # sampled from a model, as text
TEACHER = "teacher"  # written by another model
EXPERT = "expert"  # shown by the environment's expert
WORLD = "world"  # returned by the task's environment
JUDGED = "judged"  # a number or a decision about a sample: a reward, an advantage, a check
FILTERED = "filtered"  # samples that a check selected
CHOSEN = "chosen"  # the better of a pair
REJECTED = "rejected"
FORWARD = "forward"  # output of a forward pass
LOGITS = "logits"
PROBS = "probs"
LOGPROB = "logprob"
PICKED = "picked"  # selected for certain tokens
NLL = "nll"  # cross entropy
CRITIC = "critic"  # from a model that only scores
WEIGHTED = "weighted"  # log-probabilities weighted by a judgement
PAIRWISE = "pairwise"  # log-probabilities compared with each other
KL = "kl"
WEIGHTS = "weights"
BLENDED = "blended"  # weights mixed with other weights or with noise
NOISE = "noise"
MODEL = "model:"
"""Prefix of the mark of one model."""

Marks = frozenset[str]
NONE: Marks = frozenset()
OWN = frozenset({TOKENS, SAID})
SCORES = frozenset({LOGPROB, NLL})


def select_models(marks: Marks) -> Marks:
    return frozenset(mark for mark in marks if mark.startswith(MODEL))


def is_weighted(left: Marks, right: Marks) -> bool:
    """Whether a judgement weights log-probabilities. A number computed from sampled text is a judgement."""
    return _is_weighted_by(left, right) or _is_weighted_by(right, left)


def _is_weighted_by(judgement: Marks, score: Marks) -> bool:
    if JUDGED in judgement:
        return bool(score & (SCORES | {PROBS})) or (WEIGHTS in score and NOISE not in score)
    return SAID in judgement and not judgement & SCORES and bool(score & SCORES)


def is_blended(left: Marks, right: Marks) -> bool:
    """Whether weights are mixed with other weights or with noise."""
    if (left | right) & {DATA, SAID}:
        return False
    if (WEIGHTS in left and NOISE in right) or (WEIGHTS in right and NOISE in left):
        return True
    ours, theirs = select_models(left), select_models(right)
    return WEIGHTS in left and WEIGHTS in right and bool(ours and theirs) and ours != theirs
