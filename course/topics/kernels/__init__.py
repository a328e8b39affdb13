"""A first GPU kernel: Triton, on a GPU or interpreted, and the same in CUDA C++."""

from course.topics.kernels import cuda, launch, pictures
from course.topics.kernels.counted import interpret, moved_by
from course.topics.kernels.measured import recorded
from course.topics.kernels.tables import steps, tile_functions, tiles, words
from course.topics.kernels.timed import on_gpu
