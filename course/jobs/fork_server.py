"""Imported first by the fork server, so that it ends with its supervisor.

Python's fork server goes on until its children have ended, too: if the supervisor were killed, its
scripts would go on, and no one would watch them.
"""

from course.jobs.scripts import end_with_parent

end_with_parent()
