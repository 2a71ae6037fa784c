/* SPDX-License-Identifier: Apache-2.0 */
#include "base/base.h"
#include "base/base_internal.h"

#if TOKENTAB_FAULTS

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { FAULT_MAX_ARMED = 16, FAULT_SPEC_SIZE = 512 };

/* Test builds only: how often each entry of the current TOKENTAB_FAULT was passed.  A changed
 * variable starts anew, so that one test program can arm one fault after the other. */
static struct {
    atomic_flag busy;
    char spec[FAULT_SPEC_SIZE];
    uint64_t n_passed[FAULT_MAX_ARMED];
} fault_state = {.busy = ATOMIC_FLAG_INIT};

struct fault_entry {
    char name[FAULT_SPEC_SIZE];
    bool all_ranks, later_too;
    uint64_t rank, nth;
};

/* name[@rank|@all][#nth[+]]; text is changed. */
static bool entry_parse(char *text, struct fault_entry *entry)
{
    *entry = (struct fault_entry){.all_ranks = true, .nth = 1};
    char *nth = strchr(text, '#');
    if (nth != NULL) {
        *nth++ = '\0';
        size_t size = strlen(nth);
        if (size > 0 && nth[size - 1] == '+') {
            entry->later_too = true;
            nth[size - 1] = '\0';
        }
        if (!str_to_u64(nth, &entry->nth) || entry->nth == 0)
            return false;
    }
    char *rank = strchr(text, '@');
    if (rank != NULL) {
        *rank++ = '\0';
        entry->all_ranks = strcmp(rank, "all") == 0;
        if (!entry->all_ranks && !str_to_u64(rank, &entry->rank))
            return false;
    }
    memcpy(entry->name, text, strlen(text) + 1);
    return text[0] != '\0';
}

/* A fault that silently never fires would make its test pass for nothing: say so. */
static bool spec_pass(const char *name, bool is_new)
{
    char rest[FAULT_SPEC_SIZE];
    memcpy(rest, fault_state.spec, sizeof rest);
    bool hit = false;
    char *at = rest;
    for (size_t i = 0; at != NULL; i++) {
        char *next = strchr(at, ',');
        if (next != NULL)
            *next++ = '\0';
        struct fault_entry entry;
        if (i >= FAULT_MAX_ARMED || !entry_parse(at, &entry)) {
            if (is_new)
                log_rank("TOKENTAB_FAULT: entry %zu is not name[@rank|@all][#nth[+]]", i);
        } else if (strcmp(entry.name, name) == 0 &&
                   (entry.all_ranks || entry.rank == (uint64_t)log_rank_number())) {
            uint64_t n = ++fault_state.n_passed[i];
            hit = hit || n == entry.nth || (entry.later_too && n > entry.nth);
        }
        at = next;
    }
    return hit;
}

bool fault_hit(const char *name)
{
    const char *spec = getenv("TOKENTAB_FAULT");
    if (spec == NULL || spec[0] == '\0')
        return false;
    while (atomic_flag_test_and_set_explicit(&fault_state.busy, memory_order_acquire)) {
    }
    bool is_new = strncmp(fault_state.spec, spec, FAULT_SPEC_SIZE - 1) != 0;
    if (is_new) {
        memset(fault_state.n_passed, 0, sizeof fault_state.n_passed);
        strncpy(fault_state.spec, spec, FAULT_SPEC_SIZE - 1);
    }
    bool hit = spec_pass(name, is_new);
    atomic_flag_clear_explicit(&fault_state.busy, memory_order_release);
    return hit;
}

const char *fault_value(const char *name)
{
    return getenv(name);
}

#else

/* ISO C has no empty translation unit. */
extern const int fault_points_are_off;
const int fault_points_are_off = 1;

#endif
