/* SPDX-License-Identifier: Apache-2.0 */
#include "driver/payload.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    WRITE_BYTES = 8 << 20,
    ROUND_CHUNKS = 16 /* packed: chunks that a rank codes between two prefix sums */
};

enum status driver_emit_fault(const char *name, struct err *err)
{
    return fault_hit(name) ? err_set(err, ST_IO, "%s: fault point", name) : ST_OK;
}

/* ---- rows of any payload tensor -------------------------------------------------------------- */

/* Reading state of one rank. */
struct payload_source {
    const struct driver_payload *p;
    struct driver_group_reader rows;
};

/* Stored rows of a group: those behind its index when rows are shared; runs are read at once. */
static enum status stored_rows(struct payload_source *s, uint32_t group, uint64_t first, uint64_t n,
                               char *rows, struct err *err)
{
    const struct driver_sharing *sharing = &s->p->l->sharing[group];
    const struct format_group *g = &s->p->l->groups[group];
    size_t row_bytes = (size_t)g->width * dtype_size(g->dtype);
    if (!g->indexed)
        return driver_group_rows(&s->rows, group, first, n, rows, err);
    for (uint64_t at = first; at < first + n;) {
        uint64_t run = 1;
        while (at + run < first + n && sharing->firsts[at + run] == sharing->firsts[at] + run)
            run++;
        TRY(driver_group_rows(&s->rows, group, sharing->firsts[at], run,
                              rows + (at - first) * row_bytes, err));
        at += run;
    }
    return ST_OK;
}

static void index_rows(const struct driver_sharing *sharing, enum dtype dt, uint64_t first,
                       uint64_t n, void *dst)
{
    for (uint64_t i = 0; i < n; i++) {
        if (dt == DT_I32)
            ((int32_t *)dst)[i] = (int32_t)sharing->index[first + i];
        else
            ((int64_t *)dst)[i] = (int64_t)sharing->index[first + i];
    }
}

/* Tensors that lie in memory: id list, bias, retained projection. */
static bool small_rows(const struct driver_payload *p, const struct format_tensor_spec *spec,
                       uint64_t first, uint64_t n, void *dst)
{
    const struct graph_block *g = p->b->graph;
    uint64_t width = spec->rank > 1 ? spec->shape[1] : 1;
    int32_t weight = -1;
    if (strcmp(spec->name, "ids") == 0 && p->job->ids != NULL) {
        /* below 2^63, so the same bytes as int64 */
        memcpy(dst, p->job->ids + first, (size_t)n * sizeof *p->job->ids);
        return true;
    }
    if (strcmp(spec->name, "bias") == 0)
        weight = g->bias_weight;
    else if (strcmp(spec->name, "projection") == 0)
        weight = g->graph.nodes[g->tables[0].node].weights[ROLE_WEIGHT];
    if (weight < 0)
        return false;
    driver_weight_elements(p->b, weight, spec->dtype, first * width, n * width, dst);
    return true;
}

/* format_packed_rows_fn, and the source of the safetensors writer. */
static enum status tensor_rows(void *ctx, uint32_t tensor, uint64_t first, uint64_t n, void *dst,
                               struct err *err)
{
    struct payload_source *s = ctx;
    const struct format_tensor_spec *spec = &s->p->specs[tensor];
    unsigned group = 0;
    if (tensor < s->p->l->n_groups)
        return stored_rows(s, tensor, first, n, dst, err);
    if (sscanf(spec->name, "tables.group_%u.index", &group) == 1) {
        index_rows(&s->p->l->sharing[group], spec->dtype, first, n, dst);
        return ST_OK;
    }
    if (!small_rows(s->p, spec, first, n, dst))
        return err_set(err, ST_INTERNAL, "payload tensor %s has no source", spec->name);
    return ST_OK;
}

/* ---- opening --------------------------------------------------------------------------------- */

enum status driver_payload_open(struct driver_payload *p, struct err *err)
{
    void *memory = NULL;
    TRY(format_recipe_tensors(p->recipe, &p->specs, &p->n_specs, err));
    if (p->packed) {
        TRY(format_packed_plan(p->recipe, 0, true, &p->packed_layout, err));
        if (p->packed_layout->n_tensors != p->n_specs)
            return err_set(err, ST_INTERNAL, "packed layout: expected %zu tensors, found %zu",
                           p->n_specs, p->packed_layout->n_tensors);
        return format_packed_head(&p->head, err);
    }
    TRY(mem_calloc(p->n_specs, sizeof *p->offsets, &memory, err));
    p->offsets = memory;
    return format_safetensors_header(p->specs, p->n_specs, NULL, &p->head, p->offsets,
                                     &p->size_bytes, err);
}

void driver_payload_close(struct driver_payload *p)
{
    format_tensor_specs_free(&p->specs, p->n_specs);
    format_packed_layout_free(&p->packed_layout);
    bytes_free(&p->head);
    free(p->offsets);
    free(p->reports);
}

/* Make the staged file with its first bytes, at its full size where that is known.  Rank 0. */
static enum status stage(const struct driver_payload *p, struct err *err)
{
    TRY(driver_emit_fault("emit_open", err));
    int fd = open(p->path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0)
        return err_set(err, ST_IO, "%s: %s", p->path, strerror(errno));
    enum status st = ST_OK;
    if (ftruncate(fd, (off_t)p->size_bytes) != 0)
        st = err_set(err, ST_IO, "%s: %llu bytes: %s", p->path, (unsigned long long)p->size_bytes,
                     strerror(errno));
    if (st == ST_OK)
        st = file_write_at(fd, p->path, 0, p->head.data, p->head.size, err);
    if (close(fd) != 0 && st == ST_OK)
        st = err_set(err, ST_IO, "%s: close: %s", p->path, strerror(errno));
    return st;
}

/* Sync and close; the first failure counts. */
static enum status finish_file(const struct driver_payload *p, int fd, enum status st,
                               struct err *err)
{
    if (fd < 0)
        return st;
    if (fsync(fd) != 0 && st == ST_OK)
        st = err_set(err, ST_IO, "%s: fsync: %s", p->path, strerror(errno));
    if (close(fd) != 0 && st == ST_OK)
        st = err_set(err, ST_IO, "%s: close: %s", p->path, strerror(errno));
    return st;
}

/* ---- safetensors ----------------------------------------------------------------------------- */

/* One unit-sized block of a tensor's rows, in pieces. */
static enum status write_block(struct payload_source *s, int fd, uint32_t tensor, uint64_t first,
                               uint64_t count, char *buffer, struct err *err)
{
    const struct format_tensor_spec *spec = &s->p->specs[tensor];
    size_t row_bytes = dtype_size(spec->dtype) * (spec->rank > 1 ? (size_t)spec->shape[1] : 1);
    uint64_t step = max_u64(1, WRITE_BYTES / max_u64(1, row_bytes));
    for (uint64_t at = 0; at < count; at += step) {
        uint64_t n = min_u64(step, count - at);
        TRY(driver_check_stop(err));
        TRY(driver_emit_fault("emit_write", err));
        TRY(tensor_rows(s, tensor, first + at, n, buffer, err));
        TRY(file_write_at(fd, s->p->path, s->p->offsets[tensor] + (first + at) * row_bytes, buffer,
                          (size_t)n * row_bytes, err));
    }
    return ST_OK;
}

static size_t largest_row(const struct driver_payload *p)
{
    size_t largest = WRITE_BYTES;
    for (size_t i = 0; i < p->n_specs; i++) {
        size_t row = dtype_size(p->specs[i].dtype) *
                     (p->specs[i].rank > 1 ? (size_t)p->specs[i].shape[1] : 1);
        largest = row > largest ? row : largest;
    }
    return largest;
}

/* Blocks are as long as units, so that a rank reads its own unit files. */
static enum status write_my_blocks(struct payload_source *s, struct err *err)
{
    const struct driver_payload *p = s->p;
    uint64_t size = (uint64_t)comm_size(p->comm), rank = (uint64_t)comm_rank(p->comm);
    uint64_t block_rows = p->b->grid.unit_rows, n_blocks = p->b->grid.n_units;
    void *buffer = NULL;
    int fd = open(p->path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return err_set(err, ST_IO, "%s: %s", p->path, strerror(errno));
    enum status st = mem_alloc(1, largest_row(p), &buffer, err);
    for (size_t i = 0; i < p->n_specs; i++)
        n_blocks = max_u64(n_blocks, (p->specs[i].shape[0] + block_rows - 1) / block_rows);
    for (uint64_t k = rank; k < n_blocks && st == ST_OK; k += size)
        for (uint32_t t = 0; t < p->n_specs && st == ST_OK; t++) {
            uint64_t first = k * block_rows, rows = p->specs[t].shape[0];
            if (first < rows)
                st = write_block(s, fd, t, first, min_u64(block_rows, rows - first), buffer, err);
        }
    free(buffer);
    return finish_file(p, fd, st, err);
}

/* ---- packed ---------------------------------------------------------------------------------- */

/* Code up to ROUND_CHUNKS chunks from `first`; their data and directory entries joined in order. */
static enum status code_chunks(struct payload_source *s, uint64_t first, uint64_t end,
                               struct bytes *data, struct bytes *entries, struct err *err)
{
    enum status st = ST_OK;
    data->size = 0;
    entries->size = 0;
    for (uint64_t i = first; i < end && st == ST_OK; i++) {
        struct packed_chunk chunk = {0};
        uint32_t tensor = 0;
        uint64_t number = 0;
        st = driver_check_stop(err);
        if (st == ST_OK)
            st = driver_emit_fault("emit_write", err);
        format_packed_locate(s->p->packed_layout, i, &tensor, &number);
        if (st == ST_OK)
            st = format_packed_chunk_encode(s->p->packed_layout, tensor, number, tensor_rows, s,
                                            &chunk, err);
        if (st == ST_OK) {
            bytes_append(data, chunk.data.data, chunk.data.size);
            bytes_append(entries, chunk.entry.data, chunk.entry.size);
        }
        format_packed_chunk_free(&chunk);
    }
    if (st == ST_OK && (data->failed || entries->failed))
        st = err_nomem(err, data->size);
    return st;
}

/* Entries of a round onto rank 0, in rank order, which is chunk order. */
static enum status join_entries(struct comm *comm, const struct bytes *mine, struct bytes *all,
                                struct err *err)
{
    struct bytes *parts = NULL;
    TRY(comm_gather_bytes_all(comm, 0, mine, &parts, err));
    bool root = comm_rank(comm) == 0;
    for (int r = 0; root && r < comm_size(comm); r++)
        bytes_append(all, parts[r].data, parts[r].size);
    comm_gathered_free(&parts, root ? comm_size(comm) : 0);
    return comm_agree(comm, all->failed ? err_nomem(err, all->size) : ST_OK, err);
}

static enum status write_tail(struct driver_payload *p, int fd, uint64_t at,
                              const struct bytes *entries, struct err *err)
{
    struct bytes tail = {0};
    void *reports = NULL;
    enum status st = format_packed_tail(p->packed_layout, entries, &tail, err);
    if (st == ST_OK)
        st = file_write_at(fd, p->path, at, tail.data, tail.size, err);
    if (st == ST_OK)
        st = mem_calloc(p->n_specs, sizeof *p->reports, &reports, err);
    p->reports = reports;
    if (st == ST_OK)
        st = format_packed_reports(p->packed_layout, entries, p->reports, err);
    bytes_free(&tail);
    return st;
}

/* Rounds of ROUND_CHUNKS chunks a rank: all code, a prefix sum places them, all write. */
static enum status pack_rounds(struct payload_source *s, struct driver_payload *p, int fd,
                               struct err *err)
{
    struct bytes data = {0}, entries = {0}, all = {0};
    uint64_t total = format_packed_total_chunks(p->packed_layout), at = p->head.size;
    uint64_t size = (uint64_t)comm_size(p->comm), rank = (uint64_t)comm_rank(p->comm);
    enum status st = ST_OK;
    for (uint64_t round = 0; round < total && st == ST_OK; round += size * ROUND_CHUNKS) {
        uint64_t first = min_u64(total, round + rank * ROUND_CHUNKS);
        st = code_chunks(s, first, min_u64(total, first + ROUND_CHUNKS), &data, &entries, err);
        st = comm_agree(p->comm, st, err);
        if (st != ST_OK)
            break;
        uint64_t mine = at + comm_prefix_u64_all(p->comm, data.size);
        at += comm_sum_u64_all(p->comm, data.size);
        st = data.size == 0 ? ST_OK : file_write_at(fd, p->path, mine, data.data, data.size, err);
        st = comm_agree(p->comm, st, err);
        if (st == ST_OK)
            st = join_entries(p->comm, &entries, &all, err);
    }
    if (st == ST_OK)
        st = comm_agree(p->comm, rank == 0 ? write_tail(p, fd, at, &all, err) : ST_OK, err);
    bytes_free(&data);
    bytes_free(&entries);
    bytes_free(&all);
    return st;
}

static enum status pack_all(struct payload_source *s, struct driver_payload *p, struct err *err)
{
    enum status st = ST_OK;
    int fd = open(p->path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        st = err_set(err, ST_IO, "%s: %s", p->path, strerror(errno));
    st = comm_agree(p->comm, st, err);
    if (st == ST_OK)
        st = pack_rounds(s, p, fd, err);
    return finish_file(p, fd, st, err);
}

/* ---- both ------------------------------------------------------------------------------------ */

enum status driver_payload_write_all(struct driver_payload *p, struct err *err)
{
    struct payload_source s = {
        .p = p, .rows = {.units = {.block = p->b, .store = p->store}, .layout = p->l}};
    enum status st = comm_rank(p->comm) == 0 ? stage(p, err) : ST_OK;
    TRY(comm_agree(p->comm, st, err));
    st = p->packed ? pack_all(&s, p, err) : write_my_blocks(&s, err);
    driver_group_reader_close(&s.rows);
    return comm_agree(p->comm, st, err);
}

enum status driver_payload_damage(const struct driver_payload *p, struct err *err)
{
    const char *text = fault_value("TOKENTAB_DAMAGE_PAYLOAD");
    unsigned long long at[5];
    if (text == NULL || p->packed ||
        sscanf(text, "%llu:%llu:%llu:%llu:%llu", &at[0], &at[1], &at[2], &at[3], &at[4]) != 5)
        return ST_OK;
    size_t source = (size_t)(at[0] * p->b->graph->n_tables + at[1]);
    const struct driver_table *t = &p->l->tables[p->l->table_of[source]];
    size_t size = dtype_size(t->dtype);
    uint64_t row = t->rows == 1 ? 0 : at[2];
    if (p->l->groups[t->group].indexed)
        row = p->l->sharing[t->group].index[row];
    uint64_t offset = p->offsets[t->group] +
                      (row * p->l->groups[t->group].width + t->column + at[3]) * size + at[4] / 8;
    int fd = open(p->path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return err_set(err, ST_IO, "%s: %s", p->path, strerror(errno));
    uint8_t byte = 0;
    enum status st = file_read_at(fd, p->path, offset, &byte, 1, err);
    byte = (uint8_t)(byte ^ (1u << (at[4] % 8)));
    if (st == ST_OK)
        st = file_write_at(fd, p->path, offset, &byte, 1, err);
    close(fd);
    return st;
}
