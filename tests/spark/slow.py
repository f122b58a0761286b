"""Handlers that take their time."""

import time


def handle_slowly(effects, seconds):
    def handle(row):
        time.sleep(seconds)
        effects.add(row["k"])

    return handle
