"""The step of solutions/train_gpt.py beside nanoGPT's train.py and Lightning's loop, in turns.

    python -m research.gpt_beside_others --nanogpt /tmp/src/nanoGPT --out FILE

All train in one process, each for a block of steps between two synchronisations with the device.
Text, vocabulary, attention, sizes, batch and optimizer are equal; on a GPU all are compiled, in
bf16; on a CPU the sizes are tiny. Ours is the script with its meter, nanoGPT's its train.py with a
line that waits for its turn. Prints a line of JSON per loop, and per ratio with a 95 % interval.
"""

import argparse
import importlib.util
import json
import os
import random
import sys
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader, RandomSampler

from course.config import rung
from course.data import text
from course.runs.run import PROJECT
from course.training.recorder import Recorder, cpu_name, device_name
from research.loops_in_turns import DEVICE, ON_GPU, Loop, Paused
from trainspeed.gpus import gpu_rates
from trainspeed.ratio import centre

WARMUP, ENDLESS = 12, 10**6  # steps


def load_script():
    spec = importlib.util.spec_from_file_location("gpt", PROJECT / "solutions/train_gpt.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


def ours(cfg, step_ended):
    script, recorder = load_script(), Recorder(None)
    recorder.config = cfg
    script.text_loaders = lambda *args: (Paused(text.text_loaders(*args)[0], step_ended), [])
    script.main(recorder)


def nanogpt(cfg, step_ended, folder):
    code = Path(folder, "train.py").read_text()
    assert code.count("    iter_num += 1\n") == 1
    code = code.replace("    iter_num += 1\n", "    iter_num += 1\n    step_ended()\n")
    data, micro_batch = Path(tempfile.mkdtemp()), cfg.micro_batch or cfg.batch_size
    for name in ("train.bin", "val.bin"):
        text.read_tokens().numpy().astype(np.uint16).tofile(data / name)
    settings = f"dataset={data} out_dir={data} batch_size={micro_batch} block_size={cfg.context}"
    settings += f" gradient_accumulation_steps={cfg.batch_size // micro_batch} bias=True"
    settings += f" n_layer={cfg.layers} n_head={cfg.heads} n_embd={cfg.width} log_interval=10"
    settings += f" grad_clip={cfg.clip} learning_rate={cfg.lr} weight_decay={cfg.weight_decay}"
    settings += f" max_iters={ENDLESS} lr_decay_iters={ENDLESS} eval_interval={ENDLESS}"
    settings += f" compile={bool(cfg.compile)} always_save_checkpoint=False device={DEVICE.type}"
    settings += f" eval_iters=1 dtype={'bfloat16' if ON_GPU else 'float32'}"
    sys.argv = ["train.py", *(f"--{setting}" for setting in settings.split())]
    sys.path.insert(0, folder)
    os.chdir(folder)
    exec(compile(code, "train.py", "exec"), {"__name__": "nanogpt", "step_ended": step_ended})


def lightning(cfg, step_ended):
    from lightning import LightningModule, Trainer

    class Module(LightningModule):
        def __init__(self):
            super().__init__()
            net = load_script().GPT(cfg)
            self.net = torch.compile(net, mode=cfg.compile) if cfg.compile else net

        def training_step(self, batch, _):
            return self.net(*batch)

        def configure_gradient_clipping(self, optimizer, gradient_clip_val, **_):
            # As Lightning does, which refuses this beside a fused optimizer.
            torch.nn.utils.clip_grad_norm_(self.parameters(), gradient_clip_val)

        def configure_optimizers(self):
            options = {"betas": (0.9, 0.95), "weight_decay": cfg.weight_decay, "fused": cfg.fused}
            return torch.optim.AdamW(self.parameters(), cfg.lr, **options)

    sets, size = text.text_sets(cfg, DEVICE), cfg.micro_batch or cfg.batch_size
    options = {"sampler": RandomSampler(sets.train), "collate_fn": lambda batch: batch}
    batches, passes = (
        DataLoader(sets.train, size, drop_last=True, **options),
        cfg.batch_size // size,
    )
    off = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    options = {"accumulate_grad_batches": passes, "gradient_clip_val": cfg.clip, "devices": 1}
    options |= {"precision": "bf16-mixed" if ON_GPU else "32-true", "max_steps": ENDLESS}
    trainer = Trainer(**options, **dict.fromkeys(off, False))
    trainer.fit(Module(), Paused(batches, step_ended, passes))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nanogpt", type=os.path.abspath, default="/tmp/src/nanoGPT")
    parser.add_argument("--loops", nargs="+", default=["ours", "nanogpt", "lightning"])
    for name, default in {"batch-size": 16, "micro-batch": 0, "turns": 12, "steps": 20}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--compile", default="default" * ON_GPU, help="torch.compile's mode")
    parser.add_argument("--out", type=os.path.abspath, default=os.devnull)
    args = parser.parse_args()
    changes = {"batch_size": args.batch_size, "micro_batch": args.micro_batch, "epochs": 1}
    cfg = rung("gpt_fused", steps=ENDLESS, val_steps=0, compile=args.compile, **changes)
    cfg = replace(cfg.fitted(ON_GPU), precision="bf16" if ON_GPU else "fp32")
    beside = {"nanogpt": partial(nanogpt, folder=args.nanogpt), "lightning": lightning}
    trainings = {"ours": ours} | beside
    loops = {name: Loop(name, partial(trainings[name], cfg)) for name in args.loops}
    for loop in [*loops.values()] * 2:  # the second time, for settings that another loop changed
        if not loop.is_alive():
            loop.start()
        print(f"{loop.name}: {WARMUP} steps in {loop.block(WARMUP):.1f} s", file=sys.stderr)
    seconds = {name: [] for name in loops}
    for _ in range(args.turns):
        for name in random.sample([*loops], len(loops)):
            seconds[name].append(loops[name].block(args.steps))

    machine = device_name(DEVICE) if ON_GPU else cpu_name()
    peak = gpu_rates(machine).get("bf16")
    common = {"machine": machine, "torch": torch.__version__, "setup": cfg.setup}
    common |= {"micro_batch": cfg.micro_batch, "compile": cfg.compile, "steps": args.steps}
    lines, tokens = [], cfg.batch_size * cfg.context * args.steps
    for name, times in seconds.items():
        speeds = np.percentile(tokens / np.array(times), [50, 25, 75])
        line = {"loop": name} | dict(zip(("tokens_per_s", "q1", "q3"), speeds.round().tolist()))
        mfu = round(speeds[0] * cfg.flop_per_token / peak, 4) if peak else None
        lines.append(line | {"mfu": mfu} | common)
    for name in args.loops[1:]:
        ratios = np.array(seconds[name]) / np.array(seconds[args.loops[0]])
        values = dict(zip(("ratio", "low", "high"), (round(x, 4) for x in centre(ratios))))
        lines.append({"of": args.loops[0], "to": name} | values | {"turns": args.turns} | common)
    output = "".join(json.dumps(line) + "\n" for line in lines)
    print(output, end="", flush=True)
    with open(args.out, "a") as file:
        file.write(output)
    os._exit(0)  # the loops never end


if __name__ == "__main__":
    main()
