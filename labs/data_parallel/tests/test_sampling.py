"""Shares of a training set, as PyTorch's sampler deals them out to ranks."""

from labs import data_parallel as lab


def test_ranks_take_every_image_once_per_epoch() -> None:
    table = lab.sampler_order(24, ranks=3, rank_batch=4)
    counts = table.groupby(["epoch", "image"]).size()
    assert len(counts) == 48 and set(counts) == {1}
    orders = table.groupby("epoch")["image"].agg(list)
    assert orders[0] != orders[1]
    table = lab.sampler_order(24, ranks=3, rank_batch=4, set_epoch=False)
    orders = table.groupby("epoch")["image"].agg(list)
    assert orders[0] == orders[1]
    table = lab.sampler_order(7, ranks=2, rank_batch=4, epochs=1)
    assert sorted(table.groupby("image").size()) == [1] * 6 + [2]
    (axes,) = lab.plot_sampler_order({"seven": table}).axes
    assert len(axes.texts) == 8  # a step for each image, and two for the repeated one
