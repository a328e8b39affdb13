#!/bin/sh
# Slurm puts the lines that this prints into the environment of each task.
echo "export GLOO_SOCKET_IFNAME=eth0"
