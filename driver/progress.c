/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <unistd.h>

#include "driver/driver_internal.h"

enum { PROGRESS_LOG_S = 30, PROGRESS_BAR_WIDTH = 30 };

void driver_progress_start(struct driver_progress_state *p, const struct driver_opts *opts,
                           const char *what, uint64_t total)
{
    *p = (struct driver_progress_state){.mode = (enum driver_progress)opts->progress,
                                        .total = total,
                                        .what = what,
                                        .start_s = clock_s(),
                                        .last_s = clock_s()};
    if (p->mode == PROGRESS_AUTO)
        p->mode = isatty(STDERR_FILENO) == 1 && !log_is_json() ? PROGRESS_BAR : PROGRESS_LOG;
    if (opts->quiet)
        p->mode = PROGRESS_NONE;
}

static void print_bar(const struct driver_progress_state *p, double rate, double left_s)
{
    char bar[PROGRESS_BAR_WIDTH + 1];
    uint64_t full = p->total == 0 ? PROGRESS_BAR_WIDTH : PROGRESS_BAR_WIDTH * p->done / p->total;
    for (uint64_t i = 0; i < PROGRESS_BAR_WIDTH; i++)
        bar[i] = i < full ? '#' : '-';
    bar[PROGRESS_BAR_WIDTH] = '\0';
    fprintf(stderr, "\r%s [%s] %llu/%llu tokens, %.0f/s, %.0f s left   ", p->what, bar,
            (unsigned long long)p->done, (unsigned long long)p->total, rate, left_s);
    fflush(stderr);
}

void driver_progress_step(struct driver_progress_state *p, uint64_t done)
{
    p->done = done;
    double now = clock_s();
    double interval = p->mode == PROGRESS_BAR ? 0.2 : PROGRESS_LOG_S;
    if (p->mode == PROGRESS_NONE || now - p->last_s < interval)
        return;
    p->last_s = now;
    double rate = (double)done / (now - p->start_s + 1e-9);
    uint64_t left = p->total > done ? p->total - done : 0;
    double left_s = rate > 0 ? (double)left / rate : 0;
    if (p->mode == PROGRESS_BAR)
        print_bar(p, rate, left_s);
    else
        log_info("%s: %llu of %llu tokens, %.0f tokens/s, %.0f s left", p->what,
                 (unsigned long long)done, (unsigned long long)p->total, rate, left_s);
}

void driver_progress_end(struct driver_progress_state *p)
{
    if (p->mode == PROGRESS_BAR && p->total > 0) {
        double rate = (double)p->done / (clock_s() - p->start_s + 1e-9);
        print_bar(p, rate, 0);
        fputc('\n', stderr);
    }
}
