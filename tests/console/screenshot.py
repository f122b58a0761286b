"""Takes the picture of the docs: `python -m tests.console.screenshot`."""

from __future__ import annotations

import sys
import tempfile
from functools import partial
from pathlib import Path

from idempotent import Message
from idempotent.adapters.memory import MemoryAdapter
from tests.console.conftest import Shop
from tests.console.served import chromium, log_in, served

PICTURE = Path(__file__).parents[2] / "docs" / "console.png"


def take(picture: Path) -> None:
    """A consumer with three groups of letters."""
    with tempfile.TemporaryDirectory() as folder:
        shop = Shop(f"sqlite:///{folder}/keys.db")
        reasons = {
            "customer {} is blocked": 412,
            "no price for article {}": 37,
            "the bank says 'limit' of {}": 3,
        }
        for reason, number in reasons.items():
            names = [f"{reason[:2]}{each}" for each in range(number)]
            shop.deliver(
                *(Message("orders", b"{}", id=name, headers={"why": reason.format(name)}) for name in names)
            )
        adapter = partial(MemoryAdapter, shop.broker)
        with served(registry=shop.registry, adapter=adapter, idle_s=0.5) as address, chromium() as page:
            log_in(page, address)
            page.get_by_role("link", name="orders:billing").click()
            page.get_by_role("heading", name="Dead letters", exact=True).wait_for()
            page.set_viewport_size({"width": 1100, "height": 620})
            page.screenshot(path=picture)
        shop.checker.close()


if __name__ == "__main__":
    take(Path(sys.argv[1]) if sys.argv[1:] else PICTURE)
