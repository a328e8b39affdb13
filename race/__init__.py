"""The race: train to a given accuracy in the least time, and with the least joules."""

from course.race.again import verify
from course.race.board import SHIPPED_ENTRIES as ENTRIES
from course.race.board import Entry, entries
from course.race.entry import draft, enter
from course.race.views import anchors, board_page, difference, margin, settings, table, ways
from course.race.views import tracks_table as show_tracks
