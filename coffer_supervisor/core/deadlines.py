"""Many deadlines that nearly always are not reached: a wheel of buckets of one second.

Owns which numbers are due. A number is added and dropped in constant time, and dropping leaves nothing behind
(a heap would keep ten minutes of finished calls). Never reads a clock. Times are monotonic seconds.
"""

from math import ceil

Bucket = int


class Deadlines:
    """Numbers, each with at most one deadline; due up to one second late."""

    def __init__(self) -> None:
        self._buckets: dict[Bucket, set[int]] = {}
        self._of: dict[int, Bucket] = {}

    def __len__(self) -> int:
        return len(self._of)

    def set(self, number: int, when: float) -> None:
        """Let ``number`` be due at ``when``, instead of when it was."""
        self.drop(number)
        bucket = ceil(when)
        self._of[number] = bucket
        self._buckets.setdefault(bucket, set()).add(number)

    def drop(self, number: int) -> None:
        """No deadline for ``number`` any more."""
        bucket = self._of.pop(number, None)
        if bucket is None:
            return
        numbers = self._buckets[bucket]
        numbers.discard(number)
        if not numbers:
            del self._buckets[bucket]

    def due(self, now: float) -> list[int]:
        """The numbers whose deadline has passed, in order; they are dropped."""
        found: list[int] = []
        for bucket in sorted(b for b in self._buckets if b <= now):
            numbers = self._buckets.pop(bucket)
            found += sorted(numbers)
            for number in numbers:
                del self._of[number]
        return found

    def next(self) -> float | None:
        """When something is due next."""
        return float(min(self._buckets)) if self._buckets else None
