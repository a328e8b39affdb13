"""Searching hyperparameters: what a search finds, what it costs, and what is chance."""

from course.topics.search.chance import (
    best_by_chance,
    best_of,
    check_best_of,
    tested,
    validated_and_tested,
)
from course.topics.search.studies import Search, search
