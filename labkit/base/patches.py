"""Changes to modules and classes that can be taken back exactly.

Everything the simulated machine replaces in torch goes through one :class:`Patches`, so that closing the
machine is one loop and a test can compare torch before and after.
"""

from __future__ import annotations

_ABSENT = object()


class Patches:
    """A stack of replaced attributes and dictionary entries."""

    def __init__(self) -> None:
        self._undo: list[tuple[object, str, object]] = []

    def set(self, owner: object, name: str, value: object) -> None:
        """Set ``owner.name`` to ``value``, remembering what stood there (or that nothing did)."""
        # vars(), not getattr(): an attribute a class inherits must be deleted again, not copied down.
        self._undo.append((owner, name, vars(owner).get(name, _ABSENT)))
        setattr(owner, name, value)

    def undo(self) -> None:
        """Put everything back, last change first."""
        while self._undo:
            owner, name, before = self._undo.pop()
            if before is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, before)
