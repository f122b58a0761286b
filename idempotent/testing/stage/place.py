"""Place: a queue or topic on a broker for one run, created empty and removed at the end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from idempotent.adapters import adapter_from_url
from idempotent.adapters.base import Adapter


class Place(ABC):
    """Where the messages of a run go.

    Args:
        url: the adapter's URL. The options in its query win over the defaults here.
        subject: the queue or topic.
        batch_size: messages that a consumer processes together.
    """

    broker: str
    """The broker's name, for people."""
    quiet_s: float = 2.0
    """After this time without a delivery none is left, not even one that a killed consumer had."""
    has_offsets: bool = False
    """Messages have offsets in partitions: the broker keeps their order, and `rewind` can reset a group."""

    def __init__(self, url: str, subject: str, batch_size: int) -> None:
        """Create nothing yet."""
        self.url: Final = url
        self.subject: Final = subject
        self.batch_size: Final = batch_size

    @property
    def shown_url(self) -> str:
        """The URL without user, password and options."""
        parts = urlsplit(self.url)
        return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="").geturl()

    @property
    def given(self) -> dict[str, str]:
        """The options in the URL."""
        return dict(parse_qsl(urlsplit(self.url).query))

    def adapter(self) -> Adapter:
        """A new adapter."""
        options = self._options()
        return adapter_from_url(self.url, **{name: options[name] for name in options.keys() - self.given})

    @abstractmethod
    def _options(self) -> dict[str, Any]:
        """The adapter's options that suit a short run."""

    def make(self) -> None:  # noqa: B027 - by default the adapter or the broker does it
        """Create the queue or topic.

        Raises:
            AdapterError: the broker refused.
        """

    def remove(self) -> None:  # noqa: B027 - by default nothing stays
        """Remove it and its dead letters.

        Raises:
            AdapterError: the broker refused.
        """

    def rewind(self, group: str) -> None:
        """Let the broker forget what this group acknowledged. No member of the group may be running.

        Raises:
            AdapterError: the broker refused.
        """
        raise NotImplementedError
