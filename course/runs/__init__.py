"""Runs, their records and recordings: for labs that read, compare or select what runs measured.

`recordings` has what the course recorded on other machines: `recordings.part`, `recordings.origin`.
`shared_files` reads files in folders to which other people can write.
"""

import lazy_loader

_NAMES = {
    "failures": "advice is_early_end summarize",
    "files": "complete_file read_dict write_atomically",
    "ranks": "rank_table",
    "ratio": "ratio",
    "record": "Record",
    "recordings": "recorded_table",
    "run": "all_runs find_runs git_sha PROJECT RECORDED rows_of",
    "trust": "openings runs_root",
}
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    ["recordings", "restarts", "shared_files", "trust"],
    {module: names.split() for module, names in _NAMES.items()},
)
