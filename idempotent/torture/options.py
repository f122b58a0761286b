"""The options of an adapter, in its URL, that suit a run; those that the user gave win."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qsl, urlencode, urlsplit

# Dead connections are to be noticed within seconds.
_HEARTBEATS: Final[Mapping[str, Mapping[str, object]]] = {
    "amqp": {"heartbeat_s": 4},
    "stomp": {"heartbeat_s": 3.0},
}


def with_options(url: str, **options: object) -> str:
    """The URL with these options and the usual ones, unless it has them."""
    parts = urlsplit(url)
    given = dict(parse_qsl(parts.query))
    wanted = {**_HEARTBEATS.get(parts.scheme, {}), **options}
    return parts._replace(query=urlencode({**wanted, **given})).geturl()
