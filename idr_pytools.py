"""IDRIS's notebook library under its own name: its notebooks run here with no line changed.

It is installed with the course. What it does is told in `course.idr_pytools`.
"""

from course.idr_pytools import (
    display_slurm_queue,
    display_slurm_queue_jupyter,
    gpu_jobs_submitter,
    search_log,
    slurm_file_creator,
)

__all__ = [
    "display_slurm_queue",
    "display_slurm_queue_jupyter",
    "gpu_jobs_submitter",
    "search_log",
    "slurm_file_creator",
]
