"""Searching hyperparameters: what a search finds, what it costs, and what is chance."""

from course.topics.search import pictures
from course.topics.search.chance import best_by_chance, best_of, check_best_of
from course.topics.search.replay import Recorded, points, replayed
from course.topics.search.studies import Search, search
from course.topics.search.tables import costs, epochs, importance, progress, tested, trials
