"""Which GPUs of a node a rank gets: islands (NVLink, NUMA) that are partly used already first (R-32)."""

from events.node import GpuSlot

_REMEMBERED_MAX = 1 << 14


class Islands:
    """The islands of one kind of node, with the choices made so far: equal questions have equal answers."""

    __slots__ = ("_choices", "_masks", "_runs")

    def __init__(self, gpus: tuple[GpuSlot, ...]) -> None:
        masks: dict[int, int] = {}
        for slot, gpu in enumerate(gpus):
            masks[gpu.island] = masks.get(gpu.island, 0) | 1 << slot
        self._masks = tuple(masks[island] for island in sorted(masks))
        self._choices: dict[int, int] = {}
        self._runs: dict[tuple[int, int, int], tuple[int, ...]] = {}

    def pick(self, free: int, count: int) -> int:
        """Mask of `count` of the free GPUs. Of one island where one holds them all, the one with the fewest free;
        else of as few islands as it takes."""
        key = free << 6 | count
        chosen = self._choices.get(key)
        if chosen is None:
            if len(self._choices) >= _REMEMBERED_MAX:
                self._choices.clear()
            chosen = self._choices[key] = self._choose(free, count)
        return chosen

    def pick_many(self, free: int, count: int, times: int) -> tuple[int, ...]:
        """The same, so many times one after the other."""
        key = (free, count, times)
        chosen = self._runs.get(key)
        if chosen is None:
            masks = []
            for _ in range(times):
                masks.append(self.pick(free, count))
                free ^= masks[-1]
            if len(self._runs) >= _REMEMBERED_MAX:
                self._runs.clear()
            chosen = self._runs[key] = tuple(masks)
        return chosen

    def _choose(self, free: int, count: int) -> int:
        left = [mask & free for mask in self._masks if mask & free]
        chosen = 0
        while count:
            holding = [bits for bits in left if bits.bit_count() >= count]
            island = min(holding, key=int.bit_count) if holding else max(left, key=int.bit_count)
            left.remove(island)
            part = lowest(island, count)
            chosen |= part
            count -= part.bit_count()
        return chosen


def lowest(bits: int, count: int) -> int:
    """The `count` lowest bits that are set; all of them where there are fewer."""
    rest = bits
    while rest and count:
        rest &= rest - 1
        count -= 1
    return bits ^ rest
