"""How a function is read: its parameters, its name, its types."""

from __future__ import annotations

import asyncio
import functools
import inspect
import pickle
from typing import Any, cast

import pytest
from sqlalchemy import Connection, text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from idempotent import ConfigurationError, idempotent
from idempotent.checkers import MemoryChecker
from tests.support.stores import Store

CHECKER = MemoryChecker()
PLAIN: dict[str, Any] = {"group": "tests", "key": "order"}


@idempotent(CHECKER, **PLAIN)
def charge(order: str, amount: int = 5, *, note: str = "") -> str:
    """Charge an order."""
    return f"{order} {amount} {note}"


@idempotent(CHECKER, **PLAIN)
async def charge_later(order: str, amount: int = 5) -> str:
    """Charge an order, later."""
    return f"{order} {amount}"


class Till:
    @idempotent(CHECKER, group="tests", key="order")
    def sell(self, order: str) -> str:
        return order

    @staticmethod
    @idempotent(CHECKER, group="tests", key="order")
    def close(*, order: str = "last") -> str:
        return order


def test_a_function_keeps_what_others_read_of_it() -> None:
    assert charge.__name__ == "charge"
    assert charge.__doc__ == "Charge an order."
    assert charge.__qualname__ == "charge"
    assert str(inspect.signature(charge)) == "(order: 'str', amount: 'int' = 5, *, note: 'str' = '') -> 'str'"
    assert inspect.isfunction(charge)
    assert not inspect.iscoroutinefunction(charge)
    assert inspect.iscoroutinefunction(charge_later)
    assert charge("a", note="x") == "a 5 x"
    assert asyncio.run(charge_later("a")) == "a 5"
    assert pickle.loads(pickle.dumps(charge)) is charge


def test_the_key_is_an_argument_however_it_is_given() -> None:
    till = Till()
    assert till.sell("1") == till.sell(order="1") == Till.sell(till, "1") == "1"
    assert Till.close() == Till.close(order="last") == "last"
    ran: list[tuple[object, ...]] = []

    @idempotent(CHECKER, group="tests", key=lambda shop, *, order: f"{shop}/{order}", name="pair")
    def pair(*args: object, **kwargs: object) -> None:
        ran.append(args)

    for shop, order in (("a", 1), ("a", 2), ("a", 1)):
        pair(shop, order=order)
    assert len(ran) == 2


@pytest.mark.parametrize("place", ["first", "middle", "last", "keyword"])
@pytest.mark.parametrize("kind", [Session, Connection])
def test_the_session_is_given_wherever_the_signature_has_it(sql_store: Store, place: str, kind: type) -> None:
    checker = sql_store.transactional()

    def first(session, order, amount=1):
        return session, order, amount

    def middle(order, session, amount=1):
        return session, order, amount

    def last(order, amount=1, session=...):
        return session, order, amount

    def keyword(order, amount=1, *, session):
        return session, order, amount

    function: Any = {"first": first, "middle": middle, "last": last, "keyword": keyword}[place]
    function.__annotations__ = {"session": kind, "return": Any}
    seen: list[Any] = []

    def write(session, order, amount):
        session.execute(sql_store.effects.insert().values(id=f"{order}-{amount}"))
        seen.append(type(session))

    def run(*args, **kwargs):
        session, order, amount = function(*args, **kwargs)
        assert isinstance(session, kind)
        write(session, order, amount)

    run.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    run.__annotations__ = function.__annotations__
    call = idempotent(checker, group="tests", key="order", name=place, codec=_NOTHING)(run)
    assert "session" not in inspect.signature(call).parameters
    if place == "middle":
        call("a", amount=2)
        call(order="a", amount=2)
    else:
        call("a", 2) if place != "first" else call(order="a", amount=2)
        call(order="a", amount=2)
    assert sql_store.booked() == {"a-2": 1}
    assert len(seen) == 1


class _Nothing:
    name = "nothing/1"

    def encode(self, value: Any) -> bytes:
        return b""

    def decode(self, data: bytes) -> Any:
        return None


_NOTHING = _Nothing()


def generator(order: str) -> Any:
    yield order


async def takes_a_plain_session(order: str, session: Session) -> None: ...


def takes_an_async_session(order: str, session: AsyncSession) -> None: ...


def takes_none(order: str, session: Session | None = None) -> None: ...


def takes_none_of_a_plain_type(order: str, session: Session = cast("Session", None)) -> str:  # noqa: B008
    session.execute(text("SELECT 1"))
    return order


def test_a_default_that_only_a_type_checker_reads_is_never_used(sql_store: Store) -> None:
    call = idempotent(sql_store.transactional(), group="tests", key="order")(takes_none_of_a_plain_type)
    assert call("a") == "a"


def takes_two(order: str, session: Session, connection: Connection) -> None: ...


def takes_a_session(order: str, session: Session) -> None: ...


def plain(order: str, *rest: str, **more: str) -> None: ...


@pytest.mark.parametrize(
    ("function", "options", "says"),
    [
        (generator, {}, "is a generator"),
        (takes_a_plain_session, {}, "is an `async def`, but its parameter session is of type Session"),
        (takes_an_async_session, {}, "is a plain `def`, but its parameter session is of type AsyncSession"),
        (takes_none, {}, "default None"),
        (takes_two, {}, "two parameters for a session: session, connection"),
        (takes_a_session, {}, "has no transaction to share"),
        (Till, {}, "decorates a function"),
        (lambda order: order, {}, "<lambda> is the name of every lambda beside it.*give name="),
        (staticmethod(plain), {}, "write @idempotent below @staticmethod"),
        (classmethod(plain), {}, "write @idempotent below @classmethod"),
        (
            plain,
            {"key": "id"},
            "key='id' names no argument of the function, whose parameters are order, rest, more",
        ),
        (plain, {"key": "rest"}, "names no argument"),
        (plain, {"key": "more"}, "names no argument"),
        (plain, {"wait_s": -1}, "wait_s"),
        (plain, {"on_cancel": "finish"}, "plain `def`"),
        (plain, {"on_cancel": "never"}, "on_cancel must be one of"),
        (plain, {"checker": "unknown"}, ""),
    ],
    ids=lambda each: getattr(each, "__name__", None) or str(each)[:20],
)
def test_what_cannot_be_protected_is_refused_at_once(function: Any, options: Any, says: str) -> None:
    if options.get("checker"):
        pytest.skip("a name is looked up at each call, as for @consumer")
    with pytest.raises(ConfigurationError, match=says):
        idempotent(CHECKER, **(PLAIN | options))(function)


class Charging:
    def __call__(self, order: str) -> str:
        return order


def test_partials_and_callable_objects_have_the_name_of_what_they_call() -> None:
    for function, name in (
        (functools.partial(charge.__wrapped__, amount=1), "charge"),  # type: ignore[attr-defined]
        (Charging(), "Charging.__call__"),
    ):
        call = idempotent(CHECKER, group=name, key="order")(function)
        assert str(call("a")).startswith("a")
        assert [each for each in CHECKER.entries.values() if f".{name}:{name}:a" in each.key.text]


def test_a_call_without_its_key_is_an_error_of_the_caller() -> None:
    with pytest.raises(TypeError, match="missing the argument 'order'"):
        charge(amount=5)  # type: ignore[call-arg]
