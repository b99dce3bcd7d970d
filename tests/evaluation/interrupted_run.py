"""A run on workers, to be interrupted with them: nothing is lost, nothing told twice."""

import sys
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from functools import partial
from multiprocessing import get_context

from evaluation.watched import Watched, check_accounts, go
from evaluation.wrong import signal_begin

from tvbo.evaluation import History, dask_executor


def main(kind, folder):
    optimizer, history = Watched(), History()
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
            go(partial(signal_begin, folder), optimizer, executor, 100, 2, history=history)
    except BaseException as error:
        check_accounts(optimizer, history)
        assert 15 <= history.counts["told"] < 100
        assert history.counts["told"] + history.counts["open"] == len(history)
        sys.stdout.write(type(error).__name__)


if __name__ == "__main__":
    main(*sys.argv[1:])
