/* SPDX-License-Identifier: Apache-2.0 */
/** Private to driver/: the doctor verb. */
#ifndef DRIVER_DOCTOR_INTERNAL_H
#define DRIVER_DOCTOR_INTERNAL_H

#include "driver/verb_internal.h"

enum doctor_state { DOCTOR_OK, DOCTOR_NOTE, DOCTOR_WARN, DOCTOR_FAIL };
enum { DOCTOR_VALUE_SIZE = 768, DOCTOR_MAX_CHECKS = 64, DOCTOR_MAX_CORES = 3 };

/** One line of the result. */
struct doctor_check {
    const char *section, *name; /* static */
    enum doctor_state state;
    char value[DOCTOR_VALUE_SIZE];
};

/** A BLAS core as a child process found it. */
struct doctor_core {
    char asked[32]; /* "" : what OpenBLAS detects */
    enum status st;
    char message[ERR_MESSAGE_SIZE];
    struct kernels_env env;
    double gflops;
};

struct doctor {
    struct driver_context *ctx;
    struct doctor_check checks[DOCTOR_MAX_CHECKS];
    size_t n_checks;
    struct doctor_core cores[DOCTOR_MAX_CORES];
    size_t n_cores, in_use; /* in_use: index into cores */
};

/** Add a line. */
void doctor_add(struct doctor *d, const char *section, const char *name, enum doctor_state state,
                const char *fmt, ...) __attribute__((format(printf, 5, 6)));
/** Load and measure each candidate core in a child process of its own (a second core cannot be
 *  loaded into one process), before this process loads any.  Local. */
void doctor_blas(struct doctor *d);
/** The fastest of d->cores; NULL when none works.  Pure. */
const struct doctor_core *doctor_best_core(const struct doctor *d);
/** Write, lock, HDF5 and space in a folder.  Leaves nothing behind.  Local. */
void doctor_folder(struct doctor *d, const char *dir);

#endif
