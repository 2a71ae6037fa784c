/* SPDX-License-Identifier: Apache-2.0 */
/** graph's own: what a slice of a tensor is, in rows. */
#ifndef GRAPH_GRAPH_INTERNAL_H
#define GRAPH_GRAPH_INTERNAL_H

#include "graph/graph.h"

/** A run of rows of [out, in] (columns when w->split_inputs). */
struct graph_run {
    uint64_t first, count;
};

/** Runs that a resolved weight consists of, in its own order: one, or one a head group for
 *  interleaved ones.  Pure. */
uint64_t graph_weight_runs(const struct graph_weight *w);
struct graph_run graph_weight_run(const struct graph_weight *w, uint64_t i);
/** nodes[i] true where an output of `outputs` depends on node i.  reached has graph.n_nodes. */
void graph_mark(const struct graph *g, const struct graph_output *outputs, size_t n, bool *reached);
/** Does the op work along the last axis alone, so that rows stay rows (concat, slice)? */
bool graph_node_keeps_rows(const struct graph_node *node);

#endif
