"""Labs beside the days, which may be taken in any order: they need no script, and launch no job."""

from __future__ import annotations

from course.days.lab import Lab, Looks, Written


def _carry() -> Looks:
    from course.topics.refinement import updates, written

    return Looks(updates.add_carried, written.adds_up, written.keeps_the_rest)


def _chance() -> Looks:
    from course.topics.refinement import updates, written

    return Looks(updates.by_chance, written.is_right_on_average, written.leaves_what_fits)


def _refine() -> Looks:
    from course.topics.refinement import refined, written

    return Looks(refined.correct, written.refines, written.asks_the_factors)


NUMERICS = {
    "numerics.carry": Written("small updates arrive, in 16 bits", _carry),
    "numerics.chance": Written("rounding is right on average", _chance),
    "numerics.refine": Written("fp64's accuracy from factors in fp16", _refine),
}

LABS = (
    Lab(
        number="N",
        notebook="lab_numerics",
        title="half precision for science",
        minutes=50,
        quiz="lab_numerics",
        written=NUMERICS,
        prepare="nothing",
        stuck="the carry's sign; bits that are rounded instead of cut",
    ),
)
