/* SPDX-License-Identifier: Apache-2.0 */
/* sbatch: a batch script for a spec, to be read and edited.  docs/slurm.md tells why each line is
 * there. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "driver/plan_schedule.h"
#include "driver/verb_internal.h"

enum {
    LEAD_S = 120, /* signal before the time limit; Slurm looks every 30 s only */
    MARGIN_MINUTES = 10,
    MPI_BYTES = 256 << 20 /* what MPI, BLAS and the program itself take */
};

struct batch {
    const struct driver_opts *o;
    bool srun;
    char *program, *spec, *out, *work, *checkpoint; /* owned, absolute */
    uint64_t minutes, lead_s, mem_per_cpu_mib;
    struct plan_need need;
};

/* ---- facts ----------------------------------------------------------------------------------- */

static enum status absolute(const char *path, char **out, struct err *err)
{
    char here[4096];
    *out = NULL;
    if (path == NULL)
        return ST_OK;
    if (path[0] != '/' && getcwd(here, sizeof here) == NULL)
        return err_set(err, ST_IO, "current folder: %s", strerror(errno));
    *out = path[0] == '/' ? str_dup(path) : path_join(here, path);
    return *out == NULL ? err_nomem(err, strlen(path)) : ST_OK;
}

static enum status own_path(char **out, struct err *err)
{
    char path[4096];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
    if (n <= 0)
        return err_set(err, ST_IO, "/proc/self/exe: %s", strerror(errno));
    path[n] = '\0';
    *out = str_dup(path);
    return *out == NULL ? err_nomem(err, (size_t)n) : ST_OK;
}

/* Does srun here know pmix? */
static bool has_srun_pmix(void)
{
    char line[256];
    bool found = false;
    FILE *f = popen("srun --mpi=list 2>&1 </dev/null", "r");
    if (f == NULL)
        return false;
    while (fgets(line, sizeof line, f) != NULL)
        found = found || strstr(line, "pmix") != NULL;
    return pclose(f) == 0 && found;
}

/* A directive is one line of words. */
static enum status check_word(const char *option, const char *word, struct err *err)
{
    for (const char *c = word; c != NULL && *c != '\0'; c++)
        if ((unsigned char)*c <= ' ' || *c == 0x7f || strchr("'\"\\$`", *c) != NULL)
            return err_set(err, ST_USAGE,
                           "--%s: expected a word without spaces or quotes, found \"%s\"", option,
                           word);
    return ST_OK;
}

static enum status check_options(const struct driver_opts *o, struct err *err)
{
    if (o->out == NULL)
        return err_set(err, ST_USAGE, "sbatch: --out DIR is missing");
    TRY(check_word("partition", o->partition, err));
    TRY(check_word("job-name", o->job_name, err));
    TRY(check_word("blas-core", o->blas_core, err));
    return ST_OK;
}

static void choose_resources(struct batch *b)
{
    const struct driver_opts *o = b->o;
    /* The login node may be faster than the others, and the disk slower than plan assumes. */
    double parts = o->array > 0 ? (double)o->array : 1;
    b->minutes = o->time_minutes;
    if (b->minutes == 0)
        b->minutes = (uint64_t)ceil(2 * b->need.seconds / parts / 60) + MARGIN_MINUTES;
    b->lead_s = min_u64(LEAD_S, b->minutes * 60 / 4);
    uint64_t bytes = b->need.rank_bytes + b->need.rank_bytes / 4 + MPI_BYTES;
    b->mem_per_cpu_mib = (bytes >> 20) / o->blas_threads + 1;
}

/* ---- text ------------------------------------------------------------------------------------ */

/* For a shell, in single quotes. */
static void put_quoted(struct bytes *out, const char *s)
{
    bytes_put_u8(out, '\'');
    for (; *s != '\0'; s++)
        if (*s == '\'')
            bytes_printf(out, "'\\''");
        else
            bytes_put_u8(out, (uint8_t)*s);
    bytes_put_u8(out, '\'');
}

static void put_variable(struct bytes *out, const char *name, const char *value)
{
    bytes_printf(out, "%s=", name);
    put_quoted(out, value);
    bytes_printf(out, "\n");
}

#define U(x) ((unsigned long long)(x))

static void put_directives(const struct batch *b, struct bytes *out)
{
    const struct driver_opts *o = b->o;
    const char *name = o->job_name != NULL ? o->job_name : "tokentab";
    bytes_printf(out, "#SBATCH --job-name=%s\n", name);
    if (o->partition != NULL)
        bytes_printf(out, "#SBATCH --partition=%s\n", o->partition);
    bytes_printf(out, "#SBATCH --nodes=%llu\n#SBATCH --ntasks-per-node=%llu\n", U(o->nodes),
                 U(o->tasks_per_node));
    bytes_printf(out, "#SBATCH --cpus-per-task=%llu\n#SBATCH --mem-per-cpu=%lluM\n",
                 U(o->blas_threads), U(b->mem_per_cpu_mib));
    bytes_printf(out, "#SBATCH --time=%llu:%02llu:00\n", U(b->minutes / 60), U(b->minutes % 60));
    bytes_printf(out, "#SBATCH --signal=%sUSR1@%llu\n", b->srun ? "" : "B:", U(b->lead_s));
    bytes_printf(out, "#SBATCH --requeue\n#SBATCH --open-mode=append\n");
    if (o->array > 0)
        bytes_printf(out, "#SBATCH --array=0-%llu\n#SBATCH --output=%s-%%A_%%a.log\n",
                     U(o->array - 1), name);
    else
        bytes_printf(out, "#SBATCH --output=%s-%%j.log\n", name);
}

static void put_header(const struct batch *b, struct bytes *out)
{
    char memory[32];
    bytes_printf(out, "#!/bin/bash\n");
    put_directives(b, out);
    bytes_printf(out, "#\n# Written by tokentab %s sbatch; edit freely.", DRIVER_VERSION);
    bytes_printf(out, "  Planned here: %.3g s on %llu ranks, %s a rank.\n", b->need.seconds,
                 U(b->o->nodes * b->o->tasks_per_node),
                 str_bytes(b->need.rank_bytes, memory, sizeof memory));
    bytes_printf(out,
                 "# The run resumes by itself: submit again, or let exit code 75 requeue it.\n");
    if (b->o->array > 0)
        bytes_printf(out, "# The tasks fill the work folder; then one more task makes the recipe:\n"
                          "#   job=$(sbatch --parsable FILE)\n"
                          "#   sbatch --dependency=afterany:$job --array=0 FILE reduce\n");
    bytes_printf(out, "\n");
}

static void put_environment(const struct batch *b, struct bytes *out)
{
    const struct driver_opts *o = b->o;
    put_variable(out, "program", b->program);
    put_variable(out, "spec", b->spec);
    put_variable(out, "out", b->out);
    put_variable(out, "work", b->work);
    bytes_printf(out, "\nexport OPENBLAS_NUM_THREADS=%llu OMP_NUM_THREADS=%llu\n",
                 U(o->blas_threads), U(o->blas_threads));
    bytes_printf(out,
                 "# A lost host is noticed within half a minute; Open MPI's own default is eight.\n"
                 "export OMPI_MCA_oob_tcp_keepalive_time=10\n"
                 "export OMPI_MCA_oob_tcp_keepalive_intvl=5\n"
                 "export OMPI_MCA_oob_tcp_keepalive_probes=3\n\n");
    bytes_printf(out, "options=(--work \"$work\"");
    if (o->blas_core != NULL)
        bytes_printf(out, " --blas-core %s", o->blas_core);
    if (o->blas_threads > 1)
        bytes_printf(out, " --blas-threads %llu", U(o->blas_threads));
    if (b->checkpoint != NULL) {
        bytes_printf(out, " --checkpoint ");
        put_quoted(out, b->checkpoint);
    }
    if (o->header_cap > 0)
        bytes_printf(out, " --header-cap %llu", U(o->header_cap));
    if (o->shard_units > 0)
        bytes_printf(out, " --shard-units %llu", U(o->shard_units));
    bytes_printf(
        out, "%s%s%s --progress log)\n", o->allow_missing_unused ? " --allow-missing-unused" : "",
        o->packed ? " --packed" : "", o->accept_environment ? " --accept-environment" : "");
    if (o->array > 0)
        bytes_printf(out, "\nif [[ ${1:-} == reduce ]]; then\n"
                          "    options+=(--reduce)\n"
                          "else # which part, from SLURM_ARRAY_TASK_ID, _MIN, _STEP and _COUNT\n"
                          "    options+=(--shards slurm)\n"
                          "fi\n");
}

/* Seconds until `timeout` ends a run that neither stops nor dies: before Slurm's own limit, so that
 * the script can still ask for its requeue. */
static uint64_t guard_s(const struct batch *b)
{
    return b->minutes * 60 - b->lead_s / 3;
}

static void put_srun(const struct batch *b, struct bytes *out)
{
    bytes_printf(
        out,
        "\n# Slurm sends USR1 to the ranks themselves; they finish or drop their shard and "
        "end with 75.\n# MPI ends a step whose rank died; killing on any bad exit as well "
        "would hide the code.\n"
        "timeout -k 20 %llu srun --mpi=pmix --kill-on-bad-exit=0 \\\n"
        "    \"$program\" compile \"$spec\" --out \"$out\" \"${options[@]}\" "
        "</dev/null\n"
        "code=$?\n",
        U(guard_s(b)));
}

static void put_mpirun(const struct batch *b, struct bytes *out)
{
    const char *map = b->o->blas_threads > 1 ? " --map-by slot:PE=$SLURM_CPUS_PER_TASK" : "";
    bytes_printf(
        out,
        "\n# USR1 to mpirun, the child of timeout, reaches the ranks: they finish or drop their "
        "shard and end\n# with 75.  TERM to mpirun would kill them.\n"
        "stop_ranks() {\n"
        "    signalled=1\n"
        "    pkill -USR1 -P \"$launcher\"\n"
        "}\n"
        "trap stop_ranks USR1 TERM\n"
        "timeout -k 20 %llu mpirun%s \\\n"
        "    \"$program\" compile \"$spec\" --out \"$out\" \"${options[@]}\" </dev/null &\n"
        "launcher=$! signalled=1\n"
        "while ((signalled)); do # a signal ends the wait, not the run\n"
        "    signalled=0\n"
        "    wait \"$launcher\"\n"
        "    code=$?\n"
        "done\n",
        U(guard_s(b)), map);
}

static void put_ending(const struct batch *b, struct bytes *out)
{
    const char *codes = b->srun ? "9 | 124 | 137 | 143 | 205" : "1 | 9 | 124 | 137 | 143 | 205";
    bytes_printf(
        out,
        "\n# What a killed rank, a lost host or the guard above leave (docs/operations.md) is "
        "as good as 75.\n"
        "case $code in\n%s) %scode=75 ;;\nesac\n",
        codes, b->o->array > 0 && !b->srun ? "[[ ${1:-} == reduce && $code == 1 ]] || " : "");
    bytes_printf(out,
                 "if ((code == 75 && ${SLURM_RESTART_COUNT:-0} < 50)); then\n"
                 "    job=$SLURM_JOB_ID\n"
                 "    [[ -z ${SLURM_ARRAY_JOB_ID:-} ]] || "
                 "job=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID\n"
                 "    echo \"stopped early (restart ${SLURM_RESTART_COUNT:-0}): requeue $job\"\n"
                 "    scontrol requeue \"$job\"\n"
                 "fi\n"
                 "exit \"$code\"\n");
}

static void put_script(const struct batch *b, struct bytes *out)
{
    put_header(b, out);
    put_environment(b, out);
    if (b->srun)
        put_srun(b, out);
    else
        put_mpirun(b, out);
    put_ending(b, out);
}

/* ---- the verb -------------------------------------------------------------------------------- */

static enum status plan(struct driver_context *ctx, struct batch *b, struct err *err)
{
    struct driver_job job = {0};
    uint64_t ranks = b->o->nodes * b->o->tasks_per_node;
    if (ranks > 1000000)
        return err_set(err, ST_USAGE, "sbatch: expected at most 1000000 ranks, found %llu",
                       U(ranks));
    enum status st = driver_job_open(b->o->args[0], b->o, (int)ranks, &job, err);
    if (st == ST_OK)
        st = driver_job_kernels_all(ctx->comm, b->o, &job, err);
    if (st == ST_OK)
        st = driver_plan_need(&job, ranks, &b->need, err);
    driver_job_close(&job);
    return st;
}

static enum status make_paths(struct batch *b, struct err *err)
{
    TRY(own_path(&b->program, err));
    TRY(absolute(b->o->args[0], &b->spec, err));
    TRY(absolute(b->o->out, &b->out, err));
    TRY(absolute(b->o->checkpoint, &b->checkpoint, err));
    for (size_t n = strlen(b->out); n > 1 && b->out[n - 1] == '/'; n--)
        b->out[n - 1] = '\0';
    if (b->o->work != NULL)
        return absolute(b->o->work, &b->work, err);
    b->work = str_printf("%s.work", b->out);
    return b->work == NULL ? err_nomem(err, strlen(b->out)) : ST_OK;
}

static void put_json(struct driver_context *ctx, const struct batch *b)
{
    struct format_writer w = {0};
    struct bytes script = {0};
    put_script(b, &script);
    bytes_put_u8(&script, '\0');
    verb_json_start(ctx, &w);
    format_write_string(&w, "launcher", b->srun ? "srun" : "mpirun");
    format_write_u64(&w, "ranks", b->o->nodes * b->o->tasks_per_node);
    format_write_u64(&w, "memory_bytes_a_rank", b->need.rank_bytes);
    format_write_double(&w, "seconds", b->need.seconds);
    format_write_u64(&w, "minutes", b->minutes);
    format_write_string(&w, "script", script.failed ? "" : (const char *)script.data);
    verb_json_end(ctx, &w);
    ctx->result.failed = ctx->result.failed || script.failed;
    bytes_free(&script);
}

enum status driver_verb_sbatch(struct driver_context *ctx, struct err *err)
{
    struct batch b = {.o = ctx->opts};
    const char *launcher = ctx->opts->launcher;
    enum status st = check_options(ctx->opts, err);
    if (st == ST_OK)
        st = plan(ctx, &b, err);
    if (st == ST_OK)
        st = make_paths(&b, err);
    if (st == ST_OK) {
        b.srun = launcher == NULL || strcmp(launcher, "auto") == 0 ? has_srun_pmix()
                                                                   : strcmp(launcher, "srun") == 0;
        choose_resources(&b);
        if (ctx->opts->json)
            put_json(ctx, &b);
        else
            put_script(&b, &ctx->result);
    }
    free(b.program);
    free(b.spec);
    free(b.out);
    free(b.work);
    free(b.checkpoint);
    return st;
}
