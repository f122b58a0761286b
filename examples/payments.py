"""A payment is booked once, although it is delivered three times and the first attempt fails half-way."""

from sqlalchemy import Column, Integer, MetaData, String, Table, create_engine, func, select
from sqlalchemy.orm import Session

from idempotent import Message, consumer
from idempotent.checkers import TransactionalSqlChecker
from idempotent.migrations import upgrade

engine = create_engine("sqlite:///payments.db")
upgrade(engine)
metadata = MetaData()
ledger = Table("ledger", metadata, Column("payment", String(50)), Column("cents", Integer))
metadata.create_all(engine)
failures = [ConnectionError("the network hiccups after the first booking line")]


@consumer("payments", group="ledger", checker=TransactionalSqlChecker(engine))
def book(message: Message, session: Session) -> None:
    cents = message.json()["cents"]
    session.execute(ledger.insert().values(payment=message.id, cents=-cents))
    if failures:
        raise failures.pop()
    session.execute(ledger.insert().values(payment=message.id, cents=cents))


payment = Message("payments", b'{"cents": 1999}', id="payment-1")
print([book.process(payment).outcome.value for _ in range(3)])
with engine.connect() as connection:
    lines = connection.scalar(select(func.count()).select_from(ledger))
print(f"{lines} lines")
assert lines == 2
