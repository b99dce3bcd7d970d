import signal
import threading

import pytest

from tvbo.evaluation.interrupt import uninterrupted


def interrupt_and_go_on(steps, times):
    with uninterrupted():
        for _ in range(times):
            signal.raise_signal(signal.SIGINT)
            steps.append("done")


def test_it_takes_effect_at_the_end():
    steps = []
    with pytest.raises(KeyboardInterrupt):
        interrupt_and_go_on(steps, 1)
    assert steps == ["done"]


def test_a_second_one_does_not_wait():
    steps, before = [], signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        interrupt_and_go_on(steps, 2)
    assert steps == ["done"]
    assert signal.getsignal(signal.SIGINT) is before


def test_another_error_is_not_replaced():
    def interrupted_and_broken():
        signal.raise_signal(signal.SIGINT)
        raise ArithmeticError

    with pytest.raises(ArithmeticError), uninterrupted():
        interrupted_and_broken()


def test_who_handled_it_before_does_so_later_and_again():
    seen, before = [], signal.getsignal(signal.SIGINT)

    def handler(number, frame):
        seen.append(number)

    signal.signal(signal.SIGINT, handler)
    try:
        with uninterrupted():
            signal.raise_signal(signal.SIGINT)
            assert seen == []
        assert seen == [signal.SIGINT]
        assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_an_ignored_one_stays_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with uninterrupted():
            signal.raise_signal(signal.SIGINT)
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_nothing_changes_outside_the_main_thread():
    before, seen = signal.getsignal(signal.SIGINT), []

    def work():
        with uninterrupted():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]
