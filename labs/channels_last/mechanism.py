"""What shows the lab's mechanism in a small run: memory layouts."""

from __future__ import annotations

from course.lab import Fact, facts

FACTS = (
    Fact("layout of the convolutions' inputs", facts.kinds("input_layouts"),
         "images = images.to(memory_format=torch.channels_last) if cfg.channels_last; .to returns "
         "a new tensor"),
    Fact("layout of the images", lambda rank: rank.notes.layouts,
         "convert the images in every step", "step"),
    Fact("layout of the weights", facts.kinds("weight_layouts"),
         "model = model.to(memory_format=torch.channels_last) if cfg.channels_last"),
)  # fmt: skip
