"""Shared by the tests of all trainers."""

import os
import signal

import pytest


@pytest.fixture
def stop_after():
    """`stop_after(run, steps=5)`: the process receives a signal during the fifth step."""

    def stop(run, steps, by=signal.SIGINT):
        original = run.train_step

        def step(batch):
            if run.step == steps - 1:
                os.kill(os.getpid(), by)
            return original(batch)

        run.train_step = step

    return stop
