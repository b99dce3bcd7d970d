import signal

import pytest


@pytest.fixture(autouse=True)
def interruptible():
    """Ctrl-C raises, also where a shell started the tests in the background, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
