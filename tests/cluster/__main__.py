"""Starts a cluster and runs it until Ctrl-C: `python -m tests.cluster`."""

from __future__ import annotations

import contextlib
import signal
import sys

from tests.cluster.cluster import Cluster
from tests.cluster.cluster_files import BIN, unsupported


def main() -> None:
    reason = unsupported()
    if reason is not None:
        sys.exit(reason)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    cluster = Cluster()
    try:
        cluster.start()
        shell = " ".join(cluster.in_network("env", f"KUBECONFIG={cluster.kubeconfig}", "bash"))
        print(f"kubectl and helm: {BIN}\nshell in its network: {shell}\nCtrl-C ends the cluster")
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()
    finally:
        cluster.stop()


if __name__ == "__main__":
    main()
