/* SPDX-License-Identifier: Apache-2.0 */
/** The row loops of struct row_loops for one compute dtype; included twice by rows_avx2.c and by
 *  rows_base.c (no include guard on purpose).  The includer defines
 *    REAL, BITS   float and uint32_t, or double and uint64_t
 *    FN(name)     the name with its dtype suffix
 *    LANES        width of PyTorch's AVX2 vectors of REAL: the order of every sum follows it
 *    VLANES       width of the vectors that Sleef gets
 *    NORM_HAS_VECTORS  whether the L2 norm has a vector loop
 *    SOFTMAX_TREE(a)   sum of LANES accumulators
 *    REAL_FMA, REAL_SQRT, V_EXP, V_TANH, V_ERF, V_LOG1P
 *
 *  The sums below follow PyTorch 1.13's CPU kernels addition by addition (NUMERICS.md D), so no
 * loop may be reassociated and no product contracted except where REAL_FMA is written. */

typedef REAL FN(vec) __attribute__((vector_size(VLANES * sizeof(REAL))));
typedef BITS FN(mask) __attribute__((vector_size(VLANES * sizeof(REAL))));

/* ---- sums ---------------------------------------------------------------------------------- */

/* Sum of squares in the order of at::sum: LANES accumulators in 4 streams, folded every 16 rounds
 * into a coarser level; rows shorter than a vector use the same scheme with single elements. */
enum { FN(SUM_STREAMS) = 4, FN(SUM_LEVELS) = 4 };

static unsigned FN(ceil_log2)(size_t n)
{
    unsigned bits = 0;
    while (((size_t)1 << bits) < n)
        bits++;
    return bits;
}

static void FN(add_squares)(const REAL *x, size_t lanes, REAL *acc)
{
    for (size_t l = 0; l < lanes; l++) {
        REAL square = x[l] * x[l];
        acc[l] += square;
    }
}

/* The squares of `n_vectors` vectors of `lanes` elements, summed per lane into total[lanes]. */
static void FN(sum_vectors)(const REAL *x, size_t lanes, size_t n_vectors, REAL *total)
{
    REAL acc[FN(SUM_LEVELS)][FN(SUM_STREAMS) * LANES] = {{0}};
    const size_t width = FN(SUM_STREAMS) * lanes, rounds = n_vectors / FN(SUM_STREAMS);
    unsigned power = FN(ceil_log2)(rounds) / FN(SUM_LEVELS);
    power = power < 4 ? 4 : power;
    const size_t step = (size_t)1 << power;
    size_t i = 0;
    while (i + step <= rounds) {
        for (size_t j = 0; j < step; j++, i++)
            FN(add_squares)(x + i * width, width, acc[0]);
        for (unsigned level = 1; level < FN(SUM_LEVELS); level++) {
            for (size_t l = 0; l < width; l++) {
                acc[level][l] += acc[level - 1][l];
                acc[level - 1][l] = 0;
            }
            if ((i & ((step - 1) << (level * power))) != 0)
                break;
        }
    }
    for (; i < rounds; i++)
        FN(add_squares)(x + i * width, width, acc[0]);
    for (unsigned level = 1; level < FN(SUM_LEVELS); level++)
        for (size_t l = 0; l < width; l++)
            acc[0][l] += acc[level][l];
    for (size_t v = rounds * FN(SUM_STREAMS); v < n_vectors; v++)
        FN(add_squares)(x + v * lanes, lanes, acc[0]);
    for (unsigned stream = 1; stream < FN(SUM_STREAMS); stream++)
        for (size_t l = 0; l < lanes; l++)
            acc[0][l] += acc[0][stream * lanes + l];
    for (size_t l = 0; l < lanes; l++)
        total[l] = acc[0][l];
}

static REAL FN(sum_of_squares)(const REAL *x, size_t n)
{
    REAL lanes[LANES], sum = 0;
    if (n < LANES) {
        FN(sum_vectors)(x, 1, n, &sum);
        return sum;
    }
    const size_t n_vectors = n / LANES;
    FN(sum_vectors)(x, LANES, n_vectors, lanes);
    for (size_t i = n_vectors * LANES; i < n; i++) {
        REAL square = x[i] * x[i];
        sum += square;
    }
    for (size_t l = 0; l < LANES; l++)
        sum += lanes[l];
    return sum;
}

/* ---- LayerNorm ----------------------------------------------------------------------------- */

/* Moments of `count` elements a lane: mean and sum of squared deviations (Welford; Chan's merge).
 */
struct FN(moments) {
    size_t count;
    REAL mean[LANES], squares[LANES];
};
enum { FN(CHUNK) = 16, FN(STACK) = 64 };

static void FN(merge_lane)(size_t count, REAL mean, REAL squares, size_t into_count,
                           REAL *into_mean, REAL *into_squares)
{
    const size_t n = into_count + count;
    const REAL c = n == 0 ? 0 : (REAL)count / (REAL)n;
    const REAL delta = mean - *into_mean;
    *into_mean += c * delta;
    *into_squares += squares + delta * delta * c * (REAL)into_count;
}

static void FN(merge)(const struct FN(moments) * from, struct FN(moments) * into)
{
    for (size_t l = 0; l < LANES; l++)
        FN(merge_lane)
    (from->count, from->mean[l], from->squares[l], into->count, &into->mean[l], &into->squares[l]);
    into->count += from->count;
}

static void FN(chunk_moments)(const REAL *x, size_t count, struct FN(moments) * out)
{
    *out = (struct FN(moments)){.count = count};
    for (size_t j = 0; j < count; j++) {
        const REAL c = (REAL)1 / (REAL)(j + 1);
        for (size_t l = 0; l < LANES; l++) {
            const REAL value = x[j * LANES + l], delta = value - out->mean[l];
            out->mean[l] += delta * c;
            out->squares[l] += delta * (value - out->mean[l]);
        }
    }
}

static void FN(row_moments)(const REAL *x, size_t n, REAL *mean, REAL *variance)
{
    const size_t n_vectors = n / LANES, n_chunks = (n_vectors + FN(CHUNK) - 1) / FN(CHUNK);
    const unsigned bits = FN(ceil_log2)(n_chunks), depth = bits < 1 ? 1 : bits;
    struct FN(moments) stack[FN(STACK)], chunk;
    memset(stack, 0, depth * sizeof *stack);
    for (size_t i = 0; i < n_chunks; i++) {
        const size_t left = n_vectors - i * FN(CHUNK);
        FN(chunk_moments)
        (x + i * FN(CHUNK) * LANES, left < FN(CHUNK) ? left : FN(CHUNK), &chunk);
        FN(merge)(&chunk, &stack[0]);
        size_t mask = i + 1;
        for (unsigned j = 1; j < depth && (mask & 1) == 0; j++, mask >>= 1) {
            FN(merge)(&stack[j - 1], &stack[j]);
            memset(&stack[j - 1], 0, sizeof *stack);
        }
    }
    for (unsigned j = 1; j < depth; j++)
        FN(merge)(&stack[j], &stack[0]);

    size_t count = 0;
    REAL m1 = 0, m2 = 0;
    for (size_t i = n_vectors * LANES; i < n; i++) {
        const REAL delta = x[i] - m1;
        count++;
        m1 += delta / (REAL)count;
        m2 += delta * (x[i] - m1);
    }
    for (size_t l = 0; l < LANES; l++) {
        FN(merge_lane)(n_vectors, stack[0].mean[l], stack[0].squares[l], count, &m1, &m2);
        count += n_vectors;
    }
    *mean = m1;
    *variance = m2 / (REAL)n;
}

static void FN(layer_norm)(size_t m, size_t n, const REAL *x, const REAL *wt, const REAL *b,
                           REAL eps, REAL *y)
{
    for (size_t row = 0; row < m; row++, x += n, y += n) {
        REAL mean, variance;
        FN(row_moments)(x, n, &mean, &variance);
        const REAL scale = (REAL)1 / REAL_SQRT(variance + eps), shift = -scale * mean;
        for (size_t i = 0; i < n; i++)
            y[i] = REAL_FMA(REAL_FMA(x[i], scale, shift), wt != NULL ? wt[i] : 1,
                            b != NULL ? b[i] : 0);
    }
}

/* ---- RMSNorm, L2 norm ---------------------------------------------------------------------- */

static void FN(rms_norm)(size_t m, size_t n, const REAL *x, const REAL *wt, REAL eps, REAL *y)
{
    for (size_t row = 0; row < m; row++, x += n, y += n) {
        const REAL mean = FN(sum_of_squares)(x, n) / (REAL)n;
        const REAL scale = (REAL)1 / REAL_SQRT(mean + eps);
        for (size_t i = 0; i < n; i++) {
            const REAL scaled = x[i] * scale;
            y[i] = wt != NULL ? scaled * wt[i] : scaled;
        }
    }
}

/* PyTorch 1.13 has a vector loop for float alone; double rows are one chain of fma.  After the
 * vectors the compiled loop takes four elements at a time without fma, the last three with it. */
static REAL FN(norm_squares)(const REAL *x, size_t n)
{
    REAL acc[LANES] = {0}, sum = 0;
    size_t i = 0;
    if (NORM_HAS_VECTORS) {
        for (; i + LANES <= n; i += LANES)
            for (size_t l = 0; l < LANES; l++)
                acc[l] = REAL_FMA(x[i + l], x[i + l], acc[l]);
        sum = acc[0];
        for (size_t l = 1; l < LANES; l++)
            sum += acc[l];
        for (const size_t end = i + (n - i) / 4 * 4; i < end; i++) {
            const REAL square = x[i] * x[i];
            sum += square;
        }
    }
    for (; i < n; i++)
        sum = REAL_FMA(x[i], x[i], sum);
    return sum;
}

static void FN(l2_norm)(size_t m, size_t n, const REAL *x, REAL eps, REAL *r)
{
    for (size_t row = 0; row < m; row++, x += n) {
        const REAL norm = REAL_SQRT(FN(norm_squares)(x, n));
        r[row] = norm < eps ? eps : norm;
    }
}

static void FN(divide_rows)(size_t m, size_t n, const REAL *x, const REAL *r, REAL *y)
{
    for (size_t row = 0; row < m; row++, x += n, y += n)
        for (size_t i = 0; i < n; i++)
            y[i] = x[i] / r[row];
}

/* ---- elementary functions ------------------------------------------------------------------ */

static inline FN(vec) FN(splat)(double value)
{
    FN(vec) v;
    for (size_t l = 0; l < VLANES; l++)
        v[l] = (REAL)value;
    return v;
}

static inline FN(vec) FN(select)(FN(mask) mask, FN(vec) a, FN(vec) b)
{
    return (FN(vec))(((FN(mask))a & mask) | ((FN(mask))b & ~mask));
}

static inline FN(vec) FN(vec_fma)(FN(vec) a, FN(vec) b, FN(vec) c)
{
    for (size_t l = 0; l < VLANES; l++)
        c[l] = REAL_FMA(a[l], b[l], c[l]);
    return c;
}

/* Keeps the sign of a zero that is no bound, as max_ps and min_ps with the bound first do. */
static inline FN(vec) FN(clamp)(FN(vec) x, double low, double high)
{
    const FN(vec) lo = FN(splat)(low), hi = FN(splat)(high);
    x = FN(select)((FN(mask))(lo > x), lo, x);
    return FN(select)((FN(mask))(hi < x), hi, x);
}

static inline FN(vec) FN(sigmoid)(FN(vec) x)
{
    return 1 / (1 + V_EXP(0 - x));
}

static inline FN(vec) FN(gelu_tanh)(FN(vec) x)
{
    const FN(vec) beta = FN(splat)(0.79788456080286535588), kappa = FN(splat)(0.044715);
    const FN(vec) inner = beta * FN(vec_fma)(kappa, x * x * x, x);
    return FN(splat)(0.5) * x * (1 + V_TANH(inner));
}

/* elu(x, alpha, scale, input_scale) of PyTorch: CELU and SELU are calls of it. */
static inline FN(vec) FN(elu)(FN(vec) x, double alpha, double scale, double input_scale)
{
    const REAL negative = (REAL)alpha * (REAL)scale;
    const FN(vec) below = (V_EXP(x * FN(splat)(input_scale)) - 1) * negative;
    return FN(select)((FN(mask))(x > 0), x * FN(splat)(scale), below);
}

static inline FN(vec) FN(softplus)(FN(vec) x, double beta, double threshold)
{
    const FN(vec) b = FN(splat)(beta), scaled = x * b;
    return FN(select)((FN(mask))(scaled > FN(splat)(threshold)), x, V_LOG1P(V_EXP(scaled)) / b);
}

static inline FN(vec)
    FN(apply)(enum elementwise fn, const double params[KERNELS_EW_PARAMS], FN(vec) x)
{
    const FN(vec) zero = FN(splat)(0);
    switch (fn) {
    case EW_RELU:
        return FN(select)((FN(mask))(x < 0), zero, x);
    case EW_RELU6:
        return FN(clamp)(x, 0, 6);
    case EW_GELU_ERF:
        return x * FN(splat)(0.5) * (1 + V_ERF(x * FN(splat)(0.70710678118654752440)));
    case EW_GELU_TANH:
        return FN(gelu_tanh)(x);
    case EW_QUICK_GELU:
        return x * FN(sigmoid)(FN(splat)(1.702) * x);
    case EW_SILU:
        return x / (1 + V_EXP(-x));
    case EW_TANH:
        return V_TANH(x);
    case EW_SIGMOID:
        return FN(sigmoid)(x);
    case EW_ELU:
        return FN(elu)(x, params[0], 1, 1);
    case EW_CELU:
        return FN(elu)(x, params[0], 1, 1 / params[0]);
    case EW_SELU:
        return FN(elu)(x, 1.6732632423543772848170429916717, 1.0507009873554804934193349852946, 1);
    case EW_LEAKY_RELU:
        return FN(select)((FN(mask))(x > 0), x, x * FN(splat)(params[0]));
    case EW_SOFTPLUS:
        return FN(softplus)(x, params[0], params[1]);
    case EW_SOFTSIGN:
        return x / (FN(select)((FN(mask))(x < 0), -x, x) + 1);
    case EW_HARDTANH:
        return FN(clamp)(x, params[0], params[1]);
    case EW_HARDSWISH:
        return x * FN(clamp)(x + 3, 0, 6) / 6;
    case EW_HARDSIGMOID:
        return FN(clamp)(x + 3, 0, 6) / 6;
    case EW_MISH:
        return x * V_TANH(V_LOG1P(V_EXP(x)));
    case EW_SCALE:
        return x * FN(splat)(params[0]);
    case EW_EXP:
        return V_EXP(x);
    case EW_IDENTITY:
    case EW_COUNT:
        break;
    }
    return x;
}

/* Tails go through a padded vector, so that an element's bits depend on its value alone. */
static void FN(elementwise)(enum elementwise fn, const double params[KERNELS_EW_PARAMS], size_t n,
                            const REAL *x, REAL *y)
{
    FN(vec) v;
    size_t i = 0;
    for (; i + VLANES <= n; i += VLANES) {
        memcpy(&v, x + i, sizeof v);
        v = FN(apply)(fn, params, v);
        memcpy(y + i, &v, sizeof v);
    }
    if (i < n) {
        v = FN(splat)(0);
        memcpy(&v, x + i, (n - i) * sizeof *x);
        v = FN(apply)(fn, params, v);
        memcpy(y + i, &v, (n - i) * sizeof *y);
    }
}

/* ---- softmax ------------------------------------------------------------------------------- */

/* LANES running sums (a partial last vector goes to the low lanes), then a fixed tree. */
static REAL FN(softmax_sum)(const REAL *e, size_t n)
{
    REAL acc[LANES];
    const size_t first = n < LANES ? n : LANES;
    for (size_t l = 0; l < first; l++)
        acc[l] = e[l];
    if (n < LANES) {
        for (size_t l = 1; l < n; l++)
            acc[0] += acc[l];
        return acc[0];
    }
    size_t i = LANES;
    for (; i + LANES <= n; i += LANES)
        for (size_t l = 0; l < LANES; l++)
            acc[l] += e[i + l];
    for (size_t l = 0; i + l < n; l++)
        acc[l] += e[i + l];
    return SOFTMAX_TREE(acc);
}

static void FN(softmax)(size_t m, size_t n, const REAL *x, REAL *y)
{
    const double none[KERNELS_EW_PARAMS] = {0};
    for (size_t row = 0; row < m; row++, x += n, y += n) {
        REAL largest = n > 0 ? x[0] : 0;
        for (size_t i = 1; i < n; i++)
            largest = x[i] > largest ? x[i] : largest;
        for (size_t i = 0; i < n; i++)
            y[i] = x[i] - largest;
        FN(elementwise)(EW_EXP, none, n, y, y);
        const REAL inverse = n > 0 ? 1 / FN(softmax_sum)(y, n) : 0;
        for (size_t i = 0; i < n; i++)
            y[i] *= inverse;
    }
}
