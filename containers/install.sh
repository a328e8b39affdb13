#!/bin/sh
# Install what the course needs into an image: a C++ compiler for torch.compile, and the locked
# packages (5 GB, with CUDA's libraries). The lock is complete, so uv resolves nothing: --no-deps.
set -eu
apt-get update
apt-get install --yes --no-install-recommends g++ git make
rm -rf /var/lib/apt/lists/*
python -m pip install --no-cache-dir uv
python -m uv pip install --system --no-cache --compile-bytecode --no-deps --requirements "$1"
