"""Train a GPT on a novel: the ladder of train.py, on a transformer.

On a GPU it has the size of GPT-2's smallest network, 124 million weights; on a CPU it is tiny. You
write code at the TODOs.
"""

import math
from contextlib import nullcontext

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional as F  # noqa: N812 - PyTorch's own abbreviation
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DistributedSampler

from course.data.text import text_loaders, text_sets
from course.training import optimizers, precision, profiling, randomness
from course.training.checkpoints import Checkpoints, ShardedCheckpoints
from course.training.meter import Meter
from course.training.precision import HALF
from course.training.rank_group import join_group
from course.training.recorder import recording


def main(run):
    cfg = run.config
    randomness.seed_all(cfg)  # the same initial weights on every rank and every rung
    precision.set_tf32(cfg.precision == "tf32")
    device = join_group(run)
    copies, copy, mesh = run.world_size, run.rank, None  # ranks that get different sequences
    # >>> mesh: arrange the ranks as copies of the network, each shared by cfg.tensor ranks
    if cfg.shard and run.world_size > 1:
        shape = (run.world_size // cfg.tensor, cfg.tensor)
        mesh = init_device_mesh(device.type, shape, mesh_dim_names=("data", "tensor"))
        copies, copy = mesh["data"].size(), mesh["data"].get_local_rank()
    # --- before
    # <<<
    sets = text_sets(cfg, device)
    cfg = run.complete_epochs(sets)  # with the number of steps, if an epoch is all sequences
    share = cfg.batch_size // copies
    sampler = DistributedSampler(sets.train, copies, copy, seed=cfg.seed)
    # With shards, validation is a collective: all copies need the same number of batches.
    val_sampler = range(copy, len(sets.val) - len(sets.val) % copies, copies)
    train_batches, val_batches = text_loaders(sets, cfg, share, sampler, val_sampler)

    net = model = GPT(cfg).to(device)
    if cfg.compile:
        model = torch.compile(model, mode=cfg.compile)
    # >>> tensor_plan: divide each block's layers among the ranks of mesh["tensor"]
    for block in net.blocks if mesh and cfg.tensor > 1 else []:
        plan = {"qkv": ColwiseParallel(), "out": RowwiseParallel()}
        plan |= {"mlp_in": ColwiseParallel(), "mlp_out": RowwiseParallel()}
        parallelize_module(block, mesh["tensor"], plan)
    # --- before
    # <<<
    # >>> shard_plan: shard what a rank has over mesh["data"], block by block
    for unit in [*net.blocks, net] if mesh else []:
        fully_shard(unit, mesh=mesh["data"])
    # --- before
    # <<<
    if run.world_size > 1 and not isinstance(net, FSDPModule):
        model = DDP(model, gradient_as_bucket_view=True)
    matrices = [weight for weight in net.parameters() if weight.ndim > 1]
    vectors = [weight for weight in net.parameters() if weight.ndim <= 1]
    groups = [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]
    options = {"betas": (0.9, 0.95), "weight_decay": cfg.weight_decay, "fused": cfg.fused or None}
    optimizer = torch.optim.AdamW(groups, cfg.lr, **options)  # betas as GPT-3's
    optimizer.register_load_state_dict_pre_hook(optimizers.keep_settings)
    schedule = optimizers.schedule(optimizer, cfg)
    autocast = torch.autocast(device.type, HALF.get(cfg.precision), enabled=cfg.precision in HALF)
    parts = {"model": net, "optimizer": optimizer, "schedule": schedule}
    checkpoints = (ShardedCheckpoints if cfg.shard else Checkpoints)(run, device, parts)
    step = checkpoints.resume(train_batches, model)  # completed steps, if it was interrupted
    profiler = torch.profiler.profile(
        schedule=profiling.schedule(cfg), on_trace_ready=run.save_trace, record_shapes=True
    )
    profiler.start()

    meter = Meter(run, device, first=step)
    for epoch in range(checkpoints.first_epoch, cfg.epochs):
        model.train()
        sampler.set_epoch(epoch)
        for inputs, targets in meter.steps(train_batches, epoch):
            size = len(inputs)
            # >>> micro_batches: compute cfg.micro_batch sequences at once, if the config has it
            size = cfg.micro_batch or len(inputs)
            # --- before
            # <<<
            passes = math.ceil(len(inputs) / size)
            meter.lap("load")
            step_loss = 0
            for number, (x, y) in enumerate(zip(inputs.split(size), targets.split(size)), 1):
                # Only the last pass averages gradients over the ranks: earlier sums are partial.
                is_last = number == passes or run.world_size == 1
                with nullcontext() if is_last else model.no_sync():
                    with autocast:
                        loss = model(x, y)
                    # >>> micro_batches: weight its loss by its share of the sequences
                    loss = loss * (len(x) / len(inputs))
                    # --- before
                    # <<<
                    meter.lap("forward")
                    meter.lap("loss")  # the network computes it, so that both are compiled as one
                    loss.backward()
                meter.lap("backward")
                step_loss = step_loss + loss.detach()
            if cfg.clip:
                optimizers.clip_norm(net, cfg.clip)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            meter.lap("optimizer", loss=step_loss)
            profiler.step()
            if checkpoints.ends_after(meter.step):
                return  # saved: another process continues

        if cfg.val_steps:
            run.epoch(**validate(net, val_batches, device, autocast))
            checkpoints.keep_best(net)
    profiler.stop()


class GPT(nn.Module):
    """GPT-2's network (Radford et al. 2019), which also computes its loss."""

    def __init__(self, cfg):
        super().__init__()
        self.context = cfg.context
        self.blocks = nn.ModuleList(Block(cfg) for _ in range(cfg.layers))
        self.norm = nn.LayerNorm(cfg.width)
        self.positions = nn.Embedding(cfg.context, cfg.width)
        for name, weight in self.named_parameters():
            if weight.ndim > 1:
                added = 2 * cfg.layers if "out" in name else 1  # results that blocks add up
                nn.init.normal_(weight, std=0.02 / math.sqrt(added))
            elif "bias" in name:
                nn.init.zeros_(weight)
        rows = cfg.vocabulary
        # >>> padded_vocabulary: round up to a multiple of cfg.vocabulary_multiple
        rows = math.ceil(cfg.vocabulary / cfg.vocabulary_multiple) * cfg.vocabulary_multiple
        # --- before
        # <<<
        # No id belongs to the last rows. Like tokens that never occur, they soon have low scores.
        table = torch.zeros(rows, cfg.width)
        nn.init.normal_(table[: cfg.vocabulary], std=0.02)
        self.tokens = nn.Embedding.from_pretrained(table, freeze=False)

    def forward(self, inputs, targets):
        """Return the mean loss of predicting targets; both have shape (N, up to cfg.context)."""
        length = inputs.shape[1]
        if length > self.context:
            raise ValueError(f"sequences of {length} tokens: expected at most {self.context}")
        x = self.tokens(inputs) + self.positions.weight[:length]
        for block in self.blocks:
            x = block(x)
        scores = F.linear(self.norm(x), self.tokens.weight)  # (N, length, rows)
        return F.cross_entropy(scores.flatten(0, 1), targets.flatten())


class Block(nn.Module):
    """Attention, and an MLP; each adds to its input."""

    def __init__(self, cfg):
        super().__init__()
        self.head_width, self.attention = cfg.width // cfg.heads, cfg.attention
        self.norm_1, self.norm_2 = nn.LayerNorm(cfg.width), nn.LayerNorm(cfg.width)
        self.qkv = nn.Linear(cfg.width, 3 * cfg.width)
        self.out = nn.Linear(cfg.width, cfg.width)
        self.mlp_in = nn.Linear(cfg.width, 4 * cfg.width)
        self.mlp_out = nn.Linear(4 * cfg.width, cfg.width)

    def forward(self, x):
        """Return the tokens' new values; x has shape (N, length, width)."""
        # Head by head, so that a rank can have some of them: (N, length, heads, 3, head's width).
        qkv = self.qkv(self.norm_1(x)).unflatten(2, (-1, 3, self.head_width))
        q, k, v = qkv.permute(3, 0, 2, 1, 4)  # of shape (N, heads, length, head's width)
        attended = None
        # >>> sdpa: with cfg.attention == "sdpa", let one operator compute the attention
        if self.attention == "sdpa":
            attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        # --- before
        # <<<
        if attended is None:
            attended = written_out(q, k, v)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.mlp_out(F.gelu(self.mlp_in(self.norm_2(x)), approximate="tanh"))


def written_out(q, k, v):
    """Return each token's mean of v, weighted by the softmax over its earlier tokens."""
    length, size = q.shape[-2:]
    is_later = torch.ones(length, length, dtype=torch.bool, device=q.device).triu(1)
    scores = q @ k.transpose(-2, -1) / math.sqrt(size)  # (N, heads, length, length)
    return scores.masked_fill(is_later, -math.inf).softmax(dim=-1) @ v


@torch.no_grad()
def validate(net, batches, device, autocast):
    """Return the mean loss over the batches of all ranks."""
    net.eval()
    totals = torch.zeros(2, device=device)  # sum of losses, tokens
    for inputs, targets in batches:
        with autocast:
            loss = net(inputs, targets)
        totals += torch.stack([loss * targets.numel(), loss.new_tensor(targets.numel())])
    if distributed.is_initialized():
        distributed.all_reduce(totals)
    return {"val_loss": float(totals[0] / totals[1])}


if __name__ == "__main__":
    with recording() as run:
        main(run)
