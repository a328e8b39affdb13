"""Half precision for science: small updates kept, and systems solved by rough factors, refined."""

from course.topics.refinement import pictures, written
from course.topics.refinement.factors import ROUNDOFF, factor, matrix_of
from course.topics.refinement.measured import recorded
from course.topics.refinement.refined import (
    backward_error,
    convergence,
    correct,
    refine,
    refine_by_gmres,
)
from course.topics.refinement.updates import add_carried, adding, by_chance, learned_in_bf16
