"""What a GPU costs, bought or rented: the lab's functions and their checks."""

from __future__ import annotations

from collections.abc import Callable

from course.lab import results

Cost = Callable[[float, float, float, float, float], tuple[float, float]]
# images_per_s, watts, price, hours, kwh_price
GPU = (1000.0, 400.0, 2000.0, 10_000.0, 0.3)
RENT = (3000.0, 700.0, 3.5, 1.0, 0.0)  # the price of an hour includes electricity
# images, images_per_s, watts, price, rent, kwh_price
OFFERS = ((5e9, 1000.0, 400.0, 2000.0, 0.5, 0.3), (2e8, 256.5, 70.0, 1250.0, 0.9, 0.41))
CASES = (GPU, (2000.0, 300.0, 9000.0, 20_000.0, 0.2), (256.5, 70.0, 1250.0, 30_000.0, 0.41), RENT)


def cost(
    images_per_s: float, watts: float, price: float, hours: float, kwh_price: float
) -> tuple[float, float]:
    """Return images per joule, and euros per million images.

    Args:
        price: of the GPU, in euros.
        hours: in which it computes before it is replaced.
        kwh_price: euros per kilowatt-hour.
    """
    images_per_joule = images_per_s / watts
    per_hour = price / hours + watts / 1000 * kwh_price
    return images_per_joule, 1e6 * per_hour / (3600 * images_per_s)


def check_energy(function: Cost) -> str:
    """Check the images per joule."""
    for case in CASES:
        expected = cost(*case)[0]
        causes = {
            1 / expected**2: "these are joules per image: divide the other way round",
            3600: "a watt is a joule per second, so no hours are needed",
            1000: "a watt is a joule per second: a kilowatt has 1,000",
        }
        _compare("images_per_joule", case, _call(function, case)[0], expected, causes)
    return f"{GPU[0]:,.0f} images/s at {GPU[1]:.0f} W are {cost(*GPU)[0]:.1f} images per joule"


def check_euros(function: Cost) -> str:
    """Check the euros per million images: the price's part, then the electricity's."""
    for case in CASES:
        images_per_s, watts, price, hours, kwh_price = case
        expected = cost(*case)[1]
        millions_per_hour = images_per_s * 3600 / 1e6
        electricity = watts / 1000 * kwh_price
        causes = {
            1e-6: "these are euros per image: a million costs more",
            3600: "images_per_s are images per second: an hour has 3,600",
            millions_per_hour: "these are euros per hour: how many million images is an hour?",
            price / hours / millions_per_hour / expected: "the electricity is missing",
            electricity / millions_per_hour / expected: "the GPU's price is missing",
            (price + electricity) / millions_per_hour / expected: (
                "the price counts in full in each hour: share it among all hours"
            ),
            (price / hours + watts * kwh_price) / millions_per_hour / expected: (
                "watts × hours are watt-hours: a kilowatt-hour has 1,000"
            ),
            (price / hours + electricity * hours) / millions_per_hour / expected: (
                "this is the electricity of all hours: count that of one"
            ),
            (price / hours + electricity * 3600) / millions_per_hour / expected: (
                "an hour's electricity is watts × 1 hour, not × 3,600"
            ),
            hours: "the hours count twice: euros_per_hour are for one hour already",
            millions_per_hour**2: "these are euros per hour × millions per hour: divide instead",
            1 / expected**2: "these are millions of images per euro: divide the other way round",
        }
        _compare("euros_per_million", case, _call(function, case)[1], expected, causes)
    return f"at {GPU[2]:,.0f} euros and {GPU[4]} euros per kWh, a million costs {cost(*GPU)[1]:.3f}"


def hours_to_buy(
    images: float, images_per_s: float, watts: float, price: float, rent: float, kwh_price: float
) -> tuple[float, float]:
    """Return the hours that `images` take, and the hours from which buying is cheaper.

    Args:
        price, kwh_price: as for `cost`.
        rent: euros per hour, electricity included.
    """
    return images / images_per_s / 3600, price / (rent - watts / 1000 * kwh_price)


def check_needed(function: Callable[..., tuple[float, float]]) -> str:
    """Check the hours that the images take."""
    for offer in OFFERS:
        expected = hours_to_buy(*offer)[0]
        value = results.numbers(function(*offer), "needed, break_even")[0]
        case = f"the hours for {offer[0]:g} images at {offer[1]:g} images/s"
        seconds = {3600 * expected: "these are seconds: an hour has 3,600"}
        results.compare(case, value, expected, seconds, tolerance=1e-3)
    return f"{OFFERS[0][0]:g} images take {hours_to_buy(*OFFERS[0])[0]:,.0f} hours"


def check_break_even(function: Callable[..., tuple[float, float]]) -> str:
    """Check the hours from which buying is cheaper."""
    for offer in OFFERS:
        _, _, watts, price, rent, kwh_price = offer
        value = results.numbers(function(*offer), "needed, break_even")[1]
        mistakes = {
            price / rent: "your own GPU needs electricity, too",
            price / (rent + watts / 1000 * kwh_price): "the rent includes electricity: subtract it",
        }
        case = f"the break-even at {price:g} euros, {rent:g} an hour and {watts:g} W"
        results.compare(case, value, hours_to_buy(*offer)[1], mistakes, tolerance=1e-3)
    return f"buying is cheaper from {hours_to_buy(*OFFERS[0])[1]:,.0f} hours on"


def _call(function: Cost, case: tuple[float, ...]) -> list[float]:
    return results.numbers(function(*case), "images_per_joule, euros_per_million")


def _compare(
    name: str, case: tuple[float, ...], value: float, expected: float, causes: dict[float, str]
) -> None:
    images_per_s, watts, price, hours, kwh_price = case
    words = (
        f"{name} at {images_per_s:g} images/s, {watts:g} W, {price:g} euros, {hours:g} hours and "
        f"{kwh_price:g} euros per kWh"
    )
    mistakes = {factor * expected: cause for factor, cause in causes.items()}
    results.compare(words, value, expected, mistakes, rule="check the units", tolerance=1e-3)
