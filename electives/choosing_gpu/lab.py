"""The lab's function check, and what the course shows about the lab."""

from __future__ import annotations

from course.lab import Function, FunctionCheck, Lab


def _cost() -> FunctionCheck:
    from electives.choosing_gpu import costs

    return FunctionCheck(costs.cost, costs.check_energy, costs.check_euros)


LAB = Lab(
    title="choosing a GPU",
    minutes=30,
    functions={"choosing_gpu.cost": Function("what a GPU costs per million images", _cost)},
    prepare="nothing: it uses data sheets and recorded runs",
    stuck="the price of a GPU is shared among all the hours in which it computes",
)
