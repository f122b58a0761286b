"""The results of a run of two services, each against the truth, and of the relay between them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from examples.demo.report import VariantReport
from examples.demo.schedule import Settings
from examples.demo.truth import Totals


@dataclass(frozen=True, slots=True)
class ServicesReport:
    """One run.

    Attributes:
        orders: the service that books, against the truth.
        billing: the service that makes the invoices, against the truth.
        relay_kills: of the relay's process.
        published_again: messages that the relay published more than once, under the same id.
        seconds: the length of the run.
    """

    settings: Settings
    orders: VariantReport
    billing: VariantReport
    relay_kills: int
    published_again: int
    seconds: float

    @property
    def truth(self) -> Totals:
        """The sums over the data set."""
        return self.orders.comparison.truth

    @property
    def kept_promise(self) -> bool:
        """Each flight is booked once, and invoiced once."""
        return self.orders.comparison.equal and self.billing.comparison.equal

    def as_json(self) -> dict[str, Any]:
        """For `json.dumps`."""
        return {
            "ok": self.kept_promise,
            **asdict(self.settings),
            "truth": asdict(self.truth),
            "orders": self.orders.as_json(),
            "billing": self.billing.as_json(),
            "relay_kills": self.relay_kills,
            "published_again": self.published_again,
            "seconds": round(self.seconds, 1),
        }
