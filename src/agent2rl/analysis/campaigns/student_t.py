"""Student's distribution, by integration, for what samples of few runs can say. Good to about ten places."""

import math
from functools import lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

NODES = 200


@lru_cache(maxsize=1)
def _quadrature_nodes() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    return np.polynomial.legendre.leggauss(NODES)


@lru_cache(maxsize=4096)
def student_upper_tail(t: float, freedom: float) -> float:
    """How likely a value above `t` is. `freedom` is at least 1, and need not be whole."""
    if t < 0:
        return 1.0 - student_upper_tail(-t, freedom)
    # With t = sqrt(freedom) * tan(angle) the density becomes a power of the cosine, over a finite range.
    low = math.atan(t / math.sqrt(freedom))
    half = (math.pi / 2 - low) / 2
    nodes, weights = _quadrature_nodes()
    angles = low + half * (nodes + 1)
    area = half * float(np.sum(weights * np.exp((freedom - 1) * np.log(np.cos(angles)))))
    whole = math.log(math.pi) / 2 + math.lgamma(freedom / 2) - math.lgamma((freedom + 1) / 2)
    return area / math.exp(whole)


@lru_cache(maxsize=4096)
def student_upper_quantile(above: float, freedom: float) -> float:
    """The value that is exceeded with a chance of `above`, which is below one half.

    Newton's method from the normal quantile, which lies below: the tail is convex, so no step goes too far.
    """
    t = -NormalDist().inv_cdf(above)
    for _ in range(200):
        step = (student_upper_tail(t, freedom) - above) / _student_density(t, freedom)
        t += step
        if abs(step) <= 1e-12 * t:
            break
    return t


def _student_density(t: float, freedom: float) -> float:
    scale = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - math.log(freedom * math.pi) / 2
    return math.exp(scale - (freedom + 1) / 2 * math.log1p(t * t / freedom))
