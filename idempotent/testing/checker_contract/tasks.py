"""The contract of tasks: what an `async def` handler is promised over the checker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeAlias, TypeVar

from idempotent.checkers.base import AbstractIdempotentChecker
from idempotent.consumer import AsyncConsumer
from idempotent.message import Message
from idempotent.outcomes import Outcome
from idempotent.registry import Registry
from idempotent.testing.checker_contract.base import Capability, ContractBase, needs

T = TypeVar("T")
_Handler: TypeAlias = Callable[[Message], Coroutine[Any, Any, object]]

_TASKS: Final = 20
_LONGEST_S: Final = 60.0


class TasksContract(ContractBase):
    """Tasks of an event loop claim and complete, and a cancelled one leaves its key free."""

    @needs(Capability.RECORDED_CLAIMS)
    def test_tasks_process_their_messages_at_once(self) -> None:
        everybody = asyncio.Barrier(_TASKS if self.has(Capability.PARALLEL_CLAIMS) else 1)

        async def handle(message: Message) -> str:
            await everybody.wait()
            return str(message.id)

        async def process_all() -> list[str]:
            consumer = _consumer_of(handle, self.checker())
            names = [str(number) for number in range(_TASKS)]
            results = await asyncio.gather(*(consumer(Message("contract", id=name)) for name in names))
            assert {result.outcome for result in results} == {Outcome.PROCESSED}
            return [str(result.value) for result in results]

        assert _run(process_all()) == [str(number) for number in range(_TASKS)]

    @needs(Capability.RECORDED_CLAIMS)
    def test_a_task_that_is_cancelled_in_its_handler_leaves_a_free_key(self) -> None:
        runs: list[Message] = []

        async def handle(message: Message) -> None:
            runs.append(message)
            if len(runs) == 1:
                running.set()
                await asyncio.sleep(_LONGEST_S)

        running = asyncio.Event()

        async def cancel_and_repeat() -> None:
            consumer = _consumer_of(handle, self.checker())
            task = asyncio.create_task(consumer.process(Message("contract", id="1")))
            await running.wait()
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled()
            result = await consumer.process(Message("contract", id="1"))
            assert result.outcome is Outcome.PROCESSED

        _run(cancel_and_repeat())
        assert len(runs) == 2


def _consumer_of(handler: _Handler, checker: AbstractIdempotentChecker) -> AsyncConsumer:
    return Registry().consumer("contract", group="tasks", checker=checker)(handler)


def _run(main: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asyncio.wait_for(main, _LONGEST_S))
