"""A network between the nodes of this machine's Slurm, with a rate that `tc` limits.

Each node has a network namespace with one interface, eth0, and a bridge joins them. The bridge has
a namespace too, so that the machine's firewall does not filter its packets; one more link connects
it to this machine, where the controller runs. Names and addresses contain the cluster's port, so
several clusters can have a network.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
from contextlib import suppress
from pathlib import Path

import psutil

from slurm_box.cluster import NODES, ClusterError, ports, which

NAMESPACES = Path("/run/netns")
RATE = re.compile(r"\d{1,4}(\.\d+)?[kmg]bit")
EXAMPLES = "100mbit, 1gbit or 10gbit"
PREFIX = "slurmbox"  # of names: Linux limits an interface's to 15 characters
PROGRAMS = ("ip", "tc", "nsenter", "unshare", "taskset")
# tc holds a packet back for up to 50 ms; the burst lets a packet of 64 kB pass in one piece.
LIMIT = ("burst", "256kb", "latency", "50ms")


class Network:
    """The network of the cluster in a folder, where a file contains the port that names it."""

    def __init__(self, home: Path) -> None:
        self.home, self._file = home, home / "network"
        port = ports()["slurmctld"]
        if self._file.exists():
            port = int(self._file.read_text())
        # Of the bridge's namespace, and of the link from this machine to it.
        self.name = f"{PREFIX}{port}"
        subnet = "10.{}.{}".format(*divmod(port, 256))
        nodes = {node: f"{subnet}.{number}" for number, node in enumerate(NODES, 1)}
        self.addresses = {"controller": f"{subnet}.254", **nodes}

    @property
    def exists(self) -> bool:
        return self._file.exists() and _is_namespace(self.name)

    def namespace(self, node: str) -> str:
        """Return the name of a node's network namespace."""
        return f"{self.name}-{node}"

    def create(self, rate: str) -> None:
        """Create the network, or change its rate if it exists.

        Raises:
            ClusterError: this machine does not allow it, or `tc` rejects the rate. Nothing is left
                of a network that this call began.
        """
        if not RATE.fullmatch(rate):
            raise _rate_error(rate, "")
        if os.geteuid() != 0:
            raise ClusterError("--network needs root, who may create network namespaces: use sudo")
        if lacking := [name for name in PROGRAMS if not which(name)]:
            raise ClusterError(
                f"--network needs {', '.join(lacking)}. On Debian or Ubuntu, run as root: "
                f"apt-get install iproute2 util-linux"
            )
        is_new = not self._is_complete()
        try:
            if is_new:
                self.remove()  # what a crash left
                self._build()
            self.connect()
            limit = ("qdisc", "replace", "dev", "eth0", "root", "tbf", "rate", rate, *LIMIT)
            for node in NODES:
                try:
                    _run("tc", "-n", self.namespace(node), *limit)
                except ClusterError as error:
                    raise _rate_error(rate, f"; tc: {error}") from None
        except BaseException:
            if is_new:
                self.remove()
            raise

    def _build(self) -> None:
        """Create the namespaces, the bridge and the links."""
        if _is_namespace(self.name):
            raise ClusterError(
                f"--network: another cluster with this port has the network {self.name}: "
                f"choose different ports with SLURM_BOX_PORT=NUMBER"
            )
        self._file.write_text(self.name.removeprefix(PREFIX))
        try:
            for name in (self.name, *map(self.namespace, NODES)):
                _run("ip", "netns", "add", name)
        except ClusterError as error:
            raise ClusterError(
                f"--network: this machine allows no network namespaces ({error}): "
                f"start a container with --privileged, or use a virtual machine"
            ) from None
        bridge = ("ip", "-n", self.name)
        peer = ("type", "veth", "peer", "netns", self.name, "name")
        _run(*bridge, "link", "add", "bridge", "type", "bridge")
        _run(*bridge, "link", "set", "bridge", "up")
        _run("ip", "link", "add", self.name, *peer, "outside")
        _run("ip", "address", "add", f"{self.addresses['controller']}/24", "dev", self.name)
        _run("ip", "link", "set", self.name, "up")
        for node in NODES:
            inside = ("ip", "-n", self.namespace(node))
            _run(*inside, "link", "add", "eth0", *peer, node)
            _run(*inside, "address", "add", f"{self.addresses[node]}/24", "dev", "eth0")
            _run(*inside, "link", "set", "lo", "up")
        for port in ("outside", *NODES):
            _run(*bridge, "link", "set", port, "master", "bridge", "up")

    def connect(self) -> None:
        """Set the nodes' links up; someone may have set one down."""
        for node in NODES:
            _run("ip", "-n", self.namespace(node), "link", "set", "eth0", "up")

    def _is_complete(self) -> bool:
        """Return whether both nodes have a link with a limit, which is set last."""
        try:
            return self.exists and all(self.rate(node) for node in NODES)
        except ClusterError:
            return False

    def rate(self, node: str) -> str:
        """Return the limit of a node's link in tc's words, such as "1Gbit"; "" if it has none."""
        limits = _run("tc", "-n", self.namespace(node), "qdisc", "show", "dev", "eth0")
        limit = re.search(r"\brate (\S+)", limits)
        return limit[1] if limit else ""

    def sent_bytes(self, node: str) -> int:
        """Return how many bytes have left a node through its link."""
        links = _run("ip", "-n", self.namespace(node), "-s", "-j", "link", "show", "eth0")
        return json.loads(links)[0]["stats64"]["tx"]["bytes"]

    def status(self) -> str:
        """Describe the network in one line."""
        if os.geteuid() != 0:
            return "between the nodes; root sees its rate"
        try:
            sent = ", ".join(f"{node} sent {self.sent_bytes(node) / 1e6:,.1f} MB" for node in NODES)
            return f"{self.rate(NODES[0])} per link; {sent}"
        except ClusterError as error:
            return f"incomplete ({error}): run python -m slurm_box down"

    def write_hosts(self) -> None:
        """Write the /etc/hosts of the network's machines."""
        names = {**self.addresses, "localhost": "127.0.0.1"}
        names[socket.gethostname()] = names.pop("controller")
        lines = [f"{address} {name}" for name, address in names.items()]
        # PyTorch looks up the name of an address in this form, and warns if there is none.
        lines += [f"::ffff:{address} {name}.{PREFIX}" for name, address in self.addresses.items()]
        (self.home / "hosts").write_text("\n".join(lines) + "\n")

    def entry(self, program: str) -> list[str]:
        """Return the words before a program's command that make it a part of the network.

        Each node is a machine with its own name and its share of the cores. In the controller's
        /etc/hosts, this machine's name has an address of the network, and the controller listens
        on no other.
        """
        if program not in ("slurmctld", *NODES):
            return []
        name = program if program in NODES else socket.gethostname()
        words = ["unshare", "--mount", "--uts", f"{self.home}/enter.sh", f"{self.home}/hosts", name]
        if program not in NODES:
            return words
        cores = _cores_of(NODES.index(program))
        namespace = f"--net={NAMESPACES / self.namespace(program)}"
        return ["taskset", "--cpu-list", cores, "nsenter", namespace, *words]

    def remove(self) -> None:
        """Kill what still runs in the namespaces, and remove them with their links."""
        if not self._file.exists():
            return
        if Path("/sys/class/net", self.name).exists():  # the kernel would remove it later
            _run("ip", "link", "delete", self.name)
        for name in filter(_is_namespace, (*map(self.namespace, NODES), self.name)):
            processes = []
            for pid in _run("ip", "netns", "pids", name).split():
                with suppress(psutil.NoSuchProcess):
                    processes.append(psutil.Process(int(pid)))
                    processes[-1].kill()
            psutil.wait_procs(processes, timeout=5)
            _run("ip", "netns", "delete", name)
        self._file.unlink()


def _cores_of(number: int) -> str:
    """Return a node's share of this machine's cores; all nodes share a single one."""
    cores = sorted(os.sched_getaffinity(0), key=lambda core: (_first_thread(core), core))
    share = max(1, len(cores) // len(NODES))
    return ",".join(map(str, (cores[number * share :] or cores)[:share]))


def _first_thread(core: int) -> int:
    """Return the first hardware thread on the same physical core, so that no core is divided."""
    path = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list")
    try:
        return int(re.match(r"\d+", path.read_text())[0])
    except OSError:
        return core


def _is_namespace(name: str) -> bool:
    return Path(NAMESPACES, name).exists()


def _rate_error(rate: str, reason: str) -> ClusterError:
    return ClusterError(f"--network {rate}: expected a rate such as {EXAMPLES}{reason}")


def _run(program: str, *arguments: str) -> str:
    """Return what a command prints; raise ClusterError with its error output if it fails."""
    path = which(program)
    if not path:
        raise ClusterError(f"{program} is not installed")
    process = subprocess.run([path, *arguments], capture_output=True, text=True)
    if process.returncode:
        raise ClusterError(process.stderr.partition("\n")[0] or f"{program} failed")
    return process.stdout
