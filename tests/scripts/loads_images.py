"""Load images with workers that get SIGTERM, then end in a way: python loads_images.py ROOT WAY."""

import os
import signal
import subprocess
import sys

import torch

from course.config import rung
from course.data.loader import image_sets, loaders

root, way = sys.argv[1:]
config = rung("baseline", quick=True, data="imagenet", data_root=root, image_px=32, batch_size=4)
loading = {"num_workers": 2, "persistent_workers": way == "persistent"}
batches, _ = loaders(image_sets(config), config, torch.device("cpu"), **loading)
signal.signal(signal.SIGTERM, lambda *_: print("got SIGTERM"))
signal.signal(signal.SIGINT, signal.default_int_handler)
iterator = iter(batches)
for number, _ in enumerate(iterator):
    if number == 1:
        print("workers", *(worker.pid for worker in iterator._workers))
        kill = ["sh", "-c", f"kill -TERM -{os.getpgid(0)}"]  # not sent by their parent
        subprocess.run(kill, check=True, start_new_session=True)
    if number == 6:
        print("goes on")
        if way == "error":
            raise ValueError("mine")
        if way == "exit":
            sys.exit(3)
        if way == "interrupt":
            os.killpg(0, signal.SIGINT)
        if way == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        break
