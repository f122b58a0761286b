"""Spark gives a Python worker ten seconds to connect, which no setting changes (PythonWorkerFactory).

On a busy machine that is too short. What has failed of it has done nothing yet, and begins again.
"""

from collections.abc import Callable

TOO_SLOW = "Python worker failed to connect back"
TRIES = 5


def patiently(query: Callable[[], object]) -> None:
    """Run a query that may begin again at its checkpoint."""
    for last in (*[False] * (TRIES - 1), True):
        try:
            query()
        except Exception as error:
            if last or TOO_SLOW not in str(error):
                raise
        else:
            return
