"""The lab of the fast step; wrong answers to its function are in tests/checks/test_written.py."""

from labs import lab_fast_step as lab


def test_figures_show_traffic_and_speed() -> None:
    alt = lab.plot_traffic(lab.block_traffic()).alt
    assert all(total in alt for total in ("eager: 138", "compile: 100", "fast: 61"))
    megabytes = lab.megabytes_per_image()
    figure = lab.plot_limits(lab.load_measurements(), megabytes, **lab.hardware_limits())
    assert "fast, 8,465" in [text.get_text() for text in figure.axes[0].texts]
