"""dask clusters on loopback: schedulers in this process, workers in it or beside it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from distributed import LocalCluster

__all__ = ["scheduler", "worker_processes"]


@contextmanager
def scheduler(workers: int, threads: int = 2) -> Iterator[LocalCluster]:
    """A scheduler and so many workers, all in this process."""
    with LocalCluster(
        n_workers=workers,
        threads_per_worker=threads,
        processes=False,
        protocol="tcp",
        host="127.0.0.1",
        scheduler_port=0,
        dashboard_address="127.0.0.1:0",
    ) as cluster:
        yield cluster


@contextmanager
def worker_processes(address: str, count: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """So many workers of a scheduler, each a process with one thread and no nanny."""
    command = [sys.executable, "-m", "distributed.cli.dask_worker", address]
    options = ["--no-nanny", "--nthreads", "1", "--host", "127.0.0.1", "--no-dashboard"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    workers = [
        subprocess.Popen([*command, *options], env=environment, **quiet) for _ in range(count)
    ]
    try:
        yield workers
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
