"""The commands that a Redis server has run."""

from contextlib import contextmanager

from redis import Redis


@contextmanager
def commands_during(url):
    """Gives a dict with, after the block, the number of runs of each command in it, also inside scripts."""
    counted = {}
    with Redis.from_url(url) as client:
        client.config_resetstat()
        yield counted
        stats = client.info("commandstats")
    counted.update({name.removeprefix("cmdstat_"): stat["calls"] for name, stat in stats.items()})
