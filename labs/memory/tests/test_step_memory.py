"""The recorded memory of a step over time."""

from labs.memory.step_memory import live_bytes, plot_step_memory, recorded_memory


def test_memory_of_a_step() -> None:
    table = recorded_memory()
    live = live_bytes(table)
    assert live.min().min() >= 0
    # The allocator counts blocks, which are larger than the tensors in them.
    assert 0.8 < live.sum(axis=1).max() / table.attrs["peak_bytes"] < 1
    assert live["weights"].iloc[-1] > 0 and live["activations"].iloc[-1] == 0
    assert "GiB at the peak" in plot_step_memory().alt
