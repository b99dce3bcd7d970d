"""Jobs that other processes import."""

import os
import time

import torch


def double_unless_negative(job):
    if job < 0:
        raise ValueError(f"Got {job}.")
    return 2 * job


def process_and_threads(job):
    return os.getpid(), torch.get_num_threads()


def many_tensors(job):
    """More than a process may have open files, were each to pass as one."""
    return [torch.full((1,), float(i), dtype=torch.float64) for i in range(job)]


def wait_a_minute(job):
    time.sleep(60)
