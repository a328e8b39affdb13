#!/bin/sh
# Run a program of a cluster with a network: enter.sh HOSTS NAME PROGRAM ...
# It needs its own mount and UTS namespaces, where HOSTS is /etc/hosts and the machine is NAME.
mount --bind "$1" /etc/hosts && hostname "$2" && shift 2 && exec "$@"
