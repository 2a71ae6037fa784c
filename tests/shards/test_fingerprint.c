/* SPDX-License-Identifier: Apache-2.0 */
#include "fixture.h"

#define ARROW " \xE2\x86\x92 "

struct pair {
    const char *name, *value;
};

/* A unit's fingerprint from its fields; rows is what the rows' digest is made of. */
static struct shard_fingerprint make(const struct pair *pairs, size_t n, const char *rows)
{
    struct shard_fingerprint base = {.n_fields = 0}, unit;
    struct digest d = digest_of(rows, strlen(rows));
    for (size_t i = 0; i < n; i++)
        CU_ASSERT_EQUAL(shard_fingerprint_add(&base, pairs[i].name, pairs[i].value, NULL), ST_OK);
    CU_ASSERT_EQUAL(shard_fingerprint_unit(&base, &d, &unit, NULL), ST_OK);
    shard_fingerprint_free(&base);
    return unit;
}

static const struct pair FIELDS[] = {{"graph", "embedding layer_norm eps=1e-05"},
                                     {"profiles", "1:1 15:2"},
                                     {"environment.core", "Haswell"},
                                     {"environment.threads", "1"}};
enum { N_FIELDS = sizeof FIELDS / sizeof FIELDS[0] };

/* What the difference says after one field is set to `value` (NULL: left out). */
static void expect(const char *name, const char *value, const char *rows, const char *text,
                   bool only_environment)
{
    struct pair changed[N_FIELDS + 1];
    size_t n = 0;
    bool found = false;
    for (size_t i = 0; i < N_FIELDS; i++) {
        bool is_it = strcmp(FIELDS[i].name, name) == 0;
        found = found || is_it;
        if (is_it && value == NULL)
            continue;
        changed[n++] = (struct pair){FIELDS[i].name, is_it ? value : FIELDS[i].value};
    }
    if (!found && value != NULL)
        changed[n++] = (struct pair){name, value};
    struct shard_fingerprint old = make(FIELDS, N_FIELDS, "rows"), now = make(changed, n, rows);
    char why[300];
    shard_fingerprint_difference(old.fields, old.n_fields, &now, why, sizeof why);
    CU_ASSERT_STRING_EQUAL(why, text);
    if (strcmp(why, text) != 0)
        printf("\n    %s\n    %s\n", why, text);
    CU_ASSERT_EQUAL(shard_fingerprint_only_environment(old.fields, old.n_fields, &now),
                    only_environment);
    CU_ASSERT_EQUAL(strcmp(old.hex, now.hex) == 0, text[0] == '\0');
    shard_fingerprint_free(&old);
    shard_fingerprint_free(&now);
}

static void test_differences(void)
{
    expect("none", NULL, "rows", "", false);
    expect("graph", "embedding layer_norm eps=1e-06", "rows",
           "graph: embedding layer_norm eps=1e-05" ARROW "embedding layer_norm eps=1e-06", false);
    expect("profiles", "", "rows", "profiles: 1:1 15:2" ARROW "(empty)", false);
    expect("profiles", NULL, "rows", "profiles: 1:1 15:2" ARROW "(none)", false);
    expect("bulk_rows", "1024", "rows", "bulk_rows: (none)" ARROW "1024", false);
    expect("environment.core", "SkylakeX", "rows", "environment.core: Haswell" ARROW "SkylakeX",
           true);
    expect("environment.sleef", "3.5.1", "rows", "environment.sleef: (none)" ARROW "3.5.1", true);
    expect("environment.threads", NULL, "rows", "environment.threads: 1" ARROW "(none)", true);
    char text[200], a[DIGEST_HEX_SIZE], b[DIGEST_HEX_SIZE];
    struct digest old = digest_of("rows", 4), now = digest_of("other", 5);
    (void)snprintf(text, sizeof text, "embedding_rows: %s" ARROW "%s", digest_hex(&old, a),
                   digest_hex(&now, b));
    expect("environment.core", "Zen", "other", text, false);
}

static void test_order_and_ends(void)
{
    const struct pair swapped[] = {FIELDS[1], FIELDS[0], FIELDS[2], FIELDS[3]};
    struct shard_fingerprint a = make(FIELDS, N_FIELDS, "r"), b = make(swapped, N_FIELDS, "r");
    char why[200];
    shard_fingerprint_difference(a.fields, a.n_fields, &b, why, sizeof why);
    CU_ASSERT(fixture_says(why, "order of fields: graph" ARROW "profiles"));
    CU_ASSERT_FALSE(shard_fingerprint_only_environment(a.fields, a.n_fields, &b));
    CU_ASSERT_NOT_EQUAL(strcmp(a.hex, b.hex), 0);
    CU_ASSERT_STRING_EQUAL(a.fields[0].name, "embedding_rows");
    shard_fingerprint_free(&a);
    shard_fingerprint_free(&b);
    /* where one name ends and its value begins is part of the digest */
    const struct pair x[] = {{"ab", "c"}}, y[] = {{"a", "bc"}};
    a = make(x, 1, "r");
    b = make(y, 1, "r");
    CU_ASSERT_NOT_EQUAL(strcmp(a.hex, b.hex), 0);
    /* a buffer that is too small is cut, not overrun */
    char small[8];
    shard_fingerprint_difference(a.fields, a.n_fields, &b, small, sizeof small);
    CU_ASSERT_EQUAL(strlen(small), sizeof small - 1);
    shard_fingerprint_difference(a.fields, a.n_fields, &b, small, 0);
    shard_fingerprint_free(&a);
    shard_fingerprint_free(&b);
}

static void test_long_values(void)
{
    char was[2000], is[2000], why[400];
    memset(was, 'n', sizeof was);
    was[sizeof was - 1] = '\0';
    memcpy(is, was, sizeof is);
    memcpy(was + 1500, "eps=1e-05", 9);
    memcpy(is + 1500, "eps=1e-06", 9);
    struct shard_fingerprint a = make(&(struct pair){"graph", was}, 1, "r"),
                             b = make(&(struct pair){"graph", is}, 1, "r");
    shard_fingerprint_difference(a.fields, a.n_fields, &b, why, sizeof why);
    CU_ASSERT(fixture_says(why, "eps=1e-05"));
    CU_ASSERT(fixture_says(why, "eps=1e-06"));
    CU_ASSERT(strlen(why) < 300);
    shard_fingerprint_free(&a);
    shard_fingerprint_free(&b);
}

static void test_refused(void)
{
    struct shard_fingerprint f = {.n_fields = 0};
    CU_ASSERT_EQUAL(shard_fingerprint_add(&f, "a", "1", NULL), ST_OK);
    CU_ASSERT_EQUAL(shard_fingerprint_add(&f, "a", "2", NULL), ST_INTERNAL);
    CU_ASSERT_EQUAL(shard_fingerprint_add(&f, "embedding_rows", "2", NULL), ST_INTERNAL);
    CU_ASSERT_EQUAL(f.n_fields, 1);
    shard_fingerprint_free(&f);
    shard_fingerprint_free(&f);
}

int main(void)
{
    static const struct fixture_case cases[] = {{"differences", test_differences},
                                                {"order and ends", test_order_and_ends},
                                                {"long values", test_long_values},
                                                {"refused", test_refused}};
    return fixture_main("fingerprint", cases, sizeof cases / sizeof cases[0]);
}
