"""What Colab's start cell installs, and what it leaves alone."""

from tools.install_missing import NOT_NEEDED, missing_and_old


def test_only_what_is_not_there_is_installed() -> None:
    missing, old = missing_and_old({"torch": "2.12.0+cu128", "pillow": "11.3.0"})
    assert "timm>=1.0.20" in missing
    assert not any(need.startswith(("torch>", "pillow", *NOT_NEEDED)) for need in missing)
    (line,) = old
    assert line.startswith("pillow 11.3.0 (expected >=")
