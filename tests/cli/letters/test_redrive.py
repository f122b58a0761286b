"""`idempotent redrive`, in this process, over the broker of memory://."""

import secrets

import pytest
import sqlalchemy as sa

from idempotent import Message, Worker
from idempotent.adapters.memory import MemoryAdapter, named_broker
from idempotent.checkers import SqlChecker
from idempotent.claims import UNKNOWN_EFFECT
from idempotent.migrations import upgrade
from tests.support.stores import ASYNC, open_store

CONSUMERS = """
from idempotent import Message, Registry

registry = Registry()


@registry.consumer("orders", group="billing", checker="db", max_attempts=1)
def on_order(message: Message) -> None:
    raise ValueError("no such customer")
"""


@pytest.fixture
def shop(project):
    """A module of consumers, a store, and a broker with two dead letters, one of them without a key."""
    module = f"shop_{secrets.token_hex(4)}"
    (project / f"{module}.py").write_text(CONSUMERS)
    upgrade("sqlite:///keys.db")
    broker = named_broker(module)
    broker.publish(Message("orders", id="1"))
    broker.publish(Message("orders"))
    namespace = {}
    exec(CONSUMERS, namespace)
    registry = namespace["registry"]
    registry.checker("db", SqlChecker("sqlite:///keys.db"))
    Worker(registry, MemoryAdapter(broker, until_empty=True)).run()
    registry.close()
    assert len(broker.dead_letters("orders")) == 2
    return module


def words(module, *more):
    return (
        *("redrive", f"{module}:on_order", "--broker", f"memory://{module}"),
        *("--checker", "db=sqlite:///keys.db", "--idle", "0.2", *more),
    )


def test_it_says_what_went_back_and_what_stays(cli, shop):
    answer = cli(*words(shop))
    assert answer.code == 1
    assert "1 message of orders:billing returned, 1 key reopened" in answer.out
    assert "1 letter left" in answer.err
    assert len(named_broker(shop).dead_letters("orders")) == 1


STOPPED = {"died": 0, "open": 0, "undated": 0, "changed": []}


def test_for_machines(cli, shop):
    answer = cli(*words(shop, "--json"))
    counts = {
        "returned": 1,
        "reopened": 1,
        "left": 1,
        "unknown": 0,
        "again": 0,
        "others": 0,
        "unreadable": 0,
        **STOPPED,
    }
    assert answer.line == {"consumer": "orders:billing", **counts}


def test_a_choice_that_meets_no_letter_is_told(cli, shop):
    for choice in ("--letter", "--error"):
        answer = cli(*words(shop, choice, "nosuch"))
        assert (answer.code, "No such letter of orders:billing" in answer.out) == (1, True)


def test_letters_without_a_dead_key_are_not_passed_over_silently(cli, shop):
    answer = cli(*words(shop, "--since", "1h"))
    assert (answer.code, "1 letter without a dead key passed over by --since" in answer.err) == (1, True)


def test_what_the_first_ones_did_not_do_is_told(cli, shop):
    answer = cli(*words(shop, "--canary", "1", "--canary-wait", "1"))
    assert answer.code == 1
    assert "1 of 1 are not done in time: does a worker run" in answer.err


def test_a_message_whose_effect_is_unknown_stays_unless_it_is_included(cli, shop):
    engine = sa.create_engine("sqlite:///keys.db")
    with engine.begin() as connection:
        connection.execute(
            sa.text("UPDATE deduplicate_tbl_failures SET last_error = :why"), {"why": UNKNOWN_EFFECT}
        )
    engine.dispose()
    answer = cli(*words(shop))
    assert answer.code == 1
    assert "0 messages of orders:billing returned" in answer.out
    assert "1 whose effect is unknown" in answer.err
    assert "--include-unknown" in answer.err
    assert "1 message of orders:billing returned" in cli(*words(shop, "--include-unknown")).out


def test_a_broker_that_keeps_no_letters_is_told(cli, shop):
    answer = cli(
        "redrive", f"{shop}:on_order", "--broker", "file://orders.jsonl", "--checker", "db=memory://"
    )
    assert answer.code == 3
    assert "cannot receive dead letters" in answer.err


ASYNC_CONSUMER = """
from sqlalchemy.ext.asyncio import AsyncSession

from idempotent import Message, Registry

registry = Registry()


@registry.consumer("orders", group="billing", checker="db", max_attempts=1)
async def on_order(message: Message, session: AsyncSession) -> None:
    raise ValueError("no such customer")
"""
SCHEMES = {"mysql": "mysql+asyncmy", "postgres": "postgresql+psycopg_async"}


@pytest.mark.parametrize("kind", ASYNC)
def test_the_dead_letters_of_an_async_consumer_go_back(cli, project, kind, request):
    """Its checker has an asyncio driver, which takes other settings."""
    for store in open_store(kind, request, reuse=True):
        module = f"shop_{secrets.token_hex(4)}"
        (project / f"{module}.py").write_text(ASYNC_CONSUMER)
        url = sa.make_url(store.url).set(drivername=SCHEMES[kind]).difference_update_query(["ssl_disabled"])
        checker = f"transactional+{url.render_as_string(hide_password=False)}"
        checker += f"{'&' if url.query else '?'}table={store.table}"
        broker = named_broker(module)
        broker.publish(Message("orders", id="1"))
        namespace = {}
        exec(ASYNC_CONSUMER, namespace)
        registry = namespace["registry"]
        registry.checker("db", checker)
        Worker(registry, MemoryAdapter(broker, until_empty=True)).run()
        registry.close()
        assert len(broker.dead_letters("orders")) == 1
        words = ("--broker", f"memory://{module}", "--checker", f"db={checker}", "--idle", "0.2")
        answer = cli("redrive", f"{module}:on_order", *words)
        assert (answer.code, answer.err) == (0, "")
        assert "1 message of orders:billing returned, 1 key reopened" in answer.out
        assert not broker.dead_letters("orders")
