"""Displays in a notebook, which are redrawn until the state that they show is complete."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextvars import copy_context

INTERVAL = 0.25
"""Seconds between two drawings."""


def in_notebook() -> bool:
    """Whether this code runs in a Jupyter kernel, so that a display can be updated after it was shown."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")


class LiveDisplay:
    """A display in the output of a notebook cell. A thread calls `draw` every INTERVAL seconds, and updates the display
    if the HTML has changed."""

    def __init__(self, draw: Callable[[], str], text: str, is_complete: Callable[[], bool] = lambda: False) -> None:
        """draw: returns the HTML. text: shown where HTML cannot be displayed. is_complete: whether the next drawing is
        the last."""
        from IPython.display import display  # only notebooks call this, and they have IPython

        self._draw, self._text, self._is_complete = draw, text, is_complete
        self._closed = threading.Event()
        self._html = draw()
        self._handle = display(self._bundle(), raw=True, display_id=True)
        # In the caller's context, by which the kernel knows to which cell the display belongs.
        self._thread = threading.Thread(
            target=copy_context().run, args=(self._refresh,), name="banyan-display", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Draw a last time, and wait until that is done."""
        self._closed.set()
        self._thread.join()

    def _bundle(self) -> dict[str, str]:
        return {"text/html": self._html, "text/plain": self._text}

    def _refresh(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._closed.wait(INTERVAL) or self._is_complete()  # asked first: the last drawing is complete
            if (html := self._draw()) != self._html:
                self._html = html
                self._handle.update(self._bundle(), raw=True)
