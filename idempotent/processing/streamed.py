"""Streamed: a sequence whose elements are made while it is read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar, overload

T = TypeVar("T")


class Streamed(Sequence[T]):
    """The elements of an iterator as a sequence; each is made when it is first read.

    It can be read many times. Asking for its length, or for an element by its index, makes all elements first.

    Args:
        source: makes the elements; it is read once, as far as the furthest reader needs.
    """

    __slots__ = ("_made", "_source")

    def __init__(self, source: Iterator[T]) -> None:
        self._source = source
        self._made: list[T] = []

    def __iter__(self) -> Iterator[T]:
        made, source = self._made, self._source
        index = 0
        while True:
            if index == len(made):  # another reader may be further
                for element in source:
                    made.append(element)
                    break
                else:
                    return
            yield made[index]
            index += 1

    def __bool__(self) -> bool:
        return any(True for _ in self)

    def __len__(self) -> int:
        self._made.extend(self._source)
        return len(self._made)

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...
    def __getitem__(self, index: int | slice) -> T | list[T]:
        self._made.extend(self._source)
        return self._made[index]
