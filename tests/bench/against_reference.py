#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Compile times of tokentab beside those of an independent PyTorch reference, case by case in turn.

    against_reference.py --tokentab BIN --reference DIR --work SCRATCH [--core Haswell] [--repeat 3]
                         [--only a b ...] [--markdown]

DIR holds bench.py and tokenref.py of the reference.  Both sides read the same checkpoint, use the same
OpenBLAS core with one thread, one process, and write their tables.  Each round runs one after the other, so
that other load on the machine meets both; medians are of the rounds.  "compile" is enumeration, storage
decision and validation for the reference, the whole of a block's work with all files for tokentab; "cpu" is
user and system time of the whole process, interpreter start included.
"""
import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time


def translate(spec, arithmetic):
    """The reference's spelling of a block in today's spec."""
    block = {"name": "block"}
    for key in ("kind", "embedding", "prefix", "branches", "residual", "layers"):
        if key in spec:
            block[key] = spec[key]
    for layer in block.get("layers", []):
        if layer["op"] == "gelu":
            layer["op"] = "gelu_erf"
            layer.pop("approximate", None)
    out = {"tokentab": 1, "checkpoint": spec["checkpoint"], "mode": "eval",
           "input_contract": "token_indices_only", "block": block, "storage": "may_grow",
           "arithmetic": arithmetic}
    if "row_count_profiles" in spec:
        out["row_count_profiles"] = spec["row_count_profiles"]
    return out


def measured(command, env, stdout):
    """Wall and CPU seconds, peak MiB of one process that has to succeed."""
    start = time.perf_counter()
    with open(stdout, "w", encoding="utf-8") as f, open(stdout + ".err", "w", encoding="utf-8") as e:
        child = subprocess.Popen(command, env=env, stdout=f, stderr=e)
        _, status, usage = os.wait4(child.pid, 0)
    if status != 0:
        with open(stdout + ".err", encoding="utf-8") as e:
            raise SystemExit(f"{' '.join(command)}: status {status}: {e.read()[-500:]}")
    return time.perf_counter() - start, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def run_reference(args, name, env):
    log = os.path.join(args.work, "reference.out")
    command = ["/usr/bin/python3", os.path.join(args.reference, "bench.py"), "--child", name, "--work", args.work]
    wall, cpu, _ = measured(command, env, log)
    with open(log, encoding="utf-8") as f:
        result = json.loads(f.read().splitlines()[-1])
    seconds = sum(result["seconds"].get(p, 0) for p in ("parse", "enumerate", "store", "validate"))
    return {"compile": seconds, "cpu": cpu, "wall": wall, "rss": result["rss_mib"], "tables": result["tables"]}


def run_tokentab(args, name, env):
    out = os.path.join(args.work, "recipe")
    for path in (out, out + ".work"):
        shutil.rmtree(path, ignore_errors=True)
    spec = os.path.join(args.work, f"{name}.tokentab.json")
    log = os.path.join(args.work, "tokentab.out")
    command = [args.tokentab, "compile", spec, "--out", out, "--blas-core", args.core, "--progress", "none", "--json"]
    wall, cpu, rss = measured(command, env, log)
    with open(log, encoding="utf-8") as f:
        block = json.load(f)["blocks"][0]
    return {"compile": block["seconds"], "cpu": cpu, "wall": wall, "rss": rss, "tables": block["distinct_tables"]}


def median(runs, key):
    return statistics.median(r[key] for r in runs)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokentab", required=True)
    parser.add_argument("--reference", required=True)
    parser.add_argument("--work", required=True)
    parser.add_argument("--core", default="Haswell")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--arithmetic", default="library")
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--markdown", action="store_true")
    args = parser.parse_args()
    sys.path.insert(0, args.reference)
    sys.dont_write_bytecode = True
    import bench  # its functions load torch, which has to stay out of this process: a child's peak counts it
    args.work = os.path.abspath(args.work)
    os.makedirs(args.work, exist_ok=True)
    env = dict(os.environ, OPENBLAS_CORETYPE=args.core, OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1",
               PYTHONDONTWRITEBYTECODE="1")
    form = "| {} | {} | {} | {} | {} | {} | {} |" if args.markdown else "{:11} {:>9} {:>9} {:>7} {:>7} {:>7} {:>7}"
    print(form.format("case", "reference", "tokentab", "ratio", "cpu", "MiB ref", "MiB"))
    if args.markdown:
        print("|---" * 7 + "|")
    # Case e is d without validation, which tokentab has no switch for.
    for name in args.only or [n for n in bench.CASES if bench.CASES[n].get("validate", True)]:
        subprocess.run(["/usr/bin/python3", "-c", "import bench, sys; bench.prepare(*sys.argv[1:])", args.work, name],
                       cwd=args.reference, env=env, check=True)
        with open(os.path.join(args.work, f"{name}.json"), encoding="utf-8") as f:
            spec = translate(json.load(f), args.arithmetic)
        with open(os.path.join(args.work, f"{name}.tokentab.json"), "w", encoding="utf-8") as f:
            json.dump(spec, f)
        ours, theirs = [], []
        for _ in range(args.repeat):
            theirs.append(run_reference(args, name, env))
            ours.append(run_tokentab(args, name, env))
        a, b = median(theirs, "compile"), median(ours, "compile")
        ratios = [t["compile"] / o["compile"] for t, o in zip(theirs, ours)]
        print(form.format(name, f"{a:.2f} s", f"{b:.2f} s",
                          f"{statistics.median(ratios):.2f}", f"{median(theirs, 'cpu') / median(ours, 'cpu'):.2f}",
                          f"{max(r['rss'] for r in theirs):.0f}", f"{max(r['rss'] for r in ours):.0f}"), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
