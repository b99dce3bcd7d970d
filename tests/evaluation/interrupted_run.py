"""A run on workers, to be interrupted with them: nothing is lost, nothing told twice."""

import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from functools import partial
from multiprocessing import get_context

import evaluations

from tvbo import recipes, run_async
from tvbo.evaluation import History, dask_executor


def main(kind, folder):
    optimizer, history, told = recipes.random_search(bounds=[(0.0, 1.0)]), History(), Counter()
    optimizer.add_listener(on_tell=lambda trial, _: told.update([trial.id]))
    try:
        with ExitStack() as stack:
            if kind == "Dask":
                from distributed import LocalCluster

                cluster = LocalCluster(2, threads_per_worker=1, dashboard_address=":0")
                address = stack.enter_context(cluster).scheduler_address
                executor = stack.enter_context(dask_executor(address))
            else:
                executor = stack.enter_context(
                    ProcessPoolExecutor(2, mp_context=get_context("spawn"))
                )
            run_async(
                partial(evaluations.signal_begin, folder),
                optimizer,
                executor,
                num_trials=100,
                max_pending=2,
                history=history,
                progress=False,
            )
    except BaseException as error:
        num_open, log = len(optimizer.open_trials), optimizer.trial_log
        assert log.num_told + num_open == optimizer.num_trials == len(history) < 100
        assert log.num_told == len(told) == sum(told.values()) >= 15
        assert (log.num_failed, log.num_expired) == (0, 0)
        sys.stdout.write(type(error).__name__)


if __name__ == "__main__":
    main(*sys.argv[1:])
