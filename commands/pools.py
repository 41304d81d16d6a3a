"""Pools: nodes that are set apart for some jobs, and lent to others (R-34, R-37). Who may use a node at all.

`latency`: for prod-serving and interactive jobs, so that a training backlog never delays them; lent to class
preemptible, which any of them may displace. `whole`: whole machines for the largest jobs, lent to those
that are soon over.
"""

from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from functools import cached_property
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from commands.entities import Node
from events.job import JobSpec, PriorityClass

Seconds = Annotated[int, Field(ge=0, le=366 * 86400)]
Names = tuple[Annotated[str, Field(min_length=1, max_length=128)], ...]


class PoolKind(StrEnum):
    LATENCY = "latency"
    WHOLE = "whole"


class PoolRule(BaseModel):
    """One pool: the nodes named, and those of the blocks named."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]
    kind: PoolKind
    nodes: Names = ()
    blocks: Names = ()
    lend: bool = True
    """Are idle GPUs lent to jobs that it is not for?"""
    gpus_min: Annotated[int, Field(ge=1, le=1_000_000)] = 512
    """`whole`: it is for jobs of so many GPUs or more."""
    lend_runtime_max_s: Seconds = 3600
    """`whole`: lent to jobs that run no longer."""

    @cached_property
    def node_names(self) -> frozenset[str]:
        """To look a node up: each submission asks for every node, and a pool may name thousands."""
        return frozenset(self.nodes)

    @cached_property
    def block_names(self) -> frozenset[str]:
        return frozenset(self.blocks)

    def is_for(self, spec: JobSpec, priority_class: PriorityClass) -> bool:
        """Is the job one of those that the pool is for?"""
        if self.kind is PoolKind.LATENCY:
            return priority_class is PriorityClass.PROD_SERVING or spec.interactive
        return spec.gpus >= self.gpus_min

    def lends_to(self, spec: JobSpec, priority_class: PriorityClass) -> bool:
        """May the job have its idle GPUs although it is for others?"""
        if not self.lend:
            return False
        if self.kind is PoolKind.LATENCY:
            return priority_class is PriorityClass.PREEMPTIBLE and spec.checkpoint.preemptible
        return spec.max_runtime_s is not None and spec.max_runtime_s <= self.lend_runtime_max_s

    def open_to(self, spec: JobSpec, priority_class: PriorityClass) -> bool:
        """May the job run there at all?"""
        return self.is_for(spec, priority_class) or self.lends_to(spec, priority_class)


def _distinct(pools: tuple[PoolRule, ...]) -> tuple[PoolRule, ...]:
    """Names are unique, and no node or block is named twice."""
    for what, names in (
        ("pool", [pool.name for pool in pools]),
        ("node", [name for pool in pools for name in pool.nodes]),
        ("block", [name for pool in pools for name in pool.blocks]),
    ):
        if twice := sorted(name for name, count in Counter(names).items() if count > 1):
            raise ValueError(f"{what} {twice[0]} is named twice")
    if empty := [pool.name for pool in pools if not pool.nodes and not pool.blocks]:
        raise ValueError(f"pool {empty[0]} names no node and no block")
    return pools


Pools = Annotated[tuple[PoolRule, ...], Field(max_length=100), AfterValidator(_distinct)]


def pool_of(pools: Sequence[PoolRule], node: Node) -> PoolRule | None:
    """The pool that a node is in: one that names the node before one that names its block."""
    for pool in pools:
        if node.id in pool.node_names:
            return pool
    for pool in pools:
        if node.block in pool.block_names:
            return pool
    return None


def closed(pools: Sequence[PoolRule], node: Node, spec: JobSpec, priority_class: PriorityClass) -> bool:
    """Is the node set apart from such a job?"""
    pool = pool_of(pools, node)
    return pool is not None and not pool.open_to(spec, priority_class)
