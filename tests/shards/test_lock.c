/* SPDX-License-Identifier: Apache-2.0 */
/* Locks between processes: every holder is a forked child, ended by SIGKILL. */
#include "fixture.h"

#include <signal.h>
#include <sys/types.h>

static char work[64];

/* A child that takes a lock and keeps it until it is killed; returns when it has it, -1 if it could
 * not.  hold_ms > 0: it ends by itself after that time. */
static pid_t holder(enum shard_lock_kind kind, uint32_t index, double wait_s, long hold_ms)
{
    int ends[2];
    if (pipe(ends) != 0)
        exit(1);
    pid_t pid = fork();
    if (pid == 0) {
        struct shard_lock *lock = NULL;
        enum status st = shard_lock_take(work, kind, index, wait_s, &lock, NULL);
        char said = st == ST_OK ? 'y' : 'n';
        if (write(ends[1], &said, 1) != 1)
            _exit(2);
        if (st == ST_OK && hold_ms > 0)
            fixture_sleep_ms(hold_ms);
        else if (st == ST_OK)
            for (;;)
                (void)pause();
        _exit(0); /* without release: what a crash leaves */
    }
    (void)close(ends[1]);
    char said = 'n';
    bool has = read(ends[0], &said, 1) == 1 && said == 'y';
    (void)close(ends[0]);
    if (has)
        return pid;
    (void)waitpid(pid, NULL, 0);
    return -1;
}

static void end(pid_t pid)
{
    if (pid > 0) {
        (void)kill(pid, SIGKILL);
        (void)waitpid(pid, NULL, 0);
    }
}

static enum status try_take(enum shard_lock_kind kind, uint32_t index, double wait_s,
                            struct err *err)
{
    struct shard_lock *lock = NULL;
    err_clear(err);
    enum status st = shard_lock_take(work, kind, index, wait_s, &lock, err);
    CU_ASSERT_EQUAL(st == ST_OK, lock != NULL);
    shard_lock_release(&lock);
    return st;
}

static void test_gate(void)
{
    struct err err = {.st = ST_OK};
    char who[400], expected[64];
    fixture_folder(work, sizeof work);
    shard_lock_holder(work, who, sizeof who);
    CU_ASSERT_STRING_EQUAL(who, "");
    pid_t pid = holder(SHARD_LOCK_GATE, 0, 0, 0);
    CU_ASSERT(pid > 0);
    (void)snprintf(expected, sizeof expected, "pid %ld", (long)pid);
    double before = clock_s();
    CU_ASSERT_EQUAL(try_take(SHARD_LOCK_GATE, 0, 0.3, &err), ST_LOCKED);
    CU_ASSERT(clock_s() - before >= 0.3 && clock_s() - before < 5);
    CU_ASSERT(fixture_says(err.message, expected));
    CU_ASSERT(fixture_says(err.message, "/lock: held by a run"));
    char host[256] = {0};
    (void)gethostname(host, sizeof host - 1);
    CU_ASSERT(fixture_says(err.message, host));
    CU_ASSERT_EQUAL(status_exit_code(ST_LOCKED), 4);
    shard_lock_holder(work, who, sizeof who);
    CU_ASSERT(fixture_says(who, expected));
    CU_ASSERT_EQUAL(try_take(SHARD_LOCK_TASK, 1, 0, &err), ST_LOCKED);
    /* ranks belong to the run that has the gate */
    CU_ASSERT_EQUAL(try_take(SHARD_LOCK_RANK, 1, 0, &err), ST_OK);
    end(pid);
    /* the file stays, with the text of a dead holder, and blocks nobody */
    shard_lock_holder(work, who, sizeof who);
    CU_ASSERT_STRING_EQUAL(who, "");
    CU_ASSERT_EQUAL(try_take(SHARD_LOCK_GATE, 0, 0, &err), ST_OK);
    CU_ASSERT_EQUAL(try_take(SHARD_LOCK_GATE, 0, 0, &err), ST_OK);
    fixture_remove(work);
}

/* A run waits for ranks of a killed run, gives up after its time, and gets the gate once they end.
 */
static void test_dying_ranks(void)
{
    struct err err = {.st = ST_OK};
    fixture_folder(work, sizeof work);
    pid_t gate = holder(SHARD_LOCK_GATE, 0, 0, 0);
    pid_t rank = holder(SHARD_LOCK_RANK, 3, 0, 0);
    CU_ASSERT(gate > 0 && rank > 0);
    CU_ASSERT_EQUAL(try_take(SHARD_LOCK_RANK, 3, 0, &err), ST_LOCKED);
    CU_ASSERT(fixture_says(err.message, "a rank"));
    CU_ASSERT_EQUAL(try_take(SHARD_LOCK_RANK, 4, 0, &err), ST_OK);
    end(gate);
    CU_ASSERT_EQUAL(try_take(SHARD_LOCK_GATE, 0, 0.2, &err), ST_LOCKED);
    CU_ASSERT(fixture_says(err.message, "a rank"));
    /* a failed attempt leaves nothing locked */
    end(rank);
    CU_ASSERT_EQUAL(try_take(SHARD_LOCK_GATE, 0, 0, &err), ST_OK);
    rank = holder(SHARD_LOCK_RANK, UINT32_MAX, 0, 400);
    CU_ASSERT(rank > 0);
    double before = clock_s();
    CU_ASSERT_EQUAL(try_take(SHARD_LOCK_GATE, 0, 20, &err), ST_OK);
    CU_ASSERT(clock_s() - before < 10);
    (void)waitpid(rank, NULL, 0);
    fixture_remove(work);
}

static void test_tasks(void)
{
    struct err err = {.st = ST_OK};
    fixture_folder(work, sizeof work);
    pid_t one = holder(SHARD_LOCK_TASK, 1, 0, 0), two = holder(SHARD_LOCK_TASK, 2, 0, 0);
    CU_ASSERT(one > 0 && two > 0);
    CU_ASSERT_EQUAL(try_take(SHARD_LOCK_TASK, 1, 0, &err), ST_LOCKED);
    CU_ASSERT(fixture_says(err.message, "an array task"));
    CU_ASSERT_EQUAL(try_take(SHARD_LOCK_TASK, 3, 0, &err), ST_OK);
    CU_ASSERT_EQUAL(try_take(SHARD_LOCK_GATE, 0, 0, &err), ST_LOCKED);
    CU_ASSERT(fixture_says(err.message, "an array task"));
    end(one);
    CU_ASSERT_EQUAL(try_take(SHARD_LOCK_TASK, 1, 0, &err), ST_OK);
    CU_ASSERT_EQUAL(try_take(SHARD_LOCK_GATE, 0, 0, &err), ST_LOCKED);
    end(two);
    CU_ASSERT_EQUAL(try_take(SHARD_LOCK_GATE, 0, 0, &err), ST_OK);
    fixture_remove(work);
}

/* Many at once: exactly one has the gate, again and again.  The winner keeps it until all have
 * tried. */
static void test_race(void)
{
    enum { N = 8 };
    fixture_folder(work, sizeof work);
    for (int round = 0; round < 5; round++) {
        int said[2], end_of_round[2], n_won = 0;
        if (pipe(said) != 0 || pipe(end_of_round) != 0)
            exit(1);
        for (int i = 0; i < N; i++) {
            if (fork() != 0)
                continue;
            struct shard_lock *lock = NULL;
            char c = shard_lock_take(work, SHARD_LOCK_GATE, 0, 0, &lock, NULL) == ST_OK ? 'y' : 'n';
            (void)close(end_of_round[1]);
            if (write(said[1], &c, 1) != 1 || read(end_of_round[0], &c, 1) != 0)
                _exit(1);
            _exit(0);
        }
        for (int i = 0; i < N; i++) {
            char c = '?';
            CU_ASSERT_EQUAL(read(said[0], &c, 1), 1);
            n_won += c == 'y';
        }
        CU_ASSERT_EQUAL(n_won, 1);
        (void)close(end_of_round[0]);
        (void)close(end_of_round[1]);
        (void)close(said[0]);
        (void)close(said[1]);
        while (wait(NULL) > 0) {
        }
    }
    fixture_remove(work);
}

/* Somebody tidies up WORK/lock while a run is waiting for it. */
static void test_deleted_file(void)
{
    struct err err = {.st = ST_OK};
    char path[128];
    fixture_folder(work, sizeof work);
    (void)snprintf(path, sizeof path, "%s/lock", work);
    pid_t pid = holder(SHARD_LOCK_GATE, 0, 0, 0);
    pid_t waiting = fork();
    if (waiting == 0) {
        struct shard_lock *lock = NULL;
        if (shard_lock_take(work, SHARD_LOCK_GATE, 0, 10, &lock, NULL) != ST_OK)
            _exit(1);
        for (;;)
            (void)pause();
    }
    fixture_sleep_ms(200);
    (void)unlink(path);
    end(pid);
    char who[400] = "";
    for (int i = 0; i < 200 && who[0] == '\0'; i++) {
        fixture_sleep_ms(50);
        shard_lock_holder(work, who, sizeof who);
    }
    /* whatever the waiting one holds now is the file that has the name */
    CU_ASSERT_EQUAL(try_take(SHARD_LOCK_GATE, 0, 0, &err), ST_LOCKED);
    end(waiting);
    CU_ASSERT_EQUAL(try_take(SHARD_LOCK_GATE, 0, 0, &err), ST_OK);
    fixture_remove(work);
}

static void test_folders(void)
{
    struct err err = {.st = ST_OK};
    char path[128];
    fixture_folder(path, 64);
    (void)snprintf(work, sizeof work, "%.30s/new/work", path);
    CU_ASSERT_EQUAL(try_take(SHARD_LOCK_GATE, 0, 0, &err), ST_OK); /* makes the folder */
    CU_ASSERT(file_is_dir(work));
    (void)snprintf(work, sizeof work, "%.30s/file", path);
    fixture_file(work, "x", 1);
    CU_ASSERT_EQUAL(try_take(SHARD_LOCK_GATE, 0, 0, &err), ST_IO);
    CU_ASSERT(fixture_says(err.message, work));
    char who[100] = "x";
    shard_lock_holder(work, who, sizeof who);
    CU_ASSERT_STRING_EQUAL(who, "");
#if TOKENTAB_FAULTS
    (void)snprintf(work, sizeof work, "%.30s", path);
    for (int kind = SHARD_LOCK_GATE; kind <= SHARD_LOCK_TASK; kind++) {
        (void)setenv("TOKENTAB_FAULT", "lock_take#1+", 1);
        CU_ASSERT_EQUAL(try_take((enum shard_lock_kind)kind, 0, 5, &err), ST_IO);
        CU_ASSERT(fixture_says(err.message, "cannot lock"));
        CU_ASSERT(fixture_says(err.message, "-o flock"));
        (void)unsetenv("TOKENTAB_FAULT");
    }
#endif
    fixture_remove(path);
}

int main(void)
{
    static const struct fixture_case cases[] = {
        {"gate", test_gate}, {"dying ranks", test_dying_ranks},   {"tasks", test_tasks},
        {"race", test_race}, {"deleted file", test_deleted_file}, {"folders", test_folders}};
    return fixture_main("lock", cases, sizeof cases / sizeof cases[0]);
}
