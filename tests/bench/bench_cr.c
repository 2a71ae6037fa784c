/* SPDX-License-Identifier: Apache-2.0 */
/** Cost of a correctly rounded linear layer beside one sgemm of the same shape, and how far that
 *  sgemm is from it.  Prints; asserts nothing.
 *    bench_cr [rows] [n_in] [n_out]      default: 512 rows of the gene shape, 5120 -> 1024 */
#include "kernels/kernels.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static float *random_array(size_t n, double scale, uint64_t seed)
{
    float *x = malloc(n * sizeof *x + 1);
    for (size_t i = 0; x != NULL && i < n; i++) {
        double sum = 0; /* of four uniform numbers: bell-shaped enough */
        for (int k = 0; k < 4; k++) {
            seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
            sum += (double)(seed >> 11) * 0x1p-53 - 0.5;
        }
        x[i] = (float)(sum * 1.732 * scale);
    }
    return x;
}

static int fail(const struct err *err)
{
    fprintf(stderr, "bench_cr: %s\n", err->message);
    return 1;
}

static void compare(size_t count, const float *y, const float *z)
{
    size_t differ = 0;
    double worst = 0;
    for (size_t i = 0; i < count; i++) {
        differ += y[i] != z[i];
        worst = fmax(worst, fabs((double)y[i] - (double)z[i]));
    }
    printf("sgemm differs in %.2f %% of elements, max abs %.3g\n",
           100 * (double)differ / (double)count, worst);
}

int main(int argc, char **argv)
{
    size_t size[3] = {512, 5120, 1024};
    for (int i = 1; i < argc && i < 4; i++)
        size[i - 1] = (size_t)strtoull(argv[i], NULL, 10);
    size_t m = size[0], n_in = size[1], n_out = size[2];
    struct err err = {0};
    struct kernels *k = NULL;
    struct kernels_opts opts = {.blas_core = kernels_core_for(kernels_cpu_flags()),
                                .blas_threads = 1};
    if (kernels_open(&opts, &k, &err) != ST_OK)
        return fail(&err);
    float *x = random_array(m * n_in, 1, 1),
          *w = random_array(n_out * n_in, 1 / sqrt((double)n_in), 2);
    float *b = random_array(n_out, 1, 3), *y = random_array(m * n_out, 0, 4);
    float *z = random_array(m * n_out, 0, 5);
    if (x == NULL || w == NULL || b == NULL || y == NULL || z == NULL)
        return 1;
    double best[2] = {INFINITY, INFINITY}, open_s = now_s();
    struct kernels_linear *l = NULL;
    if (kernels_linear_open(k, ARITH_CORRECTLY_ROUNDED, DT_F32, n_out, n_in, w, b, &l, &err) !=
        ST_OK)
        return fail(&err);
    open_s = now_s() - open_s;
    struct kernels_gemm g = {.compute = DT_F32,
                             .transpose_b = true,
                             .m = m,
                             .n = n_out,
                             .k = n_in,
                             .lda = n_in,
                             .ldb = n_in,
                             .ldc = n_out,
                             .alpha = 1,
                             .beta = 1};
    for (int round = 0; round < 5; round++) {
        double t0 = now_s();
        for (size_t i = 0; i < m * n_out; i++)
            z[i] = b[i % n_out];
        if (kernels_gemm_run(k, &g, x, w, z, &err) != ST_OK)
            return fail(&err);
        double t1 = now_s();
        if (kernels_linear_run(l, m, x, BIAS_PREFILLED, y, &err) != ST_OK)
            return fail(&err);
        double t2 = now_s();
        best[0] = fmin(best[0], t1 - t0);
        best[1] = fmin(best[1], t2 - t1);
    }
    uint64_t counts[3];
    kernels_linear_counts(l, counts);
    double total = (double)(counts[0] + counts[1] + counts[2]);
    printf("%zu x %zu -> %zu, core %s: sgemm %.4f s, correctly rounded %.4f s, ratio %.2f "
           "(open %.3f s)\n",
           m, n_in, n_out, kernels_environment(k)->blas_core, best[0], best[1], best[1] / best[0],
           open_s);
    printf("settled by bound %.4f %%, Dot2 %.4f %%, exact %.6f %%\n",
           100 * (double)counts[0] / total, 100 * (double)counts[1] / total,
           100 * (double)counts[2] / total);
    compare(m * n_out, y, z);
    kernels_linear_close(&l);
    kernels_close(&k);
    free(x);
    free(w);
    free(b);
    free(y);
    free(z);
    return 0;
}
