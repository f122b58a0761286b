"""What the tests of Redis share: names, values and times as the server has them."""

import os
import subprocess
import sys
import textwrap

import redis
import redis.asyncio

from idempotent.checkers.redis.layout import key_record
from idempotent.keys import KeySpace

KEYS = KeySpace("orders.paid", "billing")
HOUR_S = 3600.0


def name_of(checker, key):
    return checker.store.names.name(key.hash)


def server_time_us(client):
    seconds, microseconds = client.time()
    return seconds * 1_000_000 + microseconds


class LosesAnswers(redis.Redis):
    """The server acts on the next `lose` commands; their answers never arrive."""

    lose = 0

    def execute_command(self, *args, **options):
        answer = super().execute_command(*args, **options)
        if self.lose:
            self.lose -= 1
            raise redis.ConnectionError("connection lost")
        return answer


def made_with_scripts(make, client, **options):
    """A checker whose server has the scripts: an answer is lost, and not the server's wish for their text too."""
    checker = make(client, **options)
    for script in (checker._claims, checker._completes, checker._releases):
        client.script_load(script.source)
    return checker


def stored_key(value):
    return key_record(b"", value, None, now_us=0)


def run_python(script, *arguments):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(script), *arguments],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
