"""Threads of linear algebra."""

import subprocess
import sys

import pytest
import scipy.linalg  # noqa: F401  # loads its BLAS
import torch
from threadpoolctl import threadpool_info, threadpool_limits

from tvbo import recipes
from tvbo.threads import SMALL, threads_for


def num_threads():
    return {each["filepath"]: each["num_threads"] for each in threadpool_info()}


@pytest.mark.slow
def test_a_library_that_is_loaded_later_has_one_thread_too():
    script = (
        "import scipy.linalg, torch\n"
        "from threadpoolctl import threadpool_info, threadpool_limits\n"
        "from tvbo.threads import threads_for\n"
        "with threads_for(1): before = len(threadpool_info())\n"
        "import sklearn.cluster\n"
        "with threadpool_limits(limits=2), threads_for(1): after = threadpool_info()\n"
        "print(len(after) > before, {each['num_threads'] for each in after})"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout == "True {1}\n"


def test_one_thread_for_small_matrices_alone():
    with threadpool_limits(limits=2):
        before = num_threads()
        with threads_for(SMALL):
            assert set(num_threads().values()) == {1}
        assert num_threads() == before
        with threads_for(SMALL + 1):
            assert num_threads() == before


def test_an_ask_restores_the_threads():
    optimizer = recipes.tv_gp_ucb(bounds=[(0.0, 1.0)], forgetting_rate=0.1)
    with threadpool_limits(limits=2):
        before = num_threads()
        seen = []
        acquisition = optimizer.acquisition

        def look(model, ask_context):
            seen.append(set(num_threads().values()))
            return acquisition(model, ask_context)

        optimizer.acquisition = look
        for t in range(1, 20):
            trial = optimizer.ask(t)
            optimizer.tell(trial, torch.sin(trial.X.sum()).item())
        assert seen
        assert all(each == {1} for each in seen)
        assert num_threads() == before
