"""What holds the memory of a training step."""

from course.topics.memory import pictures, tradeoffs
from course.topics.memory.batch_sizes import fit, sweep
from course.topics.memory.held import anatomy, kept_without_grad
from course.topics.memory.peaks import fit_predicted_correctly, median_error, of_recorded, predicted
from course.topics.memory.traded import done_twice, gradients_apart, is_best, way_of, ways
from course.training.fake.step import predict
from course.training.memory import total_gib
