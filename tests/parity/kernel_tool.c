/* SPDX-License-Identifier: Apache-2.0 */
/* Evaluates a file of kernel requests, for parity.py.  kernel_tool CORE THREADS REQUEST RESULT
 *
 * A request (little-endian): u32 operation, u32 dtype (enum dtype), u32 sub-operation, u32 flags,
 * u64 m, n, k, f64 parameter[3], then four arrays, each u64 count and elements of the compute dtype
 * (x, weight, bias, unused); a count of all ones keeps the previous request's array.  The result
 * file is the bare elements of each answer, one after another; stdout gets the environment. */
#include "kernels/kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum operation {
    OP_LINEAR,
    OP_LAYER_NORM,
    OP_RMS_NORM,
    OP_F32_RMS_NORM,
    OP_NORMALIZE,
    OP_L2_NORM,
    OP_ELEMENTWISE,
    OP_SOFTMAX
};
enum { FLAG_BIAS_ADDED = 1 };

struct request {
    uint32_t operation, dt, sub, flags;
    uint64_t m, n, k;
    double parameter[3];
};

struct arrays {
    void *x, *weight, *bias, *unused;
};

static bool read_array(FILE *in, size_t element, void **array, struct err *err)
{
    uint64_t count = 0;
    if (fread(&count, sizeof count, 1, in) != 1)
        return false;
    if (count == UINT64_MAX)
        return true;
    free(*array);
    *array = NULL;
    return count == 0 || (mem_alloc((size_t)count, element, array, err) == ST_OK &&
                          fread(*array, element, (size_t)count, in) == count);
}

static enum status evaluate_linear(const struct kernels *k, const struct request *r,
                                   const struct arrays *a, void *y, struct err *err)
{
    struct kernels_linear *l = NULL;
    TRY(kernels_linear_open(k, ARITH_LIBRARY, (enum dtype)r->dt, (size_t)r->n, (size_t)r->k,
                            a->weight, a->bias, &l, err));
    enum status st =
        kernels_linear_run(l, (size_t)r->m, a->x,
                           (r->flags & FLAG_BIAS_ADDED) != 0 ? BIAS_ADDED : BIAS_PREFILLED, y, err);
    kernels_linear_close(&l);
    return st;
}

static enum status evaluate(const struct kernels *k, const struct request *r,
                            const struct arrays *a, void *y, struct err *err)
{
    const enum dtype dt = (enum dtype)r->dt;
    const size_t m = (size_t)r->m, n = (size_t)r->n;
    const struct kernels_norm norm = {.dt = dt,
                                      .in_dt = dt,
                                      .eps = r->parameter[0],
                                      .weight = a->weight,
                                      .bias = a->bias,
                                      .weight_offset_dt = DT_UNKNOWN};
    switch ((enum operation)r->operation) {
    case OP_LINEAR:
        return evaluate_linear(k, r, a, y, err);
    case OP_LAYER_NORM:
        return kernels_layer_norm(ARITH_LIBRARY, &norm, m, n, a->x, y, err);
    case OP_RMS_NORM:
        return kernels_rms_norm(ARITH_LIBRARY, &norm, m, n, a->x, y, err);
    case OP_F32_RMS_NORM:
        return kernels_float32_rms_norm(ARITH_LIBRARY, &norm, m, n, a->x, y, err);
    case OP_NORMALIZE:
        return kernels_l2_normalize(ARITH_LIBRARY, &norm, m, n, a->x, y, err);
    case OP_L2_NORM:
        return kernels_l2_norm(ARITH_LIBRARY, &norm, m, n, a->x, y, err);
    case OP_ELEMENTWISE:
        return kernels_elementwise(ARITH_LIBRARY, (enum elementwise)r->sub, dt, r->parameter, m * n,
                                   a->x, y, err);
    case OP_SOFTMAX:
        return kernels_softmax(ARITH_LIBRARY, dt, m, n, a->x, y, err);
    }
    return err_set(err, ST_USAGE, "operation %u", r->operation);
}

static enum status answer(const struct kernels *k, const struct request *r, struct arrays *a,
                          FILE *in, FILE *out, struct err *err)
{
    const size_t element = dtype_compute((enum dtype)r->dt) == DT_F64 ? 8 : 4;
    const size_t count = (size_t)r->m * (r->operation == OP_L2_NORM ? 1 : (size_t)r->n);
    if (!read_array(in, element, &a->x, err) || !read_array(in, element, &a->weight, err) ||
        !read_array(in, element, &a->bias, err) || !read_array(in, element, &a->unused, err))
        return err_set(err, ST_FORMAT, "request: an array is short");
    void *y = NULL;
    TRY(mem_alloc(count, element, &y, err));
    enum status st = evaluate(k, r, a, y, err);
    if (st == ST_OK && fwrite(y, element, count, out) != count)
        st = err_set(err, ST_IO, "result: short write");
    free(y);
    return st;
}

static enum status answer_all(const struct kernels *k, FILE *in, FILE *out, struct err *err)
{
    struct arrays a = {0};
    struct request r;
    enum status st = ST_OK;
    while (st == ST_OK && fread(&r, sizeof r, 1, in) == 1)
        st = answer(k, &r, &a, in, out, err);
    free(a.x);
    free(a.weight);
    free(a.bias);
    free(a.unused);
    return st;
}

int main(int argc, char **argv)
{
    uint64_t threads = 0;
    if (argc != 5 || !str_to_u64(argv[2], &threads)) {
        (void)fprintf(stderr, "kernel_tool CORE THREADS REQUEST RESULT\n");
        return 2;
    }
    struct err err = {0};
    struct kernels *k = NULL;
    const struct kernels_opts opts = {.blas_core = *argv[1] != '\0' ? argv[1] : NULL,
                                      .blas_threads = (unsigned)threads};
    enum status st = kernels_open(&opts, &k, &err);
    FILE *in = fopen(argv[3], "rb"), *out = fopen(argv[4], "wb");
    if (st == ST_OK)
        st = in != NULL && out != NULL ? answer_all(k, in, out, &err) : ST_IO;
    if (st == ST_OK) {
        for (size_t i = 0; i < KERNELS_ENV_FIELDS; i++) {
            char value[KERNELS_TEXT_SIZE];
            const char *name = NULL;
            (void)kernels_env_field(kernels_environment(k), i, &name, value, sizeof value);
            (void)printf("%s %s\n", name, value);
        }
    }
    if (in != NULL)
        (void)fclose(in);
    if (out != NULL && fclose(out) != 0 && st == ST_OK)
        st = ST_IO;
    kernels_close(&k);
    if (st != ST_OK)
        (void)fprintf(stderr, "kernel_tool: %s: %s\n", status_text(st), err.message);
    return status_exit_code(st);
}
