"""What shows the lab's mechanism in a small run: graphs."""

from __future__ import annotations

from course.lab import Fact, facts

FACTS = (
    Fact("call of torch.compile", lambda rank: facts.distinct(rank.notes.compile_calls),
         "if cfg.compile, compile the network once with mode=cfg.compile, before DDP and "
         "the loop, on every rank; in train_sharded.py each block"),
    Fact("number of layers in compiled graphs", lambda rank: rank.notes.compiled_layers,
         "compile all of the network or all of its blocks, and call what `torch.compile(…)` "
         "returns"),
    Fact("list of the steps that use a new graph", lambda rank: facts.distinct(rank.notes.graphs),
         "compile in the first step only: create what is compiled once, and keep the compiler's "
         "cache, which `torch.compiler.reset()` clears"),
    Fact("number of graph breaks", facts.entry("compiled.breaks"),
         "remove from the network what breaks the graph; torch._dynamo.explain shows the line"),
)  # fmt: skip
