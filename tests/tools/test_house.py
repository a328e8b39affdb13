"""What one has to know of the course does not grow. Lower a limit when its number falls."""

from tools.house import measure, modules, private_torch

LIMITS = {
    "modules of course that labs import from": 13,
    "names that labs import from them": 123,
    "names that labs reach through modules of the doors": 66,
    "names of `import course`": 31,
    "lines behind launch, wait and report": 11_941,
    "lines behind the launch of an own script": 13_417,
    "lines of course that name labs, race or search": 0,
    "private names of PyTorch": 45,
    "lines without tests, but for trainspeed": 57_580,
    "lines of trainspeed": 7_473,
    "lab.x in notebooks": 230,
    "lab.x in the notebook with the most": 8,
}


def test_no_number_gets_worse() -> None:
    found = measure()
    assert found.keys() == LIMITS.keys()
    worse = {
        what: (number, LIMITS[what]) for what, number in found.items() if number > LIMITS[what]
    }
    assert not worse, "each with its limit"


def test_private_names_of_pytorch_are_in_one_module_of_each_package() -> None:
    """There, each has its reason; a new PyTorch may rename it."""
    elsewhere = {
        name: uses
        for name, path in modules().items()
        if path.name != "_compat.py" and (uses := [*private_torch(path)])
    }
    assert not elsewhere
