"""The bottleneck test: right and wrong answers; sizes of the trials; the drawn schedule."""

from pathlib import Path

import pytest

from course.config import rung
from course.runs.recordings import recorded_runs
from labs import augmentation, formats
from labs.dataloader import figures, lab, loading, verify


def test_unusual_right_answers_pass() -> None:
    def by_shares(loader, network, together):
        if together / network >= 0.9:
            return ["network", network]
        shares = {"loader": together / loader, "overlap": 0.9}
        limit = max(shares, key=shares.get)  # the loader if both are equal
        return [limit, network if limit == "loader" else sorted((loader, network))[0]]

    assert "0 to 16 workers" in verify.check_answers(by_shares)
    assert "same limit" in verify.check_scale(by_shares)


def _test(*, share=0.9, first="network", loader="network", overlap="min(loader, network)"):
    """Return a test that differs from the solution in one place."""
    tests = {
        "network": f"    if together >= {share} * network: return 'network', network",
        "loader": f"    if together >= {share} * loader: return 'loader', {loader}",
    }
    order = sorted(tests, key=lambda name: name != first)
    lines = ["def test(loader, network, together):", *(tests[name] for name in order)]
    exec("\n".join([*lines, f"    return 'overlap', {overlap}"]), scope := {})
    return scope["test"]


@pytest.mark.parametrize(
    ("test", "hint"),
    [
        (_test(share=0.99), "'overlap', expected 'loader': training is as fast as images arrive"),
        (_test(share=0.8), "'loader', expected 'overlap': training is slower than the loader"),
        (_test(first="loader"), "'loader', expected 'network': .* better loading wins little"),
        (_test(loader="together"), "458.4, expected 4677: that is today's speed"),
        (_test(loader="loader"), "508, expected 4677: more workers could load more"),
        (_test(overlap="network"), "4677, expected 4064: the network's own speed is the most"),
        (_test(overlap="max(loader, network)"), "4677, expected 4064"),
        (lambda loader, network, together: "loader", "returns 'loader': expected a pair"),
        (lambda loader, network, together: ("disk", 1.0), '\'disk\': expected "network", "load'),
        (lambda loader, network, together: ("loader", None), "expected a number"),
    ],
)
def test_wrong_answers_are_explained(test, hint: str) -> None:
    with pytest.raises(AssertionError, match=hint):
        verify.check_answers(test)


def test_fixed_rates_are_noticed() -> None:
    def fixed(loader, network, together):
        return verify.find_bottleneck(loader, network, together) if together > 50 else ("loader", 1)

    verify.check_answers(fixed)
    with pytest.raises(AssertionError, match="expected"):
        verify.check_scale(fixed)


def test_the_first_rates_are_the_recorded_ones() -> None:
    runs = recorded_runs("nvidia-h200", "loading")
    speeds = loading.trials(run for run in runs if run.config.uint8)["images_per_s"].tolist()
    (alone,) = (loading.core_speed(run) for run in runs if not run.config.workers)
    for (loader, _, together), workers in zip(verify.RATES, (1, 4, 8, 16)):
        assert loader == pytest.approx(workers * alone, rel=1e-3)
        assert any(together == pytest.approx(speed, rel=1e-3) for speed in speeds)


def test_a_loader_is_measured_here_and_follows_the_rule_elsewhere() -> None:
    config, profile = rung("dataloader", workers=8), loading.pd.DataFrame({"ms": [4.0, 1.0]})
    elsewhere = [
        loading.loads_alone(site, config, profile, lambda *_: 0.0)
        for site in ("slurm", "recorded-nvidia-h200")
    ]
    assert elsewhere[0] == {1: 200.0, 8: 1600.0}
    assert elsewhere[1] == pytest.approx(
        dict(zip((1, 8), (verify.RATES[0][0], verify.RATES[2][0]))), rel=1e-3
    )


def test_the_loader_is_measured_with_each_number_of_workers(
    tiny_set: Path, runs_root: Path
) -> None:
    config = rung("dataloader", quick=True, workers=2, batch_size=4, data_root=str(tiny_set))
    loads = loading.loads_alone("local", config, None, lambda images, batch, n: batch * n)
    assert loads == {1: 4, 2: 8}


def test_the_schedule_shows_bursts_and_the_queue() -> None:
    alt = figures.plot_schedule((0, 2), load=3.0, train=1.0, end=12.0).alt
    assert "2 workers: after its first batch, the GPU waits" in alt
    assert "worker 2: 2, 4, 6, 8" in alt and "queue: 1, 1, 1" in alt
    lanes = figures._schedule(4, 3.0, 1.0, 12.0)
    waits = [event for event in lanes["GPU"] if event[2] == figures.ORANGE]
    assert len(waits) == 1 and waits[0][1] == pytest.approx(3.0, abs=0.1)  # for the first batch


@pytest.mark.parametrize(
    "site, cores, count",
    [("local", 16, 8), ("local", 5, 5), ("local", 1, 1), ("slurm", 16, 1), ("jean-zay-h100", 1, 8)],
)
def test_trials_are_shorter_where_they_are_not_recorded(
    monkeypatch: pytest.MonkeyPatch, site: str, cores: int, count: int
) -> None:
    assert lab.loader_settings("recorded-nvidia-h200") == lab.LOADER_SETTINGS
    monkeypatch.setattr(lab, "core_count", lambda: cores)
    for workers in (True, False):
        config = rung("dataloader", **lab.loader_settings(site, workers=workers))
        measured = config.epochs * config.steps - config.warmup_steps
        assert measured >= 8 and config.warmup_steps > config.steps  # into the second epoch
        assert not workers or (config.workers, measured % count) == (count, 0)  # complete rounds


@pytest.mark.parametrize("site, cores", [("local", 16), ("local", 5), ("local", 1), ("slurm", 16)])
def test_full_size_runs_have_no_more_workers_than_cores(
    monkeypatch: pytest.MonkeyPatch, site: str, cores: int
) -> None:
    """A job may use only some of the machine's cores: other workers only delay its own."""
    monkeypatch.setattr(lab, "core_count", lambda: cores)
    usable = 1 if site == "slurm" else cores  # as in sites.toml
    augmented = [
        rung("dataloader", **augmentation.run_settings(False, site, stored))
        for stored in ("files", "raw")
    ]
    for config in formats.format_configs(False, site) + augmented:
        ahead = config.workers * config.prefetch_factor
        assert config.workers == max(1, usable - 1)
        assert config.steps - config.warmup_steps >= 2 * ahead <= config.warmup_steps
    assert formats.format_configs(False, "recorded-nvidia-h200")[0].workers == 15
