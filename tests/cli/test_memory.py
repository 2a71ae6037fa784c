# SPDX-License-Identifier: Apache-2.0
"""Memory of a rank does not depend on the vocabulary."""
import resource
import subprocess
import sys

import cli
from cli import check

if len(sys.argv) > 1:  # a child that starts one run, so that its children's peak is that run's
    code = subprocess.call(sys.argv[1:], stdout=subprocess.DEVNULL)
    print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
    sys.exit(code)


def peak_kib(v, bulk, ranks=0):
    name = f"v{v}-{ranks}"
    tensors = {"e": cli.random((v, 12), 1), "w": cli.random((5, 12), 2)}
    document = cli.spec(cli.lookup_block([{"op": "linear", "weight": "w"}]), bulk_rows=bulk, validation_rows=512)
    spec = cli.folder(name, tensors, document)
    command = [cli.BIN, "compile", spec, "--out", cli.path(name, "out"), "--progress", "none", "--quiet"]
    if ranks:
        command = ["mpirun", "-n", str(ranks), *command]
    r = cli.run_command([sys.executable, "-B", __file__, *command], timeout=250)
    report = cli.report_of(cli.path(name, "out"))
    check(report["tokens"] == v, f"{v}: {report['tokens']} tokens")
    return int(r.out.split()[-1])


for ranks in (0, 2):
    small, large = peak_kib(50000, 512, ranks), peak_kib(500000, 512, ranks)
    print(f"{ranks} ranks: {small} KiB at V = 50,000, {large} KiB at V = 500,000")
    check(large <= 1.1 * small, f"{ranks} ranks: peak {small} KiB grows to {large} KiB")
cli.finish()
