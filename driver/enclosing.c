/* SPDX-License-Identifier: Apache-2.0 */
/* The regions of an enclosing model as the blocks of a job. */
#include <stdlib.h>
#include <string.h>

#include "driver/enclosing.h"
#include "driver/recipe_files.h"

static enum status keep_reason(struct graph_region *r, const char *reason, struct err *err)
{
    free(r->reason);
    r->reason = str_dup(reason);
    return r->reason == NULL ? err_nomem(err, strlen(reason) + 1) : ST_OK;
}

/* Ops, shapes and dtypes that no block may hold leave the region as it is. */
static enum status check_region(const struct driver_job *job, struct graph_region *r,
                                struct err *err)
{
    struct err why = {0};
    if (r->reason != NULL)
        return ST_OK;
    enum status st =
        graph_block_resolve(&r->block, format_checkpoint_tensor_info, job->checkpoint, &why);
    if (st == ST_OK)
        st = graph_block_audit(&r->block, &why);
    if (st == ST_NOMEM || st == ST_IO) {
        *err = why;
        return st;
    }
    if (st == ST_OK && job->spec->vocab > r->block.rows_in_checkpoint)
        (void)err_set(&why, ST_SPEC, "vocab %llu, but its embedding has %llu rows",
                      (unsigned long long)job->spec->vocab,
                      (unsigned long long)r->block.rows_in_checkpoint);
    return why.message[0] == '\0' ? ST_OK : keep_reason(r, why.message, err);
}

/* The blocks move to the spec, which resolves and frees them like any others. */
static enum status regions_to_blocks(struct driver_job *job, struct driver_enclosing *e,
                                     struct err *err)
{
    void *memory = NULL;
    TRY(mem_calloc(e->n_regions, sizeof *e->block_of, &memory, err));
    e->block_of = memory;
    TRY(mem_calloc(e->n_regions, sizeof *e->outcomes, &memory, err));
    e->outcomes = memory;
    TRY(mem_calloc(e->n_regions, sizeof *job->spec->blocks, &memory, err));
    job->spec->blocks = memory;
    for (size_t i = 0; i < e->n_regions; i++) {
        struct graph_region *r = &e->regions[i];
        e->block_of[i] = SIZE_MAX;
        if (r->reason != NULL) {
            log_info("region %s stays as it is: %s", r->name, r->reason);
            continue;
        }
        e->block_of[i] = job->spec->n_blocks;
        job->spec->blocks[job->spec->n_blocks++] = r->block;
        r->block = (struct graph_block){.bias_weight = -1};
    }
    return ST_OK;
}

/* Regions are folders in OUT and WORK, beside files of fixed names. */
static enum status check_names(const struct driver_job *job, const struct driver_enclosing *e,
                               struct err *err)
{
    for (size_t i = 0; i < e->n_regions; i++) {
        const char *name = e->regions[i].name;
        if (driver_name_is_file(name))
            return err_set(err, ST_SPEC,
                           "%s: graph: region %s would be a folder where a file of that name "
                           "lies; call it otherwise in regions",
                           job->spec->path, name);
    }
    return ST_OK;
}

static enum status find_regions(struct driver_job *job, struct driver_enclosing *e, struct err *err)
{
    struct format_region *named = NULL;
    size_t n_named = 0;
    void *memory = NULL;
    TRY(format_spec_regions(job->spec, e->model, &named, &n_named, err));
    enum status st = mem_calloc(n_named, sizeof(struct graph_region_request), &memory, err);
    struct graph_region_request *requests = memory;
    for (size_t i = 0; i < n_named && st == ST_OK; i++)
        requests[i] = (struct graph_region_request){.name = named[i].name,
                                                    .where = named[i].where,
                                                    .nodes = named[i].nodes,
                                                    .n_nodes = named[i].n_nodes};
    if (st == ST_OK) {
        st = graph_regions_find(e->model, requests, n_named, &e->regions, &e->n_regions, err);
        if (st == ST_SPEC || st == ST_STRUCTURE)
            err_prefix(err, "%s", job->spec->path);
    }
    free(requests);
    format_regions_free(&named, n_named);
    return st;
}

enum status driver_enclosing_open(struct driver_job *job, struct err *err)
{
    void *memory = NULL;
    TRY(mem_calloc(1, sizeof *job->enclosing, &memory, err));
    struct driver_enclosing *e = job->enclosing = memory;
    TRY(format_spec_graph(job->spec, &e->model, err));
    enum status st =
        graph_model_resolve(e->model, format_checkpoint_tensor_info, job->checkpoint, err);
    if (st != ST_OK) {
        err_prefix(err, "%s", job->spec->path);
        return st;
    }
    TRY(find_regions(job, e, err));
    TRY(check_names(job, e, err));
    for (size_t i = 0; i < e->n_regions; i++)
        TRY(check_region(job, &e->regions[i], err));
    return regions_to_blocks(job, e, err);
}

void driver_enclosing_close(struct driver_enclosing **e)
{
    if (*e == NULL)
        return;
    graph_regions_free(&(*e)->regions, (*e)->n_regions);
    graph_model_free(&(*e)->model);
    free((*e)->block_of);
    free((*e)->outcomes);
    free(*e);
    *e = NULL;
}

void driver_enclosing_note(struct driver_job *job, size_t block, enum status st,
                           const struct driver_verdict *verdict, bool unchanged,
                           const struct err *why)
{
    struct driver_enclosing *e = job->enclosing;
    for (size_t i = 0; e != NULL && i < e->n_regions; i++) {
        if (e->block_of[i] != block)
            continue;
        struct enclosing_outcome *o = &e->outcomes[i];
        *o = (struct enclosing_outcome){
            .known = true, .st = st, .unchanged = unchanged, .verdict = *verdict};
        if (st != ST_OK)
            (void)snprintf(o->reason, sizeof o->reason, "%s", why->message);
    }
}

bool driver_enclosing_is_rewritten(const struct driver_enclosing *e, size_t region)
{
    return e->block_of[region] != SIZE_MAX && e->outcomes[region].known &&
           e->outcomes[region].st == ST_OK;
}
