/* SPDX-License-Identifier: Apache-2.0 */
/* Gathers rows from a recipe: consumer RECIPE ID... prints each output of each id, as numbers for
 * F32 and F64 and as bits for F16 and BF16. */
#include <tokentab.h>

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void print_row(const struct tokentab_output_info *info, const unsigned char *row)
{
    size_t size = tokentab_dtype_size(info->dtype);
    printf("  %s:", info->name);
    for (uint64_t i = 0; i < info->width; i++) {
        double d;
        float f;
        uint16_t h;
        if (info->dtype == TOKENTAB_F64) {
            memcpy(&d, row + i * size, sizeof d);
            printf(" %.17g", d);
        } else if (info->dtype == TOKENTAB_F32) {
            memcpy(&f, row + i * size, sizeof f);
            printf(" %.9g", (double)f);
        } else {
            memcpy(&h, row + i * size, sizeof h);
            printf(" 0x%04" PRIx16, h);
        }
    }
    putchar('\n');
}

int main(int argc, char **argv)
{
    struct tokentab_recipe *recipe = NULL;
    struct tokentab_error err;
    if (argc < 3) {
        fprintf(stderr, "usage: consumer RECIPE ID...\n");
        return 2;
    }
    if (tokentab_open(argv[1], NULL, &recipe, &err) != TOKENTAB_OK) {
        fprintf(stderr, "consumer: %s\n", err.message);
        return 1;
    }
    int status = 0;
    size_t n = (size_t)argc - 2;
    int64_t *ids = calloc(n, sizeof *ids);
    for (size_t i = 0; ids != NULL && i < n; i++)
        ids[i] = strtoll(argv[i + 2], NULL, 10);
    printf("tokentab %s, %s recipe, %" PRIu64 " ids, route %s\n", tokentab_version(),
           tokentab_kind(recipe), tokentab_num_embeddings(recipe),
           tokentab_route_name(recipe, tokentab_route(recipe, n)));
    for (size_t j = 0; ids != NULL && j < tokentab_n_outputs(recipe) && status == 0; j++) {
        struct tokentab_output_info info;
        if (tokentab_output(recipe, j, &info) != TOKENTAB_OK)
            return 1;
        size_t row_bytes = (size_t)info.width * tokentab_dtype_size(info.dtype);
        unsigned char *rows = malloc(n * row_bytes);
        if (rows == NULL ||
            tokentab_gather_rows(recipe, ids, n, j, rows, n * row_bytes, &err) != TOKENTAB_OK) {
            fprintf(stderr, "consumer: %s\n", rows != NULL ? err.message : strerror(errno));
            status = 1;
        }
        for (size_t i = 0; status == 0 && i < n; i++) {
            printf("id %" PRId64, ids[i]);
            print_row(&info, rows + i * row_bytes);
        }
        free(rows);
    }
    free(ids);
    tokentab_close(&recipe);
    return status;
}
