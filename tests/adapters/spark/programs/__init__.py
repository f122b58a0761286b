"""Programs with a Spark session of their own, which a session in the process of the tests would not allow."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import traceback

from tests.adapters.spark.support import sessions
from tests.adapters.spark.support.patience import TOO_SLOW, TRIES
from tests.support.services.process import die_with_this_process

_TIMEOUT_S = 400.0


def run(name, **arguments):
    """The program's report: for each scenario its value, or {"error": the text}."""
    with subprocess.Popen(
        [*die_with_this_process(), sys.executable, "-m", f"{__name__}.{name}", json.dumps(arguments)],
        cwd=sessions.ROOT,
        env=os.environ | sessions.ENVIRONMENT | {"PYTHONPATH": str(sessions.ROOT)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            out, err = process.communicate(timeout=_TIMEOUT_S)
        finally:
            # Its JVM and the Python workers of that.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    lines = [line for line in out.splitlines() if line.startswith("{")]
    if not lines:
        raise RuntimeError(f"{name} ended with {process.returncode}:\n{err[-5000:]}")
    return json.loads(lines[-1])


def driver(*command, **environment):
    """Run a driver to its end, as a program, once more if a Python worker was too slow. It takes minutes on a busy
    machine."""
    for _ in range(TRIES):
        done = subprocess.run(
            [sys.executable, *command],
            cwd=sessions.ROOT,
            env=os.environ | environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=1000,
            check=False,
        )
        if done.returncode <= 0 or TOO_SLOW not in done.stdout + done.stderr:
            break
    return done


def report(*scenarios):
    """Call functions without arguments, and print their results by name."""
    results = {}
    for scenario in scenarios:
        try:
            results[scenario.__name__] = scenario()
        except Exception as error:
            results[scenario.__name__] = {"error": f"{type(error).__name__}: {error}"}
            traceback.print_exc()
    print(json.dumps(results), flush=True)  # noqa: T201
