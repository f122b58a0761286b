"""The report: JSON, Markdown and pictures."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from tests.bench.growth.pictures import draw
from tests.bench.growth.results import Growth

_POINTS: Final = (
    *("store", "layout", "memory", "stored keys", "batch", "keys/s", "p50 ms", "p99 ms"),
    "bytes a key",
)
_COLLECTIONS: Final = (
    *("store", "keys", "deleted", "deleted/s", "p50 ms without", "p50 ms during"),
    *("p99 ms without", "p99 ms during"),
)
_RESTARTS: Final = ("broker", "store", "backlog", "seconds to the first settled message")


def write(folder: Path, growth: Growth) -> list[Path]:
    """Write everything into a folder, which is made if it is missing. Returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    data, page = folder / "growth.json", folder / "growth.md"
    data.write_text(json.dumps(asdict(growth), indent=1))
    pictures = draw(folder, growth.points)
    page.write_text("\n".join([*markdown(growth), *(f"![]({path.name})\n" for path in pictures)]))
    return [page, data, *pictures]


def markdown(growth: Growth) -> Iterator[str]:
    """The tables."""
    yield f"# Growth\n\n{growth.machine}, {datetime.now(UTC):%Y-%m-%d}\n"
    yield "## Claim and completion of fresh keys, one thread\n"
    yield from _table(
        _POINTS,
        [
            (
                *(point.store, point.layout, point.memory, f"{point.stored:,}", str(point.batch)),
                *(f"{point.rate:,.0f}", _ms(point.latency.p50_us), _ms(point.latency.p99_us)),
                f"{point.bytes_per_key:.0f}",
            )
            for point in growth.points
        ],
    )
    yield "## Deletion of expired keys beside a consumer of single messages\n"
    yield from _table(
        _COLLECTIONS,
        [
            (
                *(one.store, f"{one.stored:,}", f"{one.deleted:,}", f"{one.rate:,.0f}"),
                *(_ms(one.without.p50_us), _ms(one.during.p50_us)),
                *(_ms(one.without.p99_us), _ms(one.during.p99_us)),
            )
            for one in growth.collections
        ],
    )
    yield "## A worker killed over a backlog, and the next one\n"
    yield from _table(
        _RESTARTS,
        [(one.broker, one.store, f"{one.backlog:,}", f"{one.first_s:.2f}") for one in growth.restarts],
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    for cells in (head, ["---"] * len(head), *rows):
        yield f"| {' | '.join(cells)} |"
    yield ""


def _ms(us: float) -> str:
    return f"{us / 1000:.2f}"
