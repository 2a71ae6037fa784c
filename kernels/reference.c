/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/kernels_internal.h"

#include <math.h>

void kernels_reference_linear_f32(size_t m, size_t n_out, size_t n_in, const float *x,
                                  const float *w, const float *bias, double *y, double *magnitude)
{
    for (size_t i = 0; i < m; i++) {
        for (size_t j = 0; j < n_out; j++) {
            double sum = bias != NULL ? (double)bias[j] : 0.0, size = fabs(sum);
            for (size_t l = 0; l < n_in; l++) {
                double product = (double)x[i * n_in + l] * (double)w[j * n_in + l];
                sum += product;
                size += fabs(product);
            }
            y[i * n_out + j] = sum;
            if (magnitude != NULL)
                magnitude[i * n_out + j] = size;
        }
    }
}

void kernels_reference_linear_f64(size_t m, size_t n_out, size_t n_in, const double *x,
                                  const double *w, const double *bias, double *y, double *magnitude)
{
    for (size_t i = 0; i < m; i++) {
        for (size_t j = 0; j < n_out; j++) {
            long double sum = bias != NULL ? (long double)bias[j] : 0.0L, size = fabsl(sum);
            for (size_t l = 0; l < n_in; l++) {
                long double product = (long double)x[i * n_in + l] * (long double)w[j * n_in + l];
                sum += product;
                size += fabsl(product);
            }
            y[i * n_out + j] = (double)sum;
            if (magnitude != NULL)
                magnitude[i * n_out + j] = (double)size;
        }
    }
}

void kernels_reference_layer_norm(size_t n, const double *x, const double *wt, const double *b,
                                  double eps, double *y)
{
    double mean = 0, variance = 0;
    for (size_t i = 0; i < n; i++)
        mean += x[i];
    mean /= (double)n;
    for (size_t i = 0; i < n; i++)
        variance += (x[i] - mean) * (x[i] - mean);
    double root = sqrt(variance / (double)n + eps);
    for (size_t i = 0; i < n; i++)
        y[i] = (x[i] - mean) / root * (wt != NULL ? wt[i] : 1.0) + (b != NULL ? b[i] : 0.0);
}

void kernels_reference_rms_norm(size_t n, const double *x, const double *wt, double eps, double *y)
{
    double squares = 0;
    for (size_t i = 0; i < n; i++)
        squares += x[i] * x[i];
    double root = sqrt(squares / (double)n + eps);
    for (size_t i = 0; i < n; i++)
        y[i] = x[i] / root * (wt != NULL ? wt[i] : 1.0);
}

double kernels_reference_l2_norm(size_t n, const double *x, double eps)
{
    double squares = 0;
    for (size_t i = 0; i < n; i++)
        squares += x[i] * x[i];
    return fmax(sqrt(squares), eps);
}

void kernels_reference_softmax(size_t n, const double *x, double *y)
{
    double largest = -INFINITY, sum = 0;
    for (size_t i = 0; i < n; i++)
        largest = fmax(largest, x[i]);
    for (size_t i = 0; i < n; i++)
        sum += y[i] = exp(x[i] - largest);
    for (size_t i = 0; i < n; i++)
        y[i] /= sum;
}

static double sigmoid(double x)
{
    return x >= 0 ? 1.0 / (1.0 + exp(-x)) : exp(x) / (1.0 + exp(x));
}

/* log(1 + exp x) without overflow. */
static double log1p_exp(double x)
{
    return x > 0 ? x + log1p(exp(-x)) : log1p(exp(x));
}

static double clamp(double x, double low, double high)
{
    return fmin(fmax(x, low), high);
}

double kernels_reference_elementwise(enum elementwise fn, const double params[KERNELS_EW_PARAMS],
                                     double x)
{
    const double selu_alpha = 1.6732632423543772848170429916717;
    const double selu_scale = 1.0507009873554804934193349852946;
    switch (fn) {
    case EW_IDENTITY:
        return x;
    case EW_RELU:
        return fmax(x, 0);
    case EW_RELU6:
        return clamp(x, 0, 6);
    case EW_GELU_ERF: /* erfc keeps the left tail */
        return 0.5 * x * erfc(-x * 0.70710678118654752440);
    case EW_GELU_TANH: /* (1 + tanh u) / 2 = sigmoid(2u) */
        return x * sigmoid(2 * 0.79788456080286535588 * (x + 0.044715 * x * x * x));
    case EW_QUICK_GELU:
        return x * sigmoid(1.702 * x);
    case EW_SILU:
        return x * sigmoid(x);
    case EW_TANH:
        return tanh(x);
    case EW_SIGMOID:
        return sigmoid(x);
    case EW_ELU:
        return x > 0 ? x : params[0] * expm1(x);
    case EW_CELU:
        return x > 0 ? x : params[0] * expm1(x / params[0]);
    case EW_LEAKY_RELU:
        return x > 0 ? x : params[0] * x;
    case EW_SOFTPLUS:
        return x * params[0] > params[1] ? x : log1p_exp(x * params[0]) / params[0];
    case EW_SOFTSIGN:
        return x / (1 + fabs(x));
    case EW_HARDTANH:
        return clamp(x, params[0], params[1]);
    case EW_HARDSWISH:
        return x * (clamp(x + 3, 0, 6) / 6);
    case EW_HARDSIGMOID:
        return clamp(x + 3, 0, 6) / 6;
    case EW_MISH:
        return x * tanh(log1p_exp(x));
    case EW_SELU:
        return selu_scale * (x > 0 ? x : selu_alpha * expm1(x));
    case EW_SCALE:
        return x * params[0];
    case EW_EXP:
        return exp(x);
    case EW_COUNT:
        break;
    }
    return NAN;
}
