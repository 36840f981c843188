# mypy: disable-error-code="no-untyped-def, untyped-decorator, misc"
"""Attention of one new token per row over long caches, for NVIDIA GPUs: many programs share a row's keys.

The flash kernel gives a row's keys of one head to one program, which leaves most of the memory's bandwidth
unused if there are few heads. Here each part of a row's keys has its own program; the parts are then joined
by their log-sum-exp. Triton comes with torch on NVIDIA GPUs, but needs a C compiler and a folder for what it
compiles. Where it does not work, the flash kernel does the work.
"""

import logging
from functools import cache

import torch
from torch import Tensor

try:
    import triton  # type: ignore[import-not-found, unused-ignore]
    import triton.language as tl  # type: ignore[import-not-found, unused-ignore]
except ImportError:
    triton = None

logger = logging.getLogger(__name__)

BLOCK_KEYS = 64
BLOCK_PARTS = 16
MIN_QUERIES = 16
"""The smallest matrix product of the GPU; query heads are padded to it."""
WANTED_PROGRAMS = 2048
"""About so many programs use all of the memory's bandwidth."""


def can_split_keys(query: Tensor, key: Tensor) -> bool:
    """Return whether the kernel can attend with these queries, (heads, rows, size)."""
    size = query.shape[2]
    return (
        key.shape[0] > 1
        and size in (32, 64, 128)
        and key.stride(3) == 1
        and query.shape[0] // key.shape[1] <= MIN_QUERIES
        and is_triton_working()
    )


@cache
def is_triton_working() -> bool:
    """Run the kernels once, on almost nothing."""
    if triton is None:
        return False
    try:
        query, keys = torch.zeros((1, 2, 32), device="cuda"), torch.zeros((2, 1, 64, 32), device="cuda")
        rows = torch.arange(2, device="cuda")
        attend_with_split_keys(query.bfloat16(), keys.bfloat16(), keys.bfloat16(), rows, rows + 1, None)
        torch.cuda.synchronize()
    except Exception as error:
        logger.debug("Triton does not work here: %s", error)
        return False
    return True


def attend_with_split_keys(
    query: Tensor, key: Tensor, value: Tensor, slots: Tensor, used: Tensor, scale: float | None
) -> Tensor:
    """Return (rows, heads, size) for queries of (heads, rows, size), one token per row.

    Row i attends to the first `used[i]` columns of slot `slots[i]`; keys and values are (slots, heads,
    columns, size).
    """
    heads, rows, size = query.shape
    key_heads, columns = key.shape[1], key.shape[2]
    parts = max(1, min(WANTED_PROGRAMS // (rows * key_heads), -(-columns // (4 * BLOCK_KEYS))))
    part_keys = -(-columns // (parts * BLOCK_KEYS)) * BLOCK_KEYS
    outputs = torch.empty((rows, heads, parts, size), dtype=torch.float32, device=query.device)
    sums = torch.empty((rows, heads, parts), dtype=torch.float32, device=query.device)
    _attend_part[rows, key_heads, parts](
        query, key, value, slots, used, outputs, sums,
        size**-0.5 if scale is None else scale, part_keys,
        query.stride(0), query.stride(1),
        key.stride(0), key.stride(1), key.stride(2),
        value.stride(0), value.stride(1), value.stride(2),
        heads, parts, heads // key_heads, size, MIN_QUERIES, BLOCK_KEYS,
    )  # fmt: skip
    joined = torch.empty((rows, heads, size), dtype=query.dtype, device=query.device)
    _join_parts[rows, heads](outputs, sums, joined, heads, parts, size, BLOCK_PARTS)
    return joined


if triton is not None:

    @triton.jit
    def _attend_part(
        query, key, value, slots, used, outputs, sums,
        scale, part_keys,
        query_head, query_row,
        key_slot, key_head, key_column,
        value_slot, value_head, value_column,
        heads, parts,
        shared: tl.constexpr, size: tl.constexpr, padded: tl.constexpr, block: tl.constexpr,
    ) -> None:  # fmt: skip
        row, head, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
        # A slot times its stride may not fit into 32 bits.
        slot = tl.load(slots + row).to(tl.int64)
        length = tl.load(used + row)
        members = tl.arange(0, padded)
        lanes = tl.arange(0, size)
        own = members < shared
        query_heads = head * shared + members
        queries = tl.load(
            query + query_heads[:, None] * query_head + row * query_row + lanes[None, :],
            mask=own[:, None],
            other=0.0,
        )
        first = part * part_keys
        last = tl.minimum(first + part_keys, length)
        # Not minus infinity: the difference of two infinities is NaN.
        highest = tl.full([padded], -1e30, tl.float32)
        total = tl.zeros([padded], tl.float32)
        mixed = tl.zeros([padded, size], tl.float32)
        for start in range(first, last, block):
            columns = start + tl.arange(0, block)
            there = columns < last
            keys = tl.load(
                key + slot * key_slot + head * key_head + columns[None, :] * key_column + lanes[:, None],
                mask=there[None, :],
                other=0.0,
            )
            scores = tl.where(there[None, :], tl.dot(queries, keys) * scale, -1e30)
            # A softmax in one pass: what is summed so far shrinks when a larger score comes.
            peak = tl.maximum(highest, tl.max(scores, 1))
            shrink = tl.exp(highest - peak)
            weights = tl.where(there[None, :], tl.exp(scores - peak[:, None]), 0.0)
            total = total * shrink + tl.sum(weights, 1)
            values = tl.load(
                value
                + slot * value_slot
                + head * value_head
                + columns[:, None] * value_column
                + lanes[None, :],
                mask=there[:, None],
                other=0.0,
            )
            mixed = mixed * shrink[:, None] + tl.dot(weights.to(values.dtype), values)
            highest = peak
        place = (row * heads + query_heads) * parts + part
        tl.store(
            outputs + place[:, None] * size + lanes[None, :],
            mixed / tl.maximum(total, 1e-30)[:, None],
            mask=own[:, None],
        )
        tl.store(sums + place, tl.where(total > 0, highest + tl.log(total), -1e30), mask=own)

    @triton.jit
    def _join_parts(
        outputs, sums, joined, heads, parts, size: tl.constexpr, block: tl.constexpr
    ) -> None:  # fmt: skip
        place = tl.program_id(0) * heads + tl.program_id(1)
        lanes = tl.arange(0, size)
        highest = -1e30
        total = 0.0
        mixed = tl.zeros([size], tl.float32)
        for start in range(0, parts, block):
            numbers = start + tl.arange(0, block)
            there = numbers < parts
            logs = tl.load(sums + place * parts + numbers, mask=there, other=-1e30)
            peak = tl.maximum(highest, tl.max(logs, 0))
            shrink = tl.exp(highest - peak)
            weights = tl.where(there, tl.exp(logs - peak), 0.0)
            values = tl.load(
                outputs + (place * parts + numbers)[:, None] * size + lanes[None, :],
                mask=there[:, None],
                other=0.0,
            )
            total = total * shrink + tl.sum(weights, 0)
            mixed = mixed * shrink + tl.sum(values * weights[:, None], 0)
            highest = peak
        tl.store(joined + place * size + lanes, (mixed / total).to(joined.dtype.element_ty))
