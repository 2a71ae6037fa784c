/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives and messages over real ranks.  CHECK counts and goes on: a jump out would strand the
 * other ranks. */
#include "comm/comm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct test {
    struct comm *c;
    int rank, size;
    uint64_t n_failed, n_checked;
};

#define CHECK(t, condition)                                                                        \
    do {                                                                                           \
        (t)->n_checked++;                                                                          \
        if (!(condition)) {                                                                        \
            (t)->n_failed++;                                                                       \
            fprintf(stderr, "rank %d: %s:%d: %s\n", (t)->rank, __FILE__, __LINE__, #condition);    \
        }                                                                                          \
    } while (0)

static uint8_t byte_of(int rank, size_t i)
{
    return (uint8_t)((i * 131u + (size_t)rank * 17u + i / 251u) & 0xFFu);
}

static void fill(struct bytes *b, int rank, size_t size)
{
    bytes_free(b);
    for (size_t i = 0; i < size; i++)
        bytes_put_u8(b, byte_of(rank, i));
}

static bool is_fill(const struct bytes *b, int rank, size_t size)
{
    if (b->size != size)
        return false;
    for (size_t i = 0; i < size; i++)
        if (b->data[i] != byte_of(rank, i))
            return false;
    return true;
}

/* Every subset of failing ranks: the lowest one's status and words are known to all. */
static void test_agree(struct test *t)
{
    for (unsigned set = 0; set < 1u << t->size; set++) {
        struct err err = {.st = ST_OK};
        enum status mine = ST_OK;
        if (set >> t->rank & 1u)
            mine = err_set(&err, t->rank % 2 == 0 ? ST_IO : ST_NONFINITE, "cause %d", t->rank);
        int first = 0;
        while (first < t->size && !(set >> first & 1u))
            first++;
        enum status st = comm_agree(t->c, mine, &err);
        if (first == t->size) {
            CHECK(t, st == ST_OK && err.st == ST_OK && err.message[0] == '\0');
            continue;
        }
        char cause[32], prefix[32];
        (void)snprintf(cause, sizeof cause, "cause %d", first);
        (void)snprintf(prefix, sizeof prefix, "rank %d (", first);
        CHECK(t, st == (first % 2 == 0 ? ST_IO : ST_NONFINITE));
        CHECK(t, err.st == st && strstr(err.message, cause) != NULL);
        CHECK(t, (t->size > 1) == (strncmp(err.message, prefix, strlen(prefix)) == 0));
    }
    /* a status without words, an err of NULL, and a message as long as it may be */
    struct err err = {.st = ST_OK};
    enum status mine = t->rank == t->size - 1 ? ST_STOPPED : ST_OK;
    CHECK(t, comm_agree(t->c, mine, &err) == ST_STOPPED);
    CHECK(t, strstr(err.message, status_text(ST_STOPPED)) != NULL);
    CHECK(t, comm_agree(t->c, mine, NULL) == ST_STOPPED);
    char text[2 * ERR_MESSAGE_SIZE];
    memset(text, 'x', sizeof text);
    text[sizeof text - 1] = '\0';
    err_clear(&err);
    mine = t->rank == 0 ? err_set(&err, ST_SPEC, "%s", text) : ST_OK;
    CHECK(t, comm_agree(t->c, mine, &err) == ST_SPEC);
    CHECK(t, strlen(err.message) == ERR_MESSAGE_SIZE - 1);
}

static void test_numbers(struct test *t)
{
    uint64_t r = (uint64_t)t->rank, n = (uint64_t)t->size, big = UINT64_MAX - n;
    CHECK(t, comm_max_u64_all(t->c, big + r) == big + n - 1);
    CHECK(t, comm_min_u64_all(t->c, big + r) == big);
    CHECK(t, comm_sum_u64_all(t->c, r + 1) == n * (n + 1) / 2);
    CHECK(t, comm_sum_u64_all(t->c, (uint64_t)1 << 40) == n << 40);
    CHECK(t, comm_and_u64_all(t->c, ~((uint64_t)1 << (63 - r))) == UINT64_MAX >> n);
    CHECK(t, comm_prefix_u64_all(t->c, r + 1) == r * (r + 1) / 2);
    comm_same_u64(t->c, 12345);
    comm_barrier_all(t->c);
}

static const size_t SIZES[] = {0, 1, 6, 7, 8, 14, 1023, 1024, 1025, 10240};
enum { N_SIZES = sizeof SIZES / sizeof SIZES[0] };

static void test_bcast(struct test *t)
{
    struct err err = {.st = ST_OK};
    for (int root = 0; root < t->size; root++) {
        for (size_t i = 0; i < N_SIZES; i++) {
            struct bytes b = {0};
            fill(&b, t->rank, t->rank == root ? SIZES[i] : 3);
            CHECK(t, comm_bcast_bytes_all(t->c, root, &b, &err) == ST_OK);
            CHECK(t, is_fill(&b, root, SIZES[i]));
            bytes_free(&b);
        }
        uint8_t plain[100];
        for (size_t i = 0; i < sizeof plain; i++)
            plain[i] = byte_of(t->rank, i);
        comm_bcast_all(t->c, root, plain, sizeof plain);
        CHECK(t, is_fill(&(struct bytes){.data = plain, .size = sizeof plain}, root, sizeof plain));
    }
    struct bytes failed = {.failed = t->rank == 0};
    CHECK(t, comm_bcast_bytes_all(t->c, 0, &failed, &err) == ST_NOMEM);
    bytes_free(&failed);
}

static void test_gather(struct test *t)
{
    struct err err = {.st = ST_OK};
    for (int root = 0; root < t->size; root++) {
        for (size_t i = 0; i < N_SIZES; i++) {
            struct bytes mine = {0}, *all = NULL;
            fill(&mine, t->rank, SIZES[(i + (size_t)t->rank) % N_SIZES]);
            CHECK(t, comm_gather_bytes_all(t->c, root, &mine, &all, &err) == ST_OK);
            CHECK(t, (all != NULL) == (t->rank == root));
            for (int r = 0; all != NULL && r < t->size; r++)
                CHECK(t, is_fill(&all[r], r, SIZES[(i + (size_t)r) % N_SIZES]));
            comm_gathered_free(&all, t->size);
            bytes_free(&mine);
        }
    }
    struct bytes failed = {.failed = t->rank == t->size - 1}, *all = NULL;
    CHECK(t, comm_gather_bytes_all(t->c, 0, &failed, &all, &err) == ST_NOMEM);
    CHECK(t, all == NULL);
}

/* All sizes round the ring, rank to itself included. */
static void test_messages(struct test *t)
{
    struct err err = {.st = ST_OK};
    int to = (t->rank + 1) % t->size, from = (t->rank + t->size - 1) % t->size;
    for (size_t i = 0; i < N_SIZES; i++) {
        struct bytes b = {0}, got = {0};
        fill(&b, t->rank, SIZES[i]);
        bytes_put_u64(&got, 1); /* must be replaced */
        int source = -1;
        enum comm_tag tag = COMM_TAG_READY;
        /* large messages wait for their receiver, so one rank receives first */
        if (t->rank > 0 || t->size == 1)
            comm_send(t->c, to, COMM_TAG_ANSWER, &b);
        CHECK(t, comm_receive(t->c, i % 2 == 0 ? -1 : from, &source, &tag, &got, &err) == ST_OK);
        if (t->rank == 0 && t->size > 1)
            comm_send(t->c, to, COMM_TAG_ANSWER, &b);
        CHECK(t, source == from && tag == COMM_TAG_ANSWER && is_fill(&got, from, SIZES[i]));
        bytes_free(&b);
        bytes_free(&got);
        comm_barrier_all(t->c);
    }
}

/* The driver's pattern: rank 0 hands out numbers until none are left, taking part itself. */
static void test_schedule(struct test *t)
{
    enum { N_SHARDS = 40 };
    struct err err = {.st = ST_OK};
    struct bytes b = {0};
    enum comm_tag tag = COMM_TAG_TEST;
    int source = 0;
    uint64_t sum = 0;
    if (t->rank != 0) {
        for (;;) {
            comm_send(t->c, 0, COMM_TAG_READY, &(struct bytes){0});
            CHECK(t, comm_receive(t->c, 0, &source, &tag, &b, &err) == ST_OK);
            if (tag == COMM_TAG_STOP)
                break;
            struct bytes_reader r = {.data = b.data, .size = b.size};
            sum += bytes_get_u64(&r);
            CHECK(t, tag == COMM_TAG_SHARD && !r.failed);
        }
    } else {
        uint64_t next = 1;
        int n_active = t->size - 1;
        while (n_active > 0 || next <= N_SHARDS) {
            if (n_active == 0 || (next <= N_SHARDS && !comm_poll(t->c, -1))) {
                sum += next++;
                continue;
            }
            CHECK(t, comm_receive(t->c, -1, &source, &tag, &b, &err) == ST_OK);
            CHECK(t, tag == COMM_TAG_READY && b.size == 0);
            bytes_free(&b);
            if (next <= N_SHARDS) {
                bytes_put_u64(&b, next++);
                comm_send(t->c, source, COMM_TAG_SHARD, &b);
            } else {
                comm_send(t->c, source, COMM_TAG_STOP, &b);
                n_active--;
            }
        }
    }
    bytes_free(&b);
    CHECK(t, comm_sum_u64_all(t->c, sum) == (uint64_t)N_SHARDS * (N_SHARDS + 1) / 2);
}

#if TOKENTAB_FAULTS
/* A message that does not fit into memory is an error, and the one behind it arrives. */
static void test_short_memory(struct test *t)
{
    struct err err = {.st = ST_OK};
    struct bytes b = {0};
    enum comm_tag tag = COMM_TAG_STOP;
    if (t->size > 1 && t->rank == 1) {
        fill(&b, 1, 5000);
        comm_send(t->c, 0, COMM_TAG_TEST, &b);
        fill(&b, 1, 50);
        comm_send(t->c, 0, COMM_TAG_TEST, &b);
    }
    if (t->size > 1 && t->rank == 0) {
        (void)setenv("TOKENTAB_FAULT", "comm_receive#1", 1);
        CHECK(t, comm_receive(t->c, 1, NULL, &tag, &b, &err) == ST_NOMEM);
        CHECK(t, b.size == 0 && err.message[0] != '\0');
        err_clear(&err);
        CHECK(t, comm_receive(t->c, -1, NULL, &tag, &b, &err) == ST_OK);
        CHECK(t, is_fill(&b, 1, 50) && tag == COMM_TAG_TEST);
        (void)unsetenv("TOKENTAB_FAULT");
    }
    bytes_free(&b);
    comm_barrier_all(t->c);
}
#endif

static double cpu_s(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Whoever waits for the last rank leaves it the core: in a receive and in a collective. */
static void test_waiting_is_cheap(struct test *t)
{
    struct timespec nap = {.tv_sec = 0, .tv_nsec = 600000000};
    struct err err = {.st = ST_OK};
    enum comm_tag tag = COMM_TAG_TEST;
    int last = t->size - 1;
    if (t->size == 1)
        return;
    comm_barrier_all(t->c);
    double before = cpu_s();
    if (t->rank == last) {
        (void)nanosleep(&nap, NULL);
        comm_send(t->c, 0, COMM_TAG_TEST, &(struct bytes){0});
        (void)nanosleep(&nap, NULL);
    } else if (t->rank == 0) {
        struct bytes b = {0};
        CHECK(t, comm_receive(t->c, last, NULL, &tag, &b, &err) == ST_OK);
        bytes_free(&b);
    }
    CHECK(t, comm_agree(t->c, ST_OK, &err) == ST_OK);
    double used = cpu_s() - before;
    if (used >= 0.6)
        fprintf(stderr, "rank %d: %.2f s of processor for 1.2 s of waiting\n", t->rank, used);
    CHECK(t, used < 0.6);
}

/* Ways to end that test_endings.sh looks at from outside. */
static int end_in(struct comm *c, const char *how)
{
    struct err err = {.st = ST_OK};
    enum status st = ST_OK;
    if (strcmp(how, "--abort") == 0 && comm_rank(c) == comm_size(c) - 1)
        comm_abort(c, status_exit_code(ST_INTERNAL), "invariant %d", 42);
    if (strcmp(how, "--unequal") == 0)
        comm_same_u64(c, (uint64_t)comm_rank(c));
    if (strcmp(how, "--fail") == 0 && comm_rank(c) == comm_size(c) - 1)
        st = err_set(&err, ST_FORMAT, "the last rank's file");
    st = comm_agree(c, st, &err);
    if (st != ST_OK && comm_rank(c) == 0)
        log_error("%s", err.message);
    comm_close(&c);
    return status_exit_code(st);
}

int main(int argc, char **argv)
{
    struct test t = {.c = NULL};
    struct err err = {.st = ST_OK};
    enum status st = comm_open(&argc, &argv, &t.c, &err);
    if (st != ST_OK) {
        fprintf(stderr, "%s\n", err.message);
        return status_exit_code(st);
    }
    if (argc > 1)
        return end_in(t.c, argv[1]);
    t.rank = comm_rank(t.c);
    t.size = comm_size(t.c);
    test_agree(&t);
    test_numbers(&t);
    test_bcast(&t);
    test_gather(&t);
    test_messages(&t);
    test_schedule(&t);
#if TOKENTAB_FAULTS
    test_short_memory(&t);
#endif
    test_waiting_is_cheap(&t);
    uint64_t n_failed = comm_sum_u64_all(t.c, t.n_failed);
    uint64_t n_checked = comm_sum_u64_all(t.c, t.n_checked);
    if (t.rank == 0)
        printf("%llu checks, %llu failed\n", (unsigned long long)n_checked,
               (unsigned long long)n_failed);
    comm_close(&t.c);
    return n_failed > 0 ? 1 : 0;
}
