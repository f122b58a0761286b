"""What a run over a real broker came to."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from idempotent.claims import Guarantee
from idempotent.demo.settings import Settings
from idempotent.demo.stores import Stores
from idempotent.demo.truth import Comparison, Totals


@dataclass(frozen=True, slots=True)
class LiveReport:
    """One run.

    Attributes:
        broker: its name.
        broker_url: where it is.
        sent: messages, the producer's duplicates included.
        sent_again: messages sent again because the broker did not say whether it had them.
        delivered: settled deliveries, as far as the consumers told: a killed one's last are missing.
        processed: of these, booked now.
        duplicates: of these, skipped.
        left: what the broker still holds at the end.
        kills: of consuming processes.
        restarts: of the broker, by SIGKILL.
        rewinds: how often the broker's offsets were set back to 0.
        seconds: from the first message sent to the last settled.
        comparison: the bookings against the truth.
    """

    settings: Settings
    stores: Stores
    broker: str
    broker_url: str
    sent: int
    sent_again: int
    delivered: int
    processed: int
    duplicates: int
    left: int
    kills: int
    restarts: int
    rewinds: int
    seconds: float
    comparison: Comparison

    @property
    def truth(self) -> Totals:
        """The sums over the data set."""
        return self.comparison.truth

    @property
    def kept_promise(self) -> bool:
        """Nothing lost, strange or left. A leased checker may repeat the batch that met a kill, and no more."""
        compared, leased = self.comparison, self.stores.keys.guarantee is Guarantee.LEASED
        repeats = self.kills * self.settings.batch_size if leased else 0
        return not (compared.lost or compared.strange or self.left) and compared.repeated <= repeats

    def as_json(self) -> dict[str, Any]:
        """For `json.dumps`."""
        values = {name: value for name, value in asdict(self).items() if isinstance(value, (int, str))}
        compared = asdict(self.comparison)
        return {
            "ok": self.kept_promise,
            "equal": self.comparison.equal,
            "checker": self.stores.keys.checker_name,
            "guarantee": self.stores.keys.guarantee.value,
            "url": self.stores.shown_url,
            **asdict(self.settings),
            **values,
            "seconds": round(self.seconds, 1),
            **compared,
        }
