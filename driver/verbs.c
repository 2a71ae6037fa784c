/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "driver/driver_internal.h"

#define JOB_OPTIONS "checkpoint header-cap allow-missing-unused blas-core blas-threads"

const struct driver_verb driver_verbs[] = {
    {.name = "compile",
     .usage = "compile SPEC --out DIR [--work DIR] [options]",
     .summary = "tabulate, validate and pack the blocks of a spec; resumes by itself",
     .help = "Alone or under mpirun / srun --mpi=pmix.  Shards lie in WORK; run again to resume.  "
             "A finished\n"
             "and unchanged recipe is verified.  With several blocks each gets OUT/<block name>.",
     .min_args = 1,
     .max_args = 1,
     .uses_ranks = true,
     .options = "out work progress shard-units accept-environment fresh packed shards reduce "
                "lock-wait " JOB_OPTIONS,
     .run = driver_verb_compile},
    {.name = "plan",
     .usage = "plan SPEC [--ranks N]",
     .summary = "show tensors, sizes, storage verdict, memory, disk and time; writes nothing",
     .min_args = 1,
     .max_args = 1,
     .options = "ranks shard-units " JOB_OPTIONS,
     .run = driver_verb_plan},
    {.name = "status",
     .usage = "status WORK",
     .summary = "how far a run is, while it runs",
     .min_args = 1,
     .max_args = 1,
     .options = "",
     .run = driver_verb_status},
    {.name = "verify",
     .usage = "verify RECIPE [--against SPEC]",
     .summary = "check digests and seal; with --against, the full validation on this machine",
     .min_args = 1,
     .max_args = 1,
     .uses_ranks = true,
     .options = "against quick progress " JOB_OPTIONS,
     .run = driver_verb_verify},
    {.name = "lookup",
     .usage = "lookup RECIPE --ids LIST [--shape DIMS] [--output NAME]",
     .summary = "gather rows by token id",
     .min_args = 1,
     .max_args = 1,
     .options = "ids shape id-type output format route file force",
     .run = driver_verb_lookup},
    {.name = "run",
     .usage = "run SPEC|DIR --inputs FILE --out FILE",
     .summary = "run an enclosing model, original or rewritten, and write its outputs",
     .help = "SPEC has \"graph\"; DIR is what compile made of one.  Outputs are tensors "
             "OUTPUT.NAME of a\n"
             "safetensors file, NAME being that of the call.",
     .min_args = 1,
     .max_args = 1,
     .options = "inputs out force " JOB_OPTIONS,
     .run = driver_verb_run},
    {.name = "inspect",
     .usage = "inspect PATH",
     .summary = "what a checkpoint, shard, recipe or packed file holds; reads headers only",
     .min_args = 1,
     .max_args = 1,
     .options = "header-cap allow-missing-unused",
     .run = driver_verb_inspect},
    {.name = "probe",
     .usage = "probe SPEC [--max-rows N]",
     .summary = "find the row-count classes of this machine's BLAS and propose profiles",
     .min_args = 1,
     .max_args = 1,
     .options = "max-rows tokens seeds emit-profiles force " JOB_OPTIONS,
     .run = driver_verb_probe},
    {.name = "diff",
     .usage = "diff A B [--absolute X] [--relative X] [--ulp N]",
     .summary = "compare two recipes or table files: bits, absolute, relative, ULP",
     .help =
         "A, B: recipe, safetensors file, index or folder, unit file, .npy, folder of .npy, or "
         "packed\n"
         "payload.  Elements are equal when their bits are; with tolerances, when any one of "
         "those\n"
         "given holds (relative: to the larger of the two).  Exit 0 equal, 1 different, 2 trouble.",
     .min_args = 2,
     .max_args = 2,
     .options = "absolute relative ulp nan max-lines header-cap",
     .run = driver_verb_diff},
    {.name = "pack",
     .usage = "pack FILE --out FILE",
     .summary = "lossless packing of any file",
     .min_args = 1,
     .max_args = 1,
     .options = "out force",
     .run = driver_verb_pack},
    {.name = "unpack",
     .usage = "unpack FILE --out FILE",
     .summary = "the reverse of pack",
     .min_args = 1,
     .max_args = 1,
     .options = "out force size-limit",
     .run = driver_verb_unpack},
    {.name = "export",
     .usage = "export RECIPE --to FORMAT --out PATH",
     .summary = "write the tables as safetensors, npy or a compressme artifact",
     .help =
         "Tensors are named route/output (bulk/q, profile0/q, ...), every row in full; for a\n"
         "projected block z and r, with bias.  npy: PATH/route/output.npy.  diff compares the\n"
         "recipe with safetensors and npy as they are, with a compressme artifact once import has\n"
         "made a recipe of it.\n"
         "Every payload byte is compared with its digest first.",
     .min_args = 1,
     .max_args = 1,
     .options = "to out force module packed",
     .run = driver_verb_export},
    {.name = "import",
     .usage = "import DIR --from FORMAT --out RECIPE",
     .summary = "a recipe from the tables that another program made",
     .help =
         "compressme: a folder with manifest.json and model.safetensors or model.cmppack.  The\n"
         "recipe says imported_not_validated, and verify repeats it; verify RECIPE --against SPEC\n"
         "compares it with what this machine evaluates.",
     .min_args = 1,
     .max_args = 1,
     .options = "from out force module size-limit",
     .run = driver_verb_import},
    {.name = "import-hf",
     .usage = "import-hf DIR --out SPEC",
     .summary = "a spec from a Hugging Face snapshot's config.json",
     .min_args = 1,
     .max_args = 1,
     .options = "out revision force header-cap",
     .run = driver_verb_import_hf},
    {.name = "sbatch",
     .usage = "sbatch SPEC --out DIR",
     .summary = "print a Slurm batch script for the spec",
     .min_args = 1,
     .max_args = 1,
     .options = "out work nodes tasks-per-node time array partition job-name launcher packed "
                "shard-units accept-environment " JOB_OPTIONS,
     .run = driver_verb_sbatch},
    {.name = "report",
     .usage = "report RECIPE --out FILE.html",
     .summary = "one self-contained HTML page about a recipe or a work folder",
     .help = "A recipe's every payload byte is compared with its digest: exit 3 and no page where "
             "it is\n"
             "corrupt, missing or malformed.  A historical one (changed since its seal) gets a "
             "page that\n"
             "says so.",
     .min_args = 1,
     .max_args = 1,
     .options = "out force",
     .run = driver_verb_report},
    {.name = "doctor",
     .usage = "doctor [DIR]",
     .summary = "versions, BLAS core and speed, HDF5, MPI, locks, free space",
     .min_args = 0,
     .max_args = 1,
     .options = "blas-core blas-threads",
     .run = driver_verb_doctor},
};
const size_t driver_n_verbs = sizeof driver_verbs / sizeof *driver_verbs;

const struct driver_verb *driver_verb_find(const char *name)
{
    for (size_t i = 0; i < driver_n_verbs; i++)
        if (strcmp(driver_verbs[i].name, name) == 0)
            return &driver_verbs[i];
    return NULL;
}
