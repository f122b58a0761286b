"""A module of consumers, as text: tests write it into a folder of their own."""

CONSUMERS = """
import asyncio
import time

from idempotent import Backoff, Message, Registry, consumer


@consumer(
    "orders.paid",
    group="billing",
    checker="db",
    retry_for=(ConnectionError,),
    backoff=Backoff(0.01, 0.1),
    max_attempts=2,
)
def on_paid(message: Message) -> None:
    order = message.json()
    time.sleep(order.get("sleep_s", 0))
    if order.get("bad"):
        raise ValueError("no such customer")
    if order.get("flaky"):
        raise ConnectionError("the bank is down")
    with open("effects.txt", "a") as effects:
        effects.write(f"{message.id}\\n")


mail = Registry()


@mail.consumer("mail", checker="db")
def on_mail(message: Message) -> None:
    with open("effects.txt", "a") as effects:
        effects.write(f"{message.id}\\n")


calls = Registry()


@calls.consumer("calls", checker="db", max_attempts=1)
async def on_call(message: Message) -> None:
    call = message.json()
    await asyncio.sleep(call.get("sleep_s", 0))
    if call.get("bad"):
        raise ValueError("no such number")
    with open("effects.txt", "a") as effects:
        effects.write(f"{message.id}\\n")


letters = Registry()


def write_letter(name: str) -> None:
    with open("effects.txt", "a") as effects:
        effects.write(f"{name}\\n")


letters.consumer("letters", group="one", checker="db")(lambda message: write_letter("one"))
letters.consumer("letters", group="two", checker="db")(lambda message: write_letter("two"))


def undecorated(message: Message) -> None: ...
"""
