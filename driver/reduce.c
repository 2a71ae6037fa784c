/* SPDX-License-Identifier: Apache-2.0 */
/* From digests to distinct tables and groups.  Rank 0 has the digests; all ranks confirm equality
 * byte by byte on their own units, since a digest is a filter and never a proof (N48). */
#include <stdlib.h>
#include <string.h>

#include "driver/verb_internal.h"

enum { COMPARE_BYTES = 4 << 20 };

/* ---- reading rows from unit files ------------------------------------------------------------ */

void driver_unit_reader_close(struct driver_unit_reader *r)
{
    format_shard_reader_close(&r->reader);
    r->open = false;
}

static enum status reader_unit(struct driver_unit_reader *r, uint64_t unit, struct err *err)
{
    if (r->open && r->unit == unit)
        return ST_OK;
    driver_unit_reader_close(r);
    char *path = shard_store_unit_path(r->store, unit);
    if (path == NULL)
        return err_nomem(err, 1);
    enum status st = format_shard_reader_open(path, &r->reader, err);
    free(path);
    r->open = st == ST_OK;
    r->unit = unit;
    return st;
}

void driver_weight_elements(const struct driver_block *b, int32_t weight, enum dtype dt,
                            uint64_t first, uint64_t n, void *dst)
{
    enum dtype from = b->graph->graph.weights[weight].dtype;
    const char *src = (const char *)b->weights.data[weight] + first * dtype_size(from);
    char *to = dst;
    if (from == dt) {
        memcpy(to, src, (size_t)n * dtype_size(dt));
        return;
    }
    for (uint64_t i = 0; i < n; i++, src += dtype_size(from), to += dtype_size(dt)) {
        double d = verb_element_number(from, src);
        float f = (float)d;
        if (dt == DT_F64)
            memcpy(to, &d, sizeof d);
        else
            memcpy(to, &f, sizeof f); /* wider than a half: F32 */
    }
}

enum status driver_block_bias(const struct driver_block *b, void *dst, struct err *err)
{
    const struct graph_block *g = b->graph;
    if (g->bias_weight < 0)
        return err_set(err, ST_INTERNAL, "block %s has no bias", g->name);
    driver_weight_elements(b, g->bias_weight, g->tables[0].dtype, 0, g->tables[0].width, dst);
    return ST_OK;
}

/* A unit file is opened again after its digest was compared: its table must still be of the size
 * that the caller has room for. */
static enum status check_stored(struct driver_unit_reader *r, const char *route,
                                const struct graph_output *output, struct err *err)
{
    enum dtype dtype = DT_UNKNOWN;
    uint64_t width = 0;
    TRY(format_shard_reader_table(r->reader, route, output->name, &dtype, &width, err));
    if (dtype == output->dtype && width == output->width)
        return ST_OK;
    return err_set(err, ST_FORMAT,
                   "unit %llu: tables/%s/%s: expected %s of width %llu, found %s of %llu",
                   (unsigned long long)r->unit, route, output->name, dtype_name(output->dtype),
                   (unsigned long long)output->width, dtype_name(dtype), (unsigned long long)width);
}

enum status driver_unit_reader_rows(void *ctx, size_t route, size_t table, uint64_t first_row,
                                    uint64_t n_rows, void *dst, struct err *err)
{
    struct driver_unit_reader *r = ctx;
    const struct graph_block *g = r->block->graph;
    if (table == g->n_tables) /* the layouts check asks for a projected block's bias this way */
        return driver_block_bias(r->block, dst, err);
    const struct graph_output *output = &g->tables[table];
    size_t row_bytes = (size_t)output->width * dtype_size(output->dtype);
    char route_name[32];
    lookup_route_name(route, route_name, sizeof route_name);
    for (uint64_t at = first_row; at < first_row + n_rows;) {
        uint64_t unit = at / r->block->grid.unit_rows, unit_first = 0, unit_count = 0;
        shard_grid_rows(&r->block->grid, unit, &unit_first, &unit_count);
        uint64_t n = min_u64(first_row + n_rows, unit_first + unit_count) - at;
        TRY(reader_unit(r, unit, err));
        TRY(check_stored(r, route_name, output, err));
        TRY(format_shard_reader_rows(r->reader, route_name, output->name, at - unit_first, n,
                                     (char *)dst + (size_t)(at - first_row) * row_bytes, err));
        at += n;
    }
    return ST_OK;
}

void driver_group_reader_close(struct driver_group_reader *r)
{
    driver_unit_reader_close(&r->units);
    free(r->columns);
    r->columns = NULL;
    r->columns_bytes = 0;
}

static enum status group_scratch(struct driver_group_reader *r, size_t bytes, struct err *err)
{
    if (bytes <= r->columns_bytes)
        return ST_OK;
    free(r->columns);
    r->columns = NULL;
    r->columns_bytes = 0;
    TRY(mem_alloc(1, bytes, &r->columns, err));
    r->columns_bytes = bytes;
    return ST_OK;
}

enum status driver_group_rows(void *ctx, uint32_t group, uint64_t first, uint64_t n, void *dst,
                              struct err *err)
{
    struct driver_group_reader *r = ctx;
    const struct format_group *g = &r->layout->groups[group];
    size_t size = dtype_size(g->dtype), n_tables = r->units.block->graph->n_tables;
    size_t row_bytes = (size_t)g->width * size;
    for (size_t i = 0; i < r->layout->n_tables; i++) {
        const struct driver_table *t = &r->layout->tables[i];
        size_t width_bytes = (size_t)t->width * size;
        if (t->group != group)
            continue;
        TRY(group_scratch(r, (size_t)n * width_bytes, err));
        TRY(driver_unit_reader_rows(&r->units, t->source / n_tables, t->source % n_tables, first, n,
                                    r->columns, err));
        for (uint64_t row = 0; row < n; row++)
            memcpy((char *)dst + row * row_bytes + (size_t)t->column * size,
                   (char *)r->columns + row * width_bytes, width_bytes);
    }
    return ST_OK;
}

/* ---- candidates ------------------------------------------------------------------------------ */

/* Shared by all ranks: digest and constant flag of every source. */
struct reduction {
    struct comm *comm;
    const struct driver_block *block;
    struct shard_store *store;
    struct digest *digests;
    uint8_t *constant;
    uint32_t *class_of; /* lowest source of the class */
    uint32_t *heir;     /* [old class]: first member of the class split off */
    uint8_t *differs;
    size_t n;
    uint64_t compares;
};

static const struct graph_output *source_output(const struct reduction *r, size_t source)
{
    return &r->block->graph->tables[source % r->block->graph->n_tables];
}

/* Test hook: a digest cut to a few bits makes collisions. */
static void weaken(struct digest *d)
{
    const char *bits = fault_value("TOKENTAB_DIGEST_BITS");
    uint64_t n = 0;
    if (bits == NULL || !str_to_u64(bits, &n) || n >= 8)
        return;
    uint8_t first = (uint8_t)(d->bytes[0] & ((1u << n) - 1));
    memset(d, 0, sizeof *d);
    d->bytes[0] = first;
}

static enum status combine_digests(const struct driver_totals *t, struct bytes *out,
                                   struct err *err)
{
    for (size_t i = 0; i < t->n_tables; i++) {
        struct digest_state *state = NULL;
        TRY(digest_open(&state, err));
        for (uint64_t u = 0; u < t->n_units; u++)
            digest_update(state, t->unit_digests[u * t->n_tables + i].bytes,
                          sizeof t->unit_digests->bytes);
        struct digest d = digest_now(state);
        digest_close(&state);
        weaken(&d);
        bytes_append(out, d.bytes, sizeof d.bytes);
        bytes_put_u8(out, t->constant[i]);
    }
    return out->failed ? err_nomem(err, out->size) : ST_OK;
}

/* Are the first rows of all units the same bytes?  Each unit is constant already. */
static enum status confirm_constant(struct reduction *r, size_t source, struct err *err)
{
    const struct graph_output *output = source_output(r, source);
    size_t bytes = (size_t)output->width * dtype_size(output->dtype);
    size_t route = source / r->block->graph->n_tables, table = source % r->block->graph->n_tables;
    struct driver_unit_reader reader = {.block = r->block, .store = r->store};
    void *first = NULL, *row = NULL;
    enum status st = mem_alloc(1, bytes, &first, err);
    if (st == ST_OK)
        st = mem_alloc(1, bytes, &row, err);
    for (uint64_t u = 0; u < r->block->grid.n_units && st == ST_OK && r->constant[source]; u++) {
        uint64_t unit_first = 0, count = 0;
        shard_grid_rows(&r->block->grid, u, &unit_first, &count);
        st = driver_unit_reader_rows(&reader, route, table, unit_first, 1, u == 0 ? first : row,
                                     err);
        if (st == ST_OK && u > 0 && memcmp(first, row, bytes) != 0)
            r->constant[source] = 0;
    }
    driver_unit_reader_close(&reader);
    free(first);
    free(row);
    return st;
}

static enum status share_candidates(struct reduction *r, const struct driver_totals *totals,
                                    struct err *err)
{
    struct bytes b = {0};
    enum status st = ST_OK;
    bool root = comm_rank(r->comm) == 0;
    if (root)
        st = combine_digests(totals, &b, err);
    st = comm_agree(r->comm, st, err);
    if (st == ST_OK)
        st = comm_bcast_bytes_all(r->comm, 0, &b, err);
    struct bytes_reader reader = {.data = b.data, .size = b.size};
    for (size_t i = 0; i < r->n && st == ST_OK; i++) {
        const uint8_t *d = bytes_get(&reader, sizeof r->digests[i].bytes);
        if (d != NULL)
            memcpy(r->digests[i].bytes, d, sizeof r->digests[i].bytes);
        /* One row is the whole table, not a collapsed one (N50). */
        r->constant[i] = bytes_get_u8(&reader) && r->block->n_rows > 1;
    }
    if (st == ST_OK && reader.failed)
        st = err_set(err, ST_INTERNAL, "table digests are cut");
    bytes_free(&b);
    /* Few and cheap: one row a unit.  Every rank does the same. */
    for (size_t i = 0; i < r->n && st == ST_OK; i++)
        if (r->constant[i])
            st = confirm_constant(r, i, err);
    return comm_agree(r->comm, st, err);
}

static bool same_kind(const struct reduction *r, size_t a, size_t b)
{
    const struct graph_output *x = source_output(r, a), *y = source_output(r, b);
    return x->dtype == y->dtype && x->width == y->width && r->constant[a] == r->constant[b] &&
           digest_equal(&r->digests[a], &r->digests[b]);
}

/* Each source joins the class of the first source of its kind. */
static void make_classes(struct reduction *r)
{
    for (size_t i = 0; i < r->n; i++) {
        r->class_of[i] = (uint32_t)i;
        for (size_t j = 0; j < i; j++)
            if (r->class_of[j] == j && same_kind(r, j, i)) {
                r->class_of[i] = (uint32_t)j;
                break;
            }
    }
}

/* ---- confirmation ---------------------------------------------------------------------------- */

/* Compare source `a` with its class's first member over one unit, in pieces. */
static enum status compare_unit(struct reduction *r, struct driver_unit_reader *reader, size_t a,
                                uint64_t unit, char *buffer, struct err *err)
{
    const struct graph_output *output = source_output(r, a);
    size_t n_tables = r->block->graph->n_tables, first_source = r->class_of[a];
    size_t row_bytes = (size_t)output->width * dtype_size(output->dtype);
    uint64_t first = 0, count = 0;
    shard_grid_rows(&r->block->grid, unit, &first, &count);
    uint64_t step = max_u64(1, COMPARE_BYTES / row_bytes);
    for (uint64_t at = 0; at < count && !r->differs[a]; at += step) {
        uint64_t n = min_u64(step, count - at);
        TRY(driver_check_stop(err));
        char *other = buffer + (size_t)step * row_bytes;
        TRY(driver_unit_reader_rows(reader, a / n_tables, a % n_tables, first + at, n, buffer,
                                    err));
        TRY(driver_unit_reader_rows(reader, first_source / n_tables, first_source % n_tables,
                                    first + at, n, other, err));
        if (memcmp(buffer, other, (size_t)n * row_bytes) != 0)
            r->differs[a] = 1;
    }
    return ST_OK;
}

static enum status compare_my_units(struct reduction *r, struct err *err)
{
    struct driver_unit_reader reader = {.block = r->block, .store = r->store};
    size_t largest = 0;
    for (size_t i = 0; i < r->n; i++) {
        const struct graph_output *o = source_output(r, i);
        size_t row = (size_t)o->width * dtype_size(o->dtype);
        largest = row > largest ? row : largest;
    }
    void *buffer = NULL;
    enum status st =
        mem_alloc(2, (largest > COMPARE_BYTES ? largest : COMPARE_BYTES), &buffer, err);
    if (st == ST_OK && fault_hit("reduce_compare"))
        st = err_set(err, ST_IO, "reduce_compare: fault point");
    uint64_t size = (uint64_t)comm_size(r->comm), rank = (uint64_t)comm_rank(r->comm);
    for (uint64_t u = rank; u < r->block->grid.n_units && st == ST_OK; u += size)
        for (size_t i = 0; i < r->n && st == ST_OK; i++)
            if (r->class_of[i] != i && !r->differs[i])
                st = compare_unit(r, &reader, i, u, buffer, err);
    driver_unit_reader_close(&reader);
    free(buffer);
    return st;
}

/* Everybody learns which members differ from their class's first; *any tells whether one does. */
static enum status share_differences(struct reduction *r, bool *any, struct err *err)
{
    struct bytes mine = {0}, *all = NULL;
    bytes_append(&mine, r->differs, r->n);
    enum status st = mine.failed ? err_nomem(err, r->n) : ST_OK;
    st = comm_agree(r->comm, st, err);
    if (st == ST_OK)
        st = comm_gather_bytes_all(r->comm, 0, &mine, &all, err);
    if (st == ST_OK && comm_rank(r->comm) == 0)
        for (int rank = 0; rank < comm_size(r->comm); rank++)
            for (size_t i = 0; i < r->n; i++)
                r->differs[i] |= all[rank].data[i];
    comm_gathered_free(&all, comm_rank(r->comm) == 0 ? comm_size(r->comm) : 0);
    bytes_free(&mine);
    if (st == ST_OK)
        comm_bcast_all(r->comm, 0, r->differs, r->n);
    *any = false;
    for (size_t i = 0; i < r->n; i++)
        *any = *any || r->differs[i];
    return st;
}

/* Members that differ from their class's first form one new class among themselves, to be confirmed
 * in the next round.  At most n rounds; one where digests do not collide. */
static void split_classes(struct reduction *r)
{
    for (size_t i = 0; i < r->n; i++)
        r->heir[i] = UINT32_MAX;
    for (size_t i = 0; i < r->n; i++) {
        if (!r->differs[i])
            continue;
        uint32_t *heir = &r->heir[r->class_of[i]];
        if (*heir == UINT32_MAX)
            *heir = (uint32_t)i;
        r->class_of[i] = *heir;
    }
}

static enum status confirm_classes(struct reduction *r, struct err *err)
{
    for (size_t i = 0; i < r->n; i++)
        r->compares += r->class_of[i] != i;
    for (bool any = true; any;) {
        memset(r->differs, 0, r->n);
        enum status st = compare_my_units(r, err);
        TRY(comm_agree(r->comm, st, err));
        TRY(share_differences(r, &any, err));
        if (any)
            split_classes(r);
    }
    return ST_OK;
}

/* ---- tables and groups ----------------------------------------------------------------------- */

static bool same_routes(const uint8_t *routes, size_t n_routes, size_t a, size_t b)
{
    return memcmp(routes + a * n_routes, routes + b * n_routes, n_routes) == 0;
}

/* Columns of tables that share dtype, row count and the set of routes that use them form one group,
 * in order of first use. */
static enum status make_groups(struct driver_layout *l, const uint8_t *routes, size_t n_routes,
                               struct err *err)
{
    void *memory = NULL;
    TRY(mem_calloc(l->n_tables, sizeof *l->groups, &memory, err));
    l->groups = memory;
    for (size_t i = 0; i < l->n_tables; i++) {
        struct driver_table *t = &l->tables[i];
        size_t j = 0;
        while (j < i &&
               !(l->tables[j].dtype == t->dtype && l->tables[j].rows == t->rows &&
                 l->tables[j].constant == t->constant && same_routes(routes, n_routes, i, j)))
            j++;
        if (j == i) {
            t->group = (uint32_t)l->n_groups;
            l->groups[l->n_groups++] = (struct format_group){.rows = t->rows, .dtype = t->dtype};
        } else {
            t->group = l->tables[j].group;
        }
        t->column = l->groups[t->group].width;
        l->groups[t->group].width += t->width;
    }
    return ST_OK;
}

static enum status make_layout(const struct reduction *r, struct driver_layout *l, struct err *err)
{
    void *table_of = NULL, *tables = NULL, *routes = NULL;
    size_t n_routes = r->block->n_routes;
    l->n_sources = r->n;
    l->compares = r->compares;
    enum status st = mem_calloc(r->n, sizeof *l->table_of, &table_of, err);
    if (st == ST_OK)
        st = mem_calloc(r->n, sizeof *l->tables, &tables, err);
    if (st == ST_OK)
        st = mem_calloc(r->n, n_routes, &routes, err);
    l->table_of = table_of;
    l->tables = tables;
    for (size_t i = 0; i < r->n && st == ST_OK; i++) {
        const struct graph_output *o = source_output(r, i);
        if (r->class_of[i] == i) {
            l->table_of[i] = (uint32_t)l->n_tables;
            l->tables[l->n_tables++] =
                (struct driver_table){.source = i,
                                      .rows = r->constant[i] ? 1 : r->block->n_rows,
                                      .width = o->width,
                                      .dtype = o->dtype,
                                      .constant = r->constant[i]};
        } else {
            l->table_of[i] = l->table_of[r->class_of[i]];
        }
        ((uint8_t *)routes)[l->table_of[i] * n_routes + i / r->block->graph->n_tables] = 1;
    }
    if (st == ST_OK)
        st = make_groups(l, routes, n_routes, err);
    free(routes);
    return st;
}

void driver_layout_free(struct driver_layout *l)
{
    for (size_t i = 0; l->sharing != NULL && i < l->n_groups; i++) {
        free(l->sharing[i].index);
        free(l->sharing[i].firsts);
    }
    free(l->sharing);
    free(l->table_of);
    free(l->tables);
    free(l->groups);
    *l = (struct driver_layout){0};
}

enum status driver_reduce_all(struct comm *comm, const struct driver_block *b,
                              struct shard_store *store, const struct driver_totals *totals,
                              struct driver_layout *out, struct err *err)
{
    struct reduction r = {
        .comm = comm, .block = b, .store = store, .n = b->n_routes * b->graph->n_tables};
    void *digests = NULL, *constant = NULL, *class_of = NULL, *heir = NULL, *differs = NULL;
    *out = (struct driver_layout){0};
    enum status st = mem_calloc(r.n, sizeof *r.digests, &digests, err);
    if (st == ST_OK)
        st = mem_calloc(r.n, 1, &constant, err);
    if (st == ST_OK)
        st = mem_calloc(r.n, sizeof *r.class_of, &class_of, err);
    if (st == ST_OK)
        st = mem_calloc(r.n, sizeof *r.heir, &heir, err);
    if (st == ST_OK)
        st = mem_calloc(r.n, 1, &differs, err);
    r.digests = digests;
    r.constant = constant;
    r.class_of = class_of;
    r.heir = heir;
    r.differs = differs;
    st = comm_agree(comm, st, err);
    if (st == ST_OK)
        st = share_candidates(&r, totals, err);
    if (st == ST_OK) {
        make_classes(&r);
        st = confirm_classes(&r, err);
    }
    if (st == ST_OK)
        st = comm_agree(comm, make_layout(&r, out, err), err);
    if (st == ST_OK)
        st = driver_share_all(comm, b, store, totals, out, err);
    if (st != ST_OK)
        driver_layout_free(out);
    free(digests);
    free(constant);
    free(class_of);
    free(heir);
    free(differs);
    return st;
}
