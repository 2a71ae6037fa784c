/* SPDX-License-Identifier: Apache-2.0 */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver/driver_internal.h"

#define AT(field) offsetof(struct driver_opts, field)

/* One table for all verbs; each verb names the options it takes. */
static const struct driver_opt all_options[] = {
    {"help", OPT_FLAG, AT(help), 0, NULL, NULL, 0, 0, "print this help and exit"},
    {"json", OPT_FLAG, AT(json), 0, NULL, NULL, 0, 0, "print the result as JSON on stdout"},
    {"log-json", OPT_FLAG, AT(log_json), 0, NULL, NULL, 0, 0,
     "log lines on stderr as JSON objects, one a line"},
    {"quiet", OPT_FLAG, AT(quiet), 0, NULL, NULL, 0, 0, "log errors only"},
    {"verbose", OPT_FLAG, AT(verbose), 0, NULL, NULL, 0, 0, "log more"},
    {"force", OPT_FLAG, AT(force), 0, NULL, NULL, 0, 0, "overwrite an existing output file"},
    {"progress", OPT_CHOICE, AT(progress), 0, "MODE", "auto|bar|log|none", 0, 0,
     "auto (default): a bar on a terminal, else a line every 30 s"},
    {"out", OPT_TEXT, AT(out), 0, "DIR", NULL, 0, 0, "recipe folder (or output file) to write"},
    {"work", OPT_TEXT, AT(work), 0, "DIR", NULL, 0, 0,
     "work folder: shards, journal, report (default: OUT.work)"},
    {"against", OPT_TEXT, AT(against), 0, "SPEC", NULL, 0, 0,
     "evaluate everything again and compare with the recipe"},
    {"checkpoint", OPT_TEXT, AT(checkpoint), 0, "PATH", NULL, 0, 0,
     "use this checkpoint instead of the one the spec names"},
    {"blas-core", OPT_TEXT, AT(blas_core), 0, "NAME", NULL, 0, 0,
     "OpenBLAS core type, e.g. Haswell (default: by the CPU flags common to all ranks)"},
    {"blas-threads", OPT_U64, AT(blas_threads), 0, "N", NULL, 1, 1024,
     "BLAS threads a rank (default 1); part of the numeric environment"},
    {"shard-units", OPT_U64, AT(shard_units), 0, "N", NULL, 1, 1e9,
     "units (16 x bulk_rows tokens) a shard (default: at least 4 shards a rank)"},
    {"header-cap", OPT_SIZE, AT(header_cap), 0, "BYTES", NULL, 1, 1e15,
     "largest safetensors header to accept (default 100000000)"},
    {"allow-missing-unused", OPT_FLAG, AT(allow_missing_unused), 0, NULL, NULL, 0, 0,
     "absent checkpoint shards that no block reads are a warning"},
    {"accept-environment", OPT_FLAG, AT(accept_environment), 0, NULL, NULL, 0, 0,
     "start shards of another numeric environment over instead of refusing"},
    {"fresh", OPT_FLAG, AT(fresh), 0, NULL, NULL, 0, 0, "ignore stored shards, evaluate all again"},
    {"packed", OPT_FLAG, AT(packed), 0, NULL, NULL, 0, 0,
     "write the packed payload (tables-*.ttz, export: model.cmppack) instead of safetensors"},
    {"shards", OPT_TEXT, AT(shards), 0, "I/N", NULL, 0, 0,
     "evaluate part I (from 0) of N and stop: one task of a job array; \"slurm\": from "
     "SLURM_ARRAY_TASK_*"},
    {"reduce", OPT_FLAG, AT(reduce), 0, NULL, NULL, 0, 0,
     "evaluate nothing: reduce stored shards to a recipe, or say which are missing"},
    {"lock-wait", OPT_DOUBLE, AT(lock_wait_s), 0, "S", NULL, 0, 1e6,
     "seconds to wait for the ranks of a dying run (default 30)"},
    {"ranks", OPT_U64, AT(ranks), 0, "N", NULL, 1, 1e6, "ranks to plan for (default 1)"},
    {"inputs", OPT_TEXT, AT(inputs), 0, "FILE", NULL, 0, 0,
     "calls: safetensors with tensors INPUT.NAME, or JSON (default: the spec's examples)"},
    {"ids", OPT_TEXT, AT(ids), 0, "LIST", NULL, 0, 0,
     "token ids: comma-separated, ranges a-b, or @FILE with one a line"},
    {"shape", OPT_TEXT, AT(shape), 0, "DIMS", NULL, 0, 0,
     "shape of the ids, e.g. 2x3 (default: their number; \"scalar\" for rank 0)"},
    {"id-type", OPT_CHOICE, AT(id_type), 0, "TYPE", "int64|int32", 0, 0,
     "integer type handed to the library (default int64)"},
    {"output", OPT_TEXT, AT(output), 0, "NAME", NULL, 0, 0, "only this output (default: all)"},
    {"format", OPT_CHOICE, AT(format), 0, "F", "json|npy|raw", 0, 0,
     "json (default), npy or raw; npy and raw need --output and --file"},
    {"route", OPT_TEXT, AT(route), 0, "NAME", NULL, 0, 0,
     "bulk, profile0, ... (default: by the number of ids)"},
    {"file", OPT_TEXT, AT(raw_out), 0, "FILE", NULL, 0, 0, "write here instead of stdout"},
    {"max-rows", OPT_U64, AT(max_rows), 0, "N", NULL, 1, 65536,
     "largest row count to probe (default 512)"},
    {"tokens", OPT_U64, AT(tokens), 0, "N", NULL, 1, 1e6, "tokens to probe with (default 32)"},
    {"seeds", OPT_U64, AT(seeds), 0, "N", NULL, 1, 1000,
     "sets of neighbours for each token (default 3)"},
    {"emit-profiles", OPT_TEXT, AT(emit_profiles), 0, "FILE", NULL, 0, 0,
     "write the spec with the profiles that reproduce the classes"},
    {"absolute", OPT_DOUBLE, AT(diff_absolute), AT(has_absolute), "X", NULL, 0, 1e300,
     "equal within this absolute difference"},
    {"relative", OPT_DOUBLE, AT(diff_relative), AT(has_relative), "X", NULL, 0, 1e300,
     "equal within this relative difference"},
    {"ulp", OPT_U64, AT(diff_ulp), AT(has_ulp), "N", NULL, 0, 9e15,
     "equal within this many units in the last place"},
    {"max-lines", OPT_U64, AT(max_lines), 0, "N", NULL, 0, 1e9, "places to list (default 10)"},
    {"nan", OPT_CHOICE, AT(nan_mode), 0, "MODE", "differ|equal|bits", 0, 0,
     "NaN against NaN: differ, equal, or equal when the bits are (default: bits where no "
     "tolerance is given, else differ)"},
    {"to", OPT_CHOICE, AT(to), 0, "FORMAT", "safetensors|npy|compressme", 0, 0,
     "safetensors (one file), npy (a folder) or compressme (a folder)"},
    {"from", OPT_CHOICE, AT(from), 0, "FORMAT", "compressme", 0, 0, "compressme (a folder)"},
    {"module", OPT_TEXT, AT(module), 0, "PATH", NULL, 0, 0,
     "compressme: the module that the tables replace (default: the block is the model; import: "
     "the only one)"},
    {"revision", OPT_TEXT, AT(revision), 0, "REV", NULL, 0, 0, "revision to record"},
    {"size-limit", OPT_SIZE, AT(size_limit), 0, "BYTES", NULL, 1, 1e18,
     "largest size to unpack (default 1T; import: 1G)"},
    {"nodes", OPT_U64, AT(nodes), 0, "N", NULL, 1, 1e6, "nodes to ask for (default 1)"},
    {"tasks-per-node", OPT_U64, AT(tasks_per_node), 0, "N", NULL, 1, 1e4,
     "ranks a node (default 1)"},
    {"time", OPT_U64, AT(time_minutes), 0, "MINUTES", NULL, 1, 1e6,
     "time limit in minutes (default: from plan)"},
    {"array", OPT_U64, AT(array), 0, "N", NULL, 1, 1e6, "a job array of N tasks"},
    {"partition", OPT_TEXT, AT(partition), 0, "NAME", NULL, 0, 0, "Slurm partition"},
    {"job-name", OPT_TEXT, AT(job_name), 0, "NAME", NULL, 0, 0, "job name (default tokentab)"},
    {"launcher", OPT_CHOICE, AT(launcher), 0, "L", "auto|srun|mpirun", 0, 0,
     "what starts the ranks (default auto: srun --mpi=pmix where it is there)"},
    {"quick", OPT_FLAG, AT(quick), 0, NULL, NULL, 0, 0,
     "headers, names, shapes, sizes and seal only; not every byte"},
};
/* --nan was not given: what it means then depends on the tolerances. */
enum { NAN_MODE_UNSET = 3 };
static const size_t n_all_options = sizeof all_options / sizeof *all_options;

/* Options every verb takes. */
static const char common_options[] = "help json log-json quiet verbose";

static bool word_in(const char *list, const char *word, char separator)
{
    size_t size = strlen(word);
    for (const char *p = list; p != NULL && *p != '\0';) {
        const char *end = strchr(p, separator);
        size_t n = end == NULL ? strlen(p) : (size_t)(end - p);
        if (n == size && strncmp(p, word, n) == 0)
            return true;
        p = end == NULL ? NULL : end + 1;
    }
    return false;
}

static bool verb_takes(const struct driver_verb *verb, const struct driver_opt *opt)
{
    return word_in(common_options, opt->name, ' ') || word_in(verb->options, opt->name, ' ');
}

static const char *nearest_option(const struct driver_verb *verb, const char *name)
{
    const char *best = NULL;
    unsigned best_distance = 4;
    for (size_t i = 0; i < n_all_options; i++) {
        if (!verb_takes(verb, &all_options[i]))
            continue;
        unsigned d = str_distance(name, all_options[i].name);
        if (d < best_distance) {
            best_distance = d;
            best = all_options[i].name;
        }
    }
    return best;
}

/* Index of a word in "a|b|c"; -1 if it is none. */
static int choice_index(const char *choices, const char *word)
{
    int index = 0;
    for (const char *p = choices; p != NULL; index++) {
        const char *end = strchr(p, '|');
        size_t n = end == NULL ? strlen(p) : (size_t)(end - p);
        if (n == strlen(word) && strncmp(p, word, n) == 0)
            return index;
        p = end == NULL ? NULL : end + 1;
    }
    return -1;
}

static enum status bad_value(const struct driver_opt *opt, const char *value, const char *expected,
                             struct err *err)
{
    return err_set(err, ST_USAGE, "--%s: expected %s, found \"%s\"", opt->name, expected, value);
}

static enum status number_in_range(const struct driver_opt *opt, const char *value, double x,
                                   struct err *err)
{
    if (x < opt->min || x > opt->max) {
        char low[32], high[32];
        return err_set(err, ST_USAGE, "--%s: expected a number in [%s, %s], found \"%s\"",
                       opt->name, str_double(opt->min, low, sizeof low),
                       str_double(opt->max, high, sizeof high), value);
    }
    return ST_OK;
}

static enum status set_value(const struct driver_opt *opt, const char *value, struct driver_opts *o,
                             struct err *err)
{
    char *at = (char *)o + opt->offset;
    uint64_t u = 0;
    double d = 0;
    switch (opt->kind) {
    case OPT_FLAG:
        *(bool *)(void *)at = true;
        break;
    case OPT_TEXT:
        if (*value == '\0')
            return bad_value(opt, value, "a value", err);
        *(const char **)(void *)at = value;
        break;
    case OPT_U64:
        if (!str_to_u64(value, &u))
            return bad_value(opt, value, "a whole number", err);
        TRY(number_in_range(opt, value, (double)u, err));
        *(uint64_t *)(void *)at = u;
        break;
    case OPT_SIZE:
        if (!str_to_size(value, &u))
            return bad_value(opt, value, "a size (K, M, G, T allowed)", err);
        TRY(number_in_range(opt, value, (double)u, err));
        *(uint64_t *)(void *)at = u;
        break;
    case OPT_DOUBLE:
        if (!str_to_double(value, &d))
            return bad_value(opt, value, "a number", err);
        TRY(number_in_range(opt, value, d, err));
        *(double *)(void *)at = d;
        break;
    case OPT_CHOICE: {
        int index = choice_index(opt->choices, value);
        if (index < 0)
            return bad_value(opt, value, opt->choices, err);
        if (opt->offset == AT(progress) || opt->offset == AT(nan_mode))
            *(uint64_t *)(void *)at = (uint64_t)index;
        else
            *(const char **)(void *)at = value;
        break;
    }
    }
    if (opt->seen_offset != 0)
        *(bool *)(void *)((char *)o + opt->seen_offset) = true;
    return ST_OK;
}

/* A number that Slurm sets in the tasks of an array. */
static enum status slurm_number(const char *name, uint64_t *out, struct err *err)
{
    const char *text = getenv(name);
    if (text == NULL || !str_to_u64(text, out))
        return err_set(err, ST_USAGE, "--shards slurm: %s: expected a whole number, found %s%s%s",
                       name, text == NULL ? "nothing" : "\"", text == NULL ? "" : text,
                       text == NULL ? "" : "\"");
    return ST_OK;
}

/* Part of an array task: arrays may start anywhere and have steps ("1-7:2").  A list with gaps
 * ("1,5,6") is none of these. */
static enum status shards_from_slurm(struct driver_opts *o, struct err *err)
{
    uint64_t id = 0, least = 0, step = 1, count = 0;
    TRY(slurm_number("SLURM_ARRAY_TASK_ID", &id, err));
    TRY(slurm_number("SLURM_ARRAY_TASK_MIN", &least, err));
    TRY(slurm_number("SLURM_ARRAY_TASK_COUNT", &count, err));
    if (getenv("SLURM_ARRAY_TASK_STEP") != NULL)
        TRY(slurm_number("SLURM_ARRAY_TASK_STEP", &step, err));
    bool fits = step > 0 && id >= least && (id - least) % step == 0 && count <= 1000000 &&
                (id - least) / step < count;
    if (!fits)
        return err_set(
            err, ST_USAGE,
            "--shards slurm: task %llu is not one of %llu from %llu in steps of %llu: use "
            "an array MIN-MAX:STEP",
            (unsigned long long)id, (unsigned long long)count, (unsigned long long)least,
            (unsigned long long)step);
    o->task_index = (id - least) / step;
    o->task_count = count;
    return ST_OK;
}

static enum status parse_shards(struct driver_opts *o, struct err *err)
{
    if (o->reduce && (o->shards != NULL || o->fresh))
        return err_set(err, ST_USAGE, "--reduce evaluates nothing: not together with %s",
                       o->fresh ? "--fresh" : "--shards");
    if (o->shards == NULL)
        return ST_OK;
    if (strcmp(o->shards, "slurm") == 0)
        return shards_from_slurm(o, err);
    char text[64];
    const char *slash = strchr(o->shards, '/');
    if (slash != NULL && (size_t)(slash - o->shards) < sizeof text) {
        memcpy(text, o->shards, (size_t)(slash - o->shards));
        text[slash - o->shards] = '\0';
        if (str_to_u64(text, &o->task_index) && str_to_u64(slash + 1, &o->task_count) &&
            o->task_count >= 1 && o->task_count <= 1000000 && o->task_index < o->task_count)
            return ST_OK;
    }
    return err_set(err, ST_USAGE, "--shards: expected I/N with 0 <= I < N, or slurm, found \"%s\"",
                   o->shards);
}

enum status driver_opts_parse(const struct driver_verb *verb, int argc, char **argv,
                              struct driver_opts *o, struct err *err)
{
    *o = (struct driver_opts){.verb = verb->name,
                              .blas_threads = 1,
                              .lock_wait_s = 30,
                              .ranks = 1,
                              .max_rows = 512,
                              .tokens = 32,
                              .seeds = 3,
                              .max_lines = 10,
                              .nan_mode = NAN_MODE_UNSET,
                              .nodes = 1,
                              .tasks_per_node = 1};
    struct option longs[sizeof all_options / sizeof *all_options + 1];
    memset(longs, 0, sizeof longs);
    for (size_t i = 0; i < n_all_options; i++)
        longs[i] = (struct option){.name = all_options[i].name,
                                   .has_arg = all_options[i].kind == OPT_FLAG ? no_argument
                                                                              : required_argument,
                                   .val = (int)(256 + i)};
    opterr = 0;
    optind = 2;
    for (;;) {
        int c = getopt_long(argc, argv, ":hqv", longs, NULL);
        if (c == -1)
            break;
        if (c == 'h' || c == 'q' || c == 'v') {
            o->help |= c == 'h';
            o->quiet |= c == 'q';
            o->verbose |= c == 'v';
            continue;
        }
        const char *word = optind > 0 && optind <= argc ? argv[optind - 1] : "";
        if (c == ':')
            return err_set(err, ST_USAGE, "%s: %s needs a value", verb->name, word);
        if (c == '?') {
            const char *name = strncmp(word, "--", 2) == 0 ? word + 2 : word;
            const char *near = nearest_option(verb, name);
            return err_set(err, ST_USAGE, "%s: unknown option %s%s%s%s", verb->name, word,
                           near == NULL ? "" : " (did you mean --", near == NULL ? "" : near,
                           near == NULL ? "" : "?)");
        }
        const struct driver_opt *opt = &all_options[c - 256];
        if (!verb_takes(verb, opt))
            return err_set(err, ST_USAGE, "%s: option --%s is not for this verb", verb->name,
                           opt->name);
        TRY(set_value(opt, optarg, o, err));
    }
    if (o->help)
        return ST_OK;
    for (int i = optind; i < argc; i++) {
        if (o->n_args >= verb->max_args)
            return err_set(err, ST_USAGE, "%s: unexpected argument \"%s\"; usage: tokentab %s",
                           verb->name, argv[i], verb->usage);
        o->args[o->n_args++] = argv[i];
    }
    if (o->n_args < verb->min_args)
        return err_set(err, ST_USAGE, "%s: an argument is missing; usage: tokentab %s", verb->name,
                       verb->usage);
    return parse_shards(o, err);
}

static void print_option(const struct driver_opt *opt)
{
    char left[64];
    snprintf(left, sizeof left, "--%s%s%s", opt->name, opt->arg == NULL ? "" : " ",
             opt->arg == NULL ? "" : opt->arg);
    printf("  %-24s %s\n", left, opt->help);
}

void driver_help_print(const struct driver_verb *verb)
{
    if (verb != NULL) {
        printf("usage: tokentab %s\n\n%s.\n", verb->usage, verb->summary);
        if (verb->help != NULL)
            printf("\n%s\n", verb->help);
        printf("\noptions:\n");
        for (size_t i = 0; i < n_all_options; i++)
            if (word_in(verb->options, all_options[i].name, ' '))
                print_option(&all_options[i]);
        for (size_t i = 0; i < n_all_options; i++)
            if (word_in(common_options, all_options[i].name, ' '))
                print_option(&all_options[i]);
    } else {
        printf(
            "usage: tokentab VERB ...\n\n"
            "Tabulates the token-local first stage of a frozen model: every token once, under\n"
            "every execution shape, checked, packed into a recipe of lookup tables.\n\nverbs:\n");
        for (size_t i = 0; i < driver_n_verbs; i++)
            printf("  %-10s %s\n", driver_verbs[i].name, driver_verbs[i].summary);
        printf("\ntokentab VERB --help tells more; tokentab --version names the libraries.\n");
    }
    printf(
        "\nexit codes: 0 done (accepted); 1 differs, verification failed; 2 usage; 3 bad spec, "
        "checkpoint,\nstructure or unreadable file; 4 resource, I/O, lock, environment; 5 numeric "
        "policy; 6 would not\nshrink; 75 stopped early, resumable\n");
}
