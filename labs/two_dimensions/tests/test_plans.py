"""The chosen plans, compared with cases computed by hand."""

import pytest

from labs.two_dimensions.plans import (
    SHARE,
    Machines,
    Network,
    Plan,
    choose_plan,
    peak_gib,
    possible_plans,
    step_s,
)

GPT2 = Network(weights=124_000_000, layers=12, heads=12, width=768, tokens=1024)
LLAMA_8B = Network(weights=8_000_000_000, layers=32, heads=32, width=4096, tokens=2048)
ROUND = Network(weights=2**30, layers=4, heads=4, width=1024, tokens=1024)
NODE = Machines(gpus=8, per_node=8, memory_gib=80, tflop_s=400, node_gb_s=400, network_gb_s=25)


def test_memory_is_what_a_hand_computes() -> None:
    # 2^30 weights of 16 bytes; 8 sequences of 2^10 tokens, of 2^10 values, in 4 layers, 34 bytes
    # each: 2^3 · 2^20 · 4 · 34 bytes = 34/32 GiB.
    assert peak_gib(ROUND, Plan(1), 8) == 16 + 34 / 32
    assert peak_gib(ROUND, Plan(2), 8) == 16 + 34 / 64
    # A part of 8, and the weights of two of the four blocks: 2 GiB.
    assert peak_gib(ROUND, Plan(2, shard=True), 8) == 8 + 2 + 34 / 64
    assert peak_gib(ROUND, Plan(1, tensor=2), 8) == 8 + (10 + 12) / 32
    assert peak_gib(ROUND, Plan(2, True, 2), 8) == 4 + 1 + (10 + 12) / 64
    # Half the layers, of one pass or two of four sequences: as much as of all at once.
    assert peak_gib(ROUND, Plan(1, stages=2, passes=2), 8) == 8 + 34 / 64
    assert peak_gib(ROUND, Plan(1, stages=2, passes=8), 8) == 8 + 34 / 64 / 4


def test_time_is_what_a_hand_computes() -> None:
    network = ROUND._replace(weights=10**9, layers=1, width=1, tokens=1, heads=1)
    machines = Machines(2, 2, 80, tflop_s=6e-3, node_gb_s=4, network_gb_s=1)
    flop = 6e9 + 12  # of a sequence; the machine computes 6e9 per second
    assert network.flop == flop
    second = flop / 6e9
    assert step_s(network, machines._replace(gpus=1), Plan(1), 8, 1) == pytest.approx(8 * second)
    # Below the knee, fewer sequences take as long.
    assert step_s(network, machines, Plan(1), 8, 16) == pytest.approx(16 * second)
    # DDP sends 4e9 bytes in 1 s: 2 · ½ of them. Backward hides 2/3 of 4 s, or of 1 s.
    assert step_s(network, machines, Plan(2), 8, 1) == pytest.approx(4 * second)
    assert step_s(network, machines, Plan(2), 2, 1) == pytest.approx(second / 3 + 1)
    # FSDP2 sends for 1.5 s, of which the step hides 1 s.
    assert step_s(network, machines, Plan(2, True), 2, 1) == pytest.approx(1.5)
    # Two nodes: four times as long.
    far = machines._replace(per_node=1)
    assert step_s(network, far, Plan(2, True), 2, 1) == pytest.approx(6)
    # Both compute half of each layer: four sums, of 8 sequences with 1 value of 2 bytes.
    sums = 4 * 8 * 2 / 4e9
    assert step_s(network, machines, Plan(1, tensor=2), 8, 1) == pytest.approx(4 * second + sums)
    # 4 passes through 2 stages: 5 turns, each of 2 sequences through half the network.
    piped = step_s(network, machines, Plan(1, stages=2, passes=4), 8, 1)
    assert piped == pytest.approx(5 * 2 * second / 2)


@pytest.mark.parametrize(
    ("network", "machines", "batch", "knee", "plan"),
    [
        pytest.param(GPT2, NODE, 256, 1, "DDP 8", id="it fits on each GPU, and sends least"),
        pytest.param(LLAMA_8B, NODE, 64, 1, "FSDP2 8", id="128 GB of state fit on no GPU"),
        # 8 GPUs have two sequences, so that four share each: at once, or in four stages that wait
        # for each other. An eighth of a sequence, with wide layers, keeps a GPU busy.
        pytest.param(LLAMA_8B, NODE, 2, 1 / 8, "DDP 2 × tensor 4", id="fewer sequences than GPUs"),
        # A quarter of the state is 30 GiB, and an eighth with two gathered blocks 15.4 GiB.
        pytest.param(
            LLAMA_8B,
            NODE._replace(memory_gib=24),
            2,
            1 / 8,
            "FSDP2 2 × tensor 4",
            id="less memory",
        ),
        # The copies of each stage are in one node, so that only features are sent to the other.
        pytest.param(
            LLAMA_8B, NODE._replace(gpus=16), 8, 1, "DDP 8 × pipeline 2", id="a node for a stage"
        ),
        # Two nodes of one GPU, 1 GB/s: sharing layers or weights sends gigabytes, stages do not.
        pytest.param(
            LLAMA_8B._replace(weights=2_000_000_000, layers=16),
            Machines(2, 1, 30, 400, 400, 1),
            64,
            1,
            "pipeline 2",
            id="a slow network",
        ),
        # With 8 sequences each, both wait for Python; half a layer each would wait as long.
        pytest.param(GPT2, NODE._replace(gpus=2), 16, 32, "DDP 2", id="below the knee"),
        # So do four, if each waits for Python anyway: sharing layers only adds messages.
        pytest.param(LLAMA_8B, NODE, 2, 8, "DDP 2 × pipeline 4", id="no work to share"),
        pytest.param(GPT2, NODE._replace(gpus=1), 8, 1, "one GPU", id="one GPU"),
        pytest.param(LLAMA_8B, NODE._replace(memory_gib=8), 8, 1, "None", id="nothing fits"),
    ],
)
def test_the_fastest_plan_that_fits(
    network: Network, machines: Machines, batch: int, knee: float, plan: str
) -> None:
    chosen = choose_plan(network, machines, batch, knee)
    assert str(chosen) == plan
    if chosen:
        assert chosen.copies * chosen.tensor * chosen.stages == machines.gpus
        assert peak_gib(network, chosen, batch) <= SHARE * machines.memory_gib


def test_plans_divide_heads_layers_and_the_batch() -> None:
    network = GPT2._replace(heads=3, layers=2)
    names = {str(plan) for plan in possible_plans(network, NODE._replace(gpus=6), batch=2)}
    assert names == {"DDP 2 × tensor 3", "FSDP2 2 × tensor 3", "tensor 3 × pipeline 2"}


@pytest.mark.parametrize(
    ("network", "machines", "batch", "message"),
    [
        ({"heads": 5}, {}, 8, "heads=5 cannot share width=768 evenly: choose 1, 2, 3, 4, 6"),
        ({}, {"gpus": 0}, 8, "gpus=0: expected a whole number from 1"),
        ({}, {"gpus": 2.5}, 8, "gpus=2.5: expected a whole number from 1"),
        ({}, {"network_gb_s": 0}, 8, "network_gb_s=0: expected more than 0"),
        ({}, {"gpus": 7}, 8, "gpus=7: batch=8, heads=12 and layers=12 cannot be divided"),
    ],
)
def test_bad_sizes_are_named(network: dict, machines: dict, batch: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        choose_plan(GPT2._replace(**network), NODE._replace(**machines), batch, knee=1)
