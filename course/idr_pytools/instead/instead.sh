# What each stand-in does: hand on to a Slurm that the caller names, else say what to call.
name=$(basename "$0")
if [ -n "$SLURM_CONF" ] && [ -z "$COURSE_INSTEAD" ]; then
  here=$(cd "$(dirname "$0")" && pwd)
  PATH=$(printf '%s' "$PATH" | tr ':' '\n' | grep -vxF "$here" | paste -sd: -)
  COURSE_INSTEAD=1
  export PATH COURSE_INSTEAD
  command -v "$name" > /dev/null && exec "$name" "$@"
fi
echo "$name: no Slurm runs here, jobs of idr_pytools run on this machine. $said" >&2
exit 1
