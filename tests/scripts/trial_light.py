"""A trial of a search without torch: the nearer its learning rate is to 1, the better it is.

Trials whose numbers are in the file `hold`, next to the study's journal, wait to be ended.
"""

import json
import math
import os
import time
from pathlib import Path

from course.runs.record import write_record
from course.runs.run import FOLDER_VARIABLE, Run, record_of
from labs.search.trials import FOLDER

run = Run(Path(os.environ[FOLDER_VARIABLE]))
trial = run.launched["trial"]
hold = run.folder.parent / FOLDER / trial["study"] / "hold"
if hold.exists() and str(trial["number"]) in hold.read_text().split():
    time.sleep(60)
time.sleep(0.3)
value = 1 / (1 + abs(math.log(run.config.lr)))
if run.config.save_weights:  # and their accuracy on other images
    (run.folder / "test.json").write_text(json.dumps({"test_top1": value / 2, "test_images": 8}))
values = {"status": "ok", "val_top1": value, "machine": "light", "versions": {"torch": "0"}}
write_record(run.folder, record_of(run, values))
