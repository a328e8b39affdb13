"""Searching hyperparameters: what a search finds, what it costs, and what is chance."""

from course.topics.search.studies import Search, search
