import signal
import threading

import pytest

from tvbo.feedback.interrupt import HeldInterrupt


def test_it_is_held_until_it_may_take_effect():
    woken = []
    with HeldInterrupt(lambda: woken.append(True)) as held:
        held.take_effect()
        assert woken == []
        signal.raise_signal(signal.SIGINT)
        assert woken == [True]
        with pytest.raises(KeyboardInterrupt):
            held.take_effect()


def test_it_takes_effect_at_the_end_at_the_latest():
    with pytest.raises(KeyboardInterrupt), HeldInterrupt(lambda: None):
        signal.raise_signal(signal.SIGINT)


def test_another_error_is_not_replaced():
    def interrupted_and_broken():
        signal.raise_signal(signal.SIGINT)
        raise ArithmeticError

    with pytest.raises(ArithmeticError), HeldInterrupt(lambda: None):
        interrupted_and_broken()


def test_who_handled_it_before_does_so_later_and_again():
    seen, before = [], signal.getsignal(signal.SIGINT)

    def handler(number, frame):
        seen.append(number)

    signal.signal(signal.SIGINT, handler)
    try:
        with HeldInterrupt(lambda: None) as held:
            signal.raise_signal(signal.SIGINT)
            assert seen == []
            held.take_effect()
            held.take_effect()
            assert seen == [signal.SIGINT]
        assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_an_ignored_one_stays_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with HeldInterrupt(lambda: pytest.fail("woken")):
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


def test_nothing_changes_outside_the_main_thread():
    before, seen = signal.getsignal(signal.SIGINT), []

    def work():
        with HeldInterrupt(lambda: None):
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]
