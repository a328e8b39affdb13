"""The command `python -m slurm_box`."""

import argparse
import sys

import slurm_box


def main() -> None:
    """Start, show or stop the cluster; an expected error is a message, not a traceback."""
    parser = argparse.ArgumentParser("slurm_box", description=slurm_box.__doc__.partition("\n")[0])
    help_ = "start it, show its state, or stop it"
    parser.add_argument("action", choices=("up", "status", "down"), help=help_)
    help_ = "with up: link the nodes by a network with this rate, such as 1gbit"
    parser.add_argument("--network", default="", metavar="RATE", help=help_)
    help_ = "with up, as root: for all accounts of this machine; jobs run as their submitters"
    parser.add_argument("--shared", action="store_true", help=help_)
    help_ = "with --shared: may see and cancel all jobs; by default the account that called sudo"
    parser.add_argument("--operator", default="", metavar="ACCOUNT", help=help_)
    options = parser.parse_args()
    if (options.network or options.shared) and options.action != "up":
        parser.error("--network and --shared: only for up")
    if options.operator and not options.shared:
        parser.error(f"--operator {options.operator}: only with up --shared")
    try:
        if options.action == "up":
            slurm_box.up(options.network, shared=options.shared, operator=options.operator)
        elif options.action == "down":
            slurm_box.down()
        status = slurm_box.status()
    except slurm_box.ClusterError as error:
        sys.exit(f"error: {error}")
    for name, state in status.items():
        print(f"{name:10}{state}")
    for name, value in slurm_box.environment().items():
        print(f"Slurm's commands need: export {name}={value}")


if __name__ == "__main__":
    main()
