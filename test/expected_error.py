"""``pytest.raises`` for tests that call it a hundred thousand times."""

from __future__ import annotations

from typing import Any


class expected:  # noqa: N801 - reads as a phrase
    """Like ``pytest.raises``, which takes longer than the verb."""

    def __init__(self, kind: type[Exception], words: str) -> None:
        self._kind, self._words = kind, words

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: Any, _: Any) -> bool:
        assert kind is not None, f"expected {self._kind.__name__}"
        return issubclass(kind, self._kind) and self._words in str(error)
