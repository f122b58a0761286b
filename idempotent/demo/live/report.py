"""The result of a run over a real broker."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from idempotent.demo.report import described
from idempotent.demo.settings import Settings
from idempotent.demo.stores import Stores
from idempotent.demo.truth import Comparison, Totals
from idempotent.testing.stage.place import Place


@dataclass(frozen=True, slots=True)
class Counts:
    """The numbers of one run.

    Attributes:
        sent: messages, the producer's duplicates included.
        sent_again: messages sent again because the broker did not confirm them.
        delivered: settled deliveries that the consumers reported: the last ones of a killed consumer are missing.
        processed: of these, booked now.
        duplicates: of these, skipped.
        left: what the broker still holds at the end.
        kills: of consuming processes.
        restarts: of the broker, by SIGKILL.
        rewinds: how often the broker's offsets were set back to 0.
    """

    sent: int
    sent_again: int
    delivered: int
    processed: int
    duplicates: int
    left: int
    kills: int
    restarts: int
    rewinds: int


@dataclass(frozen=True, slots=True)
class LiveReport:
    """One run.

    Attributes:
        seconds: from the first message sent to the last settled.
        comparison: the bookings against the truth.
    """

    settings: Settings
    stores: Stores
    place: Place
    counts: Counts
    seconds: float
    comparison: Comparison

    @property
    def truth(self) -> Totals:
        """The sums over the data set."""
        return self.comparison.truth

    @property
    def kept_promise(self) -> bool:
        """Nothing lost, strange or left. A leased checker may repeat the batch that met a kill, and no more."""
        compared, counts = self.comparison, self.counts
        repeats = 0 if self.stores.keys.is_transactional else counts.kills * self.settings.batch_size
        return not (compared.lost or compared.strange or counts.left) and compared.repeated <= repeats

    def as_json(self) -> dict[str, Any]:
        """For `json.dumps`."""
        return {
            "ok": self.kept_promise,
            "equal": self.comparison.equal,
            **described(self.stores, self.settings),
            "broker": self.place.broker,
            "broker_url": self.place.shown_url,
            **asdict(self.counts),
            "seconds": round(self.seconds, 1),
            **asdict(self.comparison),
        }
