"""How a rehearsal executes a notebook: as papermill does, but for how often it is written."""

from __future__ import annotations

import time
from typing import Any

from papermill.engines import NBClientEngine, NotebookExecutionManager, papermill_engines

NAME = "course"
SAVED_S = 5.0  # seldom enough that a notebook with many pictures is not mostly written


class Engine(NBClientEngine):
    """Papermill's own, which would write the whole notebook before and after every cell."""

    @classmethod
    def execute_managed_notebook(
        cls, nb_man: NotebookExecutionManager, kernel_name: str, **options: Any
    ) -> None:
        """Execute all cells; the last state is always written, by `notebook_complete`."""
        save, saved = nb_man.save, time.monotonic()

        def save_seldom(**how: Any) -> None:
            nonlocal saved
            if time.monotonic() - saved >= SAVED_S:
                save(**how)
                saved = time.monotonic()

        nb_man.save = save_seldom
        try:
            super().execute_managed_notebook(nb_man, kernel_name, **options)
        finally:
            nb_man.save = save


papermill_engines.register(NAME, Engine)
