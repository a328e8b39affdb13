"""A class: the folder that an instructor shares with twenty learners, and what they see of it.

FOLDER/course.bundle   the course; learners clone it, and `course update` reads it
      /start.sh        what learners source: environment, data, site, umask
      /sites.toml      the class's site entries
      /drop/           learners write one small file each, and read none
      /board/          the race's board

`setup` creates the folder; `drop_box` writes and reads the learners' files; `report` and `page`
show them to the instructor.
"""
