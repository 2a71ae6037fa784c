/* SPDX-License-Identifier: Apache-2.0 */
/** graph: what is computed.  The op table and its attributes, the token graph, shape and dtype
 *  resolution, the audit, the token-local region.  Knows no files (it asks for tensors through a
 *  callback) and no BLAS. */
#ifndef GRAPH_GRAPH_H
#define GRAPH_GRAPH_H

#include "base/base.h"

/* ---- the op table -------------------------------------------------------------------------- */

/** How an op relates the rows (tokens) of its inputs and its output. */
enum graph_locality {
    LOCAL_ROW,      /* row i depends on row i only */
    LOCAL_TOKENS,   /* mixes tokens (attention, convolution, lstm, mean over tokens) */
    LOCAL_POSITION, /* depends on the position (rope, absolute positions) */
    LOCAL_SHAPE,    /* moves elements between axes (reshape, transpose, concat, slice) */
    LOCAL_SOURCE    /* graph inputs and embeddings */
};

/** id, name in a spec, locality, least and most inputs. */
#define GRAPH_OPS(X)                                                                               \
    X(OP_INPUT, "input", LOCAL_SOURCE, 0, 0)                                                       \
    X(OP_EMBEDDING, "embedding", LOCAL_SOURCE, 1, 1)                                               \
    X(OP_LINEAR, "linear", LOCAL_ROW, 1, 1)                                                        \
    X(OP_LAYER_NORM, "layer_norm", LOCAL_ROW, 1, 1)                                                \
    X(OP_RMS_NORM, "rms_norm", LOCAL_ROW, 1, 1)                                                    \
    X(OP_FLOAT32_RMS_NORM, "float32_rms_norm", LOCAL_ROW, 1, 1)                                    \
    X(OP_L2_NORMALIZE, "l2_normalize", LOCAL_ROW, 1, 1)                                            \
    X(OP_L2_NORM, "l2_norm", LOCAL_ROW, 1,                                                         \
      1)                                    /* max(|x|, eps), width 1: inside projected blocks */  \
    X(OP_RENORM, "renorm", LOCAL_ROW, 1, 1) /* x * max_norm / (|x| + 1e-7) where |x| > max_norm */ \
    X(OP_SCALE, "scale", LOCAL_ROW, 1, 1)                                                          \
    X(OP_BIAS, "bias", LOCAL_ROW, 1, 1) /* x + weight, rounded once */                             \
    X(OP_DROPOUT, "dropout", LOCAL_ROW, 1, 1)                                                      \
    X(OP_IDENTITY, "identity", LOCAL_ROW, 1, 1)                                                    \
    X(OP_RELU, "relu", LOCAL_ROW, 1, 1)                                                            \
    X(OP_RELU6, "relu6", LOCAL_ROW, 1, 1)                                                          \
    X(OP_GELU_ERF, "gelu_erf", LOCAL_ROW, 1, 1)                                                    \
    X(OP_GELU_TANH, "gelu_tanh", LOCAL_ROW, 1, 1)                                                  \
    X(OP_QUICK_GELU, "quick_gelu", LOCAL_ROW, 1, 1)                                                \
    X(OP_SILU, "silu", LOCAL_ROW, 1, 1)                                                            \
    X(OP_TANH, "tanh", LOCAL_ROW, 1, 1)                                                            \
    X(OP_SIGMOID, "sigmoid", LOCAL_ROW, 1, 1)                                                      \
    X(OP_ELU, "elu", LOCAL_ROW, 1, 1)                                                              \
    X(OP_CELU, "celu", LOCAL_ROW, 1, 1)                                                            \
    X(OP_LEAKY_RELU, "leaky_relu", LOCAL_ROW, 1, 1)                                                \
    X(OP_SOFTPLUS, "softplus", LOCAL_ROW, 1, 1)                                                    \
    X(OP_SOFTSIGN, "softsign", LOCAL_ROW, 1, 1)                                                    \
    X(OP_HARDTANH, "hardtanh", LOCAL_ROW, 1, 1)                                                    \
    X(OP_HARDSWISH, "hardswish", LOCAL_ROW, 1, 1)                                                  \
    X(OP_HARDSIGMOID, "hardsigmoid", LOCAL_ROW, 1, 1)                                              \
    X(OP_MISH, "mish", LOCAL_ROW, 1, 1)                                                            \
    X(OP_SELU, "selu", LOCAL_ROW, 1, 1)                                                            \
    X(OP_ADD, "add", LOCAL_ROW, 2, 2)                                                              \
    X(OP_SUB, "sub", LOCAL_ROW, 2, 2)                                                              \
    X(OP_MUL, "mul", LOCAL_ROW, 2, 2)                                                              \
    X(OP_SOFTMAX, "softmax", LOCAL_ROW, 1, 2) /* last axis; optional additive mask */              \
    X(OP_TOP_K, "top_k", LOCAL_ROW, 1, 1)     /* indices, int64 */                                 \
    X(OP_TOP_K_VALUES, "top_k_values", LOCAL_ROW, 1, 1)                                            \
    X(OP_ARGMAX, "argmax", LOCAL_ROW, 1, 1)                                                        \
    X(OP_MOE, "moe", LOCAL_ROW, 2, 3) /* masked softmax mixture of experts */                      \
    X(OP_CONCAT, "concat", LOCAL_SHAPE, 1, 16)                                                     \
    X(OP_SLICE, "slice", LOCAL_SHAPE, 1, 1)                                                        \
    X(OP_RESHAPE, "reshape", LOCAL_SHAPE, 1, 1)                                                    \
    X(OP_TRANSPOSE, "transpose", LOCAL_SHAPE, 1, 1)                                                \
    X(OP_MATMUL, "matmul", LOCAL_TOKENS, 2, 2)                                                     \
    X(OP_ROPE, "rope", LOCAL_POSITION, 1, 2)                                                       \
    X(OP_ABSOLUTE_POSITION, "absolute_position", LOCAL_POSITION, 1, 2)                             \
    X(OP_ATTENTION, "attention", LOCAL_TOKENS, 3, 4)                                               \
    X(OP_LSTM, "lstm", LOCAL_TOKENS, 1, 2)                                                         \
    X(OP_MEAN_TOKENS, "mean_tokens", LOCAL_TOKENS, 1, 2)                                           \
    X(OP_SUM_TOKENS, "sum_tokens", LOCAL_TOKENS, 1, 2)                                             \
    X(OP_MAX_TOKENS, "max_tokens", LOCAL_TOKENS, 1, 2)                                             \
    X(OP_CONV1D, "conv1d", LOCAL_TOKENS, 1, 1)                                                     \
    X(OP_TOKEN_SHIFT, "token_shift", LOCAL_TOKENS, 1, 1)                                           \
    X(OP_BATCH_NORM, "batch_norm", LOCAL_TOKENS, 1, 1)                                             \
    X(OP_LOOKUP, "lookup", LOCAL_SOURCE, 1, 1) /* a recipe's output in a rewritten graph */

enum graph_op {
#define X(id, name, locality, min, max) id,
    GRAPH_OPS(X)
#undef X
        OP_COUNT
};

/** Numeric attributes: slot, key in a spec.  A dtype, flag or choice is stored as its number. */
#define GRAPH_NUMBERS(X)                                                                           \
    X(NUM_EPS, "eps")                                                                              \
    X(NUM_VALUE, "value")                                                                          \
    X(NUM_VALUE_DTYPE, "value_dtype")                                                              \
    X(NUM_ALPHA, "alpha")                                                                          \
    X(NUM_NEGATIVE_SLOPE, "negative_slope")                                                        \
    X(NUM_BETA, "beta")                                                                            \
    X(NUM_THRESHOLD, "threshold")                                                                  \
    X(NUM_MIN, "min")                                                                              \
    X(NUM_MAX, "max")                                                                              \
    X(NUM_P, "p")                                                                                  \
    X(NUM_WEIGHT_OFFSET, "weight_offset")                                                          \
    X(NUM_WEIGHT_OFFSET_DTYPE, "weight_offset_dtype")                                              \
    X(NUM_GROUPS, "groups")                                                                        \
    X(NUM_MAX_NORM, "max_norm")                                                                    \
    X(NUM_K, "k")                                                                                  \
    X(NUM_AXIS, "axis")                                                                            \
    X(NUM_START, "start")                                                                          \
    X(NUM_STOP, "stop")                                                                            \
    X(NUM_HEADS, "heads")                                                                          \
    X(NUM_KV_HEADS, "kv_heads")                                                                    \
    X(NUM_HEAD_DIM, "head_dim")                                                                    \
    X(NUM_CAUSAL, "causal")                                                                        \
    X(NUM_THETA, "theta")                                                                          \
    X(NUM_ROTARY_DIM, "rotary_dim")                                                                \
    X(NUM_CONVENTION, "convention") /* rope: 0 half, 1 interleaved; lstm "gates": 0 ifco, 1 ifgo   \
                                       (two names of one order: c, g is the candidate), 2 iofc */  \
    X(NUM_SCALE, "scale")                                                                          \
    X(NUM_REVERSE, "reverse")                                                                      \
    X(NUM_BIDIRECTIONAL, "bidirectional")                                                          \
    X(NUM_TRANSPOSE_B, "transpose_b")                                                              \
    X(NUM_EXPERTS, "experts")

enum graph_number {
#define X(id, key) id,
    GRAPH_NUMBERS(X)
#undef X
        NUM_COUNT
};

enum graph_attr_kind {
    ATTR_NUMBER, /* finite number, in [min, max] */
    ATTR_COUNT,  /* positive integer */
    ATTR_INTEGER,
    ATTR_BOOL,
    ATTR_DTYPE,
    ATTR_CHOICE,      /* one of `choices`, '|' between them; stored as its index */
    ATTR_TENSOR,      /* name of a checkpoint tensor */
    ATTR_DIMS,        /* list of integers */
    ATTR_ORIENTATION, /* "out_in" or "in_out": how the op's matrices are stored */
    ATTR_SPLIT,       /* which part of a fused tensor the op's weights are */
    ATTR_TEXT         /* free text; slot is an enum graph_text */
};

/** One attribute of an op as a spec may write it. */
struct graph_attr {
    const char *key;
    enum graph_attr_kind kind;
    int slot; /* enum graph_number; for ATTR_TENSOR the role; -1 for dims */
    bool required;
    double default_value, min, max;
    const char *choices;
};

/** Weight roles of a node.  moe: slope, offset ([experts, width]).  lstm: RECURRENT, and EXTRA for
 * the backward direction. */
enum graph_role { ROLE_WEIGHT, ROLE_BIAS, ROLE_RECURRENT, ROLE_EXTRA, ROLE_COUNT };

/** Text attributes of a node (op lookup). */
enum graph_text { TEXT_RECIPE, TEXT_OUTPUT, TEXT_COUNT };

struct graph_op_info {
    const char *name;
    enum graph_locality locality;
    unsigned min_inputs, max_inputs;
    const struct graph_attr *attrs;
    size_t n_attrs;
};
/** Pure; static storage. */
const struct graph_op_info *graph_op(enum graph_op op);
/** OP_COUNT when the name is unknown. */
enum graph_op graph_op_find(const char *name);
/** Attribute of an op by key, NULL when it has none of that name. */
const struct graph_attr *graph_attr_find(enum graph_op op, const char *key);
/** Known op name nearest to `name`, for messages. */
const char *graph_op_nearest(const char *name);
/** May the op stand in the list of layers of a block (lookup, fanout)?  Pure. */
bool graph_op_is_layer(enum graph_op op);
/** Why an op cannot be tabulated token by token ("mixes tokens: ..."), NULL where it can.  Also
 * knows names that are no ops here but known to mix tokens ("gru", "positional_embedding").  Pure.
 */
const char *graph_op_reason(const char *name);

/* ---- the token graph ----------------------------------------------------------------------- */

/** Which part of a fused tensor a weight is (`split`), applied to its rows as [out, in]. */
enum graph_split { SPLIT_NONE, SPLIT_BLOCKS, SPLIT_PER_HEAD_INTERLEAVED };

/** A tensor, or a declared slice of one, that nodes read.  (tensor, slice) pairs are unique. */
struct graph_weight {
    char *tensor;  /* owned: name in the spec (before aliases) */
    char *backing; /* owned: name in the checkpoint (after aliases) */
    char *where;   /* owned: JSON path of its first use */
    bool in_out;   /* stored [in, out]; transposed to [out, in] on load */
    enum graph_split split;
    uint32_t part; /* blocks: which; interleaved: 0 q, 1 k, 2 v */
    uint32_t n_parts;
    uint32_t heads, kv_heads, head_dim;
    uint64_t slice_first, slice_count; /* SPLIT_BLOCKS with explicit rows; count 0: equal parts */
    /* resolved by graph_resolve: */
    enum dtype dtype;
    uint64_t tensor_rows, tensor_cols; /* as stored; a vector is [rows, 1] with rank 1 */
    unsigned tensor_rank;
    uint64_t rows, cols; /* as used: [out, in]; vectors [n, 1] */
    bool retained;       /* something outside the block reads it */
    bool split_inputs;   /* SPLIT_BLOCKS counts columns of [out, in] ("axis": "in"), not rows */
};

enum { GRAPH_MAX_INPUTS = 16, GRAPH_MAX_DIMS = 8 };

struct graph_node {
    enum graph_op op;
    char *name;  /* owned: unique in the graph; the JSON path in block form ("branches.q[0]") */
    char *where; /* owned: JSON path, for messages */
    unsigned n_inputs;
    uint32_t inputs[GRAPH_MAX_INPUTS]; /* indices of earlier nodes */
    double numbers[NUM_COUNT];
    int32_t weights[ROLE_COUNT]; /* index into graph.weights, -1 for none */
    int64_t dims[GRAPH_MAX_DIMS];
    unsigned n_dims;
    char *texts[TEXT_COUNT]; /* owned or NULL */
    /* resolved by graph_resolve for token-local nodes: */
    enum dtype dtype;
    uint64_t width;
};

struct graph {
    struct graph_node *nodes; /* topological order */
    size_t n_nodes;
    struct graph_weight *weights;
    size_t n_weights;
};

/** One named result. */
struct graph_output {
    char *name; /* owned */
    uint32_t node;
    enum dtype dtype;        /* resolved */
    uint64_t width;          /* resolved */
    uint32_t decision_top_k; /* 0: no decision declared */
    bool decision_softmax;
};

enum graph_block_kind { BLOCK_LOOKUP, BLOCK_FANOUT, BLOCK_PROJECTED };

/** A token-local block: one token-id input (node 0), one embedding (node 1), row-local ops.
 *  tables: what is stored.  results: what a call of the block returns and what the validation
 *  computes directly.  Lookup and fanout: the same lists.  Projected: tables z [V, out] and r [V,
 * 1]; results "raw" = linear(e) and "normalized" = linear(e / max(|e|, eps)). */
struct graph_block {
    enum graph_block_kind kind;
    char *name;  /* owned; "block" unless named */
    char *where; /* owned: JSON path of the block */
    struct graph graph;
    struct graph_output *tables, *results;
    size_t n_tables, n_results;
    int32_t bias_weight; /* projected: index of the bias that lies in the recipe; -1 */
    bool retain_projection;
    char **external_consumers; /* owned list of tensor names */
    size_t n_external_consumers;
    char **external_backings; /* owned list, the same names after aliases */
    /* resolved: */
    uint64_t rows_in_checkpoint; /* rows of the embedding tensor */
};

/** What an input of an enclosing model holds. */
enum graph_input_kind { INPUT_TOKEN_IDS, INPUT_VALUES, INPUT_MASK, INPUT_INTEGERS };

struct graph_model_input {
    char *name; /* owned */
    enum graph_input_kind kind;
    enum dtype dtype;
    uint32_t node; /* its OP_INPUT node */
};

/** An enclosing model (graph form): any ops, several inputs, named outputs.  The outputs' dtype and
 *  width stay unresolved (DT_UNKNOWN, 0). */
struct graph_model {
    struct graph graph;
    struct graph_model_input *inputs;
    size_t n_inputs;
    struct graph_output *outputs;
    size_t n_outputs;
};

/** Release what the structs hold, not the structs; all zero is empty, and that is what is left. */
void graph_free(struct graph *g);
void graph_block_free(struct graph_block *b);
/** The same for nodes and weights that no graph has taken over. */
void graph_node_free(struct graph_node *node);
void graph_weight_free(struct graph_weight *w);
/** Release the model and set *m to NULL; NULL is fine. */
void graph_model_free(struct graph_model **m);

/** Append a node; its strings are taken over on success (and the caller's pointers set to NULL).
 *  Inputs must be earlier nodes, as many as the op takes; the name new.  ST_NOMEM, ST_SPEC. */
NODISCARD enum status graph_node_take(struct graph *g, struct graph_node *node, uint32_t *index,
                                      struct err *err);
/** Index of the weight equal to *w in (tensor, slice, orientation), appended if new; *w's strings
 * are taken over either way, also on failure.  ST_NOMEM. */
NODISCARD enum status graph_weight_take(struct graph *g, struct graph_weight *w, int32_t *index,
                                        struct err *err);
/** A node with defaults: no inputs, no weights, default numbers of its op. */
void graph_node_init(struct graph_node *node, enum graph_op op);

/* ---- resolution and audit ------------------------------------------------------------------ */

struct graph_tensor_info {
    enum dtype dtype;
    const char *dtype_text;
    unsigned rank;
    uint64_t shape[GRAPH_MAX_DIMS];
};
/** Describe checkpoint tensor `name`; its own message (nearest names and so on) in *err on failure.
 */
typedef enum status (*graph_tensor_fn)(void *ctx, const char *name, struct graph_tensor_info *out,
                                       struct err *err);

/** Resolve weights, shapes, widths and dtypes of a block against a checkpoint: shape mismatch,
 * missing tensor, dtype not computable ("quantised" for integers) each name JSON path, expected,
 * found. Dtype of an op's result: dtype_promote of its input and its weights.  Also marks retained
 * weights (external_consumers).  Local.  ST_SPEC, ST_STRUCTURE, ST_FORMAT, ST_NOMEM. */
NODISCARD enum status graph_block_resolve(struct graph_block *b, graph_tensor_fn find, void *ctx,
                                          struct err *err);
/** Everything of DESIGN.md "Refused" that a graph can show: ops that are not row-local (the reason
 * names the node and why), zero-size vocabulary, two embeddings, node not reached from the token.
 *  ST_STRUCTURE.  Pure but for *err. */
NODISCARD enum status graph_block_audit(const struct graph_block *b, struct err *err);

/** Bytes of the distinct (tensor, slice) pairs a block reads: logical, and unique after aliases. */
struct graph_storage {
    uint64_t logical_bytes, unique_bytes;
    uint64_t retained_logical_bytes,
        retained_unique_bytes; /* external consumers, projection kept */
    uint64_t bias_bytes;       /* projected: bias in the recipe */
};
NODISCARD enum status graph_block_storage(const struct graph_block *b, struct graph_storage *out,
                                          struct err *err);
/** Is the split of *w possible in a tensor of `rank` and `shape`, and what is left of it?  Sets
 *  tensor_rows, tensor_cols, tensor_rank, rows, cols.  ST_SPEC naming w->where and the numbers. */
NODISCARD enum status graph_weight_shape(struct graph_weight *w, unsigned rank,
                                         const uint64_t *shape, struct err *err);
/** Copy a resolved weight out of its whole stored tensor to contiguous [rows, cols] = [out, in],
 *  orientation and split applied.  Pure.
 *  @param[in] stored     tensor_rows x tensor_cols elements of elem_size bytes, any alignment
 *  @param[out] dst       rows x cols elements */
void graph_weight_gather(const struct graph_weight *w, const void *stored, size_t elem_size,
                         void *dst);
/** Is the weight its whole tensor as stored, so that the bytes can be used without a gather?  Pure.
 */
bool graph_weight_is_plain(const struct graph_weight *w);
/** Bytes of one weight as used. */
uint64_t graph_weight_bytes(const struct graph_weight *w);
/** Canonical text of ops, attributes and wiring (no tensor names, no paths): what a fingerprint
 * covers. */
NODISCARD enum status graph_block_canonical(const struct graph_block *b, struct bytes *out,
                                            struct err *err);
/** Does any linear of the block carry a bias (then prefilled and added are different executions)?
 */
bool graph_block_has_bias(const struct graph_block *b);
/** Does any node's arithmetic depend on the row count (a linear)? */
bool graph_block_has_linear(const struct graph_block *b);
/** Floating-point operations of one row through the tables' nodes. */
double graph_block_flops(const struct graph_block *b);

/* ---- enclosing models: graph_region.c -------------------------------------------------------- */

/** Resolve the weights of a model (dtype, shape, slice) against a checkpoint; nodes stay as they
 *  are: their shapes are those of a run.  Local.  As graph_block_resolve. */
NODISCARD enum status graph_model_resolve(struct graph_model *m, graph_tensor_fn find, void *ctx,
                                          struct err *err);
/** Bytes of the distinct weights that the live nodes of a resolved model read. */
NODISCARD enum status graph_model_storage(const struct graph_model *m, struct graph_storage *out,
                                          struct err *err);
/** live[i]: an output depends on node i.  live has graph.n_nodes.  Pure. */
void graph_model_live(const struct graph_model *m, bool *live);

/** A region that the user names: its token-local ancestors down to the embedding belong to it. */
struct graph_region_request {
    const char *name, *where; /* where: JSON path, for messages */
    const uint32_t *nodes;    /* indices of nodes of the model */
    size_t n_nodes;
};

/** A token-local region of a model. */
struct graph_region {
    char *name;         /* owned; that of its embedding unless the user named it */
    char *reason;       /* owned; why it stays as it is, NULL where block can be tabulated */
    uint32_t embedding; /* node of the model */
    bool *members;      /* owned; [model->graph.n_nodes] */
    /** Frontier: members that something outside reads or that are outputs, in node order, the
     *  embedding itself last; nodes of the model, one for each table of the block. */
    uint32_t *frontier; /* owned */
    size_t n_frontier;
    struct graph_block block; /* owned; a fanout, unresolved; empty where reason is set early */
};

/** Binding-time analysis.  Without requests: for each live embedding the maximal region, all nodes
 *  that depend on the token through this embedding and row-local ops alone (selections, masked
 *  softmax and mixtures of experts stay outside, as does what only joins or cuts columns).  With
 * requests: those regions alone.  A region of which the embedding alone is read, and one that
 * shares a node with a larger one (the earlier, when equal), get a reason.  Weights that live nodes
 * outside read too become external consumers of the block. *out is owned (graph_regions_free).
 * Local.
 *  @return ST_OK, ST_STRUCTURE (a named node is not token-local: says why), ST_SPEC (named nodes
 *  have different embeddings), ST_NOMEM */
NODISCARD enum status graph_regions_find(const struct graph_model *m,
                                         const struct graph_region_request *requests,
                                         size_t n_requests, struct graph_region **out, size_t *n,
                                         struct err *err);
void graph_regions_free(struct graph_region **regions, size_t n);

#endif
