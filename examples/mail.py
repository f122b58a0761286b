"""Sending mail has no transaction: a leased checker, and a person decides about mail that may have been sent."""

from idempotent import Backoff, Message, Outcome, Registry, current_claim
from idempotent.checkers import SqlChecker
from idempotent.migrations import upgrade

upgrade("sqlite:///mail.db")
registry = Registry()
registry.checker("keys", SqlChecker("sqlite:///mail.db", lease_s=30))
sent: list[dict[str, object]] = []


@registry.consumer(
    "mail",
    group="smtp",
    checker="keys",
    on_expired_lease="park",
    retry_for=(ConnectionError,),
    backoff=Backoff(initial_s=5),
)
def send(message: Message) -> None:
    # The receiver can drop duplicates: the token is the same for every delivery of this message.
    key = current_claim().key
    assert key is not None, "a message without an id never gets here"
    sent.append({"Idempotency-Key": key.token, "body": message.body})


results = send.process_many([Message("mail", b"hello", id=mail) for mail in ("m1", "m2", "m1")])
print([result.outcome.value for result in results])
assert [result.outcome for result in results] == [Outcome.PROCESSED, Outcome.PROCESSED, Outcome.DUPLICATE]
assert len(sent) == 2
registry.close()
