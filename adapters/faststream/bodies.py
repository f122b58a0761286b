"""Bodies: which exceptions say that a message's body could not be decoded, or did not fit its handler."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from typing import Final

# What FastDepends calls to cast the body to the parameters of a handler, and FastStream to decode it.
_REFUSING: Final = {"__call__", "_try_pydantic", "_try_msgspec"}


def _frames(error: BaseException) -> Iterator[tuple[str, str]]:
    """Module and function of each call that the exception has passed through, the outermost first."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        yield frame.f_globals.get("__name__", ""), frame.f_code.co_name


def is_refused(error: Exception) -> bool:
    """Whether the body could not be decoded, or did not fit the parameters: the handler has not begun."""
    frames = list(_frames(error))
    if ("faststream.message.message", "decode") in frames:
        return isinstance(error, ValueError)  # else a decoder may have asked a server in vain
    module, name = next(
        each for each in reversed(frames) if not each[0].startswith(("pydantic", "contextlib"))
    )
    casts = module.startswith("fast_depends.") and name in _REFUSING
    unpacks = module.startswith("faststream.") and name == "decode_wrapper"
    return (casts and "response" not in [name for _, name in frames]) or unpacks


def reason_of(error: Exception) -> str:
    """Why a body was refused, without what is in it."""
    errors = getattr(getattr(error, "original_error", error), "errors", None)
    if not callable(errors):
        return type(error).__name__
    found = errors(include_input=False, include_url=False, include_context=False)
    return "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in found)
