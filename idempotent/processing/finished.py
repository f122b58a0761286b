"""finished: refuses a return value that stands for work which has not happened."""

from __future__ import annotations

from collections.abc import Awaitable
from concurrent.futures import Future
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any, Final

from idempotent.errors import ConfigurationError

# What most handlers return. Asking an abstract class takes longer than all other work of this module.
_PLAIN: Final = frozenset({bool, int, float, str, bytes, dict, list, tuple, type(None)})
# A wrapped `async def` or generator function looks like any other function, and nothing of it has run.
_PENDING: Final = (GeneratorType, AsyncGeneratorType, map, filter, Future, Awaitable)


def finished(returned: Any) -> Any:
    """What a function of the application returned.

    Raises:
        ConfigurationError: a coroutine, a generator, a future or the like: its work has not run, or not to its end.
    """
    if type(returned) in _PLAIN or not isinstance(returned, _PENDING):
        return returned
    if isinstance(returned, CoroutineType):
        returned.close()  # else Python warns that it was never awaited
        advice = "which was never awaited; run it with asyncio.run()"
    elif isinstance(returned, (Future, Awaitable)):
        advice = "which may not be done; wait for its result in the handler"
    else:
        advice = "which runs when it is read; read it in the handler, for example with list()"
    raise ConfigurationError(f"the handler returned a {type(returned).__name__}, {advice}")
