"""Numbers for people."""

from cases import for_all

from course.text import digits


@for_all(
    "value, said",
    [(0, "0"), (3727.4, "3,727"), (2.345, "2.35"), (0.00012, "0.00012"), (0.0000123, "0.0000123")]
    + [(-2e-7, "-0.0000002"), (1e-4, "0.0001"), (99.96, "100"), (float("nan"), "nan")],
)
def test_three_digits_and_no_exponent(value: float, said: str) -> None:
    assert digits(value) == said
