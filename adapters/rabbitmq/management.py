"""Management: what the broker's management API tells of queues, and AMQP does not."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any, Final
from urllib.error import HTTPError
from urllib.parse import quote, urlsplit
from urllib.request import HTTPSHandler, Request, build_opener

from idempotent.adapters.rabbitmq.server import Server
from idempotent.errors import AdapterError, ConfigurationError

_ANSWER_S: Final = 10.0


class Management:
    """Reads from the management API, with the user of the broker's own URL.

    Args:
        url: `http://host:15672` or `https://...`, without a user.
        server: whose user asks about whose virtual host.

    Raises:
        ConfigurationError: the URL is another one.
    """

    def __init__(self, url: str, server: Server) -> None:
        """Connect to nothing yet."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc or parts.query:
            # The URL is not repeated: it may hold a password.
            raise ConfigurationError(
                "management is a URL such as http://host:15672; the user is that of the broker's URL"
            )
        self._url = url.rstrip("/")
        self._vhost = quote(server.vhost, safe="")
        login = f"{server.credentials.username}:{server.credentials.password}".encode()
        self._headers = {"Authorization": f"Basic {base64.b64encode(login).decode()}"}
        self._opener = build_opener(*([HTTPSHandler(context=server.tls)] if server.tls else []))

    def queue(self, name: str) -> Mapping[str, Any]:
        """What it tells of a queue. Raises AdapterError: it did not answer, or refused."""
        found: Mapping[str, Any] = self._get(f"queues/{self._vhost}/{quote(name, safe='')}")
        return found

    def running_nodes(self) -> int:
        """How many nodes of the cluster run. Raises AdapterError as `queue` does."""
        return sum(bool(node.get("running")) for node in self._get("nodes"))

    def _get(self, path: str) -> Any:
        request = Request(f"{self._url}/api/{path}", headers=self._headers)  # noqa: S310 - its scheme was checked
        try:
            with self._opener.open(request, timeout=_ANSWER_S) as answer:
                return json.load(answer)
        except HTTPError as error:
            error.close()  # it has the connection
            hint = ": the user needs the tag `monitoring`" if error.code in (401, 403) else ""
            raise AdapterError(
                f"the management API {self._url} answers {error.code} {error.reason}{hint}"
            ) from error
        except (OSError, ValueError) as error:
            raise AdapterError(f"the management API {self._url} does not answer: {error}") from error
