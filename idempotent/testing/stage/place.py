"""Place: a queue or topic of the demo's own on a broker, made anew, removed at the end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from idempotent.adapters import adapter_from_url
from idempotent.adapters.base import Adapter


class Place(ABC):
    """Where the demo's messages go.

    Args:
        url: the adapter's URL. The options in its query win over the demo's.
        subject: the queue or topic.
        batch_size: messages that a consumer processes together.
    """

    broker: str
    """For people."""
    quiet_s: float = 2.0
    """After so many seconds without a delivery none is left, not even one that a killed consumer had."""
    can_rewind: bool = False
    """Whether the broker can be made to forget what was acknowledged."""

    def __init__(self, url: str, subject: str, batch_size: int) -> None:
        """Nothing is made yet."""
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
        """A new one."""
        options = self._options()
        return adapter_from_url(self.url, **{name: options[name] for name in options.keys() - self.given})

    @abstractmethod
    def _options(self) -> dict[str, Any]:
        """The adapter's options that suit the demo."""

    def make(self) -> None:  # noqa: B027 - where the adapter or the broker does
        """Make it.

        Raises:
            AdapterError: the broker does not want to.
        """

    def remove(self) -> None:  # noqa: B027 - where nothing stays
        """Remove it, with its dead letters.

        Raises:
            AdapterError: the broker does not want to.
        """

    def rewind(self, group: str) -> None:
        """Let the broker forget what this group acknowledged. No member of the group may be running.

        Raises:
            AdapterError: the broker does not want to.
        """
        raise NotImplementedError
