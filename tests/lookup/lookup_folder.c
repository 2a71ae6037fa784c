/* SPDX-License-Identifier: Apache-2.0 */
/* Writes a recipe folder with seeded contents, for tests in other languages:
 * lookup_folder fanout|projected|ids DIR mapped|packed */
#include "lookup_fixture.h"

int main(int argc, char **argv)
{
    struct format_recipe *r = NULL;
    if (argc == 4 && strcmp(argv[1], "fanout") == 0)
        r = fixture_fanout();
    if (argc == 4 && strcmp(argv[1], "projected") == 0)
        r = fixture_projected(9, 13, DT_F32, true);
    if (argc == 4 && strcmp(argv[1], "ids") == 0) {
        r = fixture_lookup(40, 3, DT_F16);
        r->has_ids = true;
        r->n_ids = 10;
        r->groups[0].rows = 10;
    }
    if (r == NULL) {
        fprintf(stderr, "usage: lookup_folder fanout|projected|ids DIR mapped|packed\n");
        return 2;
    }
    struct folder *f = folder_make(argv[2], r, strcmp(argv[3], "packed") == 0);
    folder_free(&f);
    return 0;
}
