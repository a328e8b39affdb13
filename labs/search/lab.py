"""The lab's check, its recorded runs, and what the course shows about the lab."""

from course.lab import Function, FunctionCheck, Lab, Recording


def _halving() -> FunctionCheck:
    from labs.search import halving, verify

    return FunctionCheck(halving.successive_halving, verify.check_rounds, verify.check_recorded)


def _asha() -> FunctionCheck:
    from labs.search import asha

    return FunctionCheck(asha.promote, asha.check_rule, asha.check_recorded)


LAB = Lab(
    title="hyperparameter search without wasting a cluster",
    minutes=70,
    functions={
        "search.halving": Function("successive halving", _halving),
        "search.asha": Function("promotion without barriers", _asha),
    },
    recordings=(Recording("search", keep="times"),),
    jobs="16, one after another",
    prepare="the crops, 230 MB, as for large batches",
    stuck="keep at least one trial; compare accuracies of the same round",
)
