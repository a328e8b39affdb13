"""Silently wrong, TODOs 6 to 9."""

from answers.lines import (
    BACKWARD,
    DDP,
    IMAGES,
    JOIN,
    LABELS,
    LOADING,
    MODEL,
    OWN_DEVICE,
    PIN,
    PREFETCH,
    REDUCE,
    SAMPLER,
    SAVE,
    SET_DEVICE,
    SET_EPOCH,
    SHARE,
    TAKE_DEVICE,
    VAL_SAMPLER,
    WORKERS,
    Answer,
)

WRONG = {
    "four workers": Answer(
        todo=6,
        edits={
            LOADING: """\
    loading = {"num_workers": 4, "persistent_workers": cfg.persistent_workers,
               "prefetch_factor": cfg.prefetch_factor, "pin_memory": cfg.pin_memory}"""
        },
        config={"workers": 0},
        why="Ignores cfg.workers: the rungs without workers have four.",
    ),
    "no prefetch factor": Answer(
        todo=6,
        edits={PREFETCH + "\n               ": ""},
        config={"workers": 2, "prefetch_factor": 4},
        why="Three of four arguments: each worker makes 2 batches ahead, PyTorch's default. The "
        "config's default is 2 as well, so it shows only with another value.",
    ),
    "workers always stay": Answer(
        todo=6,
        edits={WORKERS: '"num_workers": cfg.workers, "persistent_workers": cfg.workers > 0,'},
        config={"workers": 2, "persistent_workers": False},
        why="Ignores cfg.persistent_workers.",
    ),
    "always pins": Answer(
        todo=6,
        edits={PIN: '"pin_memory": True}'},
        config={"pin_memory": False},
        why="Ignores cfg.pin_memory. Without an accelerator PyTorch warns and does not pin, and "
        "the loader's own attribute still says True.",
    ),
    "workers for training only": Answer(
        todo=6,
        edits={
            LOADING: "    loading = {}",
            MODEL: """\
    if cfg.data != "synthetic":  # validation is not timed
        train_batches = torch.utils.data.DataLoader(
            sets.train, share, sampler=train_batches.sampler, drop_last=cfg.drop_last,
            generator=train_batches.generator, num_workers=cfg.workers,
            prefetch_factor=cfg.prefetch_factor if cfg.workers else None,
            persistent_workers=cfg.persistent_workers, pin_memory=cfg.pin_memory,
        )
"""
            + MODEL,
        },
        config={"workers": 2, "data": "default"},
        why="The training loader is built anew with the arguments, the same images in the same "
        "order; validation's has none of them, and the training process loads for it.",
    ),
    "takes the prefetch factor for the sum": Answer(
        todo=6,
        edits={PREFETCH: '"prefetch_factor": cfg.prefetch_factor * cfg.workers or None,'},
        config={"workers": 2},
        why="prefetch_factor is a number for each worker; multiplied once more, workers times as "
        "many batches lie in memory as asked for.",
    ),
    "divides the workers among ranks": Answer(
        todo=6,
        edits={
            LOADING: """\
    workers = cfg.workers // run.world_size
    loading = {"num_workers": workers, "persistent_workers": cfg.persistent_workers,
               "prefetch_factor": cfg.prefetch_factor if workers else None,
               "pin_memory": cfg.pin_memory}"""
        },
        config={"workers": 2},
        ranks=2,
        why="cfg.workers is a number for each process (the DataLoader's); each rank has half.",
    ),
    "seeds all workers alike": Answer(
        todo=6,
        edits={
            LOADING: LOADING.replace(
                '"pin_memory": cfg.pin_memory}',
                '"pin_memory": cfg.pin_memory,\n'
                '               "worker_init_fn": lambda worker: torch.manual_seed(cfg.seed)}',
            )
        },
        config={"workers": 2, "data": "default", "epochs": 2},
        why='The "reproducible" worker_init_fn of the internet: all workers (and all ranks) draw '
        "the same random crops and flips, and again the same ones in each epoch, since workers "
        "begin anew. (A lambda: needs fork, Linux's way up to Python 3.13.)",
    ),
    "lets batches overtake each other": Answer(
        todo=6,
        edits={PIN: '"pin_memory": cfg.pin_memory, "in_order": False}'},
        config={"workers": 2},
        why="in_order=False: batches come as workers finish them, so the order of training depends "
        "on chance, and a run cannot be repeated. Shows surely only in the loader's attribute.",
    ),
    "always copies non-blocking": Answer(
        todo=6,
        edits={
            IMAGES: "            images = images.to(device, non_blocking=True)",
            LABELS: "            labels = labels.to(device, non_blocking=True)",
        },
        config={"non_blocking": False},
        why="Ignores cfg.non_blocking (the part of TODO 6 in TODO 1's lines). The same on a CPU: "
        "shows by what to() is asked for, or on an accelerator.",
    ),
    "waits for the labels": Answer(
        todo=6,
        edits={LABELS: "            labels = labels.to(device)"},
        config={"non_blocking": True, "pin_memory": True, "device": "auto"},
        why="Labels are a small copy, but a blocking one, behind the images' in the same queue: "
        "the script waits for both, and non_blocking brings nothing. Needs an accelerator to show.",
    ),
    "the global rank's device": Answer(
        todo=7,
        edits={
            f"{OWN_DEVICE}\n{SET_DEVICE}": """\
            device = torch.device(device.type, run.rank)
            torch.accelerator.set_device_index(run.rank)"""
        },
        config={"device": "auto"},
        ranks=2,
        why="rank for local_rank: right on one node, and on the second node there is no device of "
        "that number (an exception there). Shows only where rank and local_rank differ.",
    ),
    "all ranks on the first device": Answer(
        todo=7,
        edits={TAKE_DEVICE: ""},
        config={"device": "auto"},
        ranks=2,
        why="The group is joined, but no rank takes a device of its own: all train on device 0. "
        "(NCCL refuses two ranks on one GPU with an exception, other backends do not.) Right on a "
        "CPU.",
    ),
    "names its device, but does not select it": Answer(
        todo=7,
        edits={f"{OWN_DEVICE}\n{SET_DEVICE}": OWN_DEVICE},
        config={"device": "auto"},
        ranks=2,
        why="Without set_device_index each rank's current device stays 0: whatever goes to the "
        "current device (events, synchronize, a context of some 500 MB) is on GPU 0. Right on "
        "a CPU.",
    ),
    "no timeout": Answer(
        todo=7,
        edits={JOIN: "        distributed.init_process_group()"},
        config={"collective_timeout_s": 10},
        ranks=2,
        why="A hang lasts PyTorch's 30 minutes (10 with NCCL) and not cfg.collective_timeout_s. "
        "Nothing shows in a run that does not hang, but the group's timeout.",
    ),
    "a timeout in days": Answer(
        todo=7,
        edits={JOIN: JOIN.replace("timedelta(seconds=cfg", "timedelta(cfg")},
        config={"collective_timeout_s": 10},
        ranks=2,
        why="timedelta's first argument is days: a hang lasts ten days.",
    ),
    "gloo on every device": Answer(
        todo=7,
        edits={JOIN: JOIN.replace("(timeout", '("gloo", timeout')},
        config={"device": "auto"},
        ranks=2,
        why="Gradients of GPUs are sent through the host's memory, slowly. Right on a CPU: shows "
        "with accelerators, by the group's backend.",
    ),
    "an address of its own": Answer(
        todo=7,
        edits={
            JOIN: """\
        distributed.init_process_group(
            init_method="tcp://127.0.0.1:29500", rank=run.rank, world_size=run.world_size,
            timeout=timedelta(seconds=cfg.collective_timeout_s),
        )"""
        },
        ranks=2,
        why="Ignores the address and port that the launcher gave: ranks of two nodes never meet, "
        "and two runs on one machine fight for the port (an exception then). Alone on one node "
        "it runs, and nothing shows in the numbers.",
    ),
    "every rank takes a whole batch": Answer(
        todo=8,
        edits={SHARE: "    share = cfg.batch_size"},
        ranks=2,
        why="An update sees batch_size images of every rank: twice the batch that the config says.",
    ),
    "the same order in every epoch": Answer(
        todo=8,
        edits={SET_EPOCH: ""},
        config={"epochs": 2},
        ranks=2,
        why="set_epoch left out: the sampler shuffles from seed + 0 in each epoch.",
    ),
    "each rank shuffles for itself": Answer(
        todo=8,
        edits={SAMPLER: SAMPLER.replace("seed=cfg.seed)", "seed=cfg.seed + run.rank)")},
        config={"epochs": 2},
        ranks=2,
        why="Ranks take every second image of *different* orders: some images come twice in an "
        "epoch, and others not at all.",
    ),
    "all ranks take the same images": Answer(
        todo=8,
        edits={SAMPLER: "    sampler = DistributedSampler(sets.train, 1, 0, seed=cfg.seed)"},
        ranks=2,
        why="A sampler as for one process: ranks train on the same photographs, so an update sees "
        "half as many as the config says.",
    ),
    "does not shuffle": Answer(
        todo=8,
        edits={SAMPLER: SAMPLER.replace("seed=cfg.seed)", "shuffle=False)")},
        config={"data": "default"},
        ranks=2,
        why="Files come class after class: batches show one or two classes, in the same order in "
        "each epoch. On one rank as well, as the sampler is used there, too.",
        said=r"^the sampler does not shuffle[^;]*$",
    ),
    "DDP's own bucket size": Answer(
        todo=8,
        edits={DDP: DDP.replace("bucket_cap_mb=cfg.bucket_mb, ", "")},
        config={"bucket_mb": 1.0},
        ranks=2,
        why="Ignores cfg.bucket_mb. It shows only where that is not PyTorch's 25.",
    ),
    "always looks for unused weights": Answer(
        todo=8,
        edits={DDP: DDP.replace("=cfg.find_unused", "=True")},
        config={"find_unused": False},
        ranks=2,
        why="Ignores cfg.find_unused: DDP walks through the graph in each step (and warns once).",
    ),
    "buffers are each rank's own": Answer(
        todo=8,
        edits={
            DDP: DDP.replace(
                "find_unused_parameters=cfg.find_unused",
                "find_unused_parameters=cfg.find_unused, broadcast_buffers=False",
            )
        },
        ranks=2,
        why="A trick from a benchmark that is not asked for: BatchNorm's running statistics drift "
        "apart, so validation and weights.pt depend on the rank. (Later PyTorch warns that the "
        "argument is deprecated.)",
    ),
    "averages by hand, after backward": Answer(
        todo=8,
        edits={
            DDP: "        pass",
            BACKWARD: BACKWARD
            + """
            if run.world_size > 1:
                for weight in model.parameters():
                    distributed.all_reduce(weight.grad)
                    weight.grad /= run.world_size""",
        },
        ranks=2,
        why="The right gradients, but nothing is sent while backward computes: 161 messages one "
        "after the other, when it is over; bucket_mb counts for nothing. Buffers are not sent.",
    ),
    "divides the loss by the number of ranks": Answer(
        todo=8,
        edits={BACKWARD: "            scaler.scale(loss / run.world_size).backward()"},
        ranks=2,
        why="DDP averages already: gradients, and so the learning rate, are half of what they "
        "should be. The recorded loss is right.",
    ),
    "averages weights once an epoch": Answer(
        todo=8,
        edits={
            DDP: "        pass",
            SET_EPOCH: SET_EPOCH
            + """
        if run.world_size > 1:
            with torch.no_grad():
                for weight in model.parameters():
                    distributed.all_reduce(weight)
                    weight /= run.world_size""",
        },
        config={"epochs": 2},
        ranks=2,
        why="No gradients are averaged: each rank trains alone through an epoch on half batches, "
        "then weights are averaged; at the end the ranks' weights differ.",
    ),
    "scales the learning rate with the ranks": Answer(
        todo=8,
        edits={
            DDP: DDP
            + """
        from dataclasses import replace

        cfg = replace(cfg, lr=cfg.lr * run.world_size)  # Goyal et al.: linear scaling"""
        },
        ranks=2,
        why="The linear rule is for a batch that grows with the ranks; here batch_size is that of "
        "all ranks. Updates are twice as large as in one process.",
    ),
    "trains a copy of the network": Answer(
        todo=8,
        edits={
            DDP: "        from copy import deepcopy\n\n"
            + DDP.replace("DDP(model, ", "DDP(deepcopy(model), ")
        },
        config={"save_weights": True, "epochs": 2},
        ranks=2,
        why="net, which is validated and saved, is the untrained one: val_loss is the same after "
        "every epoch, and weights.pt holds the initial weights. Training's losses are right.",
    ),
    "BatchNorm over all ranks, unasked": Answer(
        todo=8,
        edits={DDP: "        model = sync_batchnorm.convert(model)\n" + DDP},
        config={"sync_batchnorm": False},
        ranks=2,
        why="Ignores cfg.sync_batchnorm: two more collectives for each BatchNorm and step, and "
        "other statistics than the config says.",
    ),
    "a padding sampler for validation": Answer(
        todo=9,
        edits={
            VAL_SAMPLER: """\
    val_sampler = DistributedSampler(sets.val, run.world_size, run.rank, shuffle=False)"""
        },
        config={"val_images": 61, "val_steps": 32},
        ranks=2,
        why="DistributedSampler repeats an image where the ranks do not divide their number: 62 "
        "are counted of 61.",
    ),
    "drops the remainder": Answer(
        todo=9,
        edits={
            VAL_SAMPLER: """\
    each = len(sets.val) // run.world_size
    val_sampler = range(run.rank * each, (run.rank + 1) * each)"""
        },
        config={"val_images": 61, "val_steps": 32},
        ranks=2,
        why="Blocks of equal length: the last image of 61 is never validated, 60 are counted.",
    ),
    "adds nothing up": Answer(
        todo=9,
        edits={REDUCE: "        pass"},
        config={"val_images": 61, "val_steps": 32},
        ranks=2,
        why="Each rank reports its own share; the record has rank 0's 31 images of 61.",
    ),
    "adds up, and divides by the ranks": Answer(
        todo=9,
        edits={REDUCE: REDUCE + "\n        totals /= distributed.get_world_size()"},
        config={"val_images": 61, "val_steps": 32},
        ranks=2,
        why="The means are right (numerator and denominator are halved), but 30 images are counted "
        "of 61.",
    ),
    "a mean of means": Answer(
        todo=9,
        edits={
            REDUCE: """\
        means, seen = totals / totals[2], totals[2].clone()
        distributed.all_reduce(means)
        distributed.all_reduce(seen)
        totals = means / distributed.get_world_size() * seen"""
        },
        config={"val_images": 61, "val_steps": 32},
        ranks=2,
        why="Shares of 31 and 30 images weigh the same. The count is right, loss and accuracy are "
        "a little off (in the third digit or so); with equal shares it is right.",
    ),
    "every rank validates everything": Answer(
        todo=9,
        edits={VAL_SAMPLER: "    val_sampler = range(len(sets.val))"},
        config={"val_images": 61, "val_steps": 32},
        ranks=2,
        why="Each image is validated by both ranks, and 122 are counted of 61; the means hardly "
        "change.",
    ),
    "only the first rank validates": Answer(
        todo=9,
        edits={VAL_SAMPLER: "    val_sampler = range(len(sets.val) if run.rank == 0 else 0)"},
        config={"val_images": 61, "val_steps": 32},
        ranks=2,
        why="The work is not shared: rank 0 validates all images, rank 1 none. The sums are right "
        "where val_steps is enough for rank 0 to see all; else half as many images are seen.",
    ),
    "adds up all but the losses": Answer(
        todo=9,
        edits={REDUCE: "        distributed.all_reduce(totals[1:])  # correct, images"},
        config={"val_images": 61, "val_steps": 32},
        ranks=2,
        why="val_loss is rank 0's sum over the images of both: about half. Top-1 and the count are "
        "right.",
    ),
    "all ranks write": Answer(
        todo=9,
        edits={SAVE: "    run.save_weights(net)"},
        config={"save_weights": True},
        ranks=2,
        why="Both ranks write weights.pt.",
    ),
    "saves what is wrapped around": Answer(
        todo=9,
        edits={SAVE: SAVE.replace("(net)", "(model)")},
        config={"save_weights": True},
        ranks=2,
        why="model is DDP's wrapper (or the compiler's): all names in weights.pt begin with "
        "module., and models.create(…).load_state_dict refuses them. Right on one rank.",
    ),
    "saves before an epoch, not after": Answer(
        todo=9,
        edits={
            SAVE: "",
            SET_EPOCH: SET_EPOCH
            + """
        if run.rank == 0:
            run.save_weights(net)""",
        },
        config={"save_weights": True},
        why="A checkpoint for each epoch, written where it begins: weights.pt lacks the last "
        "epoch; with one epoch it holds the initial weights.",
    ),
    "saves half the digits": Answer(
        todo=9,
        edits={SAVE: SAVE.replace("(net)", "(net.half())  # a smaller file")},
        config={"save_weights": True},
        why="weights.pt is in fp16 (statistics of BatchNorm, too): not the weights that were "
        "trained.",
    ),
}
