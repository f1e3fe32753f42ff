"""Runs that crash, for tests. Ledgers are then added up by `trust.books`, which knows nothing of the package."""

import sys

from trust.books import Audit, AuditedRun, audit, delta_of

__all__ = ["Audit", "AuditedRun", "Crash", "Crashes", "audit", "delta_of"]


class Crash(BaseException):
    """The process would be gone here."""


class Crashes:
    """Ends a run where its n-th part is written down, as a kill would: nothing is tidied up but the lock.

    Attributes
    ----------
    written, lost
        Kinds of parts that were written down, and of those that were about to be.
    """

    def __init__(self, monkeypatch):
        from dpmcmc.inference.books import Books
        from dpmcmc.inference.checkpoint import Checkpoint

        self.written, self.lost = [], []
        self._at, self._before, self._count = None, True, 0
        append, give_up = Checkpoint.append, Books.give_up

        def counted(checkpoint, kind, header, arrays):
            self._count += 1
            if self._count == self._at and self._before:
                self.lost.append(kind)
                raise Crash
            append(checkpoint, kind, header, arrays)
            self.written.append(kind)
            if self._count == self._at:
                raise Crash

        def only_closed(books, how):
            if not isinstance(sys.exc_info()[1], Crash):
                give_up(books, how)
            elif books.checkpoint is not None:
                books.checkpoint.close()

        monkeypatch.setattr(Checkpoint, "append", counted)
        monkeypatch.setattr(Books, "give_up", only_closed)

    def at(self, number, before, function):
        """Call a function that crashes at its n-th part; return None, or what it returns if it was done before."""
        self._at, self._before, self._count = number, before, 0
        try:
            return function()
        except Crash:
            return None
        finally:
            self._at = None

    def survived(self, begin, go_on, numbers, before=True):
        """Begin, crash, go on, crash, …, and in the end go on to the end; return what comes out."""
        result, function = None, begin
        for number in numbers:
            result = self.at(number, before, function)
            function = go_on
        return go_on() if result is None else result
