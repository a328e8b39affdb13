#!/bin/sh
# Install the course itself into an image, from /course, and JupyterLab's settings.
set -eu
python -m uv pip install --system --no-cache --no-deps --editable /course
settings="$(python -c 'import sys; print(sys.prefix)')/share/jupyter/lab/settings"
mkdir -p "$settings"
cp /course/tools/jupyter/labconfig/default_setting_overrides.json "$settings/overrides.json"
