"""The ranks exchange an object; then rank 1 sends one as a process that took its place would."""

import pickle

from torch import distributed
from torch.distributed import distributed_c10d

distributed.init_process_group("gloo")
objects = [distributed.get_rank()]
distributed.broadcast_object_list(objects, src=0)
print(f"rank 0 has sent {objects[0]}", flush=True)
if distributed.get_rank() == 1:
    distributed_c10d._pickler = pickle.Pickler
distributed.broadcast_object_list(objects, src=1)
