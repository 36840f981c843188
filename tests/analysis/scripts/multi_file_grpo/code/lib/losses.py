import torch


def group_advantages(scores, group):
    grouped = scores.view(-1, group)
    mean = grouped.mean(1, keepdim=True)
    return ((grouped - mean) / (grouped.std(1, keepdim=True) + 1e-6)).view(-1)


def imitation(logps, mask):
    return -(logps * mask).sum() / mask.sum()


def clipped(logps, before, advantages, mask, eps):
    ratio = torch.exp(logps - before)
    surrogate = torch.minimum(ratio * advantages[:, None], ratio.clip(1 - eps, 1 + eps) * advantages[:, None])
    return -(surrogate * mask).sum() / mask.sum()
