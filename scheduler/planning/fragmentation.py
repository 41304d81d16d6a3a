"""How much of what is free no job of a given size could use (R-36): GPUs stranded for each size.

For a size of s GPUs, pool by pool of equal nodes: as many jobs of that size as fit are laid on what is free, and what
is left over is stranded.

- below a node's worth (a rank stays on its node): the sum over nodes of  free mod s;
- m whole nodes (s = m x node): the free GPUs minus  s x the sum over blocks of  whole free nodes // m:
  a gang of up to a block's size is reckoned inside one block, where it runs best.

After FGD (Weng et al., USENIX ATC 2023), with the sizes in place of its typical workload.
"""

from dataclasses import dataclass

from events.ids import GpuType
from scheduler.planning.capacity import Capacity
from scheduler.planning.pool import Pool


@dataclass(frozen=True, slots=True, kw_only=True)
class Stranded:
    """Of `free` GPUs on nodes of `node_gpus`, `stranded` are of no use to jobs of `size` GPUs."""

    gpu_type: GpuType
    node_gpus: int
    size: int
    free: int
    stranded: int


def stranded(capacity: Capacity) -> list[Stranded]:
    """For each type and size of node, and jobs of 1, 2, 4 .. GPUs up to a node, then of 1, 2, 4 .. nodes up to the
    largest block."""
    return [
        Stranded(gpu_type=gpu_type, node_gpus=node_gpus, size=size, free=pool.free_gpus, stranded=_left(pool, size))
        for (gpu_type, node_gpus), pool in sorted(capacity.pools.items(), key=lambda item: item[0])
        for size in _sizes(pool)
    ]


def _sizes(pool: Pool) -> list[int]:
    largest = max((block.mask.bit_count() for block in pool.blocks), default=0)
    parts = [1 << power for power in range(pool.node_gpus.bit_length()) if 1 << power < pool.node_gpus]
    return parts + [pool.node_gpus << power for power in range(largest.bit_length())]


def _left(pool: Pool, size: int) -> int:
    if size < pool.node_gpus:
        return sum(free % size * nodes.bit_count() for free, nodes in enumerate(pool.nodes))
    together = size // pool.node_gpus
    return pool.free_gpus - size * sum(block.count[pool.node_gpus] // together for block in pool.blocks)
