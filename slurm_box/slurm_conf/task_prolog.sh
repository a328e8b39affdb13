#!/bin/sh
# Slurm puts the lines that this prints into the environment of each task, the batch script's too.
# No other program of this machine knows a node1: scripts that meet at the first node of such a list
# get addresses of loopback, one for each node, which need no name server.
for name in SLURM_JOB_NODELIST SLURM_NODELIST SLURM_STEP_NODELIST; do
  eval "nodes=\$$name"
  case $nodes in
    "node[1-2]") echo "export $name=127.0.0.1,127.0.0.2" ;;
    node[12]) echo "export $name=127.0.0.${nodes#node}" ;;
  esac
done
