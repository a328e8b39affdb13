#!/bin/sh
# Install the course for a CPU, without CUDA's libraries, which need 5 GB. In the repository's root:
#
#     python3 -m venv .venv && sh containers/cpu.sh .venv/bin/python && touch .venv/.ready
#
# Without the last command, `make lab` would install CUDA's libraries, too.
# For Codespaces and Binder (.devcontainer, .binder), and for machines with little disk.
set -eu
python="$1"
"$python" -m pip install --quiet uv
"$python" -m uv pip install --python "$python" --torch-backend "${TORCH_BACKEND:-cpu}" \
  --constraint requirements.lock --editable .
settings="$("$python" -c 'import sys; print(sys.prefix)')/share/jupyter/lab/settings"
mkdir -p "$settings"
cp tools/jupyter/labconfig/default_setting_overrides.json "$settings/overrides.json"
