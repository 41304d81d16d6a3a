"""Several contenders on one scenario: each is scheduled by the production core, in this process or side by side."""

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from multiprocessing.queues import Queue
from threading import Thread

from replay.contender import Contender, under
from replay.engine.models import Models
from replay.engine.run import Progress, run
from replay.outcome import Outcome
from replay.scenario import Scenario

Told = Callable[[str, Progress], None]
"""Told how far a contender is, by its name."""
SAMPLES_MAX = 200_000
"""Nearly six years at one each 15 minutes; each takes its time and memory."""
_Ask = tuple[Scenario, str, Models, int]
_told: "Queue[tuple[str, Progress] | None] | None" = None


def compare(
    scenario: Scenario,
    contenders: Sequence[Contender],
    *,
    models: Models,
    sample_s: int = 900,
    jobs: int = 1,
    told: Told | None = None,
) -> list[Outcome]:
    """What each comes to, in their order: the same whatever `jobs`, the number of processes that work at once.

    ValueError: a contender cannot be set up on the scenario, and why; or it would be sampled too often.
    """
    _check_length(scenario, sample_s)
    asks = [(under(scenario, each), each.name, models, sample_s) for each in contenders]
    if jobs <= 1 or len(asks) == 1:
        return [_one(ask, told) for ask in asks]
    return _side_by_side(asks, min(jobs, len(asks)), told)


def _check_length(scenario: Scenario, sample_s: int) -> None:
    """One job with a wrong date makes a scenario of decades, of which there is nothing to see but idle samples."""
    samples = scenario.least_s // sample_s
    if samples > SAMPLES_MAX:
        last = max(scenario.arrivals, key=lambda each: each.at + each.work.run_s * 1000)
        raise ValueError(
            f"sample: {sample_s} s: job {last.job_id} ends after {scenario.least_s // 86_400} days, which makes"
            f" {samples} samples, and at most {SAMPLES_MAX} can be: leave it out by a window, or sample less often"
        )


def _one(ask: _Ask, told: Told | None) -> Outcome:
    scenario, name, models, sample_s = ask
    progress = None if told is None else lambda how_far: told(name, how_far)
    return run(scenario, name, models=models, sample_s=sample_s, progress=progress)


def _side_by_side(asks: Sequence[_Ask], jobs: int, told: Told | None) -> list[Outcome]:
    """Processes of their own; what they tell comes through a queue."""
    context = get_context("spawn")
    queue: Queue[tuple[str, Progress] | None] = context.Queue()
    listener = Thread(target=_listen, args=(queue, told), daemon=True)
    listener.start()
    try:
        with ProcessPoolExecutor(jobs, mp_context=context, initializer=_begin, initargs=(queue,)) as pool:
            return list(pool.map(_in_process, asks))
    finally:
        queue.put(None)
        listener.join()


def _listen(queue: "Queue[tuple[str, Progress] | None]", told: Told | None) -> None:
    while (said := queue.get()) is not None:
        if told is not None:
            told(*said)


def _begin(queue: "Queue[tuple[str, Progress] | None]") -> None:
    """In each process, once."""
    global _told
    _told = queue


def _in_process(ask: _Ask) -> Outcome:
    queue = _told
    assert queue is not None
    return _one(ask, lambda name, how_far: queue.put((name, how_far)))
