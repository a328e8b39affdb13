"""How a rehearsal executes a notebook: as papermill does, but for how often it is saved.

Papermill saves the whole notebook as each cell begins and as it ends, texts as well. With its
pictures that takes 0.1 s each time, half of all that a rehearsal does beside its kernels.
"""

from __future__ import annotations

from typing import Any

from papermill.engines import NBClientEngine, NotebookExecutionManager, papermill_engines

NAME = "course"  # of the engine, for papermill.execute_notebook


class _Manager(NotebookExecutionManager):
    """Saves as code begins, which may take long, and at the end, however that comes."""

    _is_over = False  # a cell, whose end the next one's beginning saves

    def cell_start(self, cell: Any, *rest: Any, **given: Any) -> None:
        self._is_over = cell.cell_type != "code"
        super().cell_start(cell, *rest, **given)

    def cell_complete(self, *cell: Any, **given: Any) -> None:
        self._is_over = True
        super().cell_complete(*cell, **given)

    def save(self, **given: Any) -> None:
        if self.end_time or not self._is_over:
            super().save(**given)


class Engine(NBClientEngine):
    """Papermill's own, with that manager."""

    @classmethod
    def execute_notebook(
        cls, nb: Any, kernel_name: str, output_path: str = "", progress_bar: bool = True, **how: Any
    ) -> Any:
        """The notebook with its output, as it is also written."""
        every = how.pop("autosave_cell_every", 30)
        manager = _Manager(nb, output_path, False, progress_bar, every)
        manager.notebook_start()
        try:
            cls.execute_managed_notebook(manager, kernel_name, **how)
        finally:
            manager.notebook_complete()
        return manager.nb


papermill_engines.register(NAME, Engine)
