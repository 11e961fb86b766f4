"""A job of many ranks and its collectors, in numbers and in virtual time.

Nothing is measured here: costs come from `benchmarks.simulate`, which measures them. In virtual
time each collector is a queue with one processor: ranks hand over a step's records when the step
ends, and a collector works through them in the order in which they arrived.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from math import ceil

import numpy as np

from anchorlib.store.format.layout import COLUMNS, HIST_COLUMNS

__all__ = ["Costs", "Demand", "Job", "Outcome", "Prices", "demand", "job_of", "simulated"]

PAIRS = 20  # (exponent, count) pairs of a histogram: gradients span some twenty powers of two
ROW = sum(one.itemsize for one in COLUMNS.values())
PAIR = sum(one.itemsize for one in HIST_COLUMNS.values())
STREAMS = 128  # that a collector takes unless --max-streams says otherwise
SHARD = 32 << 20  # stored bytes a sealed object holds on average
DAY = 86_400


@dataclass(frozen=True, slots=True)
class Job:
    """What a job records.

    step_s: seconds a step takes. series: that a rank has. records: of a rank and step, on average.
    value_bytes: of their values, on average. jitter: by how much of a step ranks end apart.
    """

    ranks: int
    step_s: float
    series: int
    records: float
    value_bytes: float = 0.0
    jitter: float = 0.05

    @property
    def bytes(self) -> float:
        """Of a rank and step: values, and the columns and histogram pairs of each record."""
        return self.value_bytes + self.records * (ROW + PAIRS * PAIR)


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds that a collector works: for a stream, a new series, a batch, a record, a byte."""

    stream: float
    series: float
    batch: float
    record: float
    byte: float

    def start(self, job: Job) -> float:
        """Seconds that a collector works when a rank begins."""
        return self.stream + job.series * self.series

    def step(self, job: Job) -> float:
        """Of a rank and step."""
        return self.batch + job.records * self.record + job.value_bytes * self.byte


@dataclass(frozen=True, slots=True)
class Prices:
    """In one currency; the defaults are list prices in dollars, to be replaced by your own.

    gb_month: to keep a gigabyte for a month. put: an upload. hour: a collector's machine.
    """

    gb_month: float = 0.023
    put: float = 5e-6
    hour: float = 0.2


@dataclass(frozen=True, slots=True)
class Demand:
    """What a job asks for. busy: processors that its records keep at work, all collectors together.

    collectors: so many that each works three quarters of its time and has `STREAMS` at most.
    objects: of the whole run, sealed after a day. money: of a day's collectors and uploads, and of
    keeping that day's bytes for a month.
    """

    records_s: float
    bytes_s: float
    busy: float
    collectors: int
    day_bytes: float
    objects: int
    money: float


def job_of(parameters: float, layers: int, ranks: int, step_s: float, what: str) -> Job:
    """What a transformer of that size records, of nine tensors and nine modules a layer.

    what: "summary" of gradients, values and deltas of parameters and of outputs; "tenth" the same
    in each tenth step; "sampled" also each hundredth gradient's values; "gradients" all of them.
    Values are the shards that a rank holds, in two bytes a parameter.
    """
    tensors = 9 * layers + 3
    shard = 2 * parameters / ranks
    records, values, kinds = {
        "summary": (4 * tensors, 0.0, 4),
        "tenth": (4 * tensors / 10, 0.0, 4),
        "sampled": (4 * tensors + tensors / 100, shard / 100, 5),
        "gradients": (tensors, shard, 1),
    }[what]
    return Job(ranks, step_s, kinds * tensors, records, values)


def demand(job: Job, costs: Costs, prices: Prices) -> Demand:
    """The demand of a job by arithmetic alone, without queues and without the start."""
    records_s = job.ranks * job.records / job.step_s
    bytes_s = job.ranks * job.bytes / job.step_s
    busy = job.ranks * costs.step(job) / job.step_s
    collectors = max(ceil(busy / 0.75), ceil(job.ranks / STREAMS))
    day = bytes_s * DAY
    objects = job.ranks * 60 + ceil(day / SHARD)
    money = collectors * 24 * prices.hour + objects * prices.put + day / 1e9 * prices.gb_month
    return Demand(records_s, bytes_s, busy, collectors, day, objects, money)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What happened in virtual time.

    ends: when all was committed. busy: the share of that time that collectors worked. lag: seconds
    from a step's end to its commit, middle, 99 of 100 and most, after the start was caught up with.
    started: when that was; infinity where it never is. backlog: bytes that waited, at most.
    """

    ends: float
    busy: float
    lag: tuple[float, float, float]
    started: float
    backlog: float


def simulated(job: Job, costs: Costs, collectors: int, steps: int, seed: int = 0) -> Outcome:
    """The first `steps` steps, ranks spread evenly over collectors.

    Ranks of a data-parallel job end a step together, but for `jitter`: a burst each step.
    """
    late = np.random.default_rng(seed).uniform(0, job.jitter * job.step_s, (steps, job.ranks))
    events = [(job.step_s + late[0, rank], rank, 0) for rank in range(job.ranks)]
    heapq.heapify(events)
    free, worked = [0.0] * collectors, 0.0
    waiting: list[list[tuple[float, float]]] = [[] for _ in range(collectors)]
    backlog = most = 0.0
    ended = np.zeros((steps, job.ranks, 2))
    while events:
        now, rank, step = heapq.heappop(events)
        own = rank % collectors
        for queue in waiting:
            while queue and queue[0][0] <= now:
                backlog -= heapq.heappop(queue)[1]
        work = costs.step(job) + (costs.start(job) if step == 0 else 0.0)
        free[own] = max(free[own], now) + work
        worked += work
        heapq.heappush(waiting[own], (free[own], job.bytes))
        backlog += job.bytes
        most = max(most, backlog)
        ended[step, rank] = now, free[own]
        if step + 1 < steps:
            due = (step + 2) * job.step_s + late[step + 1, rank]
            heapq.heappush(events, (due, rank, step + 1))
    return _outcome(job, ended, worked / collectors, most)


def _outcome(job: Job, ended: np.ndarray, worked: float, backlog: float) -> Outcome:
    lags = ended[:, :, 1] - ended[:, :, 0]
    behind = np.flatnonzero((lags > job.step_s).any(axis=1))
    first = int(behind[-1]) + 1 if len(behind) else 0
    settled = lags[first:] if first < len(lags) else lags[-1:]
    started = float(ended[first].max()) if first < len(lags) else float("inf")
    ends = float(ended[:, :, 1].max())
    middle, high = np.quantile(settled, [0.5, 0.99]).tolist()
    return Outcome(ends, worked / ends, (middle, high, float(settled.max())), started, backlog)
