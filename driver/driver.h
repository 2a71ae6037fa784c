/* SPDX-License-Identifier: Apache-2.0 */
/** driver: the command line; scheduling, reduction, acceptance, emission, reports, exit codes. Does
 * not know how an op is computed, what bytes look like, or MPI.  The only folder that prints. */
#ifndef DRIVER_DRIVER_H
#define DRIVER_DRIVER_H

/** The program.  Initialises MPI for the verbs that use ranks.  Collective for those.
 *  @return the exit code of DESIGN.md, equal on all ranks */
int driver_main(int argc, char **argv);

#endif
