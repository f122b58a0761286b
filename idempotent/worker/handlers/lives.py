"""HandlerLife: works on their way through the threads of plain handlers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from idempotent.checkers.combining import Threads
from idempotent.consumer import Consumer
from idempotent.outcomes import Result
from idempotent.processing.single import process_one
from idempotent.processing.steps import ENDED, PartedLife
from idempotent.worker.handlers.turns import Done
from idempotent.worker.holds import Work


class HandlerLife:
    """Works of one consumer that were taken together.

    Args:
        works: these.
        parts: a single one may be parked.

    Attributes:
        has_place: it does not wait for its completion yet.
    """

    __slots__ = ("_parted", "_parts", "has_place", "works")

    def __init__(self, works: Sequence[Work], *, parts: bool) -> None:
        self.works = works
        self.has_place = True
        self._parts = parts and len(works) == 1
        self._parted: PartedLife[Result] | None = None

    def look(self) -> None:
        """See to it that its round begins, if it is parked and has waited for long."""
        if self._parted is not None:
            self._parted.look()

    def go_on(self, threads: Threads) -> Done | int:
        """Process the works, or go on with a single one. Returns the kind of the step for which it is parked now."""
        try:
            life = self._parted or self._begin(threads)
            if life is None:
                return Done(self.works, self._process())
            state = life.go_on()
            if state != ENDED:
                return state
            self._consumer.report((self.works[0].delivery.message,), (life.result,))
            return Done(self.works, [life.result])
        except BaseException as error:  # the worker stops, and raises it from run()
            return Done(self.works, [], error)

    def _begin(self, threads: Threads) -> PartedLife[Result] | None:
        binding = self._consumer.binding
        if self._parts and binding.combiner is not None:
            life = process_one(binding, self.works[0].delivery.message)
            self._parted = PartedLife(life, binding.combiner, threads, self)
        return self._parted

    def _process(self) -> Sequence[Result]:
        messages = [work.delivery.message for work in self.works]
        if len(messages) == 1:
            return [self._consumer.process(messages[0])]
        return self._consumer.process_many(messages)

    @property
    def _consumer(self) -> Consumer:
        return cast("Consumer", self.works[0].consumer)
