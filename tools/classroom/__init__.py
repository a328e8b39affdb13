"""A class: the folder that an instructor shares with twenty learners, and what they see of it.

FOLDER/course.bundle   the course; learners clone it, and `course update` reads it
      /start.sh        what learners source: environment, data, site, umask
      /sites.toml      the class's site entries
      /drop/           learners write one small file each, and read none
      /board/          the race's board

`setup` creates the folder. Learners join by `membership`; `course.checks.shared_progress` writes
their files, which `drop_box` reads, and `report` and `page` show them to the instructor.
"""

VARIABLE = "COURSE_CLASS"  # the folder of the class that commands use by default
