"""Training loops of one process that take turns, each in a thread, of which one runs at a time."""

import sys
import threading
import time
import traceback

import torch

DEVICE = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
ON_GPU = DEVICE.type != "cpu"


class Loop(threading.Thread):
    """A training loop that calls `step_ended` after each step, and there waits for its turn."""

    def __init__(self, name, train):
        super().__init__(name=name, daemon=True)
        self.train, self.left, self.error = train, 0, ""
        self.may_go, self.is_done = threading.Semaphore(0), threading.Semaphore(0)

    def run(self):
        try:
            self.may_go.acquire()
            self.train(self.step_ended)
        except BaseException:
            self.error = traceback.format_exc()
        self.is_done.release()

    def step_ended(self):
        self.left -= 1
        if self.left == 0:
            self.is_done.release()
            self.may_go.acquire()

    def block(self, steps):
        self.left, begin = steps, now()
        self.may_go.release()
        self.is_done.acquire()
        if self.error or self.left:
            sys.exit(f"{self.name} ended before its time. {self.error}")
        return now() - begin


def now():
    if ON_GPU:
        torch.accelerator.synchronize(DEVICE)
    return time.perf_counter()


class Paused:
    """A DataLoader's batches without end; a step has ended when the next one's are requested."""

    def __init__(self, batches, step_ended, passes=1):
        self.batches, self.step_ended, self.passes = batches, step_ended, passes
        self.sampler, self.number = batches.sampler, 0

    def __iter__(self):
        while True:
            for batch in self.batches:
                if self.number and self.number % self.passes == 0:
                    self.step_ended()
                self.number += 1
                yield batch
