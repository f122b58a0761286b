"""What a Redis server was asked to do."""

from contextlib import contextmanager

from redis import Redis


@contextmanager
def commands_during(url):
    """Gives a dict that holds, after the block, how often each command ran in it, those in scripts included."""
    counted = {}
    with Redis.from_url(url) as client:
        client.config_resetstat()
        yield counted
        stats = client.info("commandstats")
    counted.update({name.removeprefix("cmdstat_"): stat["calls"] for name, stat in stats.items()})
