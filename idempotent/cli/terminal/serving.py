"""`--metrics-port`: serve metrics and health while a command works."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from idempotent.cli.terminal.output import note, plain
from idempotent.errors import ConfigurationError
from idempotent.worker.health import Health
from idempotent.worker.probes import LOOPBACK, HealthServer


@contextmanager
def metrics_served(
    health: Health,
    port: int | None,
    address: str | None = None,
    *,
    hang_after_s: float | None = None,
    quiet: bool = False,
) -> Iterator[None]:
    """Serve inside, and say where.

    Args:
        health: that of the worker or relay.
        port: 0: any; None: serve nothing.
        address: of this machine; None: reached from it alone.
        hang_after_s: see `HealthServer`.
        quiet: leave the saying to the log.

    Raises:
        ConfigurationError: the port is taken, there is none for another option, or the extra is missing.
    """
    if port is None:
        if hang_after_s is not None:
            raise ConfigurationError("--hang-after is of /livez: give a --metrics-port too")
        if address is not None:
            raise ConfigurationError("--metrics-address is of --metrics-port: give that too")
        yield
        return
    with HealthServer([health], port=port, address=address or LOOPBACK, hang_after_s=hang_after_s) as server:
        if not quiet:
            note(f"Metrics: {plain(server.url)}/metrics. Health: /livez, /readyz, /startedz.")
        yield
