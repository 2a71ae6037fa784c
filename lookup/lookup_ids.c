/* SPDX-License-Identifier: Apache-2.0 */
/* Ids of any shape and stride, and the rows they mean. */
#include "lookup/lookup_internal.h"

#include <inttypes.h>
#include <string.h>

/* Offsets stay where a pointer difference in bytes still fits. */
static const uint64_t WALK_LIMIT = (uint64_t)1 << 58;

bool lookup_walk_start(struct lookup_walk *w, unsigned rank, const int64_t *shape,
                       const int64_t *strides, int64_t unit)
{
    *w = (struct lookup_walk){.rank = rank, .contiguous = true, .unit = unit};
    uint64_t reach = 0, step = (uint64_t)unit;
    for (unsigned d = 0; d < rank; d++)
        if (shape[d] == 0) /* nothing is ever walked, however large the other axes are */
            return true;
    for (unsigned d = rank; d-- > 0;) {
        w->shape[d] = shape[d];
        int64_t stride = strides != NULL ? strides[d] : (int64_t)step;
        w->strides[d] = stride;
        if (shape[d] > 1 && stride != (int64_t)step)
            w->contiguous = false;
        uint64_t size = stride < 0 ? 0 - (uint64_t)stride : (uint64_t)stride, span;
        if (shape[d] == 1)
            size = 0;
        if (!mul_u64(size, (uint64_t)shape[d] - 1, &span) || !add_u64(reach, span, &reach) ||
            reach > WALK_LIMIT || !mul_u64(step, (uint64_t)shape[d], &step) || step > WALK_LIMIT)
            return false;
    }
    return true;
}

void lookup_walk_next(struct lookup_walk *w, size_t n, int64_t *offsets)
{
    if (w->contiguous) {
        for (size_t i = 0; i < n; i++)
            offsets[i] = w->offset + (int64_t)i * w->unit;
        w->offset += (int64_t)n * w->unit;
        return;
    }
    for (size_t i = 0; i < n; i++) {
        offsets[i] = w->offset;
        for (unsigned d = w->rank; d-- > 0;) {
            w->offset += w->strides[d];
            if (++w->at[d] < w->shape[d])
                break;
            w->offset -= w->strides[d] * w->shape[d];
            w->at[d] = 0;
        }
    }
}

enum tokentab_status lookup_ids_count(const struct tokentab_ids *ids, uint64_t *n,
                                      struct tokentab_error *err)
{
    if (ids == NULL)
        return lookup_fail(err, TOKENTAB_EINVAL, "ids: NULL");
    if (ids->type != TOKENTAB_I32 && ids->type != TOKENTAB_I64)
        return lookup_fail(err, TOKENTAB_EINVAL, "ids: type %d is neither I32 nor I64",
                           (int)ids->type);
    if (ids->rank > TOKENTAB_MAX_RANK)
        return lookup_fail(err, TOKENTAB_EINVAL, "ids: rank %u, at most %d", ids->rank,
                           TOKENTAB_MAX_RANK);
    if (ids->rank > 0 && ids->shape == NULL)
        return lookup_fail(err, TOKENTAB_EINVAL, "ids: rank %u without a shape", ids->rank);
    uint64_t count = 1;
    bool empty = false;
    for (unsigned d = 0; d < ids->rank; d++) {
        if (ids->shape[d] < 0)
            return lookup_fail(err, TOKENTAB_EINVAL, "ids: shape[%u] is %" PRId64, d,
                               ids->shape[d]);
        empty = empty || ids->shape[d] == 0;
    }
    for (unsigned d = 0; d < ids->rank && !empty; d++)
        if (!mul_u64(count, (uint64_t)ids->shape[d], &count) || count > WALK_LIMIT)
            return lookup_fail(err, TOKENTAB_EINVAL, "ids: the shape overflows");
    *n = empty ? 0 : count;
    if (*n > 0 && ids->data == NULL)
        return lookup_fail(err, TOKENTAB_EINVAL, "ids: %" PRIu64 " ids without data", *n);
    return TOKENTAB_OK;
}

/* Place of `id` in the ascending list; UINT64_MAX if it is not there. */
static uint64_t search_id(const uint8_t *list, uint64_t n, uint64_t id)
{
    uint64_t first = 0, last = n;
    while (first < last) {
        uint64_t middle = first + (last - first) / 2, at;
        memcpy(&at, list + middle * sizeof at, sizeof at);
        if (at == id)
            return middle;
        if (at < id)
            first = middle + 1;
        else
            last = middle;
    }
    return UINT64_MAX;
}

static enum tokentab_status outside(const struct tokentab_recipe *recipe, uint64_t place,
                                    uint64_t id, struct tokentab_error *err)
{
    if (id >= recipe->r->num_embeddings)
        return lookup_fail(err, TOKENTAB_EBOUNDS,
                           "id %" PRId64 " at place %" PRIu64 ": expected 0 <= id < %" PRIu64,
                           (int64_t)id, place, recipe->r->num_embeddings);
    return lookup_fail(err, TOKENTAB_EBOUNDS,
                       "id %" PRIu64 " at place %" PRIu64 " is not in the recipe's id list", id,
                       place);
}

/* Ids as they lie in memory, sign-extended: a negative one becomes huge. */
static void load_ids(const struct tokentab_ids *ids, struct lookup_walk *w, size_t n, uint64_t *out)
{
    const uint8_t *data = ids->data;
    if (w->contiguous && ids->type == TOKENTAB_I64) {
        memcpy(out, data + (size_t)w->offset * sizeof(int64_t), n * sizeof(int64_t));
        w->offset += (int64_t)n;
        return;
    }
    int64_t offsets[LOOKUP_BLOCK];
    lookup_walk_next(w, n, offsets);
    for (size_t i = 0; i < n; i++) {
        if (ids->type == TOKENTAB_I64) {
            memcpy(&out[i], data + offsets[i] * (int64_t)sizeof(int64_t), sizeof(int64_t));
        } else {
            int32_t id;
            memcpy(&id, data + offsets[i] * (int64_t)sizeof id, sizeof id);
            out[i] = (uint64_t)(int64_t)id;
        }
    }
}

enum tokentab_status lookup_ids_rows(const struct tokentab_recipe *recipe,
                                     const struct tokentab_ids *ids, struct lookup_walk *w,
                                     uint64_t place, size_t n, uint64_t *rows,
                                     struct tokentab_error *err)
{
    load_ids(ids, w, n, rows);
    uint64_t limit = recipe->r->num_embeddings;
    bool bad = false;
    for (size_t i = 0; i < n; i++)
        bad |= rows[i] >= limit;
    for (size_t i = 0; bad && i < n; i++)
        if (rows[i] >= limit)
            return outside(recipe, place + i, rows[i], err);
    if (recipe->ids == NULL)
        return TOKENTAB_OK;
    for (size_t i = 0; i < n; i++) {
        uint64_t row = search_id(recipe->ids, recipe->n_rows, rows[i]);
        if (row == UINT64_MAX)
            return outside(recipe, place + i, rows[i], err);
        rows[i] = row;
    }
    return TOKENTAB_OK;
}
