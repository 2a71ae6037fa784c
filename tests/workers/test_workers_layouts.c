/* SPDX-License-Identifier: Apache-2.0 */
/* The check of the lookup's layouts passes on sound recipes and finds what is not as expected. */
#include "tests/lookup/lookup_fixture.h"
#include "workers/workers.h"

#include <unistd.h>

/* Expected rows: those of the folder's payload; one bit flipped where `damaged`. */
struct source {
    const struct folder *f;
    bool damaged;
    size_t route, table, byte;
    uint64_t row;
    size_t calls;
};

static enum status source_rows(void *ctx, size_t route, size_t table, uint64_t first, uint64_t n,
                               void *dst, struct err *err)
{
    struct source *s = ctx;
    (void)err;
    s->calls++;
    if (table == s->f->r->n_outputs) { /* the bias of a projected recipe */
        for (size_t i = 0; i < s->f->n_specs; i++)
            if (strcmp(s->f->specs[i].name, "bias") == 0)
                memcpy(dst, s->f->data[i],
                       (size_t)s->f->specs[i].shape[0] * dtype_size(s->f->specs[i].dtype));
        return ST_OK;
    }
    const size_t row_bytes = folder_row_bytes(s->f, table);
    for (uint64_t i = 0; i < n; i++)
        memcpy((uint8_t *)dst + i * row_bytes, folder_row(s->f, route, table, first + i),
               row_bytes);
    if (s->damaged && s->route == route && s->table == table && s->row >= first &&
        s->row < first + n)
        ((uint8_t *)dst)[(s->row - first) * row_bytes + s->byte] ^= 1;
    return ST_OK;
}

static struct tokentab_recipe *open_recipe(const char *dir)
{
    struct tokentab_recipe *recipe = NULL;
    struct tokentab_error error;
    if (tokentab_open(dir, NULL, &recipe, &error) != TOKENTAB_OK) {
        printf("%s: %s\n", dir, error.message);
        exit(1);
    }
    return recipe;
}

static void check_recipe(const char *dir, struct format_recipe *r, bool packed)
{
    struct folder *f = folder_make(dir, r, packed);
    struct tokentab_recipe *recipe = open_recipe(dir);
    struct source s = {.f = f};
    struct err err = {0};
    uint64_t checks = 0;
    const uint64_t rows = lookup_n_rows(recipe);
    const enum status st =
        worker_layouts_check(recipe, 0, rows, source_rows, &s, NULL, NULL, &checks, &err);
    if (st != ST_OK)
        printf("\n  %s: %s\n", dir, err.message);
    CU_ASSERT_EQUAL(st, ST_OK);
    /* Every row as a scalar under every route, at least. */
    CU_ASSERT(checks > rows * tokentab_n_routes(recipe));
    /* Each route and table in turn expects one other bit in its last row. */
    for (size_t route = 0; route < tokentab_n_routes(recipe); route++)
        for (size_t t = 0; f->r->kind != RECIPE_PROJECTED && t < f->r->n_outputs; t++) {
            struct err found = {0};
            struct source d = {.f = f,
                               .damaged = true,
                               .route = route,
                               .table = t,
                               .byte = folder_row_bytes(f, t) - 1,
                               .row = rows - 1};
            char expected[96], token[80];
            CU_ASSERT_EQUAL(
                worker_layouts_check(recipe, 0, rows, source_rows, &d, NULL, NULL, &checks, &found),
                ST_DIFFERS);
            (void)snprintf(expected, sizeof expected, "layout scalar, route %s, output %s",
                           tokentab_route_name(recipe, route), f->r->outputs[t].name);
            (void)snprintf(token, sizeof token, "token %llu, column %llu: expected bytes",
                           (unsigned long long)lookup_row_id(recipe, rows - 1),
                           (unsigned long long)f->r->outputs[t].width - 1);
            CU_ASSERT(strstr(found.message, expected) != NULL);
            CU_ASSERT(strstr(found.message, token) != NULL);
        }
    tokentab_close(&recipe);
    folder_free(&f);
}

static void test_sound(void)
{
    check_recipe("layouts_fanout", fixture_fanout(), false);
    check_recipe("layouts_packed", fixture_fanout(), true);
    /* Ten ids of forty: those between are as foreign as those beyond. */
    struct format_recipe *r = fixture_lookup(40, 3, DT_F32);
    r->has_ids = true;
    r->n_ids = 10;
    r->groups[0].rows = 10;
    check_recipe("layouts_ids", r, false);
}

static void test_projected(void)
{
    static const enum dtype dtypes[] = {DT_F64, DT_F32, DT_F16, DT_BF16};
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++)
        check_recipe("layouts_projected", fixture_projected(11, 5, dtypes[i], i % 2 == 1), false);
    struct folder *f =
        folder_make("layouts_projected", fixture_projected(11, 5, DT_F32, true), false);
    struct tokentab_recipe *recipe = open_recipe("layouts_projected");
    /* z one bit off shows in raw. */
    struct source d = {.f = f, .damaged = true, .byte = 2, .row = 1};
    struct err err = {0};
    uint64_t checks = 0;
    CU_ASSERT_EQUAL(worker_layouts_check(recipe, 0, 4, source_rows, &d, NULL, NULL, &checks, &err),
                    ST_DIFFERS);
    CU_ASSERT(strstr(err.message, "token 1, column 0") != NULL);
    tokentab_close(&recipe);
    folder_free(&f);
}

static enum status stop(void *ctx, struct err *err)
{
    (void)ctx;
    return err_set(err, ST_STOPPED, "stopped");
}

static void test_ranges(void)
{
    struct folder *f = folder_make("layouts_ranges", fixture_fanout(), false);
    struct tokentab_recipe *recipe = open_recipe("layouts_ranges");
    struct source s = {.f = f};
    struct err err = {0};
    uint64_t checks = 0;
    CU_ASSERT_EQUAL(
        worker_layouts_check(recipe, 0, FIXTURE_V + 1, source_rows, &s, NULL, NULL, &checks, &err),
        ST_USAGE);
    err_clear(&err);
    CU_ASSERT_EQUAL(
        worker_layouts_check(recipe, FIXTURE_V, 0, source_rows, &s, NULL, NULL, &checks, &err),
        ST_OK);
    CU_ASSERT_EQUAL(checks, 0);
    CU_ASSERT_EQUAL(
        worker_layouts_check(recipe, FIXTURE_V - 1, 1, source_rows, &s, NULL, NULL, &checks, &err),
        ST_OK);
    CU_ASSERT(checks > 0);
    CU_ASSERT_EQUAL(worker_layouts_check(recipe, 0, 4, source_rows, &s, stop, NULL, &checks, &err),
                    ST_STOPPED);
    size_t names = 0;
    while (worker_layout_names[names] != NULL)
        names++;
    CU_ASSERT(names >= 20);
    tokentab_close(&recipe);
    folder_free(&f);
}

int main(void)
{
    if (CU_initialize_registry() != CUE_SUCCESS)
        return 1;
    CU_pSuite suite = CU_add_suite("workers layouts", NULL, NULL);
    if (suite == NULL || CU_add_test(suite, "sound recipes", test_sound) == NULL ||
        CU_add_test(suite, "projected", test_projected) == NULL ||
        CU_add_test(suite, "ranges", test_ranges) == NULL)
        return 1;
    CU_basic_set_mode(CU_BRM_VERBOSE);
    CU_basic_run_tests();
    const unsigned failed = CU_get_number_of_failures();
    CU_cleanup_registry();
    return failed == 0 ? 0 : 1;
}
