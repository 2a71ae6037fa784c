/* SPDX-License-Identifier: Apache-2.0 */
/** What the files of base share among themselves. */
#ifndef BASE_BASE_INTERNAL_H
#define BASE_BASE_INTERNAL_H

#include "base/base.h"

/** The rank that log_setup was given; 0 before.  Local. */
int log_rank_number(void);

/** Replace control characters by '?', so that a message is one line whatever a file or a tensor is
 *  called, and no name can send escape sequences to a terminal. */
void str_make_line(char *s);

/** Put '.' where the locale's decimal point stands in what %g or %f printed. */
void str_fix_radix(char *s);

#endif
