"""A job that runs on for a while after its record is written, as if it saved a trace."""

import os
import time
from pathlib import Path

from course.runs.record import Record, write_record

write_record(Path(os.environ["COURSE_RUN_FOLDER"]), Record("ok"))
time.sleep(2)
Path("tidied").touch()
