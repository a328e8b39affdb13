"""The lab's function check, and what the course shows about the lab."""

from __future__ import annotations

from course.lab import Function, FunctionCheck, Lab


def _cost() -> FunctionCheck:
    from electives.choosing_gpu import costs

    return FunctionCheck(costs.cost, costs.check_energy, costs.check_euros)


def _hours() -> FunctionCheck:
    from electives.choosing_gpu import costs

    return FunctionCheck(costs.hours_to_buy, costs.check_needed, costs.check_break_even)


LAB = Lab(
    title="choosing a GPU",
    minutes=40,
    functions={
        "choosing_gpu.cost": Function("what a GPU costs per million images", _cost),
        "choosing_gpu.hours_to_buy": Function("from how many hours buying is cheaper", _hours),
    },
    prepare="nothing: it uses data sheets and recorded runs",
    stuck="the price of a GPU is shared among all the hours in which it computes",
)
