"""What each figure of the page means, in a sentence or two: the page carries its own definitions. docs/replay-report.md
has them in full."""

MEANINGS = (
    (
        "Wait",
        "Time in the queue over all attempts of a job, without holds, dependencies and backoff. Jobs that never "
        "started count with what they had waited by then; refused and rejected ones do not count.",
    ),
    ("First start", "The first grant of GPUs. Up to it: the wait of the first attempt alone."),
    (
        "Percentiles",
        "Nearest rank: the smallest value that so many of each hundred jobs do not exceed. It is always that of a job.",
    ),
    (
        "Bounded slowdown",
        "(wait + run time + work done again) / run time, the run time taken as 10 s at least; never below 1.",
    ),
    (
        "Allocated",
        "GPU-hours under a lease over GPU-hours of healthy GPUs. While work came in: up to the last submission. While "
        "jobs waited: the intervals and types in which the queue was not empty.",
    ),
    (
        "Kept work",
        "GPU-hours of running whose result was kept, over all allocated GPU-hours. The rest was lost, or went to "
        "starting, saving and stopping.",
    ),
    (
        "Lost work",
        "GPU-hours of running that had to be done again, or were thrown away, after a preemption or a fault.",
    ),
    (
        "Reclaim time",
        "From the order to stop borrowed jobs to the start of the covered job for which they were stopped. Orders that "
        "led to no start are counted apart.",
    ),
    (
        "Entitled, delivered",
        "Entitled: the sum over time of min(demand, guarantee), demand being what a team holds and has waiting. "
        "Delivered: what it held. More than 100% is borrowing.",
    ),
    (
        "Short at the time",
        "Entitled less delivered, wherever it was less, added up by interval and GPU type: later plenty does not make "
        "good for it.",
    ),
    (
        "Evenness (Jain)",
        "(sum of x)² / (n × sum of x²) over the teams, x being delivered over demand: 1 when all get the same share of "
        "what they ask for.",
    ),
    (
        "Stranded",
        "Free GPUs left over when as many jobs of one size as fit are laid on what is free; mean over time.",
    ),
    (
        "Gain, loss",
        "By how much earlier or later a job ended. A job that had not ended counts with the end of the replay, as a "
        "lower bound; one that ended another way (failed, timed out) under one policy is not ranked.",
    ),
)
